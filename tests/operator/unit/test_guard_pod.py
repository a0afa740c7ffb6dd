"""A guard in a pod of its own: what runs it, who reaches it, what its trainer has, and what is refused."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from typing import Any, cast

import pytest

from guard_operator.adapters import WorkloadState, find_adapter
from guard_operator.api.types import GuardPod, OnSilence, Spec, Status
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.certificate import own_certificate
from guard_operator.reconcile.decide import NAME_TAKEN_SECONDS, decide
from guard_operator.reconcile.decision import (
    CaptureEvidence,
    Decision,
    Delete,
    Doomed,
    StartGuard,
    delete_makers,
)
from guard_operator.reconcile.endings import (
    EVIDENCE_SECONDS,
    HEARD_SECONDS,
    JUDGED_SECONDS,
    JUDGING_SECONDS,
)
from guard_operator.reconcile.gather import Caches, Gatherer
from guard_operator.reconcile.guard_pod import (
    WAIT,
    WAITER,
    find_obstacles,
    guard_objects,
    host_of,
    let_report,
    why_not_shared,
)
from guard_operator.reconcile.heartbeats import HeartbeatClock
from guard_operator.reconcile.inject import (
    build_workload,
    guard_service_account,
    support_objects,
)
from guard_operator.reconcile.layout import GAVE_UP
from guard_operator.reconcile.leaks import leaks
from guard_operator.reconcile.parse import parse_job
from guard_operator.reconcile.refusals import pod_spec
from guard_operator.reconcile.review import review
from guard_operator.reconcile.snapshot import (
    Between,
    Job,
    OwnGuard,
    Pod,
    Snapshot,
    Workload,
)
from guard_operator.reconcile.teardown import STOPPING_SECONDS
from guard_operator.runtime.client import BATCH_JOBS, EVENTS, PODS, STATEFUL_SETS, Client, Resource

Json = dict[str, Any]
ADAPTER = find_adapter("batch/v1", "Job")
assert ADAPTER is not None
CONFIG = OperatorConfig(guard_image="guard:1", guard_pull_policy="Never")
OWN = GuardPod()
LABELS = {"rlguard.dev/job-uid": "0123456789ab", "rlguard.dev/part": "guard"}


def template() -> Json:
    pod = {
        "securityContext": {"runAsNonRoot": True},
        "initContainers": [{"name": "download", "image": "dl:1"}],
        "containers": [
            {
                "name": "trainer",
                "image": "trainer:1",
                "env": [{"name": "A", "value": "b"}],
                "volumeMounts": [{"name": "ckpt", "mountPath": "/ckpt", "subPath": "run"}],
            },
            {"name": "logger", "image": "log:1"},
        ],
        "volumes": [{"name": "ckpt", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
    }
    return {"template": {"spec": pod}}


def job(spec: Json | None = None, **guard: Any) -> Job:
    heldout = {"volume": {"claimName": "heldout"}, "evaluator": {"hf": {}}}
    parsed = Spec.model_validate(
        {
            "template": {"apiVersion": "batch/v1", "kind": "Job", "spec": spec or template()},
            "guard": {
                "heldout": heldout,
                "checkpoints": {"volume": "ckpt"},
                "state": {"claimName": "state"},
                "placement": "Pod",
                **guard,
            },
        }
    )
    return Job("run", "ns", "0123456789ab", 1, "1", {}, parsed, Status())


def made(of: Job | None = None, own: GuardPod = OWN, **options: Any) -> dict[str, Json]:
    return {r.kind: body for r, body in guard_objects(of or job(), own, ADAPTER, CONFIG, **options)}


def guard_pod(of: Job | None = None, own: GuardPod = OWN) -> Json:
    pod: Json = made(of, own)["StatefulSet"]["spec"]["template"]["spec"]
    return pod


def env(container: Json) -> dict[str, Json]:
    return {one["name"]: {k: v for k, v in one.items() if k != "name"} for one in container["env"]}


def reporting(of: Job | None = None, own: GuardPod = OWN) -> Json:
    """The trainer's pod."""
    of = of or job()
    (one,) = ADAPTER.pod_templates(of.spec.template.spec)
    pod = copy.deepcopy(pod_spec(of.spec.template.spec, one))
    pod["automountServiceAccountToken"] = False
    let_report(of, own, one, pod, CONFIG)
    return pod


def container(pod: Json, name: str) -> Json:
    return next(c for c in pod["containers"] + pod.get("initContainers", []) if c["name"] == name)


# -- what runs it ----------------------------------------------------------------------------------------


def test_one_pod_at_most_runs_and_the_job_owns_all_of_it() -> None:
    found = made()
    assert found.keys() == {"StatefulSet", "Service", "NetworkPolicy"}
    for body in found.values():
        (owner,) = body["metadata"]["ownerReferences"]
        assert owner["uid"] == "0123456789ab" and owner["controller"] is True
        assert body["metadata"]["labels"]["rlguard.dev/job"] == "run"
    spec = found["StatefulSet"]["spec"]
    assert (spec["replicas"], spec["serviceName"]) == (1, found["Service"]["metadata"]["name"])
    assert spec["selector"]["matchLabels"] == LABELS
    assert LABELS.items() <= spec["template"]["metadata"]["labels"].items()
    assert spec["template"]["metadata"]["labels"]["rlguard.dev/job"] == "run"


