"""Every fire ends in "no pod left", said once and only when it is so; and what is not known is not told.

- Stopped settles: a controller on a stale cache that makes the pod again is met, and nothing is told twice.
- 100 fires while no log can be had: each stop request comes within two seconds of its own fire.
- A fire goes before the history of jobs that are over when an operator starts.
- No verdict is told while no guard runs; a rank 0 without its guard is seen, and met as a silent guard is.
- A guard that was changed is seen, whatever the annotation of its pod says.
- A run that ended while no operator was there ends as its guard saw it end.
- A namespace that cannot be read holds up no other, and a process that cannot work does not lead.
- A webhook that hangs holds up a stop, but not for good; nor do pods that cannot be listed, and somebody who
  writes the job all the time.
- Pods that may take a day to end are given less, and pods that do not end are said.
"""

from __future__ import annotations

import copy
import itertools
import re
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from guard_operator.api.names import DIGEST_ANNOTATION
from guard_operator.reconcile.digest import injected_digest, is_as_injected
from guard_operator.runtime.client import MERGE, PODS, ROLE_BINDINGS, Client
from guard_operator.runtime.errors import ClusterError

from .conftest import CRDS, new_namespace
from .controlplane import ControlPlane
from .faults import Answer, Fault, Hang, fault_proxy
from .kubelet import kubelet_of_node
from .waiting import eventually
from .world import BEAT, JOBS, PYTORCHJOBS, RUNNING, Json, World, deadline

pytestmark = pytest.mark.nightly

MakeJob = Callable[..., Json]
FIRES, WITHIN_SECONDS, HANGING = 100, 2.0, 40
#: Where requests take long, a stop has the time of so many; and what no machine excuses.
REQUESTS, MOST_SECONDS = 5, 10.0
#: How many jobs a list shows before the one that has fired.
OTHERS = 50
JSON_PATCH = "application/json-patch+json"
#: Tells the run's workload to end.
STOP = "PATCH", ["pytorchjobs", "run"]
#: Whether a kind could be listed where those of Ray cannot.
KINDS = {"RayJob": 0.0, "RayCluster": 0.0, "PyTorchJob": 1.0}
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
#: The last word of a guard that has judged all of a run, and whose trainer had finished.
FINISHED = {
    **{"heartbeat": BEAT, "level": "healthy", "code": "ok", "reason": "fine", "attempt": 0, "step": 9},
    **{"announced": 3, "evaluated": 3, "failed": 0, "skipped": 0, "waiting": 0},
    "ended": {"attempt": 0, "step": 9},
}


# -- stopped ---------------------------------------------------------------------------------------------


class StaleController(threading.Thread):
    """A training-operator whose cache is behind: for a while it makes a pod again as soon as it is gone."""

    def __init__(self, here: World, seconds: float) -> None:
        super().__init__(daemon=True)
        self._here, self._until = here, time.monotonic() + seconds
        pod = here.pods()[0]
        self._pod = {
            "metadata": {key: pod["metadata"][key] for key in ("name", "labels", "ownerReferences")},
            "spec": pod["spec"],
        }
        self.made = 0

    def run(self) -> None:
        while time.monotonic() < self._until:
            self._here.training_operator_stops_the_job()
            time.sleep(1.0)  # as long as it takes until it looks again
            with suppress(ClusterError):
                self._here.put(PODS, self._pod)
                self.made += 1
        self._here.training_operator_stops_the_job()


@pytest.mark.slow
def test_stopped_is_said_once_it_has_settled(running: World) -> None:
    """Also with a controller that makes the pod again: Stopped is said once, and stays."""
    controller = StaleController(running, 10.0)
    turns: list[str] = []
    running.fire()
    running.expect_workload(deadline, "the workload is told to end")
    controller.start()
    while controller.is_alive() or running.conditions()["Stopped"][0] != "True":
        said = running.conditions().get("Stopped", ("",))[0]
        if not turns or turns[-1] != said:
            turns.append(said)
        time.sleep(0.1)
    assert controller.made > 3
    running.expect("Stopped", "True", "NoPodsLeft")
    # A minute later it is looked at once more, and what came back meanwhile unseen would be met.
    time.sleep(2.0)
    assert turns[-1] in {"True", "False"} and turns.count("True") <= 1, turns
    running.expect_events("NoPodsLeft")
    assert running.events().count("NoPodsLeft") == 1
    assert running.pods() == []


