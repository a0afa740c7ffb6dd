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

from guard_service.heldout import pool
from guard_service.heldout.errors import EvaluationError, SplitError
from guard_service.heldout.evaluators.completions import Completion
from guard_service.heldout.pool import Limits
from guard_service.heldout.scorers import Graded, SplitScorers
from guard_service.heldout.split import HeldoutSplit
from tests.heldout.evaluated import evaluate

MODULE = f"{__name__.rpartition('.')[0]}.limited_scorers".lstrip(".")
the = importlib.import_module(MODULE)

AGES = 3600.0  # a limit that nothing reaches
LIMIT = 10.0  # a limit that only what hangs reaches, on a busy machine, too

# -- asking ------------------------------------------------------------------------------------------------

Score = Callable[..., list[Graded]]


@pytest.fixture
def split_of(tmp_path: Path) -> Callable[..., HeldoutSplit]:
    def make(answers: Sequence[str], **meta: Any) -> HeldoutSplit:
        rows = (
            {"id": f"i{n}", "prompt": f"p{n}", "answer": a, "meta": {"room": str(tmp_path), **meta}}
            for n, a in enumerate(answers)
        )
        (tmp_path / "split").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return HeldoutSplit.load(tmp_path / "split")

    return make


@pytest.fixture
def score(split_of: Callable[..., HeldoutSplit]) -> Score:
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
        split = split_of(["right"] * len(completions), **meta)
        scorers = SplitScorers(split, f"{MODULE}:{scorer}", Limits(seconds, wrong, at_once))
        asked = [(item, text, "all") for item, text in zip(split.items, completions, strict=True)]
        return scorers.score_all(asked)

    return run


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_end(pids: Sequence[str]) -> bool:
    """Wait for it; False if there was none."""
    the.wait_for(lambda: not any(map(alive, pids)))
    return bool(pids)


# -- plain functions ---------------------------------------------------------------------------------------


def test_one_that_hangs_holds_up_no_other_and_scores_keep_their_order(score: Score, tmp_path: Path) -> None:
    """Its process is killed and replaced. The limit is one that only what hangs reaches."""
    told = score(["right", "hang", "right", "else", "right"], seconds=LIMIT)
    assert told == [Graded(1.0), Graded(0.0, late=True), Graded(1.0), Graded(0.0), Graded(1.0)]
    assert all_end(the.noted({"room": tmp_path}, "pids"))


def test_what_reaches_its_limit_is_an_error_that_says_what_to_set(score: Score, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError) as caught:
        score(["hang"], seconds=1.0, wrong=False)
    assert str(caught.value) == (
        f"scorer '{MODULE}:plain' took longer than scorer_timeout_seconds=1 on item 'i0': raise "
        "scorer_timeout_seconds, or set on_scorer_timeout to wrong if what never ends is wrong"
    )
    all_end(the.noted({"room": tmp_path}, "hanging"))  # a busy machine may not have begun it


def test_what_a_scorer_started_ends_with_it(score: Score, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="took longer"):
        score(["start and hang"], seconds=LIMIT, wrong=False)
    assert all_end(the.noted({"room": tmp_path}, "hanging"))


@pytest.mark.parametrize(
    ("completion", "told"),
    [
        ("exit", r"ended its process \(status 7\) on item 'i1': it must return"),
        ("kill", r"ended its process \(SIGKILL, out of memory\?\) on item 'i1': it must return"),
        ("system exit", r"ended its process \(status 1\) on item 'i1': it must return"),
        ("raise", "raised ValueError on item 'i1': fix it, or the item"),
    ],
)
def test_one_that_ends_its_process_or_raises_is_an_error_that_names_it(
    score: Score, tmp_path: Path, completion: str, told: str
) -> None:
    with pytest.raises(EvaluationError, match=f"^scorer '{MODULE}:plain' {told}") as caught:
        score(["right", completion, "right", "right"])
    assert the.SECRET not in str(caught.value)
    assert all_end(the.noted({"room": tmp_path}, "pids"))
    assert score(["right"]) == [Graded(1.0)]


