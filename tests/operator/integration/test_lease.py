"""Leader election on a real API server, with faults in between.

One leader at a time; a released lease is taken at once, an abandoned one after its duration; a leader that
cannot renew gives up before another can lead, also when the API server hangs; clocks are not compared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard_operator.runtime.client import LEASES, MERGE, Client, load_configuration
from guard_operator.runtime.lease import LeaderElector, LeaseTiming

from .controlplane import ControlPlane
from .faults import Answer, Cut, Fault, FaultProxy, Hang, fault_proxy
from .waiting import eventually

pytestmark = pytest.mark.nightly

TIMING = LeaseTiming(duration=3.0, renew_deadline=2.0, retry=0.3, request=0.8)


@pytest.fixture
def proxy(plane: ControlPlane) -> Iterator[FaultProxy]:
    with fault_proxy(plane) as proxy:
        yield proxy


class Candidate:
    """An elector in a thread; remembers when it led."""

    def __init__(self, client: Client, namespace: str, identity: str) -> None:
        self.elector = LeaderElector(client, namespace, "lease", identity, TIMING)
        self.led_from: float | None = None
        self.led_until: float | None = None
        self.kept: bool | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self.elector.acquire():
            self.led_from = time.monotonic()
            self.kept = self.elector.hold()
            self.led_until = time.monotonic()

    def end(self, release: bool = True) -> None:
        self.elector.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()
        if release:
            self.elector.release()

    def leads(self) -> bool:
        return self.led_from is not None and self.led_until is None


@pytest.mark.always
def test_one_leads_and_a_released_lease_is_taken_at_once(client: Client, namespace: str) -> None:
    first = Candidate(client, namespace, "first")
    eventually(first.leads, "the first leads")
    second = Candidate(client, namespace, "second")
    time.sleep(TIMING.duration * 1.5)
    assert first.leads() and not second.leads()
    first.end()
    released = time.monotonic()
    eventually(second.leads, "the second leads")
    assert second.led_from is not None and second.led_from - released < TIMING.duration / 2
    second.end()
    lease = client.get(LEASES, namespace, "lease")
    assert lease is not None and lease["spec"]["holderIdentity"] == ""
    assert lease["spec"]["leaseTransitions"] >= 1


def test_an_abandoned_lease_is_taken_after_its_duration(client: Client, namespace: str) -> None:
    first = Candidate(client, namespace, "first")
    eventually(first.leads, "the first leads")
    first.end(release=False)
    seen = time.monotonic()
    second = Candidate(client, namespace, "second")
    eventually(second.leads, "the second leads")
    assert second.led_from is not None and second.led_from - seen > TIMING.duration * 0.9
    second.end()


FAULTS: dict[str, Fault] = {
    "hung": Hang(),
    "cut": Cut(),
    "500": Answer(500),
    "403": Answer(403, "Forbidden"),
    "429": Answer(429, "TooManyRequests"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_leader_that_cannot_renew_gives_up_before_another_leads(
    plane: ControlPlane, client: Client, proxy: FaultProxy, namespace: str, tmp_path: Path, fault: Fault
) -> None:
    behind = Client(load_configuration(str(plane.kubeconfig(tmp_path / "kubeconfig", proxy.url))))
    first = Candidate(behind, namespace, "first")
    eventually(first.leads, "the first leads")
    second = Candidate(client, namespace, "second")
    proxy.inject(lambda _method, _path: fault)
    eventually(second.leads, "the second leads")
    assert first.kept is False
    assert first.led_until is not None and second.led_from is not None
    assert first.led_until < second.led_from
    second.end()


def test_a_short_fault_is_survived(
    plane: ControlPlane, proxy: FaultProxy, namespace: str, tmp_path: Path
) -> None:
    behind = Client(load_configuration(str(plane.kubeconfig(tmp_path / "kubeconfig", proxy.url))))
    one = Candidate(behind, namespace, "one")
    eventually(one.leads, "it leads")
    for _ in range(3):
        proxy.inject(lambda _method, _path: Answer(500))
        time.sleep(TIMING.renew_deadline / 3)
        proxy.heal()
        time.sleep(TIMING.retry * 3)
    assert one.leads()
    one.end()


def test_a_stolen_lease_ends_the_leader(client: Client, namespace: str) -> None:
    one = Candidate(client, namespace, "one")
    eventually(one.leads, "it leads")
    path = LEASES.path(namespace, "lease")
    thief = {"spec": {"holderIdentity": "thief", "renewTime": "2020-01-01T00:00:00.000000Z"}}
    client.request("PATCH", path, body=thief, content_type=MERGE)
    eventually(lambda: one.led_until, "it gives up")
    assert one.kept is False


@pytest.mark.always
def test_the_clock_of_the_holder_does_not_count(client: Client, namespace: str) -> None:
    """A renewTime years in the past is as fresh as any: it has only just been seen."""
    spec = {
        "holderIdentity": "other",
        "renewTime": "2001-01-01T00:00:00.000000Z",
        "leaseDurationSeconds": 1,
        "leaseTransitions": 0,
    }
    body = {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": {"name": "lease"},
        "spec": spec,
    }
    client.create(LEASES, namespace, body, "test")
    started = time.monotonic()
    one = Candidate(client, namespace, "one")
    eventually(one.leads, "it leads in the end")
    assert one.led_from is not None and one.led_from - started > 0.9
    one.end()


@pytest.mark.parametrize(("duration", "renew", "request_"), [(1, 1, 0.5), (3, 1, 1), (1, 2, 0.5)])
def test_deadlines_must_be_ordered(duration: float, renew: float, request_: float) -> None:
    with pytest.raises(ValueError, match="must exceed"):
        LeaseTiming(duration, renew, 0.1, request_)