def test_fires_are_stopped_at_once_while_no_log_can_be_had(
    plane: ControlPlane, client: Client, namespace: str, here: World, make_job: MakeJob
) -> None:
    """Every one of 100 runs is told to stop within 2 s of its own fire, as this test's watch shows it.

    Where other work has the cores it is the time of `REQUESTS` requests, as many as lie between the two with
    both watches, measured by the fires of this very run. Stops that waited for logs were 15 s late, so
    `MOST_SECONDS` is the limit whatever a request takes.
    """
    here.claim()
    runs = [here.another(f"run-{number}") for number in range(FIRES)]
    for one in runs:
        one.submit(make_job(one.name))
    # Without a processor for long enough it would lose its Lease and end; no kubelet starts it here.
    operator = here.operator(lease_seconds=60.0)
    node = f"node-of-{namespace}"
    with kubelet_of_node(plane, client, node) as kubelet, ThreadPoolExecutor(4) as pool:
        kubelet.hangs.set()
        for one in runs:
            one.expect("Guarded", "True", "WorkloadCreated", within=120)
        list(pool.map(lambda one: one.start_pod(node=node), runs))
        list(pool.map(lambda one: one.admin_says(heartbeat=BEAT, step=1), runs))
        for one in runs:
            one.expect("Fired", "False", "NotFired", within=60)
        seen: dict[str, float] = {}
        watch = threading.Thread(target=note_stops, args=(client, namespace, seen), daemon=True)
        watch.start()
        began = time.monotonic()
        fires = list(pool.map(says_fire, runs))
        took = time.monotonic() - began
        eventually(lambda: len(seen) == FIRES, "every run was told to stop", within=60)
        late = max(seen[one.name] - there for one, (_, there) in zip(runs, fires, strict=True))
        request = statistics.median(there - asked for asked, there in fires)
        due = min(max(WITHIN_SECONDS, REQUESTS * request), MOST_SECONDS)
        print(f"{FIRES} fires in {took:.2f} s, {request:.3f} s each: the slowest stop after {late:.2f} s")
        assert late < due
    assert operator.page("/healthz") == "ok\n"


def says_fire(one: World) -> tuple[float, float]:
    """A guard says that it fired: when that was asked of the API server, and when it had taken it."""
    latch = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 1, "at": BEAT}
    asked = time.monotonic()
    one.admin_says(heartbeat=BEAT, fire=latch)
    return asked, time.monotonic()


def note_stops(client: Client, namespace: str, seen: dict[str, float]) -> None:
    """When each workload is first seen with its deadline."""
    query = {"watch": "true", "timeoutSeconds": "120"}
    with suppress(ClusterError), client.stream(PYTORCHJOBS.path(namespace), query, 120) as events:
        for event in events:
            policy = event["object"].get("spec", {}).get("runPolicy", {})
            if policy.get("activeDeadlineSeconds") == 1:
                seen.setdefault(event["object"]["metadata"]["name"], time.monotonic())


# -- what is not known is not told -----------------------------------------------------------------------


def crashed(reason: str = "CrashLoopBackOff") -> Json:
    status = copy.deepcopy(RUNNING)
    guard = status["initContainerStatuses"][0]  # type: ignore[index]
    guard["state"] = {"waiting": {"reason": reason}}
    return status