def test_the_guard_is_the_only_container_and_confined() -> None:
    pod = guard_pod()
    (guard,) = pod["containers"]
    assert guard["name"] == "rlguard-guard" and "restartPolicy" not in guard
    assert (guard["image"], guard["imagePullPolicy"]) == ("guard:1", "Never")
    security = guard["securityContext"]
    assert security["runAsUser"] == 64532 and security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]} and not security["allowPrivilegeEscalation"]
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & pod.keys()
    assert pod["securityContext"]["fsGroup"] == 64532


def test_it_reads_the_checkpoints_where_the_trainer_writes_them_and_writes_none() -> None:
    pod = guard_pod()
    (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "ckpt")
    assert mount == {"name": "ckpt", "mountPath": "/ckpt", "subPath": "run", "readOnly": True}
    (volume,) = (v for v in pod["volumes"] if v["name"] == "ckpt")
    assert volume["persistentVolumeClaim"] == {"claimName": "checkpoints", "readOnly": True}
    assert env(pod["containers"][0])["RLGUARD_GUARD_CHECKPOINT_ROOT"] == {"value": "/ckpt"}


def test_its_state_is_on_the_claim_in_a_folder_of_the_job() -> None:
    pod = guard_pod()
    (volume,) = (v for v in pod["volumes"] if v["name"] == "rlguard-state")
    assert volume["persistentVolumeClaim"] == {"claimName": "state"}
    (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "rlguard-state")
    assert mount["subPath"] == "0123456789ab"


def test_it_listens_at_its_own_address_with_the_certificate_of_the_job() -> None:
    found = env(guard_pod()["containers"][0])
    assert found["RLGUARD_GUARD_HOST"] == {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    for name, key in (("CERTIFICATE", "tls.crt"), ("KEY", "tls.key")):
        assert found[f"RLGUARD_GUARD_TLS_{name}"] == {"value": f"/var/run/rlguard/secrets/{key}"}
    assert found["RLGUARD_GUARD_SOCKET"]["value"].startswith("/"), "for the probes"


def test_its_author_says_where_it_runs_and_as_whom() -> None:
    own = GuardPod.model_validate(
        {
            "serviceAccountName": "reads-the-split",
            "nodeSelector": {"gpu": "l4"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "tolerationSeconds": 5}],
            "priorityClassName": "high",
        }
    )
    pod = guard_pod(job(resources={"limits": {"nvidia.com/gpu": 1}}), own)
    assert pod["serviceAccountName"] == "reads-the-split" and pod["priorityClassName"] == "high"
    assert pod["nodeSelector"] == {"gpu": "l4"}
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "tolerationSeconds": 5}]
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}
    plain = guard_pod()
    assert plain["serviceAccountName"] == "run-01234567"
    assert not {"nodeSelector", "tolerations", "priorityClassName"} & plain.keys()


def test_it_is_in_the_groups_of_the_trainer_and_never_in_that_of_root() -> None:
    """As a sidecar is: else it could not read what a umask of 027 leaves to the group."""

    def groups(container: Json, **security: Any) -> list[int]:
        given = with_pod(securityContext={"runAsNonRoot": True, **security})
        given["template"]["spec"]["containers"][0]["securityContext"] = container
        found: list[int] = guard_pod(job(given))["securityContext"].get("supplementalGroups", [])
        return found

    assert groups({}) == []
    assert groups({}, fsGroup=7, runAsGroup=5, supplementalGroups=[9, 7]) == [5, 7, 9]
    assert groups({"runAsGroup": 6}, fsGroup=7, runAsGroup=5) == [6, 7]
    assert groups({"runAsGroup": 0}, fsGroup=0, supplementalGroups=[0]) == []


# -- who reaches it --------------------------------------------------------------------------------------


def test_its_name_leads_to_it_alone_also_while_it_is_not_ready() -> None:
    """One that comes back takes steps at once; who must not begin before it is ready asks it."""
    spec = made()["Service"]["spec"]
    assert spec["clusterIP"] == "None" and spec["publishNotReadyAddresses"] is True
    assert spec["selector"] == LABELS and [p["port"] for p in spec["ports"]] == [8470]


# -- what its trainer has --------------------------------------------------------------------------------


