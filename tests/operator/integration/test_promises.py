"""What is not known is not told, and nothing goes before a fire.

- A fire goes before the history of jobs that are over when an operator starts.
- No verdict is told while no guard runs; a rank 0 without its guard is seen, and met as a silent guard is.
- A run that ended while no operator was there ends as its guard saw it end.
- A namespace that cannot be read holds up no other, and a process that cannot work does not lead.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable

import pytest

from rlguard.operator.runtime.client import PODS

from .conftest import new_namespace
from .controlplane import ControlPlane
from .faults import Answer, Fault, fault_proxy
from .waiting import eventually
from .world import BEAT, JOBS, ROLE_BINDINGS, RUNNING, Json, World, is_deleted

pytestmark = pytest.mark.nightly

MakeJob = Callable[..., Json]
#: How many jobs a list shows before the one that has fired.
OTHERS = 50
#: Deletes the run's workload.
STOP = "DELETE", ["pytorchjobs", "run"]
#: Whether a kind could be listed where those of Ray cannot.
KINDS = {"RayJob": 0.0, "RayCluster": 0.0, "PyTorchJob": 1.0}
#: The last word of a guard that has judged all of a run, and whose trainer had finished.
FINISHED = {
    **{"level": "healthy", "code": "ok", "reason": "fine", "attempt": 0, "step": 9},
    **{"announced": 3, "evaluated": 3, "failed": 0, "skipped": 0, "waiting": 0},
    "ended": {"attempt": 0, "step": 9},
}


# -- what is not known is not told -----------------------------------------------------------------------


def crashed(reason: str = "CrashLoopBackOff") -> Json:
    status = copy.deepcopy(RUNNING)
    guard = status["initContainerStatuses"][0]  # type: ignore[index]
    guard["state"] = {"waiting": {"reason": reason}}
    return status


def test_no_verdict_is_told_while_no_guard_runs(running: World) -> None:
    """As when a guard crash-loops, and its trainer goes on."""
    running.guard_says(**{key: FINISHED[key] for key in FINISHED if key != "ended"})
    eventually(lambda: running.job()["status"]["guard"].get("step") == 9, "it is read")
    running.pod_status(crashed())
    message = running.expect("Fired", "Unknown", "GuardNotRunning")
    assert "its last verdict, read at 2" in message and ": healthy (ok) at step 9: fine" in message
    running.pod_status(RUNNING)
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


@pytest.mark.slow
def test_a_rank_0_without_its_guard_is_met_as_a_silent_guard_is(here: World, make_job: MakeJob) -> None:
    here.claim()
    job = make_job()
    job["spec"]["onSilence"] = {"afterSeconds": 30, "action": "Stop"}
    here.submit(job)
    here.operator()
    here.start()
    replace_pod(here, without_guard(here))
    assert "run-master-0" in here.expect("Guarded", "False", "GuardMissing")
    here.expect("Fired", "Unknown", "GuardNotRunning")
    here.expect_events("GuardMissing")
    here.expect_workload(is_deleted, "the workload is deleted")
    assert "without its guard" in here.expect("Halted", "True", "GuardSilent")


# -- how a run ended -------------------------------------------------------------------------------------


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

    eventually(refused, "the missing claim is noticed")


def test_a_process_that_cannot_work_does_not_lead(here: World) -> None:
    here.client.request("DELETE", ROLE_BINDINGS.path(here.namespace, "operator-clusterrole"))
    operator = here.operator()
    eventually(lambda: "403" in operator.log.read_text(), "it may not read anything")
    time.sleep(3.0)
    assert here.leader() == ""
    here.bind("ClusterRole", "rlguard-operator", here.namespace)
    eventually(here.leader, "it leads")


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
    with fault_proxy(plane) as proxy:
        proxy.inject(no_ray)
        operator = here.operator(server=proxy.url)
        here.start()
        here.fire()
        here.expect_workload(is_deleted, "the workload is deleted")
        message = here.another("ray").expect("GuardSilent", "Unknown", "KindUnread")
        assert "RayCluster, RayJob cannot be listed" in message
        page = operator.page("/metrics")
        listed = {
            kind: f'rlguard_kind_synced{{kind="{kind}",namespace="{here.namespace}"}}' for kind in KINDS
        }
        assert [f"{listed[kind]} {value}" in page for kind, value in KINDS.items()] == [True] * len(KINDS)
        proxy.heal()
        here.another("ray").expect("Guarded", "False", "TemplateRefused")


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


def asked_in_turn(plane: ControlPlane, here: World) -> tuple[int, list[int]]:
    """An operator with one worker starts after a fire, and the jobs are listed before anything else is.

    Which request, counted from its start, tells the fired run's workload to end; which are about other jobs.
    """
    here.noted(fire={"code": "hacking_gap", "reason": "x", "attempt": 0, "step": 1, "at": BEAT})
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
        here.expect_workload(is_deleted, "the workload is deleted")
        others = eventually(about_others, "other jobs have their turn")
    stops = (n for n, (method, parts) in enumerate(asked) if (method, parts[-2:]) == STOP)
    return next(stops), others


def is_about_another(method: str, path: list[str]) -> bool:
    """Whether this is asked of one of the other jobs: by its name, or to make its workload."""
    return any(re.fullmatch(r"a\d+", part) for part in path) or (method, path[-1]) == ("POST", "pytorchjobs")