def test_no_verdict_is_told_while_no_guard_runs(running: World) -> None:
    """As when a trainer took the guard's port: the guard crash-loops, and the trainer goes on."""
    running.guard_says(**{key: FINISHED[key] for key in FINISHED if key != "ended"})
    running.pod_status(crashed())
    message = running.expect("Fired", "Unknown", "GuardNotRunning")
    assert "its last verdict, of 2026-01-01T00:00:00Z: healthy (ok) at step 9: fine" in message
    running.pod_status(RUNNING)
    running.expect("Fired", "False", "NotFired")
    # A guard that was started anew has no verdict before it has reported.
    status = copy.deepcopy(RUNNING)
    guard = status["initContainerStatuses"][0]  # type: ignore[index]
    guard["state"] = {"running": {"startedAt": "2026-01-01T01:00:00Z"}}
    running.pod_status(status)
    running.expect("Fired", "Unknown", "GuardNotRunning")
    running.guard_says(heartbeat="2026-01-01T01:00:01Z")
    running.expect("Fired", "False", "NotFired")


def another_pod(here: World) -> Json:
    """The pod, to be changed as something between operator and kubelet might change it."""
    pod = copy.deepcopy(here.pods()[0])
    kept = ("name", "labels", "annotations", "ownerReferences")
    return {"metadata": {key: pod["metadata"][key] for key in kept}, "spec": pod["spec"]}


def without_guard(here: World) -> Json:
    pod = another_pod(here)
    pod["spec"]["initContainers"].pop()
    return pod


def replace_pod(here: World, pod: Json) -> None:
    here.delete_pods()
    here.kubelet_ends_pods()
    eventually(lambda: here.pods() == [], "the pod is gone")
    here.put(PODS, pod)
    here.pod_status(RUNNING)


def test_a_rank_0_whose_guard_was_changed_is_not_called_guarded(running: World) -> None:
    pod = another_pod(running)
    replace_pod(running, copy.deepcopy(pod))
    time.sleep(1.0)
    assert running.conditions()["Guarded"][1] == "WorkloadCreated", "what the API server adds is no change"
    pod["spec"]["initContainers"][-1]["image"] = "sleeper:1"
    replace_pod(running, pod)
    assert "run-master-0" in running.expect("Guarded", "False", "GuardChanged")
    running.expect_events("GuardChanged")