def test_what_left_its_group_ends_with_it(score: Score, tmp_path: Path) -> None:
    """It holds the pipes of the process that forked it."""
    assert score(["fork away", "right"]) == [Graded(0.0), Graded(1.0)]
    assert all_end(the.noted({"room": tmp_path}, "away"))
    assert not the.noted({"room": tmp_path}, "back")


def test_a_copy_that_was_forked_answers_for_nobody(score: Score) -> None:
    told = score(["fork and return", "after the copy", "right"], at_once=1)
    assert told == [Graded(0.0), Graded(0.0), Graded(1.0)]


@pytest.mark.parametrize(
    "written", ["x\n", '{"place": 7, "result": [1.0, "", "", false]}\n', '{"place": 0, "result": 1}\n']
)
def test_what_is_written_into_the_pipe_is_no_score(score: Score, written: str) -> None:
    with pytest.raises(EvaluationError, match=r"ended its process .* on item 'i0': it must return"):
        score(["write everywhere", "right"], at_once=1, written=written)
    assert score(["right"]) == [Graded(1.0)]


def test_a_name_that_a_completion_chose_is_not_repeated(score: Score) -> None:
    with pytest.raises(EvaluationError, match="raised an exception on item 'i0': fix it"):
        score(["name"])


def test_where_one_fails_those_under_way_end(score: Score, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="raised ValueError on item 'i1'"):
        score(["hang", "raise after the other hangs"])
    assert all_end(the.noted({"room": tmp_path}, "hanging"))


@pytest.mark.parametrize("scorer", ["plain", "judge"])
def test_so_many_at_once_and_no_more(score: Score, tmp_path: Path, scorer: str) -> None:
    """Each waits until three are under way. No more than three processes are started for all of them."""
    assert len(score(["meet"] * 6, scorer, at_once=3, together=3)) == 6
    assert len(set(the.noted({"room": tmp_path}, "pids"))) == 3


def test_it_gets_the_whole_completion_and_may_print(score: Score) -> None:
    assert score(["right", "else"], "of_the_whole") == [Graded(1.0), Graded(0.0)]
    assert score(["say", "right"]) == [Graded(0.0), Graded(1.0)]


