"""Injection and refusals: pure functions from a template to a workload, or to what is wrong with it.

Injection: what the guard gets, what the trainer gets and does not get, multi-node, no Master, Kueue's label,
the user's own service account and init containers; the template itself is never changed.
Refusals: every way to reach the guard from the trainer, each with the field; Relaxed; wrong shapes.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from guard_client.client import socket_path
from guard_core.feed import Feed
from guard_core.policy import Policy
from guard_operator.adapters import WorkloadState, find_adapter
from guard_operator.api.types import GuardSpec, ResumedFrom, Spec, Status
from guard_operator.config import OperatorConfig
from guard_operator.reconcile import layout
from guard_operator.reconcile.inject import (
    LeakError,
    build_workload,
    guard_service_account,
    support_objects,
)
from guard_operator.reconcile.refusals import find_violations
from guard_operator.reconcile.snapshot import Job
from guard_service.heldout.config import HeldoutSettings
from guard_service.settings import GuardSettings

ADAPTER = find_adapter("kubeflow.org/v1", "PyTorchJob")
assert ADAPTER is not None
CONFIG = OperatorConfig(guard_image="guard:1", relaxed_host_paths=("/dev/infiniband", "/mnt/nvme"))
Json = dict[str, Any]


def template() -> Json:
    pod = {
        "securityContext": {"runAsNonRoot": True},
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


def guard(**values: Any) -> Json:
    heldout = {"volume": {"claimName": "heldout"}, "split": "a/split.jsonl", "evaluator": {"hf": {}}}
    return {"heldout": heldout, "checkpoints": {"volume": "ckpt"}, **values}


def job(spec: Json | None = None, labels: dict[str, str] | None = None, **guard_values: Any) -> Job:
    body = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": spec or template()}
    parsed = Spec.model_validate({"template": body, "guard": guard(**guard_values)})
    return Job("run", "ns", "0123456789ab", 1, "1", labels or {}, parsed, Status())


def patient(silent: int, spec: Json | None = None, action: str = "Stop", **guard_values: Any) -> Job:
    """A job whose guard may be silent for so many seconds."""
    given = job(spec, **guard_values)
    heard = given.spec.on_silence.model_copy(update={"after_seconds": silent, "action": action})
    return replace(given, spec=given.spec.model_copy(update={"on_silence": heard}))


def pod_of(workload: Json, role: str = "Master") -> Json:
    pod: Json = workload["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]
    return pod


def built(job: Job) -> Json:
    assert ADAPTER is not None
    return build_workload(job, ADAPTER, CONFIG)


def container(pod: Json, name: str) -> Json:
    found: Json = next(c for c in pod["containers"] + pod["initContainers"] if c["name"] == name)
    return found


def mounts(pod: Json, name: str) -> dict[str, Json]:
    return {mount["name"]: mount for mount in container(pod, name).get("volumeMounts", [])}


def socket_of(guard: Json) -> str:
    """Where the guard's container listens."""
    return str(next(e["value"] for e in guard["env"] if e["name"] == "RLGUARD_GUARD_SOCKET"))


def page_of(probe: str) -> str:
    """The page of the guard that a probe asks for."""
    return str(container(pod_of(built(job())), "rlguard-guard")[probe]["exec"]["command"][-1])


# -- injection -------------------------------------------------------------------------------------------


def test_the_guard_is_a_native_sidecar_after_the_other_init_containers() -> None:
    pod = pod_of(built(job()))
    assert [c["name"] for c in pod["initContainers"]] == ["download", "rlguard-guard"]
    assert container(pod, "rlguard-guard")["restartPolicy"] == "Always"
    assert container(pod, "rlguard-guard")["image"] == "guard:1"


def test_secrets_of_the_guard_are_mounted_in_the_guard_alone() -> None:
    pod = pod_of(built(job()))
    alone = {"rlguard-heldout", "rlguard-state", "rlguard-token", "rlguard-secrets"}
    assert alone <= mounts(pod, "rlguard-guard").keys()
    for other in ("pytorch", "logger", "download"):
        assert not alone & mounts(pod, other).keys()
    assert pod["automountServiceAccountToken"] is False


def test_what_the_guard_may_only_read_is_read_only() -> None:
    found = mounts(pod_of(built(job())), "rlguard-guard")
    writable = {name for name, mount in found.items() if not mount.get("readOnly")}
    assert writable == {"rlguard-state", "rlguard-socket", "rlguard-tmp", "rlguard-shm"}
    assert found["ckpt"] == {"name": "ckpt", "mountPath": "/ckpt", "subPath": "run", "readOnly": True}
    heldout = next(v for v in pod_of(built(job()))["volumes"] if v["name"] == "rlguard-heldout")
    assert heldout["persistentVolumeClaim"] == {"claimName": "heldout", "readOnly": True}


