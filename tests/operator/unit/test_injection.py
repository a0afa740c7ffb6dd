"""What is made of a template: what each container of a run can see, and what guard and trainer are told."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic import ValidationError

from guard_core.feed import Feed
from guard_core.policy import Policy
from guard_operator.adapters import find_adapter
from guard_operator.api.types import ResumedFrom, Spec, Status
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.guard_pod import guard_objects
from guard_operator.reconcile.inject import build_workload
from guard_operator.reconcile.snapshot import Job
from guard_operator.reconcile.support import new_credentials, support_objects
from guard_service.heldout.config import HeldoutSettings
from guard_service.settings import GuardSettings

ADAPTER = find_adapter("kubeflow.org/v1", "PyTorchJob")
assert ADAPTER is not None
CONFIG = OperatorConfig(guard_image="guard:1")
UID, SECRET = "0123456789ab", "run-01234567"
PLACEMENTS = ["Sidecar", "Pod"]
GUARD, WAITER = "rlguard-guard", "wait-for-guard"
Json = dict[str, Any]


def template() -> Json:
    pod = {
        "initContainers": [{"name": "download", "image": "dl:1"}],
        "containers": [
            {
                "name": "pytorch",
                "image": "trainer:1",
                "env": [{"name": "A", "value": "b"}],
                "volumeMounts": [{"name": "ckpt", "mountPath": "/ckpt", "subPath": "run"}],
            },
            {"name": "logger", "image": "log:1"},
        ],
        "volumes": [{"name": "ckpt", "persistentVolumeClaim": {"claimName": "ckpt"}}],
    }
    worker = copy.deepcopy(pod)
    return {
        "pytorchReplicaSpecs": {
            "Master": {"replicas": 1, "template": {"metadata": {"labels": {"team": "x"}}, "spec": pod}},
            "Worker": {"replicas": 3, "template": {"spec": worker}},
        }
    }


def job(spec: Json | None = None, labels: dict[str, str] | None = None, **guard: Any) -> Job:
    heldout = {"volume": {"claimName": "heldout"}, "split": "a/split.jsonl", "evaluator": {"hf": {}}}
    body = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": spec or template()}
    given = {"heldout": heldout, "checkpoints": {"volume": "ckpt"}, **guard}
    parsed = Spec.model_validate({"template": body, "guard": given})
    return Job("run", "ns", UID, 1, "1", labels or {}, parsed, Status())


def patient(silent: int, action: str = "Stop", spec: Json | None = None, **guard: Any) -> Job:
    """A job whose guard may be silent for so many seconds."""
    given = job(spec, **guard)
    on_silence = given.spec.on_silence.model_copy(update={"after_seconds": silent, "action": action})
    return replace(given, spec=given.spec.model_copy(update={"on_silence": on_silence}))


def trainer_template(workload: Json, role: str = "Master") -> Json:
    found: Json = workload["spec"]["pytorchReplicaSpecs"][role]["template"]
    return found


def trainer_pod(of: Job, role: str = "Master") -> Json:
    assert ADAPTER is not None
    pod: Json = trainer_template(build_workload(of, ADAPTER, CONFIG), role)["spec"]
    return pod


def guard_pod_template(of: Job) -> Json:
    """The template of the pod that has the guard."""
    assert ADAPTER is not None
    own = of.spec.guard.own_pod
    if own is None:
        return trainer_template(build_workload(of, ADAPTER, CONFIG))
    objects = {resource.kind: body for resource, body in guard_objects(of, own, ADAPTER, CONFIG)}
    found: Json = objects["StatefulSet"]["spec"]["template"]
    return found


def guard_of(of: Job) -> Json:
    return container(guard_pod_template(of)["spec"], GUARD)


def container(pod: Json, name: str) -> Json:
    found: Json = next(c for c in pod["containers"] + pod.get("initContainers", []) if c["name"] == name)
    return found


def env(container: Json) -> Json:
    """Values of variables; of one that a Secret or a field of the pod has, what it refers to."""
    found = {}
    for one in container.get("env", []):
        source = next(iter(one.get("valueFrom", {"": None}).values()))
        found[one["name"]] = one.get("value", source)
    return found


def volumes_of(pod: Json, name: str) -> set[str]:
    return {mount["name"] for mount in container(pod, name).get("volumeMounts", [])}


def own_variables(container: Json) -> set[str]:
    return {name for name in env(container) if name.startswith("RLGUARD_")}


# -- what each container can see -------------------------------------------------------------------------


def test_the_guard_is_the_same_container_in_both_placements() -> None:
    beside, alone = (guard_of(job(placement=placement)) for placement in PLACEMENTS)
    assert beside.pop("restartPolicy") == "Always", "a native sidecar"
    assert beside == alone


def test_the_sidecar_is_the_last_to_start_before_the_trainer() -> None:
    assert [c["name"] for c in trainer_pod(job())["initContainers"]] == ["download", GUARD]


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("role", ["Master", "Worker"])
def test_no_container_but_the_guard_has_split_state_private_key_policy_or_tokens(
    placement: str, role: str
) -> None:
    pod = trainer_pod(job(placement=placement), role)
    for one in pod["containers"] + pod["initContainers"]:
        if one["name"] == GUARD:
            continue
        assert volumes_of(pod, one["name"]) <= {"ckpt"}
        keys = {ref["key"] for ref in env(one).values() if isinstance(ref, dict)}
        assert keys <= {"tls.crt", "ingest-token"}
        assert "ingest-token" not in keys or one["name"] == "pytorch"
    if placement == "Pod":
        assert not [v for v in pod["volumes"] if v["name"].startswith("rlguard-")]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_nobody_in_a_run_has_a_token_of_the_api_server(placement: str) -> None:
    of = job(placement=placement)
    for pod in (trainer_pod(of), trainer_pod(of, "Worker"), guard_pod_template(of)["spec"]):
        assert pod["automountServiceAccountToken"] is False
        assert "serviceAccountToken" not in str(pod["volumes"])


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_service_account_of_a_template_stays_and_the_guard_has_none(placement: str) -> None:
    spec = template()
    trainer_template({"spec": spec})["spec"]["serviceAccountName"] = "irsa"
    assert trainer_pod(job(spec, placement=placement))["serviceAccountName"] == "irsa"
    assert "serviceAccountName" not in trainer_pod(job(placement=placement))
    assert "serviceAccountName" not in guard_pod_template(job(placement="Pod"))["spec"]


def test_the_guard_writes_its_state_and_its_scratch_alone() -> None:
    guard = guard_of(job())
    mounts = {mount["name"]: mount for mount in guard["volumeMounts"]}
    writable = {name for name, mount in mounts.items() if not mount.get("readOnly")}
    assert writable == {"rlguard-state", "rlguard-tmp", "rlguard-shm"}
    assert mounts["ckpt"] == {"name": "ckpt", "mountPath": "/ckpt", "subPath": "run", "readOnly": True}
    heldout = next(v for v in guard_pod_template(job())["spec"]["volumes"] if v["name"] == "rlguard-heldout")
    assert heldout["persistentVolumeClaim"] == {"claimName": "heldout", "readOnly": True}
    security = guard["securityContext"]
    assert security["runAsNonRoot"] and security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"] and security["capabilities"] == {"drop": ["ALL"]}


def test_the_users_own_containers_are_left_as_they_are() -> None:
    """Root and capabilities are theirs: what matters is refused before, by the isolation table."""
    spec = template()
    for one in trainer_template({"spec": spec})["spec"]["containers"]:
        one["securityContext"] = {"runAsUser": 0, "capabilities": {"add": ["IPC_LOCK"]}}
    pod = trainer_pod(job(spec))
    for name in ("pytorch", "logger"):
        assert container(pod, name)["securityContext"] == {
            "runAsUser": 0,
            "capabilities": {"add": ["IPC_LOCK"]},
        }
    assert container(pod, "logger").keys() == {"name", "image", "securityContext"}


def test_the_template_is_left_as_it_is() -> None:
    one = job()
    trainer_pod(one)
    assert one.spec.made_from.spec == template()


# -- what the trainer is told ----------------------------------------------------------------------------


@pytest.mark.parametrize(("placement", "host"), [("Sidecar", "127.0.0.1"), ("Pod", "run-01234567.ns.svc")])
def test_the_trainer_has_address_certificate_and_token(placement: str, host: str) -> None:
    trainer = container(trainer_pod(job(placement=placement, port=9000)), "pytorch")
    given = env(trainer)
    assert given["RLGUARD_URL"] == f"https://{host}:9000"
    assert given["RLGUARD_CA"] == {"name": SECRET, "key": "tls.crt"}
    assert given["RLGUARD_TOKEN"] == {"name": SECRET, "key": "ingest-token"}
    assert given["A"] == "b"
    # A sidecar ends with its trainer, which therefore waits for the last evaluations.
    assert given.get("RLGUARD_DRAIN_SECONDS") == ("300" if placement == "Sidecar" else None)


FOLLOWED = {"follow": {"path": "run/metrics.jsonl", "format": "verl"}, "checkpoints": {"path": "run"}}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_trainer_that_is_followed_is_told_nothing(placement: str) -> None:
    of = job(metrics=FOLLOWED, placement=placement)
    assert env(container(trainer_pod(of), "pytorch")) == {"A": "b"}
    said = Feed.model_validate_json(env(guard_of(of))["RLGUARD_GUARD_METRICS"])
    assert (said.follow.path, said.layout, said.checkpoints.path) == ("run/metrics.jsonl", "verl", "run")
    assert "RLGUARD_GUARD_METRICS" not in env(guard_of(job()))


#: `onSilence`, `maxLag` and the variable that the template itself sets; what the trainer then has of it.
PATIENCE: dict[str, tuple[Job, Json]] = {
    "as long as its own default": (patient(300), {}),
    "longer": (patient(301), {"RLGUARD_UNREACHABLE_SECONDS": "301"}),
    "in a pod of its own, too": (patient(900, placement="Pod"), {"RLGUARD_UNREACHABLE_SECONDS": "900"}),
    "goes on": (patient(600, "Warn"), {"RLGUARD_ON_UNREACHABLE": "continue"}),
    "never waits": (patient(300, maxLag="off"), {"RLGUARD_MAX_LAG": "off"}),
    "waits at each": (patient(300, maxLag=0), {"RLGUARD_MAX_LAG": "0"}),
}


@pytest.mark.parametrize(("of", "told"), PATIENCE.values(), ids=PATIENCE.keys())
def test_a_trainer_waits_for_its_guard_as_its_job_says(of: Job, told: Json) -> None:
    waits = ("RLGUARD_UNREACHABLE_SECONDS", "RLGUARD_ON_UNREACHABLE", "RLGUARD_MAX_LAG")
    given = env(container(trainer_pod(of), "pytorch"))
    assert {name: given[name] for name in waits if name in given} == told


@pytest.mark.parametrize(
    "name",
    [
        "RLGUARD_UNREACHABLE_SECONDS",
        "RLGUARD_ON_UNREACHABLE",
        "RLGUARD_MAX_LAG",
        "RLGUARD_DRAIN_SECONDS",
    ],
)
def test_what_a_template_says_about_waiting_stays(name: str) -> None:
    spec = template()
    trainer_template({"spec": spec})["spec"]["containers"][0]["env"] = [{"name": name, "value": "7"}]
    for action in ("Stop", "Warn"):
        trainer = container(trainer_pod(patient(900, action, spec, maxLag=2)), "pytorch")
        assert [one["value"] for one in trainer["env"] if one["name"] == name] == ["7"]


def test_every_rank_is_told_from_where_it_starts() -> None:
    """What the template says of it is of an earlier run; the kubelet would replace a variable."""
    spec = template()
    for role in ("Master", "Worker"):
        trainer = trainer_template({"spec": spec}, role)["spec"]["containers"][0]
        trainer["env"] = [{"name": "RLGUARD_RUN", "value": "old"}, *trainer["env"]]
    one, origin = job(spec), ResumedFrom(name="before", checkpoint="/ckpt/a $(HOME)")
    of = replace(one, spec=one.spec.model_copy(update={"resumed_from": origin}))
    for role in ("Master", "Worker"):
        variables = container(trainer_pod(of, role), "pytorch")["env"]
        assert [(one["name"], one["value"]) for one in variables[:3]] == [
            ("RLGUARD_RESUME_FROM", "/ckpt/a $$(HOME)"),
            ("RLGUARD_RUN", SECRET),
            ("A", "b"),
        ]
        assert not own_variables(container(trainer_pod(of, role), "logger"))
    assert "RLGUARD_RUN" not in str(trainer_pod(job()))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_rank_ends_with_words_unless_its_author_says_how(placement: str) -> None:
    spec = template()
    for role in ("Master", "Worker"):
        pod = trainer_pod(job(spec, placement=placement), role)
        found = {c["name"]: c.get("terminationMessagePolicy") for c in pod["containers"]}
        assert found == {"pytorch": "FallbackToLogsOnError", "logger": None}
    trainer_template({"spec": spec})["spec"]["containers"][0]["terminationMessagePolicy"] = "File"
    trainer = container(trainer_pod(job(spec, placement=placement)), "pytorch")
    assert trainer["terminationMessagePolicy"] == "File"


# -- what the guard is told ------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_guard_reads_its_environment(monkeypatch: pytest.MonkeyPatch, placement: str) -> None:
    """Contract with guard_service: the whole environment is valid there."""
    given = env(guard_of(job(port=9000, placement=placement, state={"claimName": "s", "keepBest": True})))
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = GuardSettings()
    assert (settings.host, settings.port) == ("::", 9000)
    secrets = "/var/run/rlguard/secrets"
    for path, key in (
        (settings.tls_certificate, "tls.crt"),
        (settings.tls_key, "tls.key"),
        (settings.ingest_token_file, "ingest-token"),
        (settings.read_token_file, "read-token"),
        (settings.supervisor_token_file, "supervisor-token"),
    ):
        assert str(path) == f"{secrets}/{key}"
    assert str(settings.termination_message) == guard_of(job())["terminationMessagePath"]
    assert str(settings.checkpoint_root) == "/ckpt" and settings.keep_best_checkpoint
    mounted = {mount["mountPath"] for mount in guard_of(job())["volumeMounts"]}
    assert {str(settings.state_dir), secrets} <= mounted
    assert settings.heldout is not None and settings.heldout.evaluator.kind == "hf"
    assert str(settings.policy_file).startswith(tuple(mounted))
    assert not [name for name in given if "CLUSTER" in name or "KUBERNETES" in name]


@pytest.mark.parametrize(
    "evaluator",
    [
        {"hf": {"batchSize": 4, "maxNewTokens": 8, "chatTemplateKwargs": {"maxDepth": 3}}},
        {"vllm": {"tensorParallelSize": 2, "enforceEager": True}},
    ],
)
def test_the_guard_reads_its_heldout_settings(evaluator: Json) -> None:
    heldout = {
        "volume": {"secretName": "s"},
        "trainPrompts": "train.jsonl",
        "proxyScorer": "grader:pay",
        "scorerTimeoutSeconds": 30,
        "onScorerTimeout": "wrong",
        "scorerConcurrency": 2,
        "evaluator": evaluator,
    }
    given = env(guard_of(job(heldout=heldout, placement="Pod")))["RLGUARD_GUARD_HELDOUT"]
    settings = HeldoutSettings.model_validate(json.loads(given))
    assert str(settings.split) == "/var/run/rlguard/heldout/heldout.jsonl"
    assert str(settings.train_prompts) == "/var/run/rlguard/heldout/train.jsonl"
    assert settings.proxy_scorer == "grader:pay"
    limit = (settings.scorer_timeout_seconds, settings.on_scorer_timeout, settings.scorer_concurrency)
    assert limit == (30.0, "wrong", 2)
    assert settings.evaluator.kind in evaluator
    # Names of a chat template are the user's own, and are not respelled.
    assert settings.evaluator.chat_template_kwargs == ({"maxDepth": 3} if "hf" in evaluator else None)


@pytest.mark.parametrize("text", ["$$x$$", "$(HOME)", "a $$(HOME) $5 $", "$$$", "plain"])
def test_the_guard_reads_what_looks_like_a_variable_as_it_was_written(text: str) -> None:
    """The kubelet makes `$` of `$$`, and replaces `$(NAME)` where it knows the name."""
    volume = {"claimName": "heldout"}
    heldout = {"volume": volume, "evaluator": {"hf": {"systemPrompt": text, "answerAfter": text}}}
    read = re.sub(
        r"\$(\$|\((\w+)\))",
        lambda found: "$" if found[1] == "$" else {"HOME": "/root"}.get(found[2], found[0]),
        env(guard_of(job(heldout=heldout)))["RLGUARD_GUARD_HELDOUT"],
    )
    evaluator = json.loads(read)["evaluator"]
    assert evaluator["system_prompt"] == evaluator["answer_after"] == text


def test_where_every_pod_has_a_guard_each_knows_its_index_and_has_a_folder_of_its_own() -> None:
    spec = template()
    del spec["pytorchReplicaSpecs"]["Master"]
    guard = container(trainer_pod(job(spec, state={"claimName": "guards"}), "Worker"), GUARD)
    field = env(guard)["RLGUARD_GUARD_REPLICA_INDEX"]["fieldPath"]
    assert field == "metadata.labels['training.kubeflow.org/replica-index']"
    state = next(mount for mount in guard["volumeMounts"] if mount["name"] == "rlguard-state")
    assert state["subPathExpr"] == f"{UID}/$(RLGUARD_GUARD_REPLICA_INDEX)"
    assert "RLGUARD_GUARD_REPLICA_INDEX" not in env(guard_of(job()))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_state_is_lost_with_the_pod_unless_it_has_a_claim(placement: str) -> None:
    def state(**guard: Any) -> tuple[Json, Json]:
        pod = guard_pod_template(job(placement=placement, **guard))["spec"]
        volume = next(v for v in pod["volumes"] if v["name"] == "rlguard-state")
        mounts = container(pod, GUARD)["volumeMounts"]
        return volume, next(mount for mount in mounts if mount["name"] == "rlguard-state")

    assert state()[0] == {"name": "rlguard-state", "emptyDir": {}} and "subPath" not in state()[1]
    volume, mount = state(state={"claimName": "guards"})
    assert volume["persistentVolumeClaim"] == {"claimName": "guards"}
    assert mount["subPath"] == UID, "another job may use the claim, too"


def test_resources_and_image_of_the_job_win() -> None:
    own = {"requests": {"cpu": 1}, "limits": {"nvidia.com/gpu": "1"}}
    one = guard_of(job(image="mine:2", imagePullPolicy="Never", resources=own))
    assert (one["image"], one["imagePullPolicy"], one["resources"]) == ("mine:2", "Never", own)
    default = guard_of(job())
    assert (default["image"], default["resources"]) == ("guard:1", CONFIG.guard_resources)
    assert "imagePullPolicy" not in default


def test_an_evaluator_that_opens_sockets_has_a_pod_of_its_own() -> None:
    heldout = {"volume": {"claimName": "heldout"}, "evaluator": {"vllm": {}}}
    with pytest.raises(ValidationError, match="vllm needs placement: Pod"):
        job(heldout=heldout)
    assert guard_of(job(heldout=heldout, placement="Pod"))["name"] == GUARD


@pytest.mark.parametrize("state", [{"keepBest": True}, {"keepBest": True, "claimName": "heldout"}])
def test_a_best_checkpoint_that_could_not_be_kept_is_refused(state: Json) -> None:
    with pytest.raises(ValidationError, match=r"state\.(keepBest needs|claimName must not be)"):
        job(state=state)


# -- labels, owners, meshes, queues ----------------------------------------------------------------------


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_pod_of_a_run_has_the_labels_of_its_job(placement: str) -> None:
    assert ADAPTER is not None
    of = job(placement=placement)
    workload = build_workload(of, ADAPTER, CONFIG)
    for one in (trainer_template(workload), trainer_template(workload, "Worker"), guard_pod_template(of)):
        assert one["metadata"]["labels"]["rlguard.dev/job-uid"] == UID
        assert one["metadata"]["labels"]["rlguard.dev/job"] == "run"
    assert trainer_template(workload)["metadata"]["labels"]["team"] == "x"
    if placement == "Sidecar":
        assert [c["name"] for c in trainer_pod(of, "Worker")["initContainers"]] == ["download"]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_service_mesh_leaves_the_guards_port_alone(placement: str) -> None:
    assert ADAPTER is not None
    spec = template()
    inbound = {"traffic.sidecar.istio.io/excludeInboundPorts": "22,2222"}
    trainer_template({"spec": spec})["metadata"]["annotations"] = inbound
    of = job(spec, port=9000, placement=placement)
    workload = build_workload(of, ADAPTER, CONFIG)
    ports = [
        "traffic.sidecar.istio.io/excludeInboundPorts",
        "traffic.sidecar.istio.io/excludeOutboundPorts",
        "config.linkerd.io/skip-inbound-ports",
        "config.linkerd.io/skip-outbound-ports",
    ]
    trainer = trainer_template(workload)["metadata"]["annotations"]
    assert [trainer[name] for name in ports] == ["22,2222,9000", "9000", "9000", "9000"]
    guard = guard_pod_template(of)["metadata"]["annotations"]
    assert {guard[name].split(",")[-1] for name in ports} == {"9000"}


def test_the_job_owns_its_workload_and_hands_on_its_queue() -> None:
    assert ADAPTER is not None
    for_kueue = {"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/priority-class": "high"}
    metadata = build_workload(job(labels=for_kueue | {"other": "x"}), ADAPTER, CONFIG)["metadata"]
    assert metadata["labels"].items() >= for_kueue.items() and "other" not in metadata["labels"]
    (owner,) = metadata["ownerReferences"]
    assert owner["uid"] == UID and owner["controller"] and not owner["blockOwnerDeletion"]


# -- Secret and ConfigMap --------------------------------------------------------------------------------

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def support(of: Job, credentials: dict[str, str]) -> dict[str, Json]:
    objects = support_objects(of, of.spec.guard.policy, credentials)
    return {resource.kind: body for resource, body in objects}


def test_a_job_gets_one_secret_and_one_config_map_that_nobody_can_edit() -> None:
    found = support(job(), {"tls.key": "secret"})
    assert found.keys() == {"Secret", "ConfigMap"}
    assert found["Secret"]["stringData"] == {"tls.key": "secret"}
    for body in found.values():
        assert body["immutable"] is True and body["metadata"]["name"] == SECRET
        assert body["metadata"]["ownerReferences"][0]["uid"] == UID


def test_the_policy_reaches_the_guard_as_it_reads_it() -> None:
    of = job(policy={"kl": {"hardStop": 0.3}, "silent": {"action": "Stop"}})
    policy = Policy.model_validate(yaml.safe_load(support(of, {})["ConfigMap"]["data"]["policy.yaml"]))
    assert (policy.kl.hard_stop, policy.silent.action) == (0.3, "stop")


def test_credentials_are_new_each_time_and_good_for_both_addresses() -> None:
    one, other = (new_credentials(job(), NOW) for _ in range(2))
    assert one.keys() == {"tls.crt", "tls.key", "ingest-token", "read-token", "supervisor-token"}
    values = [*one.values(), *other.values()]
    assert len(set(values)) == len(values)
    certificate = x509.load_pem_x509_certificate(one["tls.crt"].encode())
    hosts = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert hosts.get_values_for_type(x509.DNSName) == ["run-01234567.ns.svc"]
    assert hosts.get_values_for_type(x509.IPAddress) == [ip_address("127.0.0.1")]
    key = load_pem_private_key(one["tls.key"].encode(), None)
    assert key.public_key() == certificate.public_key()
