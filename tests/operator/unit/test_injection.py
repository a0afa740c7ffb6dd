"""What is made of a template: what each container of a run can see, and what guard and trainer are told."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from guard_service.heldout.config import HeldoutSettings
from guard_service.settings import GuardSettings
from rlguard.core.feed import Feed
from rlguard.core.policy import Policy
from rlguard.operator.reconcile.guard_pod import guard_objects
from rlguard.operator.reconcile.inject import build_workload
from rlguard.operator.reconcile.snapshot import Job
from rlguard.operator.reconcile.support import new_credentials, support_objects

from . import given
from .given import ADAPTER, CONFIG, SUPPORT, UID, template

Json = dict[str, Any]
PLACEMENTS = ["Sidecar", "Pod"]
ROLES = ["Master", "Worker"]
GUARD = "rlguard-guard"


def spec(**trainer: Any) -> Json:
    """A PyTorchJob of several containers; `trainer`: fields of the one that trains, on every rank."""
    pods = []
    for _ in ROLES:
        pod = template("pytorch", initContainers=[{"name": "download", "image": "dl:1"}])
        first = pod["spec"]["containers"][0]
        first |= {"env": [{"name": "A", "value": "b"}], **trainer}
        first["volumeMounts"][0]["subPath"] = "run"
        pod["spec"]["containers"].append({"name": "logger", "image": "log:1"})
        pods.append(pod)
    return given.pytorchjob(*pods)


def job(
    of: Json | None = None, silence: Json | None = None, resumed: Json | None = None, **guard: Any
) -> Job:
    more = {"onSilence": silence} if silence else {}
    more |= {"resumedFrom": resumed} if resumed else {}
    return given.job(of or spec(), guard=guard, **more)


def made(of: Job, role: str = "Master") -> Json:
    """The pod template of the trainer."""
    workload = build_workload(of, ADAPTER["PyTorchJob"], CONFIG)
    found: Json = workload["spec"]["pytorchReplicaSpecs"][role]["template"]
    return found


def trainer_pod(of: Job, role: str = "Master") -> Json:
    pod: Json = made(of, role)["spec"]
    return pod


def guard_pod_template(of: Job) -> Json:
    """The template of the pod that has the guard."""
    own = of.spec.guard.own_pod
    if own is None:
        return made(of)
    objects = {kind.kind: body for kind, body in guard_objects(of, own, ADAPTER["PyTorchJob"], CONFIG)}
    found: Json = objects["StatefulSet"]["spec"]["template"]
    return found


def container(pod: Json, name: str = "pytorch") -> Json:
    found: Json = next(c for c in pod["containers"] + pod.get("initContainers", []) if c["name"] == name)
    return found


def guard_of(of: Job) -> Json:
    return container(guard_pod_template(of)["spec"], GUARD)


def env(container: Json) -> Json:
    """Values of variables; of one that a Secret or a field of the pod has, what it refers to."""
    found = {}
    for one in container.get("env", []):
        source = next(iter(one.get("valueFrom", {"": None}).values()))
        found[one["name"]] = one.get("value", source)
    return found


# -- what each container can see -------------------------------------------------------------------------


def test_the_guard_is_the_same_container_in_both_placements() -> None:
    beside, alone = (guard_of(job(placement=placement)) for placement in PLACEMENTS)
    assert beside.pop("restartPolicy") == "Always", "a native sidecar"
    assert beside == alone
    starts = [one["name"] for one in trainer_pod(job())["initContainers"]]
    assert starts == ["download", GUARD], "the last before the trainer"


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("role", ROLES)
def test_no_container_but_the_guard_has_split_state_private_key_policy_or_tokens(
    placement: str, role: str
) -> None:
    pod = trainer_pod(job(placement=placement), role)
    for one in pod["containers"] + pod["initContainers"]:
        if one["name"] == GUARD:
            continue
        assert {mount["name"] for mount in one.get("volumeMounts", [])} <= {"ckpt"}
        keys = {ref["key"] for ref in env(one).values() if isinstance(ref, dict)}
        assert keys <= {"tls.crt", "ingest-token"}
        assert "ingest-token" not in keys or one["name"] == "pytorch"
    if placement == "Pod":
        assert not [volume for volume in pod["volumes"] if volume["name"].startswith("rlguard-")]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_nobody_in_a_run_has_a_token_of_the_api_server_and_the_guard_has_no_account(placement: str) -> None:
    accounted = spec()
    accounted["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["serviceAccountName"] = "irsa"
    of = job(accounted, placement=placement)
    for pod in (trainer_pod(of), trainer_pod(of, "Worker"), guard_pod_template(of)["spec"]):
        assert pod["automountServiceAccountToken"] is False
        assert "serviceAccountToken" not in str(pod["volumes"])
    assert trainer_pod(of)["serviceAccountName"] == "irsa", "that of a template stays"
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
    root = {"runAsUser": 0, "capabilities": {"add": ["IPC_LOCK"]}}
    of = job(spec(securityContext=root))
    pod = trainer_pod(of)
    assert container(pod)["securityContext"] == root
    assert container(pod, "logger") == {"name": "logger", "image": "log:1"}
    assert of.spec.made_from.spec == spec(securityContext=root), "nor is the template changed"


# -- what the trainer is told ----------------------------------------------------------------------------


@pytest.mark.parametrize(("placement", "host"), [("Sidecar", "127.0.0.1"), ("Pod", f"{SUPPORT}.ns.svc")])
def test_the_trainer_has_address_certificate_and_token(placement: str, host: str) -> None:
    told = env(container(trainer_pod(job(placement=placement, port=9000))))
    assert told["RLGUARD_URL"] == f"https://{host}:9000" and told["A"] == "b"
    assert told["RLGUARD_CA"] == {"name": SUPPORT, "key": "tls.crt"}
    assert told["RLGUARD_TOKEN"] == {"name": SUPPORT, "key": "ingest-token"}
    # A sidecar ends with its trainer, which therefore waits for the last evaluations.
    assert told.get("RLGUARD_DRAIN_SECONDS") == ("300" if placement == "Sidecar" else None)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_trainer_that_is_followed_is_told_nothing(placement: str) -> None:
    followed = {"follow": {"path": "run/m.jsonl", "format": "verl"}, "checkpoints": {"path": "run"}}
    of = job(metrics=followed, placement=placement)
    assert env(container(trainer_pod(of))) == {"A": "b"}
    said = Feed.model_validate_json(env(guard_of(of))["RLGUARD_GUARD_METRICS"])
    assert (said.follow.path, said.layout, said.checkpoints.path) == ("run/m.jsonl", "verl", "run")
    assert "RLGUARD_GUARD_METRICS" not in env(guard_of(job()))


WAITING = {"RLGUARD_UNREACHABLE_SECONDS", "RLGUARD_ON_UNREACHABLE", "RLGUARD_MAX_LAG"}


@pytest.mark.parametrize(
    ("silence", "guard", "told"),
    [
        ({"afterSeconds": 300}, {}, {}),
        ({"afterSeconds": 301}, {"placement": "Pod"}, {"RLGUARD_UNREACHABLE_SECONDS": "301"}),
        ({"action": "Warn"}, {}, {"RLGUARD_ON_UNREACHABLE": "continue"}),
        ({"afterSeconds": 300}, {"maxLag": "off"}, {"RLGUARD_MAX_LAG": "off"}),
    ],
    ids=["as long as its own default", "longer", "goes on", "never waits"],
)
def test_a_trainer_waits_for_its_guard_as_its_job_says(silence: Json, guard: Json, told: Json) -> None:
    found = env(container(trainer_pod(job(silence=silence, **guard))))
    assert {name: found[name] for name in WAITING & found.keys()} == told


@pytest.mark.parametrize("name", [*sorted(WAITING), "RLGUARD_DRAIN_SECONDS"])
def test_what_a_template_says_about_waiting_stays(name: str) -> None:
    of = spec(env=[{"name": name, "value": "7"}])
    for action in ("Stop", "Warn"):
        told = container(trainer_pod(job(of, {"afterSeconds": 900, "action": action}, maxLag=2)))["env"]
        assert [one["value"] for one in told if one["name"] == name] == ["7"]


def test_every_rank_is_told_from_where_it_starts() -> None:
    """What the template says of it is of an earlier run; the kubelet would replace a variable."""
    earlier = [{"name": "RLGUARD_RUN", "value": "old"}, {"name": "A", "value": "b"}]
    of = job(spec(env=earlier), resumed={"name": "before", "checkpoint": "/ckpt/a $(HOME)"})
    for role in ROLES:
        told = [(one["name"], one.get("value")) for one in container(trainer_pod(of, role))["env"]]
        start = ("RLGUARD_RESUME_FROM", "/ckpt/a $$(HOME)"), ("RLGUARD_RUN", SUPPORT)
        assert told[:3] == [*start, ("A", "b")]
        assert "env" not in container(trainer_pod(of, role), "logger")


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("role", ROLES)
def test_every_rank_ends_with_words_unless_its_author_says_how(placement: str, role: str) -> None:
    pod = trainer_pod(job(placement=placement), role)
    found = {one["name"]: one.get("terminationMessagePolicy") for one in pod["containers"]}
    assert found == {"pytorch": "FallbackToLogsOnError", "logger": None}
    own = container(trainer_pod(job(spec(terminationMessagePolicy="File")), role))
    assert own["terminationMessagePolicy"] == "File"


# -- what the guard is told ------------------------------------------------------------------------------


def test_the_guard_reads_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract with guard_service: the whole environment is valid there."""
    guard = guard_of(job(port=9000, state={"claimName": "s", "keepBest": True}))
    for name, value in env(guard).items():
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
    assert str(settings.termination_message) == guard["terminationMessagePath"]
    assert str(settings.checkpoint_root) == "/ckpt" and settings.keep_best_checkpoint
    mounted = {mount["mountPath"] for mount in guard["volumeMounts"]}
    assert {str(settings.state_dir), secrets} <= mounted
    assert settings.heldout is not None and settings.heldout.evaluator.kind == "hf"
    assert str(settings.policy_file).startswith(tuple(mounted))


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
    told = env(guard_of(job(heldout=heldout, placement="Pod")))["RLGUARD_GUARD_HELDOUT"]
    settings = HeldoutSettings.model_validate(json.loads(told))
    assert str(settings.split) == "/var/run/rlguard/heldout/heldout.jsonl"
    assert str(settings.train_prompts) == "/var/run/rlguard/heldout/train.jsonl"
    limit = (settings.scorer_timeout_seconds, settings.on_scorer_timeout, settings.scorer_concurrency)
    assert settings.proxy_scorer == "grader:pay" and limit == (30.0, "wrong", 2)
    assert settings.evaluator.kind in evaluator
    # Names of a chat template are the user's own, and are not respelled.
    assert settings.evaluator.chat_template_kwargs == ({"maxDepth": 3} if "hf" in evaluator else None)