@pytest.mark.parametrize("annotated", [True, False], ids=["rewritten", "removed"])
def test_whoever_edits_the_workload_cannot_vouch_for_its_guard(running: World, annotated: bool) -> None:
    """He can write what he likes into the workload, but not into the status of the job."""
    workload = running.workload()
    template = workload["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    annotations = template["metadata"]["annotations"]
    noted = running.job()["status"]["guardDigest"]
    assert noted == annotations.pop(DIGEST_ANNOTATION) == injected_digest(template["spec"])
    template["spec"]["initContainers"][-1]["image"] = "sleeper:1"
    if annotated:
        annotations[DIGEST_ANNOTATION] = injected_digest(template["spec"])
    running.client.request("PUT", PYTORCHJOBS.path(running.namespace, "run"), body=workload)
    running.delete_pods()
    running.kubelet_ends_pods()
    eventually(lambda: running.pods() == [], "the pod is gone")
    pod = running.start_pod()
    assert is_as_injected(pod) is (True if annotated else None), "by its annotation nothing is found"
    assert "run-master-0" in running.expect("Guarded", "False", "GuardChanged")
    running.expect_events("GuardChanged")
    assert running.job()["status"]["guardDigest"] == noted


@pytest.mark.always
def test_a_rank_0_without_its_guard_is_not_called_guarded(running: World) -> None:
    replace_pod(running, without_guard(running))
    assert "run-master-0" in running.expect("Guarded", "False", "GuardMissing")
    running.expect("Fired", "Unknown", "GuardNotRunning")
    running.expect_events("GuardMissing")


@pytest.mark.slow
def test_a_rank_0_without_its_guard_is_met_as_a_silent_guard_is(here: World, make_job: MakeJob) -> None:
    here.claim()
    job = make_job()
    job["spec"]["onSilence"] = {"afterSeconds": 30, "action": "Stop"}
    here.submit(job)
    here.operator()
    here.start()
    replace_pod(here, without_guard(here))
    here.expect_workload(deadline, "the workload is told to end", within=60)
    assert "without its guard" in here.expect("Halted", "True", "GuardSilent")


# -- how a run ended -------------------------------------------------------------------------------------


def ended_while_nobody_looked(here: World, make_job: MakeJob, **said: object) -> None:
    """The trainer finishes, and a TTL removes the workload, while no operator runs."""
    here.claim()
    here.submit(make_job())
    first = here.operator(lease_seconds=4)
    here.start()
    first.kill()
    here.guard_says(**FINISHED | said)
    here.workload_condition("Succeeded")
    here.delete_pods()
    here.kubelet_ends_pods()
    here.client.delete(PYTORCHJOBS, here.namespace, "run", here.workload()["metadata"]["uid"])
    here.operator(lease_seconds=4)


def test_a_run_that_succeeded_while_the_operator_was_down_has_succeeded(
    here: World, make_job: MakeJob
) -> None:
    ended_while_nobody_looked(here, make_job)
    assert "told the guard at step 9" in here.expect("Succeeded", "True", "WorkloadSucceeded")
    assert here.phase() == "Succeeded" and "Disrupted" not in here.conditions()


def test_a_run_that_was_not_judged_while_the_operator_was_down_says_so(
    here: World, make_job: MakeJob
) -> None:
    ended_while_nobody_looked(here, make_job, evaluated=1, waiting=2)
    here.expect("Succeeded", "True", "CheckpointsLeft")


def test_a_trainer_that_fails_is_quoted(running: World) -> None:
    ended = {"exitCode": 1, "message": "Traceback\nCUDA out of memory\n"}
    trainer = {"name": "pytorch", "image": "trainer:1", "imageID": "", "ready": False, "restartCount": 0}
    running.pod_status(
        {"phase": "Failed", "containerStatuses": [{**trainer, "state": {"terminated": ended}}]}
    )
    running.workload_condition("Failed")
    message = running.expect("Failed", "True", "WorkloadFailed")
    assert message.endswith("container pytorch ended with exit code 1: CUDA out of memory")


# -- namespaces ------------------------------------------------------------------------------------------


def test_a_namespace_that_is_gone_holds_up_no_other(here: World, make_job: MakeJob) -> None:
    gone = new_namespace(here.client)  # of which the operator may read nothing
    here.claim()
    here.submit(make_job())
    operator = here.operator(f"--namespace={gone}")
    here.expect("Guarded", "True", "WorkloadCreated")
    page = operator.page("/metrics")
    assert f'rlguard_namespace_synced{{namespace="{gone}"}} 0.0' in page
    assert f'rlguard_namespace_synced{{namespace="{here.namespace}"}} 1.0' in page
    # As soon as it can be read it is worked on.
    here.bind("ClusterRole", "rlguard-operator", gone)
    job = make_job()
    job["metadata"]["namespace"] = gone
    here.client.create(JOBS, gone, job, "test")

    def refused() -> bool:
        raw = here.client.get(JOBS, gone, "run") or {}
        return (raw.get("status") or {}).get("phase") == "Refused"

    eventually(refused, "the missing claim is noticed", within=60)


def test_a_process_that_cannot_work_does_not_lead(here: World) -> None:
    here.client.request("DELETE", ROLE_BINDINGS.path(here.namespace, "operator-clusterrole"))
    operator = here.operator()
    eventually(lambda: "403" in operator.log.read_text(), "it may not read anything")
    time.sleep(3.0)
    assert here.leader() == ""
    here.bind("ClusterRole", "rlguard-operator", here.namespace)
    eventually(here.leader, "it leads", within=60)


@contextmanager
def not_served(client: Client, crd: str) -> Iterator[None]:
    """As where the only version of a kind is taken off its CRD; its objects stay."""

    def serve(value: bool) -> None:
        patch = [{"op": "replace", "path": "/spec/versions/0/served", "value": value}]
        client.request("PATCH", CRDS.path(None, crd), body=patch, content_type=JSON_PATCH, timeout=60.0)

    serve(False)
    try:
        yield
    finally:
        serve(True)
        eventually(lambda: client.list(PYTORCHJOBS, None, {}) is not None, "it is served", within=60)


def test_a_kind_that_is_no_longer_served_ends_no_run(here: World, make_job: MakeJob) -> None:
    """It was called `Disrupted (WorkloadDeleted)`, for good, within two seconds."""
    here.claim()
    here.submit(make_job())
    here.operator()
    here.start()
    here.guard_says(heartbeat=BEAT, step=1)
    here.expect("Fired", "False", "NotFired")
    with not_served(here.client, "pytorchjobs.kubeflow.org"):
        message = here.expect("GuardSilent", "Unknown", "KindUnread", within=60)
        assert "PyTorchJob cannot be listed" in message
        assert "its last verdict" in here.expect("Fired", "Unknown", "KindUnread")
        assert here.phase() == "Running" and "Disrupted" not in here.conditions()
    here.expect("Fired", "False", "NotFired", within=90)
    assert here.phase() == "Running" and here.client.get(PYTORCHJOBS, here.namespace, "run") is not None
    here.fire()
    here.expect_workload(deadline, "the workload is told to end")


def test_a_guard_of_a_kind_that_cannot_be_read_any_more_is_not_called_healthy(
    plane: ControlPlane, here: World, make_job: MakeJob
) -> None:
    """As where a role is narrowed, or a conversion webhook dies, while runs go on."""

    def no_kind(method: str, path: str) -> Fault | None:
        return Answer(500, "InternalError") if method == "GET" and "/pytorchjobs" in path else None

    here.claim()
    job = make_job()
    job["spec"]["onSilence"] = {"action": "Stop", "afterSeconds": 60}
    here.submit(job)
    with fault_proxy(plane) as proxy:
        operator = here.operator(server=proxy.url)
        here.start()
        here.guard_says(heartbeat=BEAT, step=1)
        here.expect("Fired", "False", "NotFired")
        proxy.inject(no_kind)
        here.expect("GuardSilent", "Unknown", "KindUnread", within=240)
        here.expect("Fired", "Unknown", "KindUnread")
        synced = f'rlguard_kind_synced{{kind="PyTorchJob",namespace="{here.namespace}"}} 0.0'
        assert synced in operator.page("/metrics") and "Halted" not in here.conditions()
        proxy.heal()
        here.expect("Halted", "True", "GuardSilent", within=120)


def test_a_kind_that_cannot_be_listed_holds_up_no_other(
    plane: ControlPlane, here: World, make_job: MakeJob
) -> None:
    """As while the conversion webhook of its CRD is down; that nothing is known of its runs is said."""

    def no_ray(method: str, path: str) -> Fault | None:
        return Answer(500, "InternalError") if method == "GET" and "/apis/ray.io/" in path else None

    here.claim()
    ray = make_job("ray")
    ray["spec"]["template"] = {"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": {}}
    for job in (make_job(), ray):
        here.submit(job)
    began = time.monotonic()
    with fault_proxy(plane) as proxy:
        proxy.inject(no_ray)
        operator = here.operator(server=proxy.url)
        here.start()
        here.fire()
        here.expect_workload(deadline, "the workload is told to end")
        assert time.monotonic() - began < 60, "nobody waited until the operator gives up"
        message = here.another("ray").expect("GuardSilent", "Unknown", "KindUnread", within=90)
        assert "RayCluster, RayJob cannot be listed" in message
        page = operator.page("/metrics")
        listed = {
            kind: f'rlguard_kind_synced{{kind="{kind}",namespace="{here.namespace}"}}' for kind in KINDS
        }
        assert [f"{listed[kind]} {value}" in page for kind, value in KINDS.items()] == [True] * len(KINDS)
        proxy.heal()
        here.another("ray").expect("Guarded", "False", "TemplateRefused", within=90)


# -- what stands between a fire and its stop -------------------------------------------------------------


@pytest.mark.parametrize(("verbs", "end"), [(["UPDATE"], "workload"), (["UPDATE", "DELETE"], "pods")])
def test_a_webhook_that_hangs_holds_up_no_stop_for_good(running: World, verbs: list[str], end: str) -> None:
    """Longer than the operator waits for an answer, as where the network drops what a webhook is sent."""
    with hanging_webhook(running, verbs):
        running.fire()
        if end == "workload":
            eventually(
                lambda: running.client.get(PYTORCHJOBS, running.namespace, running.name) is None, end, 60
            )
        else:
            eventually(lambda: told_to_end(running), end, 90)
    running.expect_events("StopEscalated")


def test_fires_whose_stop_hangs_hold_up_no_other_fire(
    plane: ControlPlane, client: Client, namespace: str, here: World, make_job: MakeJob
) -> None:
    """As behind a webhook from which no answer comes; nor one another."""
    here.claim()
    hanging = [here.another(f"hangs-{number}") for number in range(HANGING)]
    other = here.another("other")
    for one in (*hanging, other):
        one.submit(make_job(one.name))
    asked: dict[str, float] = {}

    def hangs(method: str, path: str) -> Fault | None:
        name = path.split("?", maxsplit=1)[0].rsplit("/", 1)[-1]
        if method != "PATCH" or "/pytorchjobs/" not in path:
            return None
        asked.setdefault(name, time.monotonic())
        return Hang() if name.startswith("hangs") else None

    with fault_proxy(plane) as proxy, ThreadPoolExecutor(4) as pool:
        operator = here.operator("--workers=4", server=proxy.url, lease_seconds=60.0)
        for one in (*hanging, other):
            one.expect("Guarded", "True", "WorkloadCreated", within=120)
        list(pool.map(lambda one: one.start_pod(), (*hanging, other)))
        list(pool.map(lambda one: one.admin_says(heartbeat=BEAT, step=1), (*hanging, other)))
        for one in (*hanging, other):
            one.expect("Fired", "False", "NotFired", within=60)
        proxy.inject(hangs)
        asked.clear()
        fire = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 1, "at": BEAT}
        list(pool.map(lambda one: one.admin_says(heartbeat=BEAT, fire=fire), hanging))
        eventually(lambda: len(asked) >= 4, "the first stops hang")
        fired = time.monotonic()
        other.admin_says(heartbeat=BEAT, fire=fire)
        eventually(lambda: len(asked) == HANGING + 1, "every run was told to stop", within=120)
        took = asked["other"] - fired
        last = max(asked.values()) - fired
        print(f"{HANGING} stops hang: another one {took:.2f} s after its fire, the last of all {last:.2f} s")
        assert took < WITHIN_SECONDS and last < 2 * WITHIN_SECONDS
        eventually(lambda: all(told_to_end(one) for one in hanging), "their pods are told to end", within=180)
        print(f"their pods are told to end {time.monotonic() - fired:.0f} s after the fires")
    assert operator.page("/healthz") == "ok\n"