def test_the_state_is_lost_with_the_pod_unless_it_has_a_claim() -> None:
    def state(job: Job, role: str) -> tuple[Json, Json]:
        pod = pod_of(built(job), role)
        volume = next(v for v in pod["volumes"] if v["name"] == "rlguard-state")
        return volume, mounts(pod, "rlguard-guard")["rlguard-state"]

    here = {"name": "rlguard-state", "mountPath": layout.STATE_DIR}
    assert state(job(), "Master") == ({"name": "rlguard-state", "emptyDir": {}}, here)
    kept = {"claimName": "guards"}
    volume, mount = state(job(state=kept), "Master")
    assert volume["persistentVolumeClaim"] == kept
    assert mount == here | {"subPath": "0123456789ab"}, "another job may use the claim, too"
    no_master = template()
    no_master["pytorchReplicaSpecs"]["Worker"] = no_master["pytorchReplicaSpecs"].pop("Master")
    _, mount = state(job(no_master, state=kept), "Worker")
    assert mount == here | {"subPathExpr": "0123456789ab/$(RLGUARD_GUARD_CLUSTER__REPLICA_INDEX)"}


def test_the_best_checkpoint_is_kept_in_the_claim_when_it_is_asked_for() -> None:
    def kept(**state: Any) -> bool:
        guard = container(pod_of(built(job(state={"claimName": "guards"} | state))), "rlguard-guard")
        env = {one["name"]: one.get("value") for one in guard["env"]}
        return env.get("RLGUARD_GUARD_KEEP_BEST_CHECKPOINT") == "true"

    assert kept(keepBest=True)
    assert not kept()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"state": {"keepBest": True}}, "needs state.claimName"),
    ],
)
def test_a_best_checkpoint_that_nobody_could_keep_is_refused(spec: Json, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        job(**spec)


def test_the_guard_is_restricted() -> None:
    security = container(pod_of(built(job())), "rlguard-guard")["securityContext"]
    assert security == {
        "runAsUser": layout.GUARD_UID,
        "runAsGroup": layout.GUARD_UID,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_the_trainer_reaches_the_guards_socket_and_cannot_put_another_there() -> None:
    pod = pod_of(built(job()))
    (volume,) = (v for v in pod["volumes"] if v["name"] == "rlguard-socket")
    assert volume == {"name": "rlguard-socket", "emptyDir": {"medium": "Memory"}}, "of this pod alone"
    there = {"name": "rlguard-socket", "mountPath": layout.SOCKET_DIR}
    assert mounts(pod, "rlguard-guard")["rlguard-socket"] == there
    assert mounts(pod, "pytorch")["rlguard-socket"] == there | {"readOnly": True}
    for other in ("logger", "download"):
        assert "rlguard-socket" not in mounts(pod, other)
    assert socket_of(container(pod, "rlguard-guard")).startswith(layout.SOCKET_DIR + "/")
    assert "rlguard-socket" not in mounts(pod_of(built(job()), "Worker"), "pytorch"), "it has no guard"


def test_the_trainer_starts_only_when_the_guard_has_checked_its_split() -> None:
    assert page_of("startupProbe") == "readyz"


def test_a_guard_that_cannot_work_for_a_while_is_not_killed() -> None:
    """One whose disk is full, say, is not ready, and a restart would not help it."""
    assert (page_of("livenessProbe"), page_of("readinessProbe")) == ("healthz", "readyz")


def test_the_trainer_gets_url_and_ingest_token() -> None:
    pod = pod_of(built(job()))
    env = {variable["name"]: variable for variable in container(pod, "pytorch")["env"]}
    assert env["A"]["value"] == "b"
    assert env["RLGUARD_URL"]["value"] == f"unix://{socket_of(container(pod, 'rlguard-guard'))}"
    assert socket_path(env["RLGUARD_URL"]["value"]) == layout.SOCKET, "the client understands it"
    reference = env["RLGUARD_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert reference == {"name": "run-01234567", "key": "ingest-token"}
    assert env["RLGUARD_DRAIN_SECONDS"]["value"] == "300"
    assert "env" not in container(pod, "logger")


FOLLOWED = {"follow": {"path": "run/metrics.jsonl", "format": "verl"}, "checkpoints": {"path": "run"}}


def test_a_trainer_that_is_followed_gets_no_address_no_token_and_no_socket() -> None:
    before, pod = pod_of(built(job())), pod_of(built(job(metrics=FOLLOWED)))
    trainer, told = container(pod, "pytorch"), container(before, "pytorch")
    assert not [one for one in trainer["env"] if one["name"].startswith("RLGUARD_")]
    assert {one["name"] for one in told["env"] if one["name"].startswith("RLGUARD_")} == {
        *("RLGUARD_URL", "RLGUARD_TOKEN", "RLGUARD_DRAIN_SECONDS", "RLGUARD_UNREACHABLE_SECONDS")
    }
    assert "rlguard-socket" not in mounts(pod, "pytorch")
    assert mounts(pod, "rlguard-guard") == mounts(before, "rlguard-guard"), "the volume it has, read-only"


def test_the_guard_is_told_what_it_follows_in_words_that_it_understands() -> None:
    env = {
        one["name"]: one for one in container(pod_of(built(job(metrics=FOLLOWED))), "rlguard-guard")["env"]
    }
    said = Feed.model_validate_json(env["RLGUARD_GUARD_METRICS"]["value"])
    assert (said.follow.path, said.layout, said.checkpoints.path) == ("run/metrics.jsonl", "verl", "run")
    follow = {**FOLLOWED["follow"], "runConfig": "run/.hydra/config.yaml"}
    pod = pod_of(built(job(metrics={**FOLLOWED, "follow": follow})))
    [value] = [
        one["value"]
        for one in container(pod, "rlguard-guard")["env"]
        if one["name"] == "RLGUARD_GUARD_METRICS"
    ]
    assert Feed.model_validate_json(value).follow.run_config == "run/.hydra/config.yaml"
    plain = container(pod_of(built(job())), "rlguard-guard")["env"]
    assert "RLGUARD_GUARD_METRICS" not in {one["name"] for one in plain}


@pytest.mark.parametrize("placement", ["Sidecar", "Pod"])
@pytest.mark.parametrize(("silent", "told"), [(30, None), (300, None), (301, "301"), (86400, "86400")])
def test_a_trainer_waits_for_its_guard_as_long_as_the_operator_does(
    placement: str, silent: int, told: str | None
) -> None:
    more = {"placement": "Pod", "state": {"claimName": "state"}} if placement == "Pod" else {}
    env = {one["name"]: one for one in container(pod_of(built(patient(silent, **more))), "pytorch")["env"]}
    assert env.get("RLGUARD_UNREACHABLE_SECONDS", {}).get("value") == told
    mine = {"name": "RLGUARD_UNREACHABLE_SECONDS", "value": "7"}
    spec = template()
    spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["env"] = [mine]
    env = container(pod_of(built(patient(silent, spec, **more))), "pytorch")["env"]
    assert [one for one in env if one["name"] == mine["name"]] == [mine]


@pytest.mark.parametrize(("max_lag", "told"), [(None, None), (0, "0"), (3, "3"), ("off", "off")])
def test_a_trainer_is_told_how_many_checkpoints_may_be_unscored(max_lag: object, told: str | None) -> None:
    more = {} if max_lag is None else {"maxLag": max_lag}
    env = {one["name"]: one for one in container(pod_of(built(patient(300, **more))), "pytorch")["env"]}
    assert env.get("RLGUARD_MAX_LAG", {}).get("value") == told


@pytest.mark.parametrize("placement", ["Sidecar", "Pod"])
@pytest.mark.parametrize("said", [None, "stop"])
def test_where_silence_only_warns_a_trainer_goes_on(placement: str, said: str | None) -> None:
    more = {"placement": "Pod", "state": {"claimName": "state"}} if placement == "Pod" else {}
    spec = template()
    if said is not None:
        mine = {"name": "RLGUARD_ON_UNREACHABLE", "value": said}
        spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["env"] = [mine]
    built_ = built(patient(600, spec, action="Warn", **more))
    env = [one for one in container(pod_of(built_), "pytorch")["env"] if "UNREACHABLE" in one["name"]]
    assert env == [{"name": "RLGUARD_ON_UNREACHABLE", "value": said or "continue"}]


@pytest.mark.parametrize(
    "evaluator",
    [
        {"hf": {"batchSize": 4, "maxNewTokens": 8, "chatTemplateKwargs": {"maxDepth": 3}}},
        {"vllm": {"tensorParallelSize": 2, "enforceEager": True}},
    ],
)
def test_the_guard_reads_its_heldout_settings(evaluator: Json) -> None:
    """Contract with guard_service: what is injected validates there."""
    heldout = {
        "volume": {"secretName": "s"},
        "trainPrompts": "train.jsonl",
        "proxyScorer": "grader:pay",
        "scorerTimeoutSeconds": 30,
        "onScorerTimeout": "wrong",
        "scorerConcurrency": 2,
        "evaluator": evaluator,
    }
    guard_container = container(pod_of(built(job(heldout=heldout))), "rlguard-guard")
    env = {variable["name"]: variable for variable in guard_container["env"]}
    settings = HeldoutSettings.model_validate(json.loads(env["RLGUARD_GUARD_HELDOUT"]["value"]))
    assert str(settings.split) == f"{layout.HELDOUT_DIR}/heldout.jsonl"
    assert str(settings.train_prompts) == f"{layout.HELDOUT_DIR}/train.jsonl"
    assert settings.proxy_scorer == "grader:pay"
    limit = (settings.scorer_timeout_seconds, settings.on_scorer_timeout, settings.scorer_concurrency)
    assert limit == (30.0, "wrong", 2)
    assert settings.evaluator.kind in evaluator
    names = {
        "hf": {"maxDepth": 3},
        "vllm": None,
    }  # a template's own, and not respelled
    assert settings.evaluator.chat_template_kwargs == names[settings.evaluator.kind]


def test_the_guard_reads_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract with guard_service: the whole environment validates, what is for the cluster reporter too."""
    for variable in container(pod_of(built(job(port=9000))), "rlguard-guard")["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", "10.0.0.7"))  # else: the pod's address
    settings = GuardSettings()
    assert (settings.host, settings.port) == ("127.0.0.1", 9000)
    assert str(settings.socket) == layout.SOCKET
    assert (settings.metrics_host, settings.metrics_port) == ("10.0.0.7", 8471)
    assert str(settings.checkpoint_root) == "/ckpt"
    assert str(settings.state_dir) == layout.STATE_DIR
    assert settings.ingest_token_file is not None and settings.read_token_file is not None
    assert settings.heldout is not None and settings.heldout.evaluator.kind == "hf"
    assert str(settings.policy_file) == f"{layout.POLICY_DIR}/policy.yaml"


@pytest.mark.parametrize("text", ["$$x$$", "$(HOME)", "a $$(HOME) $5 $", "$$$", "plain"])
def test_the_guard_reads_what_looks_like_a_variable_as_it_was_written(text: str) -> None:
    """The kubelet makes `$` of `$$`, and replaces `$(NAME)` where it knows the name."""
    heldout = guard()["heldout"] | {"evaluator": {"hf": {"systemPrompt": text, "answerAfter": text}}}
    env = {
        one["name"]: one.get("value")
        for one in container(pod_of(built(job(heldout=heldout))), "rlguard-guard")["env"]
    }
    known = {"HOME": "/root"}
    read = re.sub(
        r"\$(\$|\((\w+)\))",
        lambda found: "$" if found[1] == "$" else known.get(found[2], found[0]),
        env["RLGUARD_GUARD_HELDOUT"],
    )
    evaluator = json.loads(read)["evaluator"]
    assert evaluator["system_prompt"] == evaluator["answer_after"] == text


def test_every_rank_is_told_from_where_it_starts() -> None:
    """What the template says of it is of an earlier run; the kubelet would replace a variable."""
    spec = template()
    for role in ("Master", "Worker"):
        trainer, logger = spec["pytorchReplicaSpecs"][role]["template"]["spec"]["containers"]
        trainer["env"] = [{"name": "RLGUARD_RUN", "value": "old"}, *trainer["env"]]
        logger["env"] = []
    one, origin = job(spec), ResumedFrom(name="before", checkpoint="/ckpt/a $(HOME)")
    workload = built(replace(one, spec=one.spec.model_copy(update={"resumed_from": origin})))
    for role in ("Master", "Worker"):
        pod = pod_of(workload, role)
        env = container({**pod, "initContainers": []}, "pytorch")["env"]
        assert [(one["name"], one.get("value")) for one in env][:3] == [
            ("RLGUARD_RESUME_FROM", "/ckpt/a $$(HOME)"),
            ("RLGUARD_RUN", "run-01234567"),
            ("A", "b"),
        ]
        assert sum(one["name"] == "RLGUARD_RUN" for one in env) == 1
        assert container({**pod, "initContainers": []}, "logger")["env"] == []
    assert "RLGUARD_RUN" not in str(built(job()))


def test_workers_get_no_guard_but_labels_and_no_token() -> None:
    workload = built(job())
    pod = pod_of(workload, "Worker")
    assert [c["name"] for c in pod["initContainers"]] == ["download"]
    assert pod["automountServiceAccountToken"] is False
    for role in ("Master", "Worker"):
        labels = workload["spec"]["pytorchReplicaSpecs"][role]["template"]["metadata"]["labels"]
        assert labels["rlguard.dev/job-uid"] == "0123456789ab"


def test_without_a_master_the_workers_have_guards_that_know_their_index() -> None:
    spec = template()
    del spec["pytorchReplicaSpecs"]["Master"]
    guard_container = container(pod_of(built(job(spec)), "Worker"), "rlguard-guard")
    index = next(e for e in guard_container["env"] if e["name"].endswith("REPLICA_INDEX"))
    path = index["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.labels['training.kubeflow.org/replica-index']"
    master = container(pod_of(built(job())), "rlguard-guard")
    assert not any(e["name"].endswith("REPLICA_INDEX") for e in master["env"])


def test_ownership_labels_and_queue() -> None:
    for_kueue = {"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/priority-class": "high"}
    workload = built(job(labels=for_kueue | {"other": "x"}))
    assert workload["metadata"]["labels"].items() >= for_kueue.items()
    assert "other" not in workload["metadata"]["labels"]
    (owner,) = workload["metadata"]["ownerReferences"]
    assert owner["uid"] == "0123456789ab" and owner["controller"] and not owner["blockOwnerDeletion"]


def test_the_template_is_left_as_it_is() -> None:
    one = job()
    before = copy.deepcopy(one.spec.template.spec)
    built(one)
    assert one.spec.template.spec == before == template()


def test_resources_and_image_of_the_job_win() -> None:
    own = {"requests": {"cpu": 1}, "limits": {"nvidia.com/gpu": "1"}}
    one = container(
        pod_of(built(job(image="mine:2", imagePullPolicy="Never", resources=own))), "rlguard-guard"
    )
    assert (one["image"], one["imagePullPolicy"], one["resources"]) == ("mine:2", "Never", own)
    default = container(pod_of(built(job())), "rlguard-guard")
    assert default["resources"] == CONFIG.guard_resources
    assert "imagePullPolicy" not in default


@pytest.mark.parametrize(
    ("role", "key", "index", "mount"),
    [
        ("Master", "containers", 1, {"volumeMounts": [{"name": "rlguard-secrets", "mountPath": "/s"}]}),
        ("Master", "containers", 0, {"volumeDevices": [{"name": "rlguard-state", "devicePath": "/dev/x"}]}),
        ("Master", "initContainers", 0, {"volumeMounts": [{"name": "rlguard-token", "mountPath": "/t"}]}),
        ("Worker", "containers", 0, {"volumeMounts": [{"name": "rlguard-heldout", "mountPath": "/h"}]}),
        (
            "Master",
            "containers",
            1,
            {"volumeMounts": [{"name": "rlguard-socket", "mountPath": layout.SOCKET_DIR}]},
        ),
        (
            "Master",
            "containers",
            1,
            {"volumeMounts": [{"name": "rlguard-socket", "mountPath": "/x", "readOnly": True}]},
        ),
    ],
)
def test_what_would_leak_is_not_built(role: str, key: str, index: int, mount: Json) -> None:
    """The last check stands by itself: nothing here has asked the refusals before."""
    spec = template()
    container = spec["pytorchReplicaSpecs"][role]["template"]["spec"][key][index]
    for field, added in mount.items():
        container[field] = [*container.get(field, []), *added]
    with pytest.raises(LeakError, match=f"container {container['name']} must not have the volume rlguard-"):
        built(job(spec))


# -- support objects -------------------------------------------------------------------------------------


def support(one: Job) -> dict[str, Json]:
    assert ADAPTER is not None
    account = guard_service_account(one, ADAPTER)
    return {
        resource.kind: body
        for resource, body in support_objects(one, one.spec.guard.policy, account, ("in", "out"))
    }


@pytest.mark.parametrize("kind", ["Secret", "ConfigMap"])
def test_tokens_and_policy_cannot_be_changed_under_a_guard(kind: str) -> None:
    assert support(job())[kind]["immutable"] is True


def test_a_service_account_is_made_unless_the_template_has_one() -> None:
    made = support(job())
    assert made["ServiceAccount"]["automountServiceAccountToken"] is False
    assert pod_of(built(job()))["serviceAccountName"] == made["ServiceAccount"]["metadata"]["name"]
    spec = template()
    spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["serviceAccountName"] = "irsa"
    own = support(job(spec))
    assert "ServiceAccount" not in own
    assert own["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": "irsa", "namespace": "ns"}]
    assert pod_of(built(job(spec)))["serviceAccountName"] == "irsa"


def test_the_policy_reaches_the_guard_as_it_reads_it() -> None:
    objects = support(job(policy={"kl": {"hardStop": 0.3}, "silent": {"action": "Stop"}}))
    policy = Policy.model_validate(yaml.safe_load(objects["ConfigMap"]["data"]["policy.yaml"]))
    assert policy.kl.hard_stop == 0.3
    assert policy.silent.action == "stop"


def test_support_objects_are_owned_and_named_by_uid() -> None:
    for body in support(job()).values():
        assert body["metadata"]["name"] == "run-01234567"
        assert body["metadata"]["ownerReferences"][0]["uid"] == "0123456789ab"


# -- refusals --------------------------------------------------------------------------------------------

POD = "spec.template.spec.pytorchReplicaSpecs.Master.template.spec"
Change = Callable[[Json], Any]


def findings(change: Change, role: str = "Master", **guard_values: Any) -> list[tuple[str, str | None]]:
    assert ADAPTER is not None
    spec = template()
    change(spec["pytorchReplicaSpecs"][role]["template"]["spec"])
    parsed = GuardSpec.model_validate(guard(**guard_values))
    return [(f.field, f.cost) for f in find_violations(ADAPTER, spec, parsed, CONFIG)]


def add_volume(source: Json, name: str = "v") -> Change:
    return lambda pod: pod["volumes"].append({"name": name, **source})


def trainer(**values: Any) -> Change:
    return lambda pod: pod["containers"][0].update(values)


HELDOUT_SECRET = {"heldout": {"volume": {"secretName": "hs"}, "evaluator": {"hf": {}}}}
HELDOUT_MAP = {"heldout": {"volume": {"configMapName": "hm"}, "evaluator": {"hf": {}}}}

REFUSED: dict[str, tuple[Change, Json, str]] = {
    "held-out claim": (
        add_volume({"persistentVolumeClaim": {"claimName": "heldout"}}),
        {},
        "volumes[1].persistentVolumeClaim",
    ),
    "claim of the guard's state": (
        add_volume({"persistentVolumeClaim": {"claimName": "guards"}}),
        {"state": {"claimName": "guards"}},
        "volumes[1].persistentVolumeClaim",
    ),
    "held-out secret": (add_volume({"secret": {"secretName": "hs"}}), HELDOUT_SECRET, "volumes[1].secret"),
    "held-out config map": (add_volume({"configMap": {"name": "hm"}}), HELDOUT_MAP, "volumes[1].configMap"),
    "held-out secret, projected": (
        add_volume({"projected": {"sources": [{"secret": {"name": "hs"}}]}}),
        HELDOUT_SECRET,
        "volumes[1].projected.sources[0].secret",
    ),
    "held-out secret by env": (
        trainer(env=[{"name": "X", "valueFrom": {"secretKeyRef": {"name": "hs", "key": "k"}}}]),
        HELDOUT_SECRET,
        "containers[0].env[0].valueFrom.secretKeyRef",
    ),
    "held-out secret by envFrom": (
        trainer(envFrom=[{"secretRef": {"name": "hs"}}]),
        HELDOUT_SECRET,
        "containers[0].envFrom[0].secretRef",
    ),
    "held-out config map by env": (
        trainer(env=[{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "hm", "key": "k"}}}]),
        HELDOUT_MAP,
        "containers[0].env[0].valueFrom.configMapKeyRef",
    ),
    "held-out config map by envFrom": (
        trainer(envFrom=[{"configMapRef": {"name": "hm"}}]),
        HELDOUT_MAP,
        "containers[0].envFrom[0].configMapRef",
    ),
    "service-account token": (
        add_volume({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
        {},
        "volumes[1].projected.sources[0].serviceAccountToken",
    ),
    "shareProcessNamespace": (
        lambda pod: pod.update(shareProcessNamespace=True),
        {},
        "shareProcessNamespace",
    ),
    "hostPID": (lambda pod: pod.update(hostPID=True), {}, "hostPID"),
    "hostIPC": (lambda pod: pod.update(hostIPC=True), {}, "hostIPC"),
    "hostPID, Relaxed": (lambda pod: pod.update(hostPID=True), {"isolation": "Relaxed"}, "hostPID"),
    "hostNetwork": (lambda pod: pod.update(hostNetwork=True), {}, "hostNetwork"),
    "hostPath": (add_volume({"hostPath": {"path": "/mnt/nvme/0"}}), {}, "volumes[1].hostPath"),
    "hostPath not listed, Relaxed": (
        add_volume({"hostPath": {"path": "/var/lib/kubelet"}}),
        {"isolation": "Relaxed"},
        "volumes[1].hostPath",
    ),
    "hostPath climbs out, Relaxed": (
        add_volume({"hostPath": {"path": "/mnt/nvme/../../var"}}),
        {"isolation": "Relaxed"},
        "volumes[1].hostPath",
    ),
    "privileged": (
        trainer(securityContext={"privileged": True}),
        {},
        "containers[0].securityContext.privileged",
    ),
    "privileged, Relaxed": (
        trainer(securityContext={"privileged": True}),
        {"isolation": "Relaxed"},
        "containers[0].securityContext.privileged",
    ),
    "privileged init container": (
        lambda pod: pod["initContainers"][0].update(securityContext={"privileged": True}),
        {},
        "initContainers[0].securityContext.privileged",
    ),
    "host capability": (
        trainer(securityContext={"capabilities": {"add": ["CAP_SYS_ADMIN", "IPC_LOCK"]}}),
        {},
        "containers[0].securityContext.capabilities.add",
    ),
    "the guard's user": (
        trainer(securityContext={"runAsUser": layout.GUARD_UID}),
        {},
        "containers[0].securityContext.runAsUser",
    ),
    "a user that is no number": (
        trainer(securityContext={"runAsUser": "0"}),
        {"isolation": "Relaxed"},
        "containers[0].securityContext.runAsUser",
    ),
    "the trainer's token": (trainer(env=[{"name": "RLGUARD_TOKEN"}]), {}, "containers[0].env[0].name"),
    "the guard's volume name": (add_volume({"emptyDir": {}}, "rlguard-state"), {}, "volumes[1].name"),
    "the guard's volume in the trainer": (
        lambda pod: pod["containers"][0]["volumeMounts"].append(
            {"name": "rlguard-heldout", "mountPath": "/h"}
        ),
        {},
        "containers[0].volumeMounts[1].name",
    ),
    "the guard's volume in an init container": (
        lambda pod: pod["initContainers"][0].update(
            volumeMounts=[{"name": "rlguard-token", "mountPath": "/t"}]
        ),
        {},
        "initContainers[0].volumeMounts[0].name",
    ),
    "the guard's volume as a device": (
        trainer(volumeDevices=[{"name": "rlguard-state", "devicePath": "/dev/x"}]),
        {},
        "containers[0].volumeDevices[0].name",
    ),
    "devices of the wrong shape": (trainer(volumeDevices={}), {}, "containers[0].volumeDevices"),
    "the guard's container name": (
        lambda pod: pod["containers"][1].update(name="rlguard-guard"),
        {},
        "containers[1].name",
    ),
    "the guard's port": (
        trainer(ports=[{"containerPort": 8470}]),
        {},
        "containers[0].ports[0].containerPort",
    ),
    "the guard's metrics port": (
        lambda pod: pod["containers"][1].update(ports=[{"name": "http", "containerPort": 9001}]),
        {"metricsPort": 9001},
        "containers[1].ports[0].containerPort",
    ),
    "the name of the guard's metrics port": (
        trainer(ports=[{"name": "a", "containerPort": 1}, {"name": "rlguard-metrics", "containerPort": 2}]),
        {},
        "containers[0].ports[1].name",
    ),
    "the trainer's URL": (trainer(env=[{"name": "RLGUARD_URL"}]), {}, "containers[0].env[0].name"),
    "no checkpoint volume": (lambda pod: pod["volumes"].clear(), {}, "volumes"),
    "checkpoint volume not mounted": (trainer(volumeMounts=[]), {}, "containers"),
    "checkpoints over the guard's state": (
        trainer(volumeMounts=[{"name": "ckpt", "mountPath": "/var/lib"}]),
        {},
        "containers",
    ),
    **{
        f"checkpoints at {path}": (
            trainer(volumeMounts=[{"name": "ckpt", "mountPath": path}]),
            {},
            "containers",
        )
        for path in (
            *("/", "/opt", "/opt/rlguard/lib", "/run", "/usr/local", "/etc"),
            *("//opt/rlguard", "opt/rlguard", "/x/../opt/rlguard", "/x/..", "/./opt/rlguard", ""),
        )
    },
    "checkpoints inside the held-out directory": (
        trainer(volumeMounts=[{"name": "ckpt", "mountPath": f"{layout.HELDOUT_DIR}/x"}]),
        {},
        "containers",
    ),
    "no trainer container": (trainer(name="main"), {}, "containers"),
    "containers of the wrong shape": (lambda pod: pod.update(containers="x"), {}, "containers"),
    "env of the wrong shape": (trainer(env={}), {}, "containers[0].env"),
}


@pytest.mark.parametrize(("change", "values", "field"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(change: Change, values: Json, field: str) -> None:
    assert findings(change, **values) == [(f"{POD}.{field}", None)]


#: Each opens the host or the guard's processes and files; written out here so that none goes unnoticed.
OPENING = [
    "ALL", "BPF", "DAC_READ_SEARCH", "PERFMON", "SYS_ADMIN", "SYS_MODULE", "SYS_PTRACE", "SYS_RAWIO",
]  # fmt: skip


@pytest.mark.parametrize("capability", OPENING)
def test_every_capability_that_opens_the_host_is_refused(capability: str) -> None:
    field = f"{POD}.containers[0].securityContext.capabilities.add"
    for name in (capability, f"CAP_{capability}", capability.lower()):
        assert findings(trainer(securityContext={"capabilities": {"add": ["IPC_LOCK", name]}})) == [
            (field, None)
        ]


def test_the_guards_user_by_the_pods_default() -> None:
    """Every container that names no user of its own would be the guard's."""
    found = findings(lambda pod: pod.update(securityContext={"runAsUser": layout.GUARD_UID}))
    assert len(found) == 3 and all(field.endswith("securityContext.runAsUser") for field, _ in found)


def test_workers_are_inspected_too() -> None:
    found = findings(lambda pod: pod.update(hostPID=True), "Worker")
    assert found == [(POD.replace("Master", "Worker") + ".hostPID", None)]


def test_a_clean_template_has_no_findings() -> None:
    assert findings(lambda pod: None) == []


def test_checkpoints_under_tmp_are_fine() -> None:
    assert findings(trainer(volumeMounts=[{"name": "ckpt", "mountPath": "/tmp/ckpt"}])) == []


def test_the_guard_looks_where_the_checkpoints_are() -> None:
    """One claim for data and checkpoints is common; of two mounts, nobody says which has the checkpoints."""
    assert ADAPTER is not None
    spec = template()
    twice = [{"name": "ckpt", "mountPath": f"/{part}", "subPath": part} for part in ("data", "run")]
    trainer(volumeMounts=twice)(spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"])
    (found,) = find_violations(ADAPTER, spec, GuardSpec.model_validate(guard()), CONFIG)
    assert found.field.endswith("Master.template.spec.containers") and found.cost is None
    assert "must mount the volume ckpt once" in found.message and "same claim" in found.message


@pytest.mark.parametrize("placement", [{}, {"placement": "Pod", "state": {"claimName": "state"}}])
def test_every_rank_ends_with_words_unless_its_author_says_how(placement: Json) -> None:
    assert ADAPTER is not None
    spec = template()
    for role in ("Master", "Worker"):
        built = build_workload(job(spec, **placement), ADAPTER, CONFIG)
        found = {c["name"]: c.get("terminationMessagePolicy") for c in pod_of(built, role)["containers"]}
        assert found == {"pytorch": "FallbackToLogsOnError", "logger": None}
    pod_of({"spec": spec}, "Worker")["containers"][0]["terminationMessagePolicy"] = "File"
    built = build_workload(job(spec), ADAPTER, CONFIG)
    assert pod_of(built, "Worker")["containers"][0]["terminationMessagePolicy"] == "File"


def test_relaxed_admits_with_a_cost() -> None:
    change = lambda pod: (  # noqa: E731 - one expression in two steps
        pod.update(hostNetwork=True),
        pod["volumes"].append({"name": "efa", "hostPath": {"path": "/dev/infiniband"}}),
    )
    found = findings(change, isolation="Relaxed")
    assert [field for field, _ in found] == [f"{POD}.hostNetwork", f"{POD}.volumes[1].hostPath"]
    assert all(cost for _, cost in found)


def test_what_the_admission_policy_would_refuse_of_every_pod_is_refused_at_once() -> None:
    """Without the chart's relaxed.hostNetwork no pod of such a job is ever made."""
    assert ADAPTER is not None
    spec = template()
    pod_of({"spec": spec})["hostNetwork"] = True
    config = OperatorConfig("guard:1", no_host_network=True)
    relaxed = GuardSpec.model_validate(guard(isolation="Relaxed"))
    refused = [one for one in find_violations(ADAPTER, spec, relaxed, config) if one.cost is None]
    assert [(one.field, "relaxed.hostNetwork" in one.message) for one in refused] == [
        (f"{POD}.hostNetwork", True)
    ]
    assert not [one for one in find_violations(ADAPTER, template(), relaxed, config) if one.cost is None]
    strict = find_violations(ADAPTER, spec, GuardSpec.model_validate(guard()), config)
    assert len(strict) == 1, "it is said once"


# -- the PyTorchJob adapter ------------------------------------------------------------------------------


def condition(kind: str, status: str = "True") -> Json:
    return {"type": kind, "status": status, "message": f"{kind} it is"}


STATES: dict[str, tuple[Json, WorkloadState]] = {
    "fresh": ({}, WorkloadState.PENDING),
    "created": ({"status": {"conditions": [condition("Created")]}}, WorkloadState.PENDING),
    "running": (
        {"status": {"conditions": [condition("Created"), condition("Running")]}},
        WorkloadState.RUNNING,
    ),
    "failed wins": (
        {"status": {"conditions": [condition("Running"), condition("Failed")]}},
        WorkloadState.FAILED,
    ),
    "succeeded": (
        {"status": {"conditions": [condition("Running", "False"), condition("Succeeded")]}},
        WorkloadState.SUCCEEDED,
    ),
    "suspended before any status": ({"spec": {"runPolicy": {"suspend": True}}}, WorkloadState.SUSPENDED),
}


@pytest.mark.parametrize(("workload", "state"), STATES.values(), ids=STATES.keys())
def test_pytorchjob_state(workload: Json, state: WorkloadState) -> None:
    assert ADAPTER is not None
    assert ADAPTER.state(workload)[0] is state