@pytest.mark.parametrize("text", ["$$x$$", "a $$(HOME) $5 $", "$(HOME)", "$$$"])
def test_the_guard_reads_what_looks_like_a_variable_as_it_was_written(text: str) -> None:
    """The kubelet makes `$` of `$$`, and replaces `$(NAME)` where it knows the name."""
    heldout = {"volume": {"claimName": "h"}, "evaluator": {"hf": {"systemPrompt": text, "answerAfter": text}}}
    read = re.sub(
        r"\$(\$|\((\w+)\))",
        lambda found: "$" if found[1] == "$" else {"HOME": "/root"}.get(found[2], found[0]),
        env(guard_of(job(heldout=heldout)))["RLGUARD_GUARD_HELDOUT"],
    )
    evaluator = json.loads(read)["evaluator"]
    assert evaluator["system_prompt"] == evaluator["answer_after"] == text


def test_where_every_pod_has_a_guard_each_knows_its_index_and_has_a_folder_of_its_own() -> None:
    workers = spec()
    del workers["pytorchReplicaSpecs"]["Master"]
    guard = container(trainer_pod(job(workers, state={"claimName": "guards"}), "Worker"), GUARD)
    field = env(guard)["RLGUARD_GUARD_REPLICA_INDEX"]["fieldPath"]
    assert field == "metadata.labels['training.kubeflow.org/replica-index']"
    state = next(mount for mount in guard["volumeMounts"] if mount["name"] == "rlguard-state")
    assert state["subPathExpr"] == f"{UID}/$(RLGUARD_GUARD_REPLICA_INDEX)"