def told_to_end(here: World) -> bool:
    """Whether every pod is; there is one."""
    return all("deletionTimestamp" in pod["metadata"] for pod in here.pods())


def test_pods_that_cannot_be_listed_are_told_to_end(
    plane: ControlPlane, here: World, make_job: MakeJob
) -> None:
    """Nobody acts on the stop of the workload, as where its controller is away."""
    here.claim()
    here.submit(make_job())
    with fault_proxy(plane) as proxy:
        here.operator(server=proxy.url)
        here.start()

        def no_pods(method: str, path: str) -> Fault | None:
            listed = method == "GET" and path.split("?", maxsplit=1)[0].endswith("/pods")
            return Answer(403, "Forbidden") if listed else None

        proxy.break_watch(no_pods)
        here.fire()
        assert "403" in here.expect("Stopped", "False", "PodsUnread")
        eventually(lambda: told_to_end(here), "its pod is told to end", within=60)
        here.kubelet_ends_pods()
        time.sleep(7.0)
        assert here.conditions()["Stopped"][1] == "PodsUnread", "nobody knows that it is gone"
        proxy.heal()
        here.expect("Stopped", "True", "NoPodsLeft", within=90)


def test_who_changes_a_job_all_the_time_holds_up_no_stop(running: World) -> None:
    """Faster than the operator's watch follows; and takes away what it writes of the stop."""
    over, path = threading.Event(), JOBS.path(running.namespace, running.name)

    def meddle() -> None:
        for number in itertools.count():
            if over.is_set():
                return
            body: Json = {"metadata": {"annotations": {"number": str(number)}}}
            running.client.request("PATCH", path, body=body, content_type=MERGE)
            if number % 20 == 0:
                running.client.request(
                    "PATCH", f"{path}/status", body={"status": {"stop": None}}, content_type=MERGE
                )

    meddlers = [threading.Thread(target=meddle, daemon=True) for _ in range(2)]
    for one in meddlers:
        one.start()
    running.admin_says(
        heartbeat=BEAT, fire={"code": "hacking_gap", "reason": "x", "attempt": 0, "step": 1, "at": BEAT}
    )
    try:
        eventually(lambda: told_to_end(running), "its pod is told to end", within=120)
    finally:
        over.set()
    for one in meddlers:
        one.join(30)
    running.kubelet_ends_pods()
    running.expect("Stopped", "True", "NoPodsLeft", within=90)


