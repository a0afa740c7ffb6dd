"""No healthy run is stopped for a silence that is not its guard's, and a guard that is silent is still met.

Twenty runs that stop on silence, with guards that are heard, and one whose guard falls silent when the fault
begins. Faults: the operator's watches show nothing; its lists and watches are answered with 500; no guard
can be reached. And: what is stopped for silence was written down first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlguard.operator.runtime.client import Client

from .controlplane import ControlPlane
from .faults import Answer, Fault, FaultProxy, fault_proxy
from .waiting import eventually
from .world import JOBS, PYTORCHJOBS, RUNNING, Json, World, is_deleted, is_going, world

pytestmark = pytest.mark.nightly

RUNS = 20
#: The least that a job may ask for, seconds; a fault lasts longer.
LIMIT, FAULT_SECONDS = 30, 45.0
MEET_SECONDS = 180.0
START_SECONDS = 60.0


class Fleet:
    """Runs with guards that are heard."""

    def __init__(self, here: World, make_job: Callable[..., Json]) -> None:
        self.healthy = [here.another(f"run-{n}") for n in range(RUNS)]
        self.silent = here.another("silent")
        self.everyone = [*self.healthy, self.silent]
        self._here, self._make = here, make_job

    def start(self) -> None:
        """Every run has its pod, and its guard is heard."""
        for one in self.everyone:
            job = self._make(one.name)
            job["spec"]["onSilence"] = {"afterSeconds": LIMIT, "action": "Stop"}
            one.submit(job)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self._start, self.everyone))
        for one in self.everyone:
            one.expect("GuardSilent", "False", "GuardReports", within=START_SECONDS)

    def _start(self, one: World) -> None:
        one.expect("Guarded", "True", "WorkloadCreated", within=START_SECONDS)
        one.start_pod()
        one.guard_says(step=1)

    def stopped(self) -> list[str]:
        """Whose run was stopped, or is to be: by its status, or by what was done to its workload."""
        client, namespace = self._here.client, self._here.namespace
        jobs = client.list(JOBS, namespace, {})["items"]
        workloads = client.list(PYTORCHJOBS, namespace, {})["items"]
        told = {
            raw["metadata"]["name"]
            for raw in jobs
            if "stop" in raw["status"] or any(c["type"] == "Halted" for c in raw["status"]["conditions"])
        }
        gone = {one.name for one in self.everyone} - {raw["metadata"]["name"] for raw in workloads}
        return sorted(told | gone | {raw["metadata"]["name"] for raw in workloads if is_going(raw)})


@pytest.fixture
def proxy(plane: ControlPlane) -> Iterator[FaultProxy]:
    with fault_proxy(plane) as proxy:
        yield proxy


@pytest.fixture
def fleet(
    plane: ControlPlane,
    client: Client,
    namespace: str,
    tmp_path: Path,
    make_job: Callable[..., Json],
    proxy: FaultProxy,
) -> Iterator[Fleet]:
    with world(plane, client, namespace, tmp_path) as here:
        here.claim()
        # Without a processor for long enough it would lose its Lease and end; no kubelet starts it here.
        here.operator(server=proxy.url, lease_seconds=60.0)
        fleet = Fleet(here, make_job)
        fleet.start()
        yield fleet


def frozen(fleet: Fleet, proxy: FaultProxy) -> None:
    proxy.freeze_streams()
    fleet.silent.hangs()


def collections_answer_500(fleet: Fleet, proxy: FaultProxy) -> None:
    def rule(method: str, path: str) -> Fault | None:
        return Answer(500, "InternalError") if method == "GET" and "?" in path else None

    proxy.break_watch(rule)
    fleet.silent.hangs()


def no_guard_can_be_reached(fleet: Fleet, _proxy: FaultProxy) -> None:
    for one in fleet.everyone:
        one.hangs()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [frozen, collections_answer_500, no_guard_can_be_reached])
def test_no_healthy_run_is_stopped_and_a_silent_guard_is_met(
    fleet: Fleet, proxy: FaultProxy, fault: Callable[[Fleet, FaultProxy], None]
) -> None:
    fault(fleet, proxy)
    time.sleep(FAULT_SECONDS)
    assert set(fleet.stopped()) <= {"silent"}, "during the fault"

    if fault is no_guard_can_be_reached:
        for one in fleet.healthy:
            one.pod_status(one.with_guard(RUNNING))
            one.guard_says(step=2)
    proxy.heal()
    fleet.silent.expect("Halted", "True", "GuardSilent", within=MEET_SECONDS)
    fleet.silent.expect_workload(is_deleted, "the workload is deleted", within=START_SECONDS)
    assert fleet.stopped() == ["silent"]
    for one in fleet.healthy:
        one.expect("GuardSilent", "False", "GuardReports")
    assert fleet.stopped() == ["silent"], "nor afterwards"


@pytest.mark.slow
def test_a_guard_that_only_the_operator_cannot_reach_stops_nothing(
    here: World, make_job: Callable[..., Json]
) -> None:
    """As where a NetworkPolicy keeps the operator out: the kubelet calls the guard ready."""
    here.claim()
    job = make_job()
    job["spec"]["onSilence"] = {"afterSeconds": LIMIT, "action": "Stop"}
    here.submit(job)
    here.operator()
    here.start()
    here.guards["run"].end()
    message = here.expect("Guarded", "Unknown", "GuardUnreachable", within=120)
    assert "pod run-master-0 at 127." in message and "NetworkPolicy" in message
    time.sleep(LIMIT)
    assert not is_going(here.workload()) and "Halted" not in here.conditions()


@pytest.mark.slow
def test_what_is_stopped_for_silence_was_written_down_first(
    plane: ControlPlane,
    client: Client,
    namespace: str,
    tmp_path: Path,
    make_job: Callable[..., Json],
    proxy: FaultProxy,
) -> None:
    """While no status can be written, nothing is stopped."""

    def no_status(method: str, path: str) -> Fault | None:
        return Answer(500, "InternalError") if method == "PATCH" and "/status" in path else None

    with world(plane, client, namespace, tmp_path) as here:
        here.claim()
        job = make_job()
        job["spec"]["onSilence"] = {"afterSeconds": LIMIT, "action": "Stop"}
        here.submit(job)
        here.operator(server=proxy.url)
        here.expect("Guarded", "True", "WorkloadCreated")
        here.start_pod()
        here.guard_says()
        here.expect("GuardSilent", "False", "GuardReports")
        here.hangs()
        proxy.inject(no_status)
        refused = "PATCH /apis/rlguard.dev"
        before = proxy.count(refused)
        eventually(lambda: proxy.count(refused) > before + 2, "it tries to write")
        assert not is_going(here.workload())
        proxy.heal()
        here.expect_workload(is_deleted, "the workload is deleted")
        assert "Halted" in here.conditions()