def test_the_state_is_lost_with_the_pod_unless_it_has_a_claim() -> None:
    def state(**guard: Any) -> tuple[Json, Json]:
        pod = guard_pod_template(job(**guard))["spec"]
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


# -- labels, owners, meshes, queues ----------------------------------------------------------------------


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_service_mesh_leaves_the_guards_port_alone(placement: str) -> None:
    meshed = spec()
    inbound = {"traffic.sidecar.istio.io/excludeInboundPorts": "22,2222"}
    meshed["pytorchReplicaSpecs"]["Master"]["template"]["metadata"] = {"annotations": inbound}
    of = job(meshed, port=9000, placement=placement)
    ports = [
        "traffic.sidecar.istio.io/excludeInboundPorts",
        "traffic.sidecar.istio.io/excludeOutboundPorts",
        "config.linkerd.io/skip-inbound-ports",
        "config.linkerd.io/skip-outbound-ports",
    ]
    trainer = made(of)["metadata"]["annotations"]
    assert [trainer[name] for name in ports] == ["22,2222,9000", "9000", "9000", "9000"]
    guard = guard_pod_template(of)["metadata"]["annotations"]
    assert {guard[name].split(",")[-1] for name in ports} == {"9000"}


def test_the_job_owns_its_workload_and_hands_on_its_queue() -> None:
    for_kueue = {"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/priority-class": "high"}
    raw = given.manifest()
    raw["metadata"]["labels"] = for_kueue | {"other": "x"}
    metadata = build_workload(given.parse_job(raw), ADAPTER["PyTorchJob"], CONFIG)["metadata"]
    assert metadata["labels"].items() >= for_kueue.items() and "other" not in metadata["labels"]
    (owner,) = metadata["ownerReferences"]
    assert owner["uid"] == UID and owner["controller"] and not owner["blockOwnerDeletion"]


