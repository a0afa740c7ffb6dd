"""What people see of a job: the page of all jobs and the webhooks, with a real API server."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.receiver import Receiver

from .waiting import eventually
from .world import BEAT, JOBS, World

pytestmark = pytest.mark.nightly

Json = dict[str, Any]
MakeJob = Callable[..., Json]
TOKEN = "a-token-of-some-length"


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


@pytest.mark.parametrize("flags", [["--notify-dir={}"], ["--page-token-file={}/none"]])
def test_what_cannot_be_used_is_said_at_the_start(here: World, tmp_path: Path, flags: list[str]) -> None:
    operator = here.operator(*(flag.format(tmp_path) for flag in flags))
    assert operator.process.wait(60) == 2
    assert flags[0].split("=")[0] in operator.log.read_text()


def test_the_page_shows_the_job(here: World, make_job: MakeJob, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    here.claim()
    here.submit(make_job())
    operator = here.operator(f"--page-token-file={token}", "--page-port=0")
    here.start()
    rounds = [{"attempt": 0, "step": n, "reward": 0.5 + n / 10, "heldout": 0.5} for n in range(3)]
    here.guard_says(heartbeat=BEAT, step=2, historyTail=rounds, level="healthy", reason="no rule fired")

    def shown() -> Json:
        port = re.search(r"page of all jobs on port (\d+)", operator.log.read_text())
        assert port
        url = f"http://127.0.0.1:{port[1]}/v1/jobs"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            (job,) = json.load(answer)["jobs"]
        return dict(job)

    eventually(lambda: shown()["trend"] == [[0.5, 0.5], [0.6, 0.5], [0.7, 0.5]], "the rounds are drawn", 30)
    assert (shown()["state"], shown()["verdict"]) == ("healthy", "no rule fired")
    here.fire()
    eventually(lambda: shown()["state"] == "fired", "the fire", 30)