@contextmanager
def hanging_webhook(here: World, verbs: list[str]) -> Iterator[None]:
    """PyTorchJobs of this namespace pass a webhook that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        rule = {"apiGroups": ["kubeflow.org"], "apiVersions": ["*"], "resources": ["pytorchjobs"]}
        own = {"matchLabels": {"kubernetes.io/metadata.name": here.namespace}}
        webhook = {
            "name": "hangs.example.com",
            "clientConfig": {"url": f"https://127.0.0.1:{server.getsockname()[1]}/"},
            "rules": [{**rule, "operations": verbs}],
            "namespaceSelector": own,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 30,
            "failurePolicy": "Fail",
        }
        name = f"hangs-{here.namespace}"
        api = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
        body = {**api, "metadata": {"name": name}, "webhooks": [webhook]}
        here.client.request("POST", WEBHOOKS, body=body)
        time.sleep(2.0)  # the API server takes it up in its own time
        try:
            yield
        finally:
            here.client.request("DELETE", f"{WEBHOOKS}/{name}")


# -- pods that do not end --------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["operator", "somebody else"])
def test_a_grace_period_of_a_day_is_cut(here: World, make_job: MakeJob, first: str) -> None:
    """A kubelet keeps the grace period that it began with, so the operator is the first, if it can be."""
    here.claim()
    job = make_job()
    template = job["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    template["spec"]["terminationGracePeriodSeconds"] = 86400
    job["spec"]["stopGraceSeconds"] = 20
    here.submit(job)
    here.operator()
    here.start()
    if first == "somebody else":
        here.delete_pods()
        assert [pod["metadata"]["deletionGracePeriodSeconds"] for pod in here.pods()] == [86400]
    here.fire()
    here.expect_workload(deadline, "the workload is told to end")
    if first == "operator":  # at once: what the workload's controller does now comes second
        assert [pod["metadata"].get("deletionGracePeriodSeconds") for pod in here.pods()] == [20]
    eventually(
        lambda: [pod["metadata"]["deletionGracePeriodSeconds"] for pod in here.pods()] == [20],
        "the pod has 20 s to end",
    )


def test_a_pod_on_a_dead_node_is_said_within_a_minute(running: World) -> None:
    asked = time.monotonic()
    running.fire()
    running.expect_workload(deadline, "the workload is told to end")
    running.delete_pods()
    message = running.expect("Stopped", "False", "PodsOverdue", within=60)
    assert "look at node node" in message and time.monotonic() - asked < 60
    running.expect_events("PodsOverdue")
    assert running.events().count("PodsOverdue") == 1
    running.kubelet_ends_pods()
    running.expect("Stopped", "True", "NoPodsLeft", within=60.0)


# -- start-up --------------------------------------------------------------------------------------------


@pytest.mark.always
def test_a_fire_goes_before_all_else_when_an_operator_starts(
    plane: ControlPlane, here: World, make_job: MakeJob
) -> None:
    """One worker, and fifty jobs that the list shows before the one that has fired."""
    here.claim()
    here.submit(make_job())
    first = here.operator(lease_seconds=4)
    here.start()
    first.kill()
    for number in range(OTHERS):
        name = f"a{number}"
        here.another(name).submit(make_job(name))
    first_stop, others = asked_in_turn(plane, here)
    assert first_stop < others[0]


def test_a_fire_goes_before_the_history_when_an_operator_starts(
    plane: ControlPlane, here: World, make_job: MakeJob
) -> None:
    """One worker, and fifty jobs that have ended, half of them by a fire, which the list shows first.

    A job that was stopped is read again, in case that a pod of it has come back.
    """
    here.claim()
    first = here.operator(lease_seconds=4)
    stopped, succeeded = here.another("a-stopped"), here.another("a-succeeded")
    for one in (stopped, succeeded, here):
        one.submit(make_job(one.name))
        one.start()
    stopped.fire()
    stopped.expect_workload(deadline, "the workload is told to end")
    end_pod_of(stopped, "Failed")
    stopped.expect("Stopped", "True", "NoPodsLeft")
    end_pod_of(succeeded, "Succeeded")
    for one in (stopped, succeeded):
        eventually(lambda one=one: "evidence" in one.job()["status"], f"evidence of {one.name} is there")
    first.kill()
    for number in range(OTHERS):
        name = f"a{number}"
        here.another(name).submit(make_job(name))
        status = (stopped, succeeded)[number % 2].job()["status"]
        here.client.request(
            "PATCH", JOBS.path(here.namespace, name, "status"), body={"status": status}, content_type=MERGE
        )
    first_stop, others = asked_in_turn(plane, here)
    assert first_stop < others[0]


def end_pod_of(one: World, how: str) -> None:
    """The pod of this run, and its workload after it, are over."""
    (pod,) = (raw for raw in one.pods() if raw["metadata"]["name"].startswith(f"{one.name}-"))
    one.delete(pod)
    one.kubelet_ends(pod)
    one.workload_condition(how)


def asked_in_turn(plane: ControlPlane, here: World) -> tuple[int, list[int]]:
    """An operator with one worker starts after a fire, and the jobs are listed before anything else is.

    Which request, counted from its start, tells the fired run's workload to end; which are about other jobs.
    """
    fire = {"code": "hacking_gap", "reason": "x", "attempt": 0, "step": 1, "at": BEAT}
    here.guard_says(heartbeat=BEAT, fire=fire)
    asked: list[tuple[str, list[str]]] = []

    def jobs_are_listed_first(method: str, path: str) -> Fault | None:
        parts = path.split("?", maxsplit=1)[0].split("/")
        if method == "GET" and parts[-1] in {"pods", "pytorchjobs"} and "watch=true" not in path:
            time.sleep(2.0)
        asked.append((method, parts))
        return None

    def about_others() -> list[int]:
        return [n for n, (method, parts) in enumerate(asked) if is_about_another(method, parts)]

    with fault_proxy(plane) as proxy:
        proxy.inject(jobs_are_listed_first)
        here.operator("--workers=1", server=proxy.url, lease_seconds=4)
        here.expect_workload(deadline, "the workload is told to end", within=60)
        others = eventually(about_others, "other jobs have their turn")
    stops = (n for n, (method, parts) in enumerate(asked) if (method, parts[-2:]) == STOP)
    return next(stops), others


def is_about_another(method: str, path: list[str]) -> bool:
    """Whether this is asked of one of the other jobs: by its name, or to make its workload."""
    return any(re.fullmatch(r"a\d+", part) for part in path) or (method, path[-1]) == ("POST", "pytorchjobs")
