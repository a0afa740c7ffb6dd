"""Scorers with a limit, and async ones: what hangs or ends its process holds up no other. Real processes.

What the scorers do to which completion is said in `limited_scorers`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.evaluators.completions import Completion
from guard_service.heldout.pool import Limits
from guard_service.heldout.scorers import Graded, SplitScorers
from guard_service.heldout.split import HeldoutSplit
from tests.heldout.evaluated import alive, evaluate, wait_for

MODULE = f"{__name__.rpartition('.')[0]}.limited_scorers".lstrip(".")
the = importlib.import_module(MODULE)

AGES = 3600.0  # a limit that nothing reaches
LIMIT = 10.0  # a limit that only what hangs reaches, on a busy machine, too
Score = Callable[..., list[Graded]]


def scorers_of(
    room: Path, answers: Sequence[str], scorer: str, limits: Limits, **meta: Any
) -> tuple[HeldoutSplit, SplitScorers]:
    rows = (
        {"id": f"i{n}", "prompt": f"p{n}", "answer": a, "meta": {"room": str(room), **meta}}
        for n, a in enumerate(answers)
    )
    (room / "split").write_text("".join(json.dumps(row) + "\n" for row in rows))
    split = HeldoutSplit.load(room / "split")
    return split, SplitScorers(split, scorer, limits)


@pytest.fixture
def score(tmp_path: Path) -> Score:
    """Score these completions of as many items, whose answer is "right"."""

    def run(
        completions: Sequence[str],
        scorer: str = "plain",
        seconds: float | None = AGES,
        *,
        wrong: bool = True,
        at_once: int = 2,
        **meta: Any,
    ) -> list[Graded]:
        limits, answers = Limits(seconds, wrong, at_once), ["right"] * len(completions)
        split, scorers = scorers_of(tmp_path, answers, f"{MODULE}:{scorer}", limits, **meta)
        asked = [(item, text, "all") for item, text in zip(split.items, completions, strict=True)]
        return scorers.score_all(asked)

    return run


def all_end(room: Path, name: str) -> bool:
    """Wait until the processes that were noted have ended; False if there was none."""
    pids = the.noted({"room": room}, name)
    wait_for(lambda: not any(alive(int(pid)) for pid in pids))
    return bool(pids)


@pytest.mark.parametrize(("scorer", "late"), [("plain", "hang"), ("judge", "hang"), ("judge", "wait")])
def test_one_that_hangs_holds_up_no_other_and_scores_keep_their_order(
    score: Score, tmp_path: Path, scorer: str, late: str
) -> None:
    """Its process is killed, with what it started, and replaced."""
    told = score(["right", late, "right", "else", "right"], scorer, LIMIT)
    assert told == [Graded(1.0), Graded(0.0, late=True), Graded(1.0), Graded(0.0), Graded(1.0)]
    assert all_end(tmp_path, "pids")
    assert all_end(tmp_path, "hanging") is (late == "hang")


def test_what_reaches_its_limit_is_an_error_that_says_what_to_set(score: Score, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError) as caught:
        score(["hang"], seconds=1.0, wrong=False)
    assert str(caught.value) == (
        f"scorer '{MODULE}:plain' took longer than scorer_timeout_seconds=1 on item 'i0': raise "
        "scorer_timeout_seconds, or set on_scorer_timeout to wrong if what never ends is wrong"
    )
    split, scorers = scorers_of(tmp_path, ["(a+)+$"], "regex", Limits(1.0))
    with pytest.raises(EvaluationError, match="'regex' took longer than scorer_timeout_seconds=1 on item"):
        scorers.score_all([(split.items[0], "a" * 28 + "b", "")])  # many seconds, and not for ever


@pytest.mark.parametrize(
    ("scorer", "completion", "told"),
    [
        ("plain", "exit", r"ended its process \(status 7\) on item 'i1': it must return"),
        ("plain", "kill", r"ended its process \(SIGKILL, out of memory\?\) on item 'i1': it must return"),
        ("plain", "system exit", r"ended its process \(status 1\) on item 'i1': it must return"),
        ("plain", "raise", "raised ValueError on item 'i1': fix it, or the item"),
        ("plain", "name", "raised an exception on item 'i1': fix it"),  # a completion chose its name
        ("judge", "exit", r"ended its process \(status 7\) on item 'i1'"),
        ("judge", "raise", "raised ValueError on item 'i1'"),
        ("judge", "cancelled", "raised CancelledError on item 'i1'"),
        ("judge", "nothing", "returned a NoneType for item 'i1'"),
    ],
)
def test_one_that_ends_its_process_or_raises_is_an_error_that_names_it(
    score: Score, tmp_path: Path, scorer: str, completion: str, told: str
) -> None:
    with pytest.raises(EvaluationError, match=f"^scorer '{MODULE}:{scorer}' {told}") as caught:
        score(["right", completion, "right", "right"], scorer)
    assert the.SECRET not in str(caught.value)
    all_end(tmp_path, "pids")  # there may be none: the error can come before another scorer began


def test_where_one_fails_those_under_way_end(score: Score, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="raised ValueError on item 'i1'"):
        score(["hang", "raise after the other hangs"])
    assert all_end(tmp_path, "hanging")


def test_what_left_its_group_ends_with_it(score: Score, tmp_path: Path) -> None:
    """It holds the pipes of the process that forked it."""
    assert score(["fork away", "right"]) == [Graded(0.0), Graded(1.0)]
    assert all_end(tmp_path, "away")


def test_a_copy_that_was_forked_answers_for_nobody(score: Score) -> None:
    told = score(["fork and return", "after the copy", "right"], at_once=1)
    assert told == [Graded(0.0), Graded(0.0), Graded(1.0)]


def test_what_is_written_into_the_pipe_or_printed_is_no_score(score: Score) -> None:
    told = score(["write everywhere", "say", "right"], at_once=1)
    assert told == [Graded(0.0), Graded(0.0), Graded(1.0)]


@pytest.mark.parametrize("scorer", ["plain", "judge"])
def test_so_many_at_once_and_no_more(score: Score, tmp_path: Path, scorer: str) -> None:
    """Each waits until three are under way. No more than three processes are started for all of them."""
    assert len(score(["meet"] * 6, scorer, at_once=3, together=3)) == 6
    assert len(set(the.noted({"room": tmp_path}, "pids"))) == 3


# -- what is counted ---------------------------------------------------------------------------------------

JUDGE = f"{MODULE}:judge"
WRONG = {"scorer_timeout_seconds": LIMIT, "on_scorer_timeout": "wrong"}


def counted(room: Path, made: Sequence[str | None], **settings: Any) -> dict[str, Any]:
    """Score these completions of as many items; None: cut off."""
    rows = [[Completion(text or "", text, truncated=text is None)] for text in made]
    items = [{"answer": "right", "meta": {"room": str(room)}}] * len(rows)
    return evaluate(room, items, rows, **settings)


def test_what_timed_out_is_wrong_and_counted_of_all_completions(tmp_path: Path) -> None:
    told = counted(tmp_path, ["right", "wait", None, "right"], scorer=JUDGE, **WRONG)
    assert (told["items"], told["timed_out"], told["unscored"]) == ([1.0, 0.0, 0.0, 1.0], 0.25, 0.25)
    assert counted(tmp_path, ["right"], scorer="exact")["timed_out"] is None, "there is no limit"


def test_a_training_grader_that_is_late_costs_its_own_outcomes_alone(tmp_path: Path) -> None:
    """Where most time out nothing is said of the policy: a judge that is down is none that got worse."""
    made = ["right", "wait", "wait"]
    told = counted(tmp_path, made, scorer="exact", proxy_scorer=JUDGE, **WRONG)
    assert (told["items"], told["proxy_items"], told["timed_out"]) == ([1.0, 0.0, 0.0], [], 0.0)
    log = "more than half of 3 completions took their scorer longer than"
    with pytest.raises(EvaluationError, match=log):
        counted(tmp_path, made, scorer=JUDGE, **WRONG)
