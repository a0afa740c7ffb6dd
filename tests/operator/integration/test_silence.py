"""No healthy run is stopped for a silence that is not its guard's, and a guard that is silent is still met.

Twenty runs that stop on silence, with guards that report, and one whose guard falls silent when the fault
begins. Faults: the operator's watches show nothing; its lists and watches are answered with 500; no guard
reaches the API server. And: what is stopped for silence was written down first.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from guard_operator.runtime.client import Client
from guard_operator.runtime.errors import ClusterError

from .controlplane import ControlPlane
from .faults import Answer, Fault, FaultProxy, fault_proxy
from .waiting import eventually
from .world import JOBS, PYTORCHJOBS, Json, World, apply_guard, is_deleted, is_going, world

pytestmark = pytest.mark.nightly

RUNS = 20
#: The least that a job may ask for, seconds; a fault lasts longer.
LIMIT, FAULT_SECONDS = 30, 45.0
REPORT_SECONDS = 5.0
MEET_SECONDS = 180.0
START_SECONDS = 60.0


class Fleet:
    """Runs with guards that report until they are told to be silent."""

    def __init__(self, here: World, make_job: Callable[..., Json]) -> None:
        self.healthy = [here.another(f"run-{n}") for n in range(RUNS)]
        self.silent = here.another("silent")
        self.everyone = [*self.healthy, self.silent]
        self._here, self._make = here, make_job
        self._mute: set[str] = set()
        self._steps = itertools.count()
        self._over = threading.Event()

    def start(self) -> None:
        """Every run has its pod, and its guard reports."""
        for one in self.everyone:
            job = self._make(one.name)
            job["spec"]["onSilence"] = {"afterSeconds": LIMIT, "action": "Stop"}
            one.submit(job)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self._start, self.everyone))
        threading.Thread(target=self._report, daemon=True).start()
        for one in self.everyone:
            one.expect("GuardSilent", "False", "GuardReports", within=START_SECONDS)

    def _start(self, one: World) -> None:
        one.expect("Guarded", "True", "WorkloadCreated", within=START_SECONDS)
        one.start_pod()

    def mute(self, some: list[World]) -> None:
        """From now on these report nothing, and the others do."""
        self._mute = {one.name for one in some}

    def end(self) -> None:
        self._over.set()

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

    def _report(self) -> None:
        with ThreadPoolExecutor(4) as pool:
            while not self._over.wait(REPORT_SECONDS):
                list(pool.map(self._beat, self.everyone))

    def _beat(self, one: World) -> None:
        beat = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if one.name not in self._mute:
            with suppress(ClusterError):  # a guard that cannot report now does so later
                apply_guard(
                    one.client, one.namespace, one.name, {"heartbeat": beat, "step": next(self._steps)}
                )


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
        try:
            yield fleet
        finally:
            fleet.end()


def frozen(fleet: Fleet, proxy: FaultProxy) -> None:
    proxy.freeze_streams()
    fleet.mute([fleet.silent])


def collections_answer_500(fleet: Fleet, proxy: FaultProxy) -> None:
    def rule(method: str, path: str) -> Fault | None:
        return Answer(500, "InternalError") if method == "GET" and "?" in path else None

    proxy.break_watch(rule)
    fleet.mute([fleet.silent])


def no_guard_reaches_the_api_server(fleet: Fleet, _proxy: FaultProxy) -> None:
    fleet.mute(fleet.everyone)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        frozen,
        collections_answer_500,
        no_guard_reaches_the_api_server,
    ],
)
def test_no_healthy_run_is_stopped_and_a_silent_guard_is_met(
    fleet: Fleet, proxy: FaultProxy, fault: Callable[[Fleet, FaultProxy], None]
) -> None:
    fault(fleet, proxy)
    time.sleep(FAULT_SECONDS)
    assert set(fleet.stopped()) <= {"silent"}, "during the fault"

    fleet.mute([fleet.silent])
    proxy.heal()
    fleet.silent.expect("Halted", "True", "GuardSilent", within=MEET_SECONDS)
    fleet.silent.expect_workload(is_deleted, "the workload is deleted", within=START_SECONDS)
    assert fleet.stopped() == ["silent"]
    for one in fleet.healthy:
        one.expect("GuardSilent", "False", "GuardReports", within=60)
    assert fleet.stopped() == ["silent"], "nor afterwards"


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
        here.guard_says(heartbeat="2026-01-01T00:00:00Z")
        here.expect("GuardSilent", "False", "GuardReports")
        proxy.inject(no_status)
        refused = "PATCH /apis/rlguard.dev"
        before = proxy.count(refused)
        eventually(lambda: proxy.count(refused) > before + 2, "it tries to write", within=90)
        assert not is_going(here.workload())
        proxy.heal()
        here.expect_workload(is_deleted, "the workload is deleted", within=90)
        assert "Halted" in here.conditions()