# -- Secret and ConfigMap --------------------------------------------------------------------------------


def test_a_job_gets_one_secret_and_one_config_map_that_nobody_can_edit() -> None:
    of = job(policy={"kl": {"hardStop": 0.3}, "silent": {"action": "Stop"}})
    found = {kind.kind: body for kind, body in support_objects(of, {"tls.key": "secret"})}
    assert found.keys() == {"Secret", "ConfigMap"}
    assert found["Secret"]["stringData"] == {"tls.key": "secret"}
    for body in found.values():
        assert body["immutable"] is True and body["metadata"]["name"] == SUPPORT
        assert body["metadata"]["ownerReferences"][0]["uid"] == UID
    policy = Policy.model_validate(yaml.safe_load(found["ConfigMap"]["data"]["policy.yaml"]))
    assert (policy.kl.hard_stop, policy.silent.action) == (0.3, "stop"), "as the guard reads it"


def test_credentials_are_new_each_time_and_good_for_both_addresses() -> None:
    one, other = (new_credentials(job(), datetime(2026, 1, 2, tzinfo=UTC)) for _ in range(2))
    assert one.keys() == {"tls.crt", "tls.key", "ingest-token", "read-token", "supervisor-token"}
    values = [*one.values(), *other.values()]
    assert len(set(values)) == len(values)
    certificate = x509.load_pem_x509_certificate(one["tls.crt"].encode())
    hosts = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert hosts.get_values_for_type(x509.DNSName) == [f"{SUPPORT}.ns.svc"]
    assert hosts.get_values_for_type(x509.IPAddress) == [ip_address("127.0.0.1")]
    key = load_pem_private_key(one["tls.key"].encode(), None)
    assert key.public_key() == certificate.public_key()