def test_the_trainer_has_address_certificate_and_token_and_nothing_else_of_the_guard() -> None:
    pod = reporting()
    assert [c["name"] for c in pod["initContainers"]] == ["download", WAITER]
    trainer = env(container(pod, "trainer"))
    told = {"RLGUARD_URL", "RLGUARD_CA", "RLGUARD_TOKEN", "RLGUARD_UNREACHABLE_SECONDS"}
    assert trainer.keys() == {"A", *told}, "it waits for no evaluation"
    assert trainer["RLGUARD_URL"] == {"value": "https://run-01234567.ns.svc:8470"}
    for name, key in (("RLGUARD_CA", "tls.crt"), ("RLGUARD_TOKEN", "ingest-token")):
        assert trainer[name] == {"valueFrom": {"secretKeyRef": {"name": "run-01234567", "key": key}}}
    assert "env" not in container(pod, "logger")
    assert pod["volumes"] == template()["template"]["spec"]["volumes"] and "serviceAccountName" not in pod
    own = frozenset({("Secret", "run-01234567"), ("ConfigMap", "run-01234567")})
    assert leaks(pod, own) == ()


def test_a_trainer_that_is_followed_gets_nothing_and_still_waits_for_its_guard() -> None:
    followed = job(metrics={"follow": {"path": "metrics.jsonl", "format": "verl"}})
    pod = reporting(followed)
    assert env(container(pod, "trainer")).keys() == {"A"}
    assert env(container(pod, WAITER)).keys() == {"RLGUARD_URL", "RLGUARD_CA"}
    assert "metrics.jsonl" in env(guard_pod(followed)["containers"][0])["RLGUARD_GUARD_METRICS"]["value"]


@pytest.mark.parametrize("key", ["tls.key", "read-token"])
def test_a_trainer_with_the_private_key_is_seen(key: str) -> None:
    pod = reporting()
    container(pod, "trainer")["env"][-2]["valueFrom"]["secretKeyRef"]["key"] = key
    assert len(leaks(pod, frozenset({("Secret", "run-01234567")}))) == 1


def test_who_waits_has_no_token_and_is_nobody() -> None:
    waiter = container(reporting(job(imagePullPolicy="Always"), GuardPod(ready_seconds=90)), WAITER)
    assert env(waiter).keys() == {"RLGUARD_URL", "RLGUARD_CA"}
    assert waiter["command"][-2:] == ["90", str(GAVE_UP)] and waiter["imagePullPolicy"] == "Always"
    security = waiter["securityContext"]
    assert security["runAsUser"] not in (0, 64532) and security["capabilities"] == {"drop": ["ALL"]}


def test_the_folder_of_the_checkpoints_is_made_while_the_trainer_waits() -> None:
    """The kubelet makes a `subPath` when a container starts, and cannot in the guard's read-only volume.

    So guard and trainer would wait for each other until the time is over.
    """
    mounts = container(reporting(), WAITER)["volumeMounts"]
    assert mounts == [{"name": "ckpt", "mountPath": "/ckpt", "subPath": "run", "readOnly": True}]
    whole = template()
    del whole["template"]["spec"]["containers"][0]["volumeMounts"][0]["subPath"]
    assert "volumeMounts" not in container(reporting(job(whole)), WAITER), "there is nothing to make"


