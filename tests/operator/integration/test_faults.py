"""The API server answers badly, or not at all: who leads, and what the operator still sees.

- One leads at a time; a Lease that was given back is taken at once; clocks are not compared.
- A leader that cannot renew its Lease, or has lost it, ends.
- Whatever happens to its watches, the operator recovers, misses nothing, and asks at a decent rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from rlguard.operator.runtime.client import LEASES, MERGE

from .controlplane import ControlPlane
from .faults import Answer, Cut, Fault, Hang, fault_proxy
from .waiting import eventually
from .world import PYTORCHJOBS, Json, World

pytestmark = pytest.mark.nightly

MakeJob = Callable[..., Json]
LEASE = "rlguard-operator"
#: So often may an operator ask for each of its kinds while it is refused.
REQUESTS_A_SECOND = 20
FAULT_SECONDS = 4.0

FAULTS: dict[str, Fault] = {
    "hung": Hang(),
    "cut": Cut(),
    "403": Answer(403, "Forbidden"),
    "410": Answer(410, "Expired"),
    "429": Answer(429, "TooManyRequests", {"Retry-After": "1"}),
    "500": Answer(500),
}


# -- who leads -------------------------------------------------------------------------------------------


@pytest.mark.always
def test_one_leads_and_a_lease_that_was_given_back_is_taken_at_once(here: World) -> None:
    first = here.operator(lease_seconds=60)
    mine = eventually(here.leader, "the first leads")
    here.operator(lease_seconds=60)
    time.sleep(3.0)
    assert here.leader() == mine
    assert first.terminate() == 0
    eventually(lambda: here.leader() not in {"", mine}, "the second leads")


@pytest.mark.always
def test_the_clock_of_the_holder_does_not_count(here: World) -> None:
    """A renewTime years in the past is as fresh as any: it has only just been seen."""
    spec = {"holderIdentity": "other", "renewTime": "2001-01-01T00:00:00.000000Z", "leaseDurationSeconds": 5}
    here.put(LEASES, {"metadata": {"name": LEASE}, "spec": {**spec, "leaseTransitions": 0}})
    operator = here.operator(lease_seconds=5)
    eventually(lambda: "probes and metrics" in operator.log.read_text(), "it has started")
    assert here.leader() == "other"
    eventually(lambda: here.leader() not in {"", "other"}, "it leads in the end")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_leader_that_cannot_renew_ends(plane: ControlPlane, here: World, fault: Fault) -> None:
    with fault_proxy(plane) as proxy:
        operator = here.operator(server=proxy.url, lease_seconds=4)
        eventually(here.leader, "it leads")
        proxy.inject(lambda _method, path: fault if "/leases" in path else None)
        assert operator.process.wait(60) == 1


def test_a_short_fault_is_survived(plane: ControlPlane, here: World) -> None:
    with fault_proxy(plane) as proxy:
        operator = here.operator(server=proxy.url, lease_seconds=30)
        mine = eventually(here.leader, "it leads")
        proxy.inject(lambda _method, path: Answer(500) if "/leases" in path else None)
        eventually(lambda: proxy.count("/leases") > 3, "it tries to renew")
        proxy.heal()
        before = proxy.count("PUT") + proxy.count("PATCH")
        eventually(lambda: proxy.count("PUT") + proxy.count("PATCH") > before + 1, "it renews")
        assert here.leader() == mine and operator.process.poll() is None


def test_a_stolen_lease_ends_the_leader(here: World) -> None:
    operator = here.operator(lease_seconds=4)
    eventually(here.leader, "it leads")
    thief = {"spec": {"holderIdentity": "thief", "renewTime": "2020-01-01T00:00:00.000000Z"}}
    here.client.request("PATCH", LEASES.path(here.namespace, LEASE), body=thief, content_type=MERGE)
    assert operator.process.wait(60) == 1


# -- what is seen ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_what_happens_while_watches_fail_is_not_missed(
    plane: ControlPlane, here: World, make_job: MakeJob, fault: Fault
) -> None:
    here.claim()
    here.submit(make_job())
    with fault_proxy(plane) as proxy:
        here.operator(server=proxy.url, lease_seconds=60)
        here.start()
        proxy.break_watch(lambda _method, path: fault if "watch=true" in path else None)
        before = proxy.count("watch=true")
        uid = here.workload()["metadata"]["uid"]
        here.client.delete(PYTORCHJOBS, here.namespace, "run", uid)
        here.submit(make_job("late"))
        time.sleep(FAULT_SECONDS)
        assert proxy.count("watch=true") - before < REQUESTS_A_SECOND * FAULT_SECONDS, "no hot loop"
        proxy.heal()
        proxy.cut_streams()
        here.another("late").expect("Guarded", "True", "WorkloadCreated", within=120)
        here.expect("Disrupted", "True", "WorkloadDeleted", within=120)
