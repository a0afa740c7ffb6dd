"""What was not judged at the end of a run: nothing that is missing, unknown or unwell ever passes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from rlguard.core.codes import Code, Level
from rlguard.core.ending import not_judged, steps_after, warned


@dataclass(frozen=True)
class Evaluated:
    step: int


@dataclass(frozen=True)
class Last:
    """A last word as a status holds it; this one has judged everything."""

    level: str | None = "healthy"
    code: str | None = "ok"
    reason: str | None = "fine"
    announced: int | None = 4
    evaluated: int | None = 4
    failed: int | None = 0
    skipped: int | None = 0
    refused: int | None = 0
    waiting: int | None = 0
    step: int | None = 100
    steps: int | None = 1000
    steps_since_evaluation: int | None = 0
    longest_round: int | None = 25
    last_evaluation: Evaluated | None = field(default_factory=lambda: Evaluated(100))


JUDGED = Last()
NO_CHECKPOINT = (
    "no checkpoint was announced; set save_steps, or call `guard.checkpoint`, with paths below the guard's "
    "checkpoint root"
)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("level", "the guard gave no verdict"),
        *((f, "it is not known which checkpoints") for f in ("announced", "evaluated", "waiting")),
    ],
)
def test_what_is_not_said_is_not_passed(field: str, said: str) -> None:
    assert not_judged(replace(JUDGED, **{field: None}), "wait longer").startswith(said)


@pytest.mark.parametrize("level", [level for level in Level if level is not Level.HEALTHY])
@pytest.mark.parametrize("code", [Code.WARMING_UP, Code.SILENT, Code.FELL_BELOW_START])
def test_no_level_but_healthy_passes_and_the_reason_is_named(level: Level, code: Code) -> None:
    sentence = not_judged(replace(JUDGED, level=level.value, code=code.value, reason="why"), "wait longer")
    assert sentence.startswith(f"{level} ({code}): why")
    assert sentence.endswith(code.remedy)


def test_only_a_run_that_was_judged_to_its_end_warns() -> None:
    fallen = replace(JUDGED, level="warning", code="fell_below_start", reason="it fell")
    assert warned(fallen) == f"it fell; {Code.FELL_BELOW_START.remedy}"
    assert warned(replace(fallen, waiting=1)) == warned(replace(fallen, evaluated=3)) == ""
    assert {warned(replace(fallen, level=level)) for level in ("unknown", "healthy", None)} == {""}


def test_a_code_of_another_release_is_named_without_a_remedy() -> None:
    sentence = not_judged(replace(JUDGED, level="unknown", code="brand_new", reason="why"), "wait longer")
    assert sentence == "unknown (brand_new): why"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, ""),
        ({"announced": 0, "evaluated": 0}, NO_CHECKPOINT),
        ({"refused": 2}, f"2 further checkpoints were refused; {Code.REPORTS_REFUSED.remedy}"),
        (
            {"announced": 0, "evaluated": 0, "refused": 2},
            f"2 further checkpoints were refused; {Code.REPORTS_REFUSED.remedy}",
        ),
        ({"waiting": 1}, "1 evaluations were left waiting; wait longer"),
        (
            {"evaluated": 2, "waiting": 3},
            "2 of 4 checkpoints were not evaluated, 3 evaluations were left waiting; wait longer",
        ),
        (
            {"evaluated": 2, "failed": 2},
            f"2 of 4 checkpoints were not evaluated (2 failed); {Code.EVALUATION_FAILING.remedy}",
        ),
        (
            {"evaluated": 3, "skipped": 1},
            "1 of 4 checkpoints were not evaluated (1 skipped); " + Code.STALE.remedy,
        ),
    ],
)
def test_the_counts_and_what_to_set(changes: dict[str, int], sentence: str) -> None:
    assert not_judged(replace(JUDGED, **changes), "wait longer") == sentence


@pytest.mark.parametrize("code", [Code.WARMING_UP, Code.NO_BASELINE])
@pytest.mark.parametrize(
    ("lost", "remedy"),
    [
        ({"failed": 4}, Code.EVALUATION_FAILING.remedy),
        ({"skipped": 4}, Code.STALE.remedy),
        ({"refused": 4, "evaluated": 4}, Code.REPORTS_REFUSED.remedy),
    ],
)
def test_who_lost_all_evaluations_is_not_told_to_save_more(
    code: Code, lost: dict[str, int], remedy: str
) -> None:
    last = replace(JUDGED, **({"evaluated": 0} | lost), level="unknown", code=code.value, reason="too few")
    assert not_judged(last, "wait longer").endswith(f"; {remedy}")


def trained_on(steps: int, **changes: int | None) -> Last:
    return replace(JUDGED, step=100 + steps, steps_since_evaluation=steps, **changes)


def test_steps_after_the_last_judged_checkpoint_are_named() -> None:
    assert steps_after(JUDGED) == ""
    assert steps_after(trained_on(400)) == "steps 101 to 500 came after the last judged checkpoint"
    assert steps_after(trained_on(1)) == "step 101 came after the last judged checkpoint"
    begun_again = replace(JUDGED, step=7, steps_since_evaluation=8)
    assert steps_after(begun_again) == "8 steps came after the last judged checkpoint"
    not_reported = replace(JUDGED, step=105, steps_since_evaluation=20)
    assert steps_after(not_reported) == "20 steps came after the last judged checkpoint"
    assert steps_after(replace(not_reported, step=101)) == steps_after(not_reported)


def test_more_steps_than_a_checkpoint_ever_had_were_not_judged() -> None:
    assert not_judged(trained_on(25), "wait longer") == "", "the last save need not be the last step"
    sentence = not_judged(trained_on(26), "wait longer")
    assert sentence.startswith("steps 101 to 126 came after the last judged checkpoint; let the trainer save")
    assert "save_steps" in sentence
    assert not_judged(trained_on(1, longest_round=0), "wait longer"), "only the starting policy was judged"


def test_one_long_round_at_the_beginning_excuses_no_such_end() -> None:
    """Rounds of 64, 4, 4, ... and then 64 steps that nobody judged."""
    quarter = replace(
        JUDGED,
        step=100,
        steps=100,
        steps_since_evaluation=25,
        last_evaluation=Evaluated(75),
        longest_round=64,
    )
    assert not_judged(quarter, "wait longer") == ""
    sentence = not_judged(replace(quarter, step=101, steps=101, steps_since_evaluation=26), "wait longer")
    assert sentence.startswith("steps 76 to 101 came after the last judged checkpoint; let the trainer save")
    assert not_judged(replace(quarter, steps=10), "wait longer") == "", "every tenth step is reported"


def test_every_code_that_can_be_a_last_word_says_what_to_do() -> None:
    assert [code for code in Code if not code.remedy] == [Code.OK]


def test_only_a_finding_of_hacking_is_called_hacking() -> None:
    called = {code for code in Code if code.finding and "evidence of reward hacking" in code.finding.words}
    assert called == {
        *(Code.HELDOUT_DECLINE, Code.HACKING_GAP),
        *(Code.REWARD_WITHOUT_GAIN, Code.GRADERS_DISAGREE),
    }
