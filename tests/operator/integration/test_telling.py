"""What people see of a job: the webhooks, with a real API server."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.receiver import Receiver

from .waiting import eventually
from .world import JOBS, World

pytestmark = pytest.mark.nightly

Json = dict[str, Any]
MakeJob = Callable[..., Json]


def webhooks(directory: Path, receiver: Receiver) -> str:
    made = directory / "webhooks"
    made.mkdir()
    (made / "slack").write_text(receiver.url)
    return f"--notify-dir={made}"


def notified(world: World) -> list[str]:
    raw = world.client.get(JOBS, world.namespace, "run")
    assert raw is not None
    return sorted((raw.get("status") or {}).get("notified") or {})


def stop(world: World) -> None:
    """The run fires, and ends."""
    world.fire()
    world.expect("Stopped", "False", "PodsTerminating")
    world.training_operator_stops_the_job()
    world.expect("Stopped", "True", "NoPodsLeft")


def test_a_fire_and_its_stop_are_told_once_also_by_the_next_operator(
    here: World, make_job: MakeJob, tmp_path: Path
) -> None:
    with Receiver() as receiver:
        flag = webhooks(tmp_path, receiver)
        here.claim()
        here.submit(make_job())
        first = here.operator(flag, lease_seconds=2.0)
        here.start()
        stop(here)
        eventually(lambda: notified(here) == ["fired", "stopped"], "both are noted")
        first.kill()
        second = here.operator(flag, lease_seconds=2.0)
        eventually(lambda: "probes and metrics" in second.log.read_text(), "it is up")
        leads = 'leader_election_master_status{name="guardedtrainingjob"} 1.0'
        eventually(lambda: leads in second.page("/metrics"), "it leads")
        time.sleep(3.0)
        texts = sorted(body["text"] for body in receiver.bodies)
    assert [text.split("\n")[0] for text in texts] == [
        f"RLGuard: {here.namespace}/run fired (HackingGap)",
        f"RLGuard: {here.namespace}/run stopped (HackingGap)",
    ]
    assert here.conditions()["Fired"][0] == "True", "the note took nothing out of the status"


def test_a_webhook_that_hangs_delays_no_stop(here: World, make_job: MakeJob, tmp_path: Path) -> None:
    with Receiver("hang") as receiver:
        here.claim()
        here.submit(make_job())
        operator = here.operator(webhooks(tmp_path, receiver))
        here.start()
        stop(here)
        assert receiver.bodies and notified(here) == []
        assert "SECRET" not in operator.log.read_text()


@pytest.mark.parametrize("flags", [["--notify-dir={}"]])
def test_what_cannot_be_used_is_said_at_the_start(here: World, tmp_path: Path, flags: list[str]) -> None:
    operator = here.operator(*(flag.format(tmp_path) for flag in flags))
    assert operator.process.wait(60) == 2
    assert flags[0].split("=")[0] in operator.log.read_text()
