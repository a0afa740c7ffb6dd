"""A guard that is silent, lost with its pod, or fed by a hostile trainer."""

from __future__ import annotations

import re
import time

import pytest

from . import given, then, when
from .kube import START, STOP, Namespace, Run

#: More than a healthy guard needs on busy cores.
SILENCE_SECONDS = 60
STOPS_ON_SILENCE = {"onSilence": {"afterSeconds": SILENCE_SECONDS, "action": "Stop"}}
#: For so long nobody reaches a guard; twice what would stop a run whose guard is silent.
BLOCKED_SECONDS = 2.5 * SILENCE_SECONDS


def test_a_silent_guard_stops_its_run_and_the_twin_beside_it_succeeds(namespace: Namespace) -> None:
    """Nobody judges a run whose guard is silent. That is no fire: nothing is known of the policy."""
    orders = ("checkpoint 7", given.CALM)
    silent, twin = given.runs(namespace, ["silent", "twin"], *orders, spec=STOPS_ON_SILENCE)

    def paused_until_stopped() -> bool:
        if silent.pods and silent.phase == "Running":
            when.the_guard_is_paused(silent)  # again, should it have been started anew
        return silent.phase == "Stopped"

    then.eventually(paused_until_stopped, "the run of the silent guard is stopped", STOP)
    assert silent.pods == []
    then.the_run_never_fired(silent)

    when.the_trainer_is_told(twin, "checkpoint 7", "exit 0")
    then.the_phase_is(twin, "Succeeded")
    then.the_run_never_fired(twin)


@pytest.mark.alone
def test_when_no_guard_can_be_reached_no_run_is_stopped(namespace: Namespace) -> None:
    """Three at once are no fault of a guard."""
    runs = given.runs(namespace, ["one", "two", "three"], spec=STOPS_ON_SILENCE)
    for run in runs:
        then.the_phase_is(run, "Running")
    before = [conditions(run) for run in runs]

    with when.no_guard_can_be_reached(runs):
        end = time.monotonic() + BLOCKED_SECONDS
        while time.monotonic() < end:
            assert {run.phase for run in runs} == {"Running"}
            time.sleep(2.0)
        assert all(now != old for now, old in zip(map(conditions, runs), before, strict=True)), "it is shown"

    for run in runs:
        when.the_trainer_is_told(run, given.CALM, "exit 0")
    for run in runs:
        then.the_phase_is(run, "Succeeded")
        then.the_run_never_fired(run)


def test_the_guard_of_an_evicted_pod_goes_on_with_the_past_of_the_run(namespace: Namespace) -> None:
    """A limit on the KL counts from where the run starts. The new guard sees 1, and must know of 0.01."""
    run = given.a_run(namespace, deaf=True, restarts=True)

    lost = when.the_pod_is_evicted(run)

    then.eventually(lambda: run.pod["metadata"]["uid"] != lost, "there is another pod", STOP)
    then.the_trainer_says(run, "resumes at step 8", within=START)
    then.the_run_never_fired(run)
    when.the_trainer_is_told(run, "steps 10 0.5 1.0")
    then.the_guard_has_fired(run)
    then.the_run_is_stopped(run)


@pytest.mark.parametrize(
    ("attack", "chat"), [("checkpoint 7", False), ("template", True)], ids=["tokenizer", "template"]
)
def test_nothing_about_an_item_reaches_a_trainer_whose_checkpoints_look_for_it(
    namespace: Namespace, attack: str, chat: bool
) -> None:
    """The checkpoints of one run fail at the items with a 1, those of the other at those with a 7."""
    names = {digit: f"fails-at-{digit}" for digit in "17"}
    runs = {
        digit: given.a_submitted_run(namespace, given.CALM, name=name, chat=chat)
        for digit, name in names.items()
    }
    for digit, run in runs.items():
        then.the_trainer_says(run, f"done: {given.CALM}", within=START)
        when.the_trainer_is_told(run, f"{attack} {digit}")

    heard = {}
    for digit, run in runs.items():
        item = given.item_id(int(digit))
        then.eventually(lambda run=run, item=item: item in guards_log(run), "the guard itself knows", STOP)
        when.the_trainer_is_told(run, "listen")
        then.the_trainer_says(run, "done: listen")
        heard[digit] = [line for line in run.log().splitlines() if line.startswith("heard: ")]
        for shown in (run.log(), namespace.kubectl("get", "gtj,pods,events", "--output=yaml")):
            assert "kiwi" not in shown and given.prompt(int(digit)) not in shown
        assert given.prompt(int(digit)) not in guards_log(run), (
            "what a template says of a prompt is kept nowhere"
        )

    assert len(heard["1"]) == 2
    assert without_times(heard["1"]) == without_times(heard["7"])


def conditions(run: Run) -> dict[str, str]:
    """What the status says, without its words."""
    return {one["type"]: one["status"] for one in run.status["conditions"]}


def guards_log(run: Run) -> str:
    return run.log(run.guard_container)


def without_times(lines: list[str]) -> list[str]:
    """Without what differs between any two runs: times, and digests of a checkpoint."""
    return [re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z?|[0-9a-f]{32,64}", "#", line) for line in lines]
