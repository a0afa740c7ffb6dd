"""Each row of `rlguard check` on its own: every level that it has, and that it says what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from guard_cli.check import rows
from guard_cli.check.rows import (
    Followed,
    Found,
    Model,
    Split,
    Trainer,
    TriedEvaluation,
    TriedScorer,
)
from guard_core.evaluation import HfEvaluation
from guard_core.policy import BaselineBudget, Policy
from guard_core.preflight import CheckLevel, CheckRow
from guard_core.run_checks import Folder
from guard_core.wire import EvaluationSampling

OK, WARN, REFUSE, UNKNOWN = CheckLevel.OK, CheckLevel.WARN, CheckLevel.REFUSE, CheckLevel.UNKNOWN
PATH = Path("/run/out")
#: A policy that takes eight evaluations.
EIGHT = Policy.model_validate({"detector": "heldout_guard", "heldout_guard": {"min_steps": 8}})
SPLIT = Split(
    items=128, counted=128, problem=None, compared=True, overlap=None, scorer=TriedScorer(None, 128)
)
CALIBRATED = Policy.model_validate({"detector": "calibrated", "calibrated": {"baseline_passes": 4}})
QUICK = TriedEvaluation(seconds=10.0, score=0.5, problem=None, paid=0.625)
ENDED = replace(QUICK, truncated=0.0)
GOOD = Trainer(save_steps=10, max_steps=200, save_total_limit=2, beta=0.01, step_seconds=2.0)


def check(row: CheckRow, level: CheckLevel, *words: str) -> None:
    assert row.level == level, row
    for word in words:
        assert word in row.says, row


def sampling(**settings: float) -> EvaluationSampling:
    """Of an evaluator with these settings, before any trainer has said how it samples."""
    return HfEvaluation.model_validate(settings).sampling_ahead()


def found(**more: object) -> Found:
    everything: dict[str, object] = {
        "trainer": GOOD,
        "policy": CALIBRATED,
        "split": SPLIT,
        "sampling": sampling(temperature=1.0, max_new_tokens=16),
        "grader": True,
        "folder": Folder(PATH, PATH, inside=True),
        "followed": None,
        "model": Model(PATH, None, no_tokenizer=None),
        "measured": ENDED,
    }
    return Found(**{**everything, **more})  # type: ignore[arg-type]


def test_a_good_run_is_ok_in_every_row() -> None:
    assert {row.name: row.level for row in rows.rows(found())} == dict.fromkeys(
        [
            "held-out split",
            "overlap with training",
            "scorer and answers",
            "training grader",
            "checkpoint layout",
            "tokenizer",
            "memory",
            "checkpoints folder",
            "evaluations",
            "sampling",
            "evaluation time",
            "completions",
            "starting score",
            "save_total_limit",
            "baseline passes",
            "KL to the reference",
        ],
        OK,
    )


def row_of(name: str, **more: object) -> CheckRow:
    """One row of a run that is good but for `more`."""
    return next(row for row in rows.rows(found(**more)) if row.name == name)


def until_judged(given: Found) -> int | None:
    return rows.evaluations_until_judged(given)[0]


def test_nothing_that_was_not_given_is_ok() -> None:
    split = replace(SPLIT, compared=False)
    nothing = {"trainer": Trainer(), "folder": None, "model": None, "measured": None, "grader": False}
    table = rows.rows(found(**nothing, split=split, sampling=sampling()))
    assert {row.name for row in table if row.level == OK} == {
        "held-out split",
        "scorer and answers",
        "baseline passes",
    }
    assert all("--" in row.says for row in table if row.level == UNKNOWN)


def test_a_split_that_cannot_be_used() -> None:
    unreadable = Split(items=None, counted=None, problem="x: no items", compared=True, overlap=None)
    check(rows.split_row(unreadable), REFUSE, "x: no items")
    check(rows.overlap_row(unreadable), UNKNOWN)
    check(rows.scorer_row(unreadable), UNKNOWN)
    check(rows.overlap_row(replace(SPLIT, overlap="3 of 128 items overlap")), REFUSE, "3 of 128")
    refused = TriedScorer("2 of 128 items do not score 1")
    check(rows.scorer_row(replace(SPLIT, scorer=refused)), REFUSE, "2 of 128")


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (128, "the scorer loads, and the items' own answers score 1"),
        (120, "own answers score 1; 8 more are not to be tried"),
        (0, "the scorer loads; there are no answers to try"),
    ],
)
def test_an_answer_that_was_not_tried_does_not_score_1(answers: int, says: str) -> None:
    row = rows.scorer_row(replace(SPLIT, scorer=TriedScorer(None, answers)))
    check(row, OK, says)
    assert ("score 1" in row.says) is (answers > 0)


def test_a_scorer_of_which_nothing_is_known_is_not_ok() -> None:
    """The evaluation process did not survive its start."""
    check(rows.scorer_row(replace(SPLIT, scorer=TriedScorer())), UNKNOWN, "has to start")


def test_items_of_one_group_count_as_one() -> None:
    """256 items of 16 templates are judged as 16, and need as many evaluations."""
    grouped = replace(SPLIT, items=256, counted=16)
    check(rows.split_row(grouped), OK, "256 items in 16 groups", "as one item")
    table = {row.name: row for row in rows.rows(found(split=grouped))}
    assert until_judged(found(split=grouped)) == until_judged(
        found(split=replace(SPLIT, items=16, counted=16))
    )
    check(table["evaluations"], WARN, "evaluations of so few items")


def test_near_duplicates_without_a_group_are_pointed_out() -> None:
    check(rows.split_row(replace(SPLIT, apart="4 held-out items are alike")), WARN, "128 items; 4 held-out")


def test_a_checkpoint_that_cannot_be_scored() -> None:
    adapter = Model(PATH, "it holds a PEFT adapter", no_tokenizer=None)
    check(row_of("checkpoint layout", model=adapter), REFUSE, "PEFT adapter")
    none = "no tokenizer; give it to the trainer (processing_class=tokenizer)"
    check(row_of("tokenizer", model=Model(PATH, None, no_tokenizer=none)), REFUSE, none, str(PATH))


def test_how_much_memory_an_evaluation_needs_at_least() -> None:
    check(rows.memory_row(Model(PATH, None, no_tokenizer=None, weights=3 << 30)), OK, "at least 3.8 GiB")


def test_a_folder_that_the_guard_or_the_trainer_cannot_use() -> None:
    outside = Folder(PATH, Path("/elsewhere"), inside=False)
    check(row_of("checkpoints folder", folder=outside), REFUSE, "checkpoint_root /elsewhere")
    file = Folder(PATH, PATH, inside=True, problem="it is a file")
    check(row_of("checkpoints folder", folder=file), REFUSE, "it is a file")


def test_a_log_that_the_guard_follows() -> None:
    followed = Followed(PATH / "log.jsonl", "verl", PATH, problem=None, old=False, elsewhere=None)
    check(rows.followed_row(followed), OK, "/run/out/log.jsonl (verl), and checkpoints in /run/out")
    check(rows.followed_row(replace(followed, old=True)), OK, "already counts as of another run")
    elsewhere = replace(followed, elsewhere=Path("/run/other"))
    check(rows.followed_row(elsewhere), WARN, "saves in /run/other", "metrics.checkpoints.path")
    refused = replace(elsewhere, problem="/run/out/log.jsonl is a symbolic link: name the file.")
    check(rows.followed_row(refused), REFUSE, "symbolic link", "Nothing would be read")
    assert [row.name for row in rows.rows(found(followed=followed))].count("followed log") == 1


@pytest.mark.parametrize(
    ("save", "steps", "level", "words"),
    [
        (10, 80, OK, ["8 checkpoints"]),
        (10, 71, OK, ["8 checkpoints"]),  # the last step is saved as well
        (10, 70, WARN, ["you will get 7 evaluations; 8 are needed", "save_steps to 8 or less"]),
        (0.1, 80, OK, ["10 checkpoints"]),  # a share of max_steps
        (0.25, 80, WARN, ["you will get 4 evaluations", "save_steps to 10 or less"]),
        (100, 80, REFUSE, ["save_steps 100 is more than max_steps 80", "save_steps to 10 or less"]),
        (500, 5, REFUSE, ["train for 8 steps at least"]),
        (1, 5, WARN, ["train for 8 steps at least"]),
        (None, 80, UNKNOWN, []),
        (10, None, UNKNOWN, []),
        (0.5, None, UNKNOWN, []),
    ],
)
def test_evaluations(save: float | None, steps: int | None, level: CheckLevel, words: list[str]) -> None:
    trainer = Trainer(save_steps=save, max_steps=steps)
    check(row_of("evaluations", trainer=trainer, policy=EIGHT), level, *words)


def test_evaluations_that_could_not_be_enough() -> None:
    unreadable = Split(items=None, counted=None, problem="x: no items", compared=True, overlap=None)
    check(row_of("evaluations", split=unreadable), UNKNOWN, "readable first")
    few = replace(SPLIT, items=3, counted=3)
    check(row_of("evaluations", split=few), WARN, "no number of evaluations of so few items", "more items")
    never = Trainer(save_steps=500, max_steps=80)
    refused = row_of("evaluations", split=few, trainer=never)
    check(refused, REFUSE, "save_steps 500 is more than max_steps 80")


def test_how_many_evaluations_the_policy_needs() -> None:
    few = replace(SPLIT, items=256, counted=64)
    needed = until_judged(found())
    assert needed is not None and needed > 4
    more = Policy.model_validate({"calibrated": {"baseline_passes": 16}})
    assert until_judged(found(policy=more)) < needed, "a better baseline sees a fall sooner"  # type: ignore[operator]
    assert (until_judged(found(split=few)) or 999) > needed
    greedy = found(sampling=sampling(temperature=0.0, max_new_tokens=16))
    assert until_judged(greedy) is None, "greedy passes are one"
    assert until_judged(found(sampling=sampling())) == needed, "most trainers sample"
    assert until_judged(found(split=replace(SPLIT, items=3, counted=3))) is None
    many = found(policy=more, split=replace(SPLIT, items=5000, counted=5000))
    assert until_judged(many) == 4, "the reward's own noise takes four rounds to know"
    assert until_judged(replace(many, trainer=replace(GOOD, save_steps=2))) == 10
    classic = Policy.model_validate({"detector": "heldout_guard", "heldout_guard": {"min_steps": 13}})
    assert until_judged(found(policy=classic, split=replace(SPLIT, items=3, counted=3))) == 13
    both = classic.model_copy(update={"detector": "both"})
    assert until_judged(found(policy=both)) >= 13  # type: ignore[operator]


def test_a_start_that_nothing_is_known_of_counts_as_the_noisiest() -> None:
    assert until_judged(found(measured=None)) == until_judged(found())
    assert until_judged(found(measured=replace(QUICK, score=None))) == until_judged(found())
    said = {row.name: row.says for row in rows.rows(found(measured=None))}["evaluations"]
    assert said.endswith(" are needed, for a start near one half (near 0 it may take more)")
    classic = Policy.model_validate({"detector": "heldout_guard"})
    assert rows.evaluations_until_judged(found(measured=None, policy=classic)) == (20, "")


def test_a_start_too_low_for_a_fall_takes_a_level_and_a_score_that_has_risen() -> None:
    for score in (0.0, 0.03, 0.07):
        needed, condition = rows.evaluations_until_judged(found(measured=replace(QUICK, score=score)))
        assert needed == 17, "16 for the level, and one to compare with it"
        assert condition.startswith(", and a score that has risen") and f"{score:.3f}" in condition
    low = replace(QUICK, score=0.07)
    row = row_of("evaluations", trainer=Trainer(save_steps=10, max_steps=80), measured=low)
    check(row, WARN, "you will get 8 evaluations; 17 are needed, and a score", "save_steps to 4 or less")
    assert "items" not in row.says, "no number of items would help"
    few = found(measured=replace(QUICK, score=0.1), split=replace(SPLIT, items=3, counted=3))
    assert rows.evaluations_until_judged(few) == (None, ""), "here more items would help"
    late = found(measured=replace(QUICK, score=0.09), split=replace(SPLIT, items=256, counted=256))
    assert until_judged(late) == 17, "from the start alone a fall is seen later"


def test_the_training_grader() -> None:
    check(rows.grader_row(SPLIT, QUICK, given=False), UNKNOWN, "--proxy-scorer")
    check(rows.grader_row(SPLIT, None, given=True), UNKNOWN, "--time")
    paying = replace(SPLIT, scorer=replace(SPLIT.scorer, pay=(0.9, 0.1)))
    check(rows.grader_row(paying, None, given=True), OK, "pays 0.90 for right answers, and 0.10")
    blind = replace(SPLIT, scorer=replace(SPLIT.scorer, pay=(1.0, 1.0)))
    check(rows.grader_row(blind, None, given=True), WARN, "does not tell right from wrong")
    check(rows.grader_row(SPLIT, QUICK, given=True), OK, "gives 0.625 where the scorer gives 0.500")
    check(rows.grader_row(SPLIT, replace(QUICK, paid=None), given=True), REFUSE, "failed on the completions")
    partly = rows.grader_row(SPLIT, replace(QUICK, in_part=0.25), given=True)
    check(partly, WARN, "pays a part for 25% of what the scorer rejects")
    check(
        rows.grader_row(replace(SPLIT, scorer=TriedScorer("it raised")), None, given=True), UNKNOWN, "first"
    )


def test_the_passes_of_the_starting_policy() -> None:
    hot, greedy = (sampling(temperature=t, max_new_tokens=16) for t in (0.7, 0.0))
    check(rows.baseline_row(CALIBRATED, hot), OK, "4 at temperature 0.7")
    check(rows.baseline_row(CALIBRATED, greedy), WARN, "all alike", "baseline_passes to 2")
    check(rows.baseline_row(CALIBRATED, sampling()), OK, "4, or 2 that agree if the trainer samples greedily")
    check(rows.baseline_row(Policy(detector="heldout_guard"), greedy), OK)
    two = Policy.model_validate({"detector": "calibrated", "calibrated": {"baseline_passes": 2}})
    check(rows.baseline_row(two, greedy), OK, "2 at temperature 0")
    both = CALIBRATED.model_copy(update={"detector": "both"})
    assert rows.baseline_passes(both) == 4


def test_what_a_budget_for_them_costs() -> None:
    def said(sampling: EvaluationSampling, **budget: float) -> str:
        calibrated = CALIBRATED.calibrated.model_copy(update={"baseline_budget": BaselineBudget(**budget)})
        policy = CALIBRATED.model_copy(update={"calibrated": calibrated})
        [row] = [
            row for row in rows.rows(found(policy=policy, sampling=sampling)) if row.name == "baseline passes"
        ]
        check(row, OK)
        return row.says

    hot = sampling(temperature=0.7, max_new_tokens=16, samples=2)
    each = 2 * SPLIT.items
    assert "baseline_budget" not in said(hot, completions=99_999)
    few = "baseline_budget has room for 2 of 4 passes"
    assert said(hot, completions=2 * each).startswith(few)
    assert "room for 3 of 4 passes" in said(hot, minutes=0.5), "one was measured to take ten seconds"
    assert "room for 1 of 4 passes" in said(sampling(samples=2), completions=each), (
        "the trainer may sample, as most do"
    )


def test_how_evaluations_sample() -> None:
    own = sampling(temperature=0.7, max_new_tokens=16)
    check(rows.sampling_row(own, timed=True), OK, "temperature 0.7, up to 16 tokens")
    check(rows.sampling_row(sampling(), timed=False), UNKNOWN, "as the trainer's", "give --temperature")
    check(rows.sampling_row(sampling(), timed=True), UNKNOWN, "tried here: temperature 0, up to 256 tokens")


def test_how_the_completions_end() -> None:
    check(rows.completions_row(replace(QUICK, truncated=0.2)), OK, "20% cut off")
    wrong = replace(QUICK, truncated=0.21, unscored=0.21)
    check(rows.completions_row(wrong), WARN, "21% cut off", "count as wrong")
    scored = rows.completions_row(replace(wrong, unscored=0.0))
    check(scored, WARN, "21% cut off", "scored as it is (score_truncated)")
    assert "count as wrong" not in scored.says
    check(rows.completions_row(replace(QUICK, truncated=0.0, unanswered=0.2)), OK, "0% cut", "20% without")
    check(rows.completions_row(replace(QUICK, truncated=0.0, unanswered=0.21)), WARN, "21% without an answer")
    check(rows.completions_row(replace(QUICK, unanswered=0.21)), WARN, "21% without an answer")
    check(
        rows.completions_row(replace(QUICK, unanswered=0.1)),
        UNKNOWN,
        "how they end is not known",
        "10% without",
    )
    check(rows.completions_row(replace(QUICK, truncated=0.0, timed_out=0.2)), OK, "20% timed out in a scorer")
    check(rows.completions_row(replace(QUICK, truncated=0.0, timed_out=0.21)), WARN, "21% timed out")
    check(rows.completions_row(QUICK), UNKNOWN, "how they end is not known")
    check(rows.completions_row(replace(QUICK, truncated=0.89, unscored=0.89)), WARN, "89% cut off")
    lost = replace(QUICK, truncated=0.4, unscored=0.9)
    check(rows.completions_row(lost), REFUSE, "90% could not be scored", "40% cut off")


def test_the_starting_score() -> None:
    check(rows.score_row(0.5, found()), OK, "0.500; a fall stops the run of ", "points after 16 evaluations")
    check(rows.score_row(0.01, found()), WARN, "cannot fall")
    alone = replace(found(), grader=False)
    check(rows.score_row(0.05, alone), WARN, "below twice the accepted decline", "`calibrated.on_gap: stop`")
    check(rows.score_row(0.05, replace(alone, grader=True)), OK, "no fall from there can stop the run")