@contextmanager
def guard_at(directory: Path, ready: list[int]) -> Iterator[dict[str, str]]:
    """Says these statuses, one after the other, over TLS; gives the environment of who waits for it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/readyz"
            self.send_response(ready.pop(0) if len(ready) > 1 else ready[0])
            self.end_headers()
            self.wfile.write(b"the split is not checked yet")

        def log_message(self, *_: Any) -> None:
            pass

    certificate, key = own_certificate("localhost", datetime.now(UTC))
    for name, text in (("crt", certificate), ("key", key)):
        (directory / name).write_text(text)
    context = SSLContext(PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "crt", directory / "key")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield {"RLGUARD_URL": f"https://localhost:{server.server_address[1]}", "RLGUARD_CA": certificate}
        finally:
            server.shutdown()
            thread.join()


def wait(environment: dict[str, str], seconds: str) -> tuple[int, str]:
    command = [sys.executable, "-I", "-c", WAIT, seconds, str(GAVE_UP)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr.strip()


def test_the_trainer_starts_once_the_guard_is_ready(tmp_path: Path) -> None:
    ready = [503, 200]
    with guard_at(tmp_path, ready) as environment:
        assert wait(environment, "40") == (0, "")
    assert ready == [200], "it was asked before, and not ready"


def test_it_does_not_start_without_one_and_says_what_was_missing(tmp_path: Path) -> None:
    with guard_at(tmp_path, [503]) as environment:
        code, said = wait(environment, "0.1")
        assert code == GAVE_UP
        assert said == "the guard was not ready after 0.1 s: the split is not checked yet"
        other, _ = own_certificate("localhost", datetime.now(UTC))
        code, said = wait(environment | {"RLGUARD_CA": other}, "0.1")
        assert code == GAVE_UP and "CERTIFICATE_VERIFY_FAILED" in said, "it is not this job's guard"
    code, said = wait(environment, "0.1")
    assert code == GAVE_UP and "no guard responds" in said


def test_the_certificate_is_for_the_name_that_the_trainer_uses() -> None:
    assert f"https://{host_of(job())}:8470" == env(container(reporting(), "trainer"))["RLGUARD_URL"]["value"]


# -- what stands in the way ------------------------------------------------------------------------------


def obstacles(of: Job, own: GuardPod = OWN) -> list[tuple[str, str]]:
    found = find_obstacles(ADAPTER, of.spec.template.spec, of.spec.guard, own)
    return [(one.field, one.message) for one in found if one.cost is None]


def with_pod(**pod: Any) -> Json:
    spec = template()
    spec["template"]["spec"] |= pod
    return spec


POD = "spec.template.spec.template.spec"
WAITS = {"name": WAITER, "image": "x"}
REFUSED = {
    "no state": (job(state={}), OWN, "spec.guard.state.claimName", "no other memory"),
    "its account": (
        job(with_pod(serviceAccountName="reads")),
        GuardPod(service_account_name="reads"),
        f"{POD}.serviceAccountName",
        "whose role the trainer would have",
    ),
    "the account of whoever names none": (
        job(),
        GuardPod(service_account_name="default"),
        f"{POD}.serviceAccountName",
        "whose role the trainer would have",
    ),
    "its account, in the old field": (
        job(with_pod(serviceAccount="reads")),
        GuardPod(service_account_name="reads"),
        f"{POD}.serviceAccountName",
        "whose role",
    ),
    "its label": (
        job({"template": template()["template"] | {"metadata": {"labels": {"rlguard.dev/part": "x"}}}}),
        OWN,
        "spec.template.spec.template.metadata.labels",
        "by it the guard's own pod is found",
    ),
    "a waiter": (job(with_pod(initContainers=[WAITS])), OWN, POD, WAITER),
    "another waiter": (
        job(with_pod(containers=[*template()["template"]["spec"]["containers"], WAITS])),
        OWN,
        POD,
        WAITER,
    ),
    "no name in the cluster": (
        job(with_pod(dnsPolicy="Default")),
        OWN,
        f"{POD}.dnsPolicy",
        "found by its name in the cluster",
    ),
    "no name in the cluster, on the node's network": (
        job(with_pod(hostNetwork=True), isolation="Relaxed"),
        OWN,
        f"{POD}.dnsPolicy",
        "must be ClusterFirstWithHostNet",
    ),
    "no claim": (
        job(with_pod(volumes=[{"name": "ckpt", "emptyDir": {}}])),
        OWN,
        f"{POD}.volumes (ckpt)",
        "must be a persistentVolumeClaim",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_what_two_pods_make_impossible_is_refused(case: tuple[Job, GuardPod, str, str]) -> None:
    of, own, field, words = case
    ((where, message),) = obstacles(of, own)
    assert where == field and words in message


def test_nothing_else_is() -> None:
    assert obstacles(job()) == []
    assert obstacles(job(with_pod(serviceAccountName="x")), GuardPod(service_account_name="y")) == []
    assert obstacles(job(with_pod(serviceAccountName="x")), GuardPod(service_account_name="default")) == []
    for pod in (
        {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.10"]}},
        {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"},
    ):
        assert obstacles(job(with_pod(**pod), isolation="Relaxed")) == []


def test_a_trainer_that_brings_a_certificate_is_refused() -> None:
    own = template()
    own["template"]["spec"]["containers"][0]["env"] = [{"name": "RLGUARD_CA", "value": "mine"}]
    for placement in ("Pod", "Sidecar"):
        found = review(ADAPTER, job(own, placement=placement), CONFIG)
        assert found.reason == "TemplateRefused" and "must not be RLGUARD_CA" in found.findings[0]


@pytest.mark.parametrize(
    ("modes", "shared"),
    [
        (["ReadWriteMany"], True),
        (["ReadWriteOnce", "ReadWriteMany"], True),
        (["ReadWriteOnce"], False),
        (["ReadWriteOncePod"], False),
        (["ReadWriteOnce", "ReadOnlyMany"], False),
        ([], False),
    ],
)
def test_a_claim_that_two_nodes_cannot_share_is_named(modes: list[str], shared: bool) -> None:
    why = why_not_shared({"spec": {"accessModes": modes}})
    assert (why == "") is shared
    assert shared or f"its access modes are {', '.join(modes) or 'none'}, and" in why


def test_a_sidecar_has_nothing_of_all_this() -> None:
    pod = build_workload(job(placement="Sidecar"), ADAPTER, CONFIG)["spec"]["template"]["spec"]
    assert "RLGUARD_CA" not in env(container(pod, "trainer")) and WAITER not in str(pod)


def test_the_workload_of_such_a_job_waits_and_reports_and_has_no_guard() -> None:
    made = build_workload(job(), ADAPTER, CONFIG)["spec"]["template"]
    assert made["metadata"]["labels"]["rlguard.dev/placement"] == "Pod"
    assert not made["metadata"].get("annotations"), "there is no guard to compare"
    assert [c["name"] for c in made["spec"]["initContainers"]] == ["download", WAITER]
    assert "rlguard-" not in str(made["spec"]["volumes"]) and "serviceAccountName" not in made["spec"]
    confined = container(made["spec"], "trainer")["securityContext"]
    assert confined["capabilities"] == {"drop": ["ALL"]}


def test_its_secret_has_the_certificate_and_its_role_is_for_its_own_account() -> None:
    of = job(pod={"serviceAccountName": "reads"})
    account = guard_service_account(of, ADAPTER)
    assert account == "reads" and guard_service_account(job(), ADAPTER) == "run-01234567"
    found = {
        r.kind: body
        for r, body in support_objects(of, of.spec.guard.policy, account, ("i", "r"), ("crt", "key"))
    }
    data = {"ingest-token": "i", "read-token": "r", "tls.crt": "crt", "tls.key": "key"}
    assert found["Secret"]["stringData"] == data and "ServiceAccount" not in found
    assert found["RoleBinding"]["subjects"][0]["name"] == "reads"


def test_a_review_says_what_stands_in_the_way() -> None:
    found = review(ADAPTER, job(state={}), CONFIG)
    assert found.reason == "TemplateRefused" and "spec.guard.state.claimName must be set" in found.findings[0]
    assert review(ADAPTER, job(), CONFIG).reason is None


# -- what is decided -------------------------------------------------------------------------------------

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SET = Between(STATEFUL_SETS, "run-01234567", "set")
OF_WORKLOAD = Doomed(BATCH_JOBS, "run", "w")
REF = {"workloadRef": {"apiVersion": "batch/v1", "kind": "Job", "name": "run", "uid": "w"}}
JUDGED = {
    **{"heartbeat": NOW.isoformat(), "level": "healthy", "code": "ok", "reason": "fine", "step": 9},
    **{"attempt": 0, "announced": 3, "evaluated": 3, "waiting": 0},
}
EARLIER, LATER = (
    JUDGED | {"heartbeat": (NOW + timedelta(seconds=seconds)).isoformat()} for seconds in (-15, 15)
)
ENDED = {"ended": {"attempt": 0, "step": 9}}
FIRE = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 9, "at": NOW.isoformat()}
TRAINER = Pod("run-x7k2p", "uid-trainer", guarded=False, phase="Running", rank0=True)
GUARD = Pod("run-01234567-0", "uid-guard", guarded=True, phase="Running", guard_since=NOW)


def seen(
    state: WorkloadState = WorkloadState.RUNNING,
    status: Json | None = None,
    made: Between | None = SET,
    **values: Any,
) -> Snapshot:
    of = replace(job(), status=Status.model_validate({**REF, "guard": JUDGED, **(status or {})}))
    given = {"pods": (GUARD, TRAINER), "heartbeat_age": 1.0, **values}
    return Snapshot(of, Workload("w", True, state), own_guard=OwnGuard(made), **given)


def said(decision: Decision) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in decision.report.conditions}


def judging(seconds: float, guard: Json | None = None) -> Json:
    """The status of a run whose trainer was seen to have finished so long ago, when its guard said this."""
    status = {"guard": guard or EARLIER}
    first = decide(
        seen(WorkloadState.SUCCEEDED, status, pods=(GUARD,)), NOW - timedelta(seconds=seconds)
    ).report.conditions
    noted = [c.model_dump(mode="json", by_alias=True) for c in first if c.type == "Succeeded"]
    assert noted[0]["reason"] == "GuardJudges"
    return {"conditions": noted}


def test_it_is_started_with_the_run_and_again_if_it_is_gone() -> None:
    for state in (WorkloadState.PENDING, WorkloadState.RUNNING):
        assert decide(seen(state, made=None), NOW).actions == (StartGuard(),)
        assert decide(seen(state), NOW).actions == ()
        assert decide(seen(state, made=replace(SET, terminating=True)), NOW).actions == ()


def test_it_takes_no_gpu_while_a_queue_holds_the_run_back() -> None:
    assert decide(seen(WorkloadState.SUSPENDED), NOW).actions == (delete_makers((SET,)),)
    assert decide(seen(WorkloadState.SUSPENDED, made=None), NOW).actions == ()


def test_a_rank_0_without_a_sidecar_is_as_it_should_be() -> None:
    assert said(decide(seen(), NOW))["Guarded"] == ("True", "WorkloadCreated")
    changed = (replace(GUARD, changed=True), TRAINER)
    assert said(decide(seen(pods=changed), NOW))["Guarded"] == ("False", "GuardChanged")
    assert said(decide(seen(pods=(TRAINER,)), NOW))["Fired"] == ("Unknown", "GuardNotRunning")


def test_a_fire_stops_both() -> None:
    fired = {"guard": JUDGED | {"fire": FIRE}}
    decision = decide(seen(status=fired), NOW)
    assert decision.actions == (
        CaptureEvidence(final=False),
        Delete((OF_WORKLOAD, *delete_makers((SET,)).objects)),
    )
    going = decide(seen(status=fired, made=replace(SET, terminating=True)), NOW)
    assert going.actions == (CaptureEvidence(final=False), Delete((OF_WORKLOAD,)))
    left = decide(replace(seen(status=fired, pods=()), workload=None), NOW)
    assert said(left)["Stopped"] == ("False", "StopRequested"), "its StatefulSet would make the guard again"
    assert delete_makers((SET,)) in left.actions


def test_it_judges_what_is_left_when_the_trainer_has_finished() -> None:
    waits = {"guard": JUDGED | {"waiting": 1, "evaluated": 2} | ENDED}
    for status in (waits, waits | judging(JUDGED_SECONDS - 1)):
        decision = decide(seen(WorkloadState.SUCCEEDED, status, pods=(GUARD,)), NOW)
        assert decision.report.phase == "Judging" and decision.actions == ()
        assert said(decision)["Succeeded"] == ("Unknown", "GuardJudges")
        assert decision.look_again == JUDGING_SECONDS
    later = {"guard": LATER | {"waiting": 1, "evaluated": 2}}
    again = decide(seen(WorkloadState.SUCCEEDED, judging(1, JUDGED) | later, pods=(GUARD,)), NOW)
    (told,) = (c.message for c in again.report.conditions if c.type == "Succeeded")
    assert told == judging(1, JUDGED)["conditions"][0]["message"], "what was noted at the end stays"


def test_it_is_waited_for_until_it_has_heard_of_the_end() -> None:
    """What it waits for may be a checkpoint that was announced a moment ago."""

    def succeeded(status: Json) -> tuple[str, str]:
        return said(decide(seen(WorkloadState.SUCCEEDED, status, pods=(GUARD,)), NOW))["Succeeded"]

    assert succeeded({}) == ("Unknown", "GuardJudges")
    assert succeeded(judging(0, JUDGED) | {"guard": LATER | ENDED}) == ("True", "WorkloadSucceeded")
    assert succeeded(judging(HEARD_SECONDS - 1, JUDGED) | {"guard": LATER}) == ("Unknown", "GuardJudges")
    assert succeeded(judging(HEARD_SECONDS, JUDGED) | {"guard": LATER}) == ("True", "WorkloadSucceeded")


def test_a_report_of_before_the_end_says_nothing_of_what_was_announced_last() -> None:
    """A guard that dies with its trainer has not said what it still had to judge."""

    def succeeded(seconds: float, before: Json, made: Between | None = SET) -> tuple[str, str, str]:
        status = judging(seconds, before) | {"guard": before}
        decision = decide(seen(WorkloadState.SUCCEEDED, status, made, pods=(GUARD,)), NOW)
        (found,) = (c for c in decision.report.conditions if c.type == "Succeeded")
        return found.status, found.reason, found.message

    for before in (JUDGED | ENDED, JUDGED):
        assert succeeded(JUDGED_SECONDS - 1, before)[:2] == ("Unknown", "GuardJudges")
        status, reason, message = succeeded(JUDGED_SECONDS, before)
        assert (status, reason) == ("True", "NotJudged")
        assert "the guard has not reported since the trainer ended" in message
        assert succeeded(0, before, made=None)[:2] == ("True", "NotJudged"), "its StatefulSet was deleted"
    assert decide(seen(WorkloadState.SUCCEEDED, None, None, pods=()), NOW).report.phase == "Succeeded"
    never = {"level": "unknown"}
    assert succeeded(HEARD_SECONDS, never)[:2] == ("Unknown", "GuardJudges")


def test_a_guard_that_falls_silent_while_it_judges_is_no_plain_success() -> None:
    """In the very look that finds it silent, before the status says so."""
    status = judging(700, JUDGED) | {"guard": LATER | ENDED}
    for live in (False, True):
        snapshot = seen(WorkloadState.SUCCEEDED, status, pods=(GUARD,), heartbeat_age=601.0, live=live)
        warn = snapshot.job.spec.model_copy(update={"on_silence": OnSilence(action="Warn")})
        of = replace(snapshot, job=replace(snapshot.job, spec=warn))
        assert said(decide(of, NOW))["Succeeded"] == ("True", "NotJudged")


def test_a_workload_that_is_removed_while_its_guard_judges_has_finished_all_the_same() -> None:
    """By a TTL, for example. Its trainer need not have told anybody that it finished."""
    waits = JUDGED | {"waiting": 1, "evaluated": 2}
    status = judging(JUDGED_SECONDS - 1, JUDGED) | {"guard": waits}
    gone = replace(seen(WorkloadState.SUCCEEDED, status, pods=(GUARD,)), workload=None)
    assert decide(gone, NOW).report.phase == "Judging"
    late = decide(gone, NOW + timedelta(seconds=2))
    assert said(late)["Succeeded"] == ("True", "CheckpointsLeft") and "Disrupted" not in said(late)
    left = next(c.message for c in late.report.conditions if c.type == "Succeeded")
    assert "RLGUARD_DRAIN_SECONDS" not in left and "a faster evaluator" in left
    assert "backlog" not in left, "what is passed over is not judged either"


WAITS = {"guard": JUDGED | {"waiting": 1, "evaluated": 2} | ENDED}


@pytest.mark.parametrize(
    "seen_now",
    [
        lambda: seen(WorkloadState.SUCCEEDED, WAITS | judging(JUDGED_SECONDS), pods=(GUARD,)),
        lambda: seen(WorkloadState.SUCCEEDED, WAITS, pods=(GUARD,), heartbeat_age=601.0, live=True),
        lambda: seen(WorkloadState.SUCCEEDED, WAITS, None, pods=()),
    ],
    ids=["for too long", "silent", "gone"],
)
def test_a_guard_that_judges_no_more_is_not_waited_for(seen_now: Callable[[], Snapshot]) -> None:
    snapshot = seen_now()
    of = replace(
        snapshot.job, spec=snapshot.job.spec.model_copy(update={"on_silence": OnSilence(action="Warn")})
    )
    decision = decide(replace(snapshot, job=of), NOW)
    assert said(decision)["Succeeded"] == ("True", "CheckpointsLeft"), "and that is said"


def test_a_trainer_that_failed_waits_for_no_evaluation() -> None:
    assert said(decide(seen(WorkloadState.FAILED, WAITS, pods=(GUARD,)), NOW))["Failed"][0] == "True"


def test_it_ends_once_the_evidence_is_there_or_is_not_to_come() -> None:
    over = {
        "conditions": [
            {"type": "Succeeded", "status": "True", "reason": "x", "lastTransitionTime": NOW.isoformat()}
        ]
    }
    first = decide(seen(WorkloadState.SUCCEEDED, over, pods=(GUARD,)), NOW)
    assert first.actions == (CaptureEvidence(final=False),) and first.look_again is not None
    written = decide(seen(WorkloadState.SUCCEEDED, over | {"evidence": "e"}, pods=(GUARD,)), NOW)
    assert written.actions == (delete_makers((SET,)),)
    assert written.look_again == STOPPING_SECONDS, "a delete that is refused is asked for again: it has a GPU"
    late = NOW + timedelta(seconds=EVIDENCE_SECONDS + 1)
    assert decide(seen(WorkloadState.SUCCEEDED, over, pods=(GUARD,)), late).actions == (
        delete_makers((SET,)),
    )
    done = decide(seen(WorkloadState.SUCCEEDED, over, None, pods=()), late)
    assert done.actions == () and done.look_again is None


# -- a guard that does not come, is not heard, or is elsewhere -------------------------------------------


def halted(snapshot: Snapshot) -> tuple[str, str] | None:
    return said(decide(replace(snapshot, live=True), NOW)).get("Halted")


def test_a_guard_on_a_lost_node_is_silent_while_its_trainer_goes_on() -> None:
    """A toleration for lost nodes would else let the run train unjudged for as long as the node is away."""
    lost = replace(GUARD, node="a", cut_off=True)
    elsewhere = seen(pods=(lost, replace(TRAINER, node="b")), heartbeat_age=601.0)
    assert halted(elsewhere) == ("True", "GuardSilent")
    beside = seen(pods=(lost, replace(TRAINER, node="a", cut_off=True)), heartbeat_age=601.0)
    assert halted(beside) is None, "both run on, and its guard judges it"


GAVE_UP_WORDS = "the guard was not ready after 1800 s: no guard responds"


def waiter(state: Json, last: Json | None = None) -> Json:
    return {"name": WAITER, "state": state, "lastState": last or {}, "restartCount": 1}


def ended(code: int, message: str = GAVE_UP_WORDS) -> Json:
    return {"terminated": {"exitCode": code, "message": f"line\n{message}\n"}}


def test_a_stateful_set_of_somebody_else_is_told_and_left_alone() -> None:
    snapshot = replace(seen(made=None, pods=(TRAINER,)), own_guard=OwnGuard(taken="run-01234567"))
    decision = decide(snapshot, NOW)
    assert said(decision)["Guarded"] == ("False", "NameTaken") and decision.actions == ()
    assert decision.look_again is not None and decision.look_again <= NAME_TAKEN_SECONDS


# -- what is seen ----------------------------------------------------------------------------------------


def raw_pod(**status: Any) -> Json:
    template = made()["StatefulSet"]["spec"]["template"]
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "uid": "set", "controller": True}
    metadata = {"name": "run-01234567-0", "namespace": "ns", "uid": "u", "ownerReferences": [owner]}
    guard = {"name": "rlguard-guard", "started": True, "state": {"running": {"startedAt": NOW.isoformat()}}}
    return {
        "metadata": template["metadata"] | metadata,
        "spec": template["spec"],
        "status": {"phase": "Running", "containerStatuses": [guard | status]},
    }


def test_its_pod_is_believed_if_its_own_set_controls_it() -> None:
    last = {"terminated": {"exitCode": 0, "message": f'{{"fire": {json.dumps(FIRE)}}}'}}
    world = Namespace()
    world.made = [raw_pod(lastState=last)]
    pod = world.gather().pods[0]
    assert (pod.guarded, pod.rank0, pod.changed, pod.guard_since) == (True, False, False, NOW)
    assert pod.fire is not None and pod.fire.code == "hacking_gap"
    world.sets[0]["metadata"]["uid"] = "another"
    other = world.gather().pods[0]
    assert not other.guarded and other.fire is None


def test_a_guard_that_cannot_start_is_said() -> None:
    crashed = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "started": False, "restartCount": 3}
    ended = {"terminated": {"exitCode": 2, "message": "the split overlaps"}}
    world = Namespace()
    world.made = [raw_pod(**crashed, lastState=ended)]
    pod = world.gather().pods[0]
    assert pod.waiting is not None and "the split overlaps" in pod.waiting.message


# -- what is gathered ------------------------------------------------------------------------------------


class Namespace:
    """Caches and client at once: what a namespace has of a job, and what somebody put in the way of it."""

    def __init__(self, status: Json | None = None, kind: str = "Job", **spec: Any) -> None:
        of = job()
        raw = {"template": {"apiVersion": "batch/v1", "kind": kind, "spec": template()}, **spec}
        guard = {
            "placement": "Pod",
            **of.spec.guard.model_dump(mode="json", by_alias=True, exclude_unset=True),
        }
        metadata = {"name": "run", "namespace": "ns", "uid": "0123456789ab", "resourceVersion": "1"}
        self.job = {"metadata": metadata, "spec": raw | {"guard": guard}, "status": {**REF, **(status or {})}}
        owner = {"kind": "GuardedTrainingJob", "name": "run", "uid": "0123456789ab", "controller": True}
        self.sets = [
            {
                "metadata": {
                    **{"name": "run-01234567", "namespace": "ns", "uid": "set", "ownerReferences": [owner]},
                    "creationTimestamp": (NOW - timedelta(seconds=60)).isoformat(),
                }
            }
        ]
        self.work: Json | None = {
            "metadata": {"name": "run", "namespace": "ns", "uid": "w", "ownerReferences": [owner]},
            "status": {"active": 1},
        }
        self.uncached: list[Json] = []
        self.made: list[Json] = []
        self.events: list[Json] = []
        self.now = 0.0
        self.asked: list[str] = []
        beats = HeartbeatClock(lambda: self.now)
        self.gatherer = Gatherer(cast(Client, self), CONFIG, cast(Caches, self), beats, lambda: NOW)

    def gather(self) -> Snapshot:
        self.asked.clear()
        snapshot = self.gatherer.gather(parse_job(self.job))
        assert snapshot is not None
        return snapshot

    def note(self) -> None:
        """What is to be noted of the guard is written."""
        self.job["status"]["guardDigest"] = decide(self.gather(), NOW).report.guard_digest

    # Caches
    def quiet_for(self, _namespace: str) -> float:
        return 0.0

    def workload(self, _resource: Resource, _namespace: str, _name: str) -> Json | None:
        return self.work

    def pods(self, _namespace: str, _uid: str) -> list[Json]:
        return self.made

    def between(self, resource: Resource, _namespace: str, _uid: str) -> list[Json]:
        assert resource is STATEFUL_SETS
        return [one for one in self.sets if "foreign" not in one]

    # Client
    def get(self, resource: Resource, _namespace: str, _name: str, **_how: object) -> Json | None:
        return self.job if resource.kind == "GuardedTrainingJob" else self.work

    def list(self, resource: Resource, _namespace: str, query: Json) -> Json:
        self.asked.append(f"list {resource.kind}")
        if resource is EVENTS:
            of = query["fieldSelector"].removeprefix("involvedObject.uid=")
            return {"items": [one for one in self.events if one["of"] == of]}
        if resource is PODS:
            return {"items": self.made}
        if "labelSelector" in query:
            return {"items": self.between(resource, "ns", "")}
        assert query == {"fieldSelector": "metadata.name=run-01234567"}
        return {"items": self.sets + self.uncached}


@pytest.mark.parametrize("gone", ["succeeded", "removed", "somebody else's"])
def test_a_guard_that_judges_has_to_report(gone: str) -> None:
    world = Namespace({"guard": {"heartbeat": NOW.isoformat()}})
    world.made = [raw_pod()]
    assert world.gather().heartbeat_age is None, "the trainer's pod is not there yet"
    assert world.work is not None
    if gone == "succeeded":
        world.work["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    elif gone == "removed":
        world.work = None
    else:
        world.work["metadata"] |= {"uid": "other", "ownerReferences": []}
    assert world.gather().heartbeat_age == 0
    world.now = 601.0
    assert world.gather().heartbeat_age == 601.0


def test_of_an_unknown_kind_the_set_of_the_guard_is_ended_too() -> None:
    """It would make its pod again and again, with its GPU."""
    world = Namespace({"guard": JUDGED | {"fire": FIRE}}, kind="Strange")
    world.made = [raw_pod()]
    snapshot = world.gather()
    assert snapshot.unknown_kind
    assert delete_makers((SET,)) in decide(snapshot, NOW).actions
    world.job["status"]["guard"] = JUDGED
    assert world.gather().own_guard is None, "a run that goes on costs no request"
