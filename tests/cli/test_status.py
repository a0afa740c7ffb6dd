"""`rlguard status` of a job: what is known now, and the last verdict as history where nobody judges."""

from __future__ import annotations

from typing import Any

import pytest

from rlguard.cli.status import job_lines, show_job

Json = dict[str, Any]
AT = "2026-01-01T00:00:00Z"


def condition(type_: str, status: str, reason: str, message: str = "") -> Json:
    return {
        "type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": AT
    }  # fmt: skip


NOT_FIRED = condition("Fired", "False", "NotFired", "The guard reports and has not fired.")
HEALTHY = {"level": "healthy", "code": "ok", "reason": "no rule has found anything", "readAt": AT}
ISOLATED = condition("Isolated", "True", "StrictIsolation")


def ashow_job(*conditions: Json, phase: str = "Running", **guard: Any) -> Json:
    status = {"phase": phase, "conditions": list(conditions), "guard": HEALTHY | guard}
    return {"metadata": {"name": "run", "namespace": "ns", "uid": "u"}, "status": status}


def lines(raw: Json) -> list[str]:
    return [*job_lines(show_job(raw))]


def test_a_verdict_of_now_is_told_as_it_is() -> None:
    assert lines(ashow_job(NOT_FIRED, ISOLATED, step=7)) == [
        "healthy: no rule has found anything",
        "step: 7",
        "checkpoints: 0 of 0 judged",
    ]


UNGUARDED = condition("Guarded", "False", "GuardMissing", "rank 0 runs in pod run-0 without its guard")
AWAY = condition("Fired", "Unknown", "GuardNotRunning", "there is no verdict now: no guard runs")


@pytest.mark.parametrize(
    ("conditions", "now"),
    [
        ([UNGUARDED, AWAY], f"unknown: {UNGUARDED['message']}"),
        ([AWAY], f"unknown: {AWAY['message']}"),
        (
            [NOT_FIRED, condition("GuardSilent", "True", "GuardSilent", "not heard")],
            "unknown: not heard",
        ),
        ([NOT_FIRED, condition("Halted", "True", "GuardSilent", "not heard")], "halted: not heard"),
        ([NOT_FIRED, condition("Succeeded", "True", "NotJudged", "2 failed")], "unknown: 2 failed"),
        ([NOT_FIRED, condition("Succeeded", "True", "FinishedWithWarning", "it fell")], "warning: it fell"),
        ([NOT_FIRED, condition("Succeeded", "True", "WorkloadSucceeded", "done")], "healthy: done"),
        (
            [
                condition("GuardSilent", "True", "GuardSilent", "not heard"),
                condition("Fired", "True", "HackingGap", "step 4: gap"),
            ],
            "fired: step 4: gap",
        ),
        ([], "unknown: the operator has not looked at it yet"),
    ],
    ids=str,
)
def test_where_nobody_judges_the_last_verdict_is_history(conditions: list[Json], now: str) -> None:
    raw = ashow_job(*conditions)
    assert lines(raw)[:2] == [now, f"last verdict, of {AT}: healthy: no rule has found anything"]


def test_a_job_without_a_verdict() -> None:
    raw = ashow_job(UNGUARDED)
    del raw["status"]["guard"]
    assert lines(raw) == [f"unknown: {UNGUARDED['message']}", "no verdict yet"]
    del raw["status"]
    assert lines(raw) == ["unknown: the operator has not looked at it yet", "no verdict yet"]
    assert show_job(raw)["state"] == "new"


def test_what_does_not_protect_the_run_is_told_too() -> None:
    exposed = condition("Isolated", "False", "Attached", "not protected: nobody checked the pods")
    changed = condition("Guarded", "False", "GuardMissing", "the guard differs")
    unread = condition("Guarded", "Unknown", "UnsupportedKind", "a Thing cannot be guarded")
    assert lines(ashow_job(NOT_FIRED, exposed))[2:] == [
        "Isolated=False (Attached): not protected: nobody checked the pods"
    ]
    silent = condition("GuardSilent", "True", "GuardSilent", "not heard")
    assert lines(ashow_job(silent, changed))[3:] == ["Guarded=False (GuardMissing): the guard differs"]
    assert lines(ashow_job(NOT_FIRED, unread))[2:] == [
        "Guarded=Unknown (UnsupportedKind): a Thing cannot be guarded"
    ]
    assert lines(ashow_job(changed, NOT_FIRED))[3:] == [], "it is said once"


def test_json_has_what_it_had_and_what_is_known_now() -> None:
    found = show_job(ashow_job(NOT_FIRED, ISOLATED, UNGUARDED))
    assert (found["name"], found["state"]) == ("run", "Running | Isolated: StrictIsolation")
    assert found["verdict"] == HEALTHY
    assert found["now"] == {"level": "unknown", "reason": UNGUARDED["message"]}
    assert found["conditions"][2] == {
        "type": "Guarded", "status": "False", "reason": "GuardMissing", "message": UNGUARDED["message"]
    }  # fmt: skip


def test_what_could_steer_a_terminal_is_not_printed() -> None:
    hostile = condition("Isolated", "False", "\x1b[31m", "a\nb")
    raw = ashow_job(hostile, condition("Halted", "True", "GuardHalt", "\x1b[2J\n"), readAt="\x07")
    assert all(line.isprintable() for line in lines(raw))