def test_a_process_that_does_not_load_its_scorer_is_an_error(
    score: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PROGRAM", "guard_service.nowhere")
    with pytest.raises(EvaluationError, match=r":plain' ended \(status 1\) before it had loaded it"):
        score(["right"])


def test_what_always_ends_needs_no_process_and_a_pattern_does(
    split_of: Callable[..., HeldoutSplit], monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored(scorer: str, answer: str, completion: str, seconds: float | None = 1.0) -> float:
        split = split_of([answer])
        scorers = SplitScorers(split, scorer, Limits(seconds))
        return scorers.score_all([(split.items[0], completion, completion)])[0].score

    with pytest.raises(EvaluationError, match="'regex' took longer than scorer_timeout_seconds=1 on item"):
        scored("regex", "(a+)+$", "a" * 28 + "b")  # many seconds, and not for ever
    monkeypatch.setattr(pool, "PROGRAM", "guard_service.nowhere")
    assert scored("exact", "right", "right") == scored("numeric", "1", "1") == 1.0
    assert scored("regex", "^r", "right", None) == scored(f"{MODULE}:plain", "right", "right", None) == 1.0
    with pytest.raises(EvaluationError, match="before it had loaded it"):
        scored("math", "1", "1")


# -- async -------------------------------------------------------------------------------------------------


def test_an_async_object_is_a_scorer(score: Score) -> None:
    assert score(["right", "else"], "judge_object", None) == [Graded(1.0), Graded(0.0)]


@pytest.mark.parametrize("late", ["hang", "block"])
def test_an_async_scorer_is_ended_at_its_limit(score: Score, late: str) -> None:
    told = score(["right", late, "right"], "judge", LIMIT)
    assert told == [Graded(1.0), Graded(0.0, late=True), Graded(1.0)]


@pytest.mark.parametrize(
    ("completion", "told"),
    [
        ("raise", "^scorer '[^']+:judge' raised TimeoutError on item 'i1': fix it"),
        ("nothing", "^scorer '[^']+:judge' returned a NoneType for item 'i1'"),
        ("cancelled", "^scorer '[^']+:judge' raised CancelledError on item 'i1': fix it"),
        ("exit", r"^scorer '[^']+:judge' ended its process \(status 7\) on item 'i1'"),
    ],
)
def test_an_async_scorer_that_fails_is_an_error(score: Score, completion: str, told: str) -> None:
    with pytest.raises(EvaluationError, match=told) as caught:
        score(["right", completion], "judge")
    assert the.SECRET not in str(caught.value)


# -- at the start ------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_own_answers_are_tried_within_the_limit(split_of: Callable[..., HeldoutSplit]) -> None:
    scorers = SplitScorers(split_of(["hang"]), f"{MODULE}:answers_hang", Limits(1.0, late_is_wrong=True))
    with pytest.raises(SplitError, match="with its own answer as completion: raise scorer_timeout_seconds"):
        scorers.check_answers()


# -- what is counted ---------------------------------------------------------------------------------------


@pytest.fixture
def evaluated(tmp_path: Path) -> Any:
    """Score these completions of as many items; None: cut off."""

    def run(made: Sequence[str | None], **settings: Any) -> dict[str, Any]:
        meta = {"room": str(tmp_path), "together": 2}
        rows = [[Completion(text or "", text, truncated=text is None)] for text in made]
        items = [{"answer": "right", "meta": meta}] * len(rows)
        return evaluate(tmp_path, items, rows, **{"scorer_timeout_seconds": AGES, **settings})

    return run


JUDGE, PLAIN = (f"{MODULE}:{name}" for name in ("judge", "plain"))
WRONG = {"scorer_timeout_seconds": LIMIT, "on_scorer_timeout": "wrong"}


def test_what_timed_out_is_wrong_and_counted_of_all_completions(evaluated: Any) -> None:
    told = evaluated(["right", "hang", None, "right"], scorer=JUDGE, **WRONG)
    assert (told["items"], told["timed_out"], told["unscored"]) == ([1.0, 0.0, 0.0, 1.0], 0.25, 0.25)
    assert told["proxy_items"] is None


def test_a_training_grader_that_is_late_costs_its_own_outcomes_alone(evaluated: Any) -> None:
    told = evaluated(["right", "hang"], scorer="exact", proxy_scorer=JUDGE, scorer_timeout_seconds=LIMIT)
    assert (told["items"], told["proxy_items"], told["timed_out"]) == ([1.0, 0.0], [], 0.0)


def test_nothing_timed_out_is_not_the_same_as_no_limit(evaluated: Any) -> None:
    assert evaluated(["right"], scorer="exact")["timed_out"] == 0.0
    assert evaluated(["right"], scorer="exact", scorer_timeout_seconds=None)["timed_out"] is None


def test_where_most_time_out_nothing_is_said_of_the_policy(evaluated: Any) -> None:
    """A judge that is down is no policy that got worse."""
    assert evaluated(["hang", "right"], scorer=JUDGE, **WRONG)["items"] == [0.0, 1.0]
    with pytest.raises(
        EvaluationError, match="more than half of 3 completions took their scorer longer than"
    ):
        evaluated(["hang", "right", "hang"], scorer=JUDGE, **WRONG)
    told = evaluated(["hang"], scorer="exact", proxy_scorer=JUDGE, **WRONG)
    assert (told["items"], told["proxy_items"], told["timed_out"]) == ([0.0], [], 0.0)
