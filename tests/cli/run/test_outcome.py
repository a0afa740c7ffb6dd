"""What a run exits with: each way to end, and which one wins when several hold."""

from pathlib import Path

import pytest

from rlguard.cli.errors import ExitCode
from rlguard.cli.run.outcome import Ending, judge_ending, notes, refusal_in
from rlguard.core.codes import Code, Level
from rlguard.core.wire import Condition, EvaluationSummary, Verdict

EVALUATED = EvaluationSummary(attempt=0, step=4, score=0.5, items=8, path="/c/4")


def verdict(**changes):
    healthy = {"level": "healthy", "code": "ok", "reason": "fine"} | dict.fromkeys(
        ("fire", "halt", "stop"), False
    )
    counts = {"steps": 4, "rounds": 2, "announced": 2, "evaluated": 2, "last_evaluation": EVALUATED}
    return Verdict(**{**healthy, **counts, **changes})


def condition(code, level, message, **values):
    return Condition(code=code, level=level, message=message, **values)


def saying(code, level, message, **changes):
    """A verdict whose worst condition this is."""
    conditions = (condition(code, level, message), *changes.pop("others", ()))
    return verdict(code=code, level=level, reason=message, conditions=conditions, **changes)


FIRE = verdict(
    fire=True, halt=False, stop=True, level="fired", code="hacking_gap", reason="too wide", latch_step=3
)
STOP = verdict(
    halt=True,
    stop=True,
    level="fired",
    code="silent",
    reason="no step for 9 s",
    latch_step=3,
    conditions=(Condition(code=Code.SILENT, level=Level.WARNING, message="no step for 9 s", action="stop"),),
)


@pytest.mark.parametrize(
    ("ending", "code", "words"),
    [
        (Ending(verdict(), 0, True), 0, "all of 2 checkpoints were judged"),
        (Ending(FIRE, 143, False), 3, "fired at step 3: too wide"),
        (Ending(FIRE, 0, True), 3, "after the trainer had finished"),
        (Ending(FIRE, 143, False, interrupted_by=2), 3, "fired"),
        (Ending(verdict(), 130, False, interrupted_by=2), 130, "SIGINT"),
        (Ending(STOP, 143, False, interrupted_by=15), 143, "SIGTERM"),
        (Ending(verdict(), 143, False, guard_lost="the guard died"), 5, "the guard died"),
        (Ending(STOP, 143, False), 4, "halted at step 3: no step for 9 s"),
        (Ending(verdict(), 7, True), 7, "exit code 7"),
        (Ending(None, 0, True), 5, "no response"),
        (Ending(verdict(), 0, True, responded=False), 5, "nobody knows what it judged; see guard.log"),
    ],
)
def test_the_first_that_holds_decides(ending, code, words):
    outcome = judge_ending(ending)
    assert (outcome.code, words in outcome.sentence) == (code, True), outcome


@pytest.mark.parametrize(
    "ending",
    [
        Ending(FIRE.model_copy(update={"step": 9, "waiting": 2}), 143, False),
        Ending(STOP.model_copy(update={"step": 9, "waiting": 2}), 143, False),
        Ending(verdict(step=9, waiting=2), 130, False, interrupted_by=2),
        Ending(verdict(step=9, waiting=2), 143, False, guard_lost="died"),
        Ending(verdict(step=9, waiting=2), 7, True),
    ],
)
def test_a_run_that_was_stopped_says_where_the_trainer_was(ending):
    assert judge_ending(ending).sentence.endswith(
        "the trainer had reached step 9, with 2 unscored checkpoints"
    )


@pytest.mark.parametrize(
    "line",
    [
        "rlguard: refused before the first step: set beta above 0",
        "2026-11-28 ERROR rlguard.trainer: refused before the first step: set beta above 0",
        "rlguard.client.errors.GuardConfigError: set beta above 0",
    ],
)
def test_a_trainer_that_refused_to_start_says_why(line):
    refusal = refusal_in(f"loading\n{line}\nTraceback (most recent call last):\n  raise\n")
    outcome = judge_ending(Ending(verdict(), 1, True, refusal=refusal))
    assert (outcome.code, outcome.sentence) == (
        1,
        "the trainer refused to start (exit code 1): set beta above 0",
    )
    assert refusal_in("ValueError: something else") == ""


UNKNOWN, WARNING = Level.UNKNOWN, Level.WARNING
REFUSED = "4 reports of checkpoints were refused in a row; the newest: /x is not below the checkpoint root /c"


def test_a_trainer_that_failed_is_told_what_the_guard_refused():
    refused = saying(Code.REPORTS_REFUSED, UNKNOWN, REFUSED)
    assert judge_ending(Ending(refused, 1, True)).sentence == (
        f"the trainer failed by itself with exit code 1; {REFUSED}; a loop that reports to the guard ends "
        "when that goes on"
    )
    assert judge_ending(Ending(None, 1, True)).sentence == "the trainer failed by itself with exit code 1"
    assert judge_ending(Ending(verdict(), 1, True)).sentence.endswith("exit code 1")


@pytest.mark.parametrize(
    ("last", "what", "to_set"),
    [
        (verdict(announced=0, evaluated=0), "no checkpoint was announced", "save_steps"),
        (
            saying(Code.REPORTS_REFUSED, UNKNOWN, REFUSED, announced=0, evaluated=0),
            REFUSED,
            "fix what the refusal names",
        ),
        (verdict(evaluated=1, waiting=1), "1 of 2 checkpoints were not evaluated", "raise --drain"),
        (
            verdict(announced=8, evaluated=5, failed=2, skipped=1),
            "3 of 8 checkpoints were not evaluated (2 failed, 1 skipped)",
            "the guard's log",
        ),
        (saying(Code.WARMING_UP, UNKNOWN, "1 of 3 rounds"), "1 of 3 rounds", "save_steps"),
        (saying(Code.STORE_UNAVAILABLE, UNKNOWN, "disk full"), "disk full", "room"),
        (
            saying(Code.SILENT, UNKNOWN, "9 s", others=(condition(Code.NO_BASELINE, UNKNOWN, "1 of 2"),)),
            "unknown (no_baseline): 1 of 2",
            "save_steps",
        ),
    ],
)
def test_what_was_not_judged_is_no_success_and_is_said_with_what_to_set(last, what, to_set):
    outcome = judge_ending(Ending(last, 0, True))
    assert (outcome.code, outcome.result) == (ExitCode.NOT_PASSED, "not judged")
    assert "NOT JUDGED" in outcome.sentence
    assert what in outcome.sentence, outcome
    assert to_set in outcome.sentence, outcome


def test_a_run_that_was_judged_to_its_end_and_ends_under_a_warning_says_so():
    outcome = judge_ending(Ending(saying(Code.FELL_BELOW_START, WARNING, "it fell"), 0, True))
    assert (outcome.code, outcome.result) == (5, "finished with a warning")
    assert outcome.sentence.startswith("the trainer finished with a warning: it fell; compare the best")
    assert outcome.sentence.endswith("; all of 2 checkpoints were judged")
    assert "NOT JUDGED" not in outcome.sentence


def test_steps_after_the_last_judged_checkpoint_are_in_the_last_line():
    few = verdict(step=5, steps_since_evaluation=1, longest_round=2)
    outcome = judge_ending(Ending(few, 0, True))
    assert outcome.code == 0
    assert "; step 5 came after the last judged checkpoint; last verdict healthy" in outcome.sentence
    many = verdict(step=404, steps_since_evaluation=400, longest_round=2)
    outcome = judge_ending(Ending(many, 0, True))
    assert outcome.code == ExitCode.NOT_PASSED
    assert (
        "NOT JUDGED: steps 5 to 404 came after the last judged checkpoint; let the trainer save"
        in outcome.sentence
    )


def test_advice_is_printed_and_is_no_reason_to_fail():
    advice = condition(Code.HACKING_GAP, Level.WARNING, "the gap is 0.2", advice=True)
    outcome = judge_ending(Ending(verdict(conditions=(advice,)), 0, True))
    assert outcome.code == 0
    assert "advice (hacking_gap): the gap is 0.2" in outcome.sentence


def test_a_trainer_that_has_ended_may_be_silent():
    inert = condition(Code.KL_INERT, Level.HEALTHY, "no KL")
    assert judge_ending(Ending(saying(Code.SILENT, UNKNOWN, "9 s", others=(inert,)), 0, True)).code == 0


def test_a_process_that_survives_sigkill_is_named():
    assert "STILL RUNNING after SIGKILL: process 12, 34" in notes(Ending(FIRE, 0, False, leftovers=(12, 34)))


def test_what_else_happened_is_told_one_fact_a_line():
    best = EVALUATED.model_copy(update={"step": 2, "score": 0.75})
    full = condition(Code.STORE_UNAVAILABLE, UNKNOWN, "no room")
    last = verdict(best_evaluation=best, refused=2, conditions=(full,))
    assert list(notes(Ending(last, 0, True, restarts=2))) == [
        "held-out score 0.50 at step 4, 0.75 at its best (step 2)",
        "the guard died and was started again 2 times: see guard.log",
        "2 checkpoints were refused: see guard.log",
        "the guard could not store what it was told: no room",
    ]


def test_the_documentation_has_the_same_exit_codes():
    rows = (Path(__file__).parents[3] / "docs" / "tasks" / "run-on-one-machine.md").read_text().splitlines()
    documented = {tuple(c.strip() for c in r.strip("|").split("|")) for r in rows if r.startswith("| ")}
    assert {(str(code.value), code.meaning) for code in ExitCode} <= documented
