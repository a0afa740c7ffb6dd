"""Scorers with a limit, and async ones: what hangs or ends its process holds up no other. Real processes.

What the scorers do to which completion is said in `limited_scorers`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from guard_core.wire import EvaluationSampling, SamplingSource
from guard_service.heldout import child, pool
from guard_service.heldout.config import HeldoutSettings
from guard_service.heldout.errors import EvaluationError, SplitError
from guard_service.heldout.evaluators import Completion, Completions
from guard_service.heldout.pool import Limits
from guard_service.heldout.scorers import Graded, SplitScorers
from guard_service.heldout.split import HeldoutSplit
from guard_service.heldout.worker import EvaluationRequest

MODULE = f"{__name__.rpartition('.')[0]}.limited_scorers".lstrip(".")
the = importlib.import_module(MODULE)

AGES = 3600.0  # a limit that nothing reaches
SAMPLING = EvaluationSampling(temperature=0.0, max_new_tokens=9, samples=1, source=SamplingSource.SETTINGS)

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


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The limit is reached by a scorer that hangs, once all others have been scored; by nothing else.

    No luck: what hangs is really under way, and what waits for it would wait for ever.
    """
    send, receive = pool._ScoringProcess.send, pool._ScoringProcess.receive
    meta, asked = {"room": str(tmp_path)}, dict[int, str]()

    def sends(self: Any, message: Mapping[str, Any]) -> None:
        asked[id(self)] = message.get("completion", "")
        send(self, message)

    async def receives(self: Any) -> Any:
        if "hang" not in asked[id(self)]:
            return await receive(self)
        others = json.loads((tmp_path / "others").read_text())
        end = time.monotonic() + the.SECONDS
        while not the.noted(meta, "hanging") or len(the.noted(meta, "scored")) < others:
            assert time.monotonic() < end, "the others were not scored"
            await asyncio.sleep(0.01)
        raise TimeoutError

    monkeypatch.setattr(pool._ScoringProcess, "send", sends)
    monkeypatch.setattr(pool._ScoringProcess, "receive", receives)


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


@pytest.mark.usefixtures("hasty")
def test_one_that_hangs_holds_up_no_other_and_scores_keep_their_order(score: Score, tmp_path: Path) -> None:
    (tmp_path / "others").write_text("4")
    told = score(["right", "hang", "right", "else", "right"])
    assert told == [Graded(1.0), Graded(0.0, late=True), Graded(1.0), Graded(0.0), Graded(1.0)]
    assert all_end(the.noted({"room": tmp_path}, "pids"))


@pytest.mark.usefixtures("hasty")
def test_a_process_that_was_killed_is_replaced(score: Score, tmp_path: Path) -> None:
    (tmp_path / "others").write_text("0")
    told = score(["hang", "right", "right"], at_once=1)
    assert [one.score for one in told] == [0.0, 1.0, 1.0]
    first, *others = the.noted({"room": tmp_path}, "pids")
    assert first not in others and len(set(others)) == 1


def test_what_reaches_its_limit_is_an_error_that_says_what_to_set(score: Score, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError) as caught:
        score(["hang"], seconds=1.0, wrong=False)
    assert str(caught.value) == (
        f"scorer '{MODULE}:plain' took longer than scorer_timeout_seconds=1 on item 'i0': raise "
        "scorer_timeout_seconds, or, if what never ends is wrong, set on_scorer_timeout to wrong"
    )
    all_end(the.noted({"room": tmp_path}, "hanging"))  # a busy machine may not have begun it


@pytest.mark.usefixtures("hasty")
def test_what_a_scorer_started_ends_with_it(score: Score, tmp_path: Path) -> None:
    (tmp_path / "others").write_text("0")
    with pytest.raises(EvaluationError, match="took longer"):
        score(["start and hang"], wrong=False)
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
    "written", ["x\n", "{}\n", '{"place": 7, "said": [1.0, "", "", false]}\n', '{"place": 0, "said": 1}\n']
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


def test_so_many_at_once_and_no_more(score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits until three are under way. No more than three processes are started for all of them."""
    starts, start = [], pool._ScoringProcess.start

    async def counted(setup: Mapping[str, Any]) -> Any:
        starts.append(setup)
        return await start(setup)

    monkeypatch.setattr(pool._ScoringProcess, "start", counted)
    assert len(score(["meet"] * 9, at_once=3, together=3)) == 9
    assert len(starts) == 3 == len(set(the.noted({"room": tmp_path}, "met")))


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


def test_async_scorers_are_awaited_in_one_process_so_many_at_once_and_no_more(
    score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits until three are under way, and no fourth is sent before one of them has been taken."""
    events: list[int] = []
    send, receive = pool._ScoringProcess.send, pool._ScoringProcess.receive

    def sends(self: Any, message: Mapping[str, Any]) -> None:
        events.append(1 if "place" in message else 0)
        send(self, message)

    async def receives(self: Any) -> Any:
        response = await receive(self)
        events.append(-1 if "place" in response else 0)
        return response

    monkeypatch.setattr(pool._ScoringProcess, "send", sends)
    monkeypatch.setattr(pool._ScoringProcess, "receive", receives)
    told = score([*["meet"] * 6, "right"], "judge", None, at_once=3, together=3)
    assert [one.score for one in told] == [0.0] * 6 + [1.0]
    assert max(sum(events[:n]) for n in range(len(events))) == 3 and sum(events) == 0
    pids = set(the.noted({"room": tmp_path}, "pids"))
    assert len(pids) == 1 and pids != {str(os.getpid())} and all_end([*pids])


def test_an_async_object_is_a_scorer(score: Score) -> None:
    assert score(["right", "else"], "judge_object", None) == [Graded(1.0), Graded(0.0)]


@pytest.mark.nightly
@pytest.mark.parametrize("late", ["hang", "stubborn"])
def test_an_async_scorer_is_cancelled_at_its_limit(score: Score, late: str) -> None:
    """What never waits cannot be late, however busy the machine is."""
    told = score(["right", late, "right", "right"], "judge", 1.0)
    assert told == [Graded(1.0), Graded(0.0, late=True), Graded(1.0), Graded(1.0)]
    with pytest.raises(EvaluationError, match="took longer than scorer_timeout_seconds=1 on item 'i1'"):
        score(["right", late], "judge", 1.0, wrong=False)


@pytest.mark.parametrize(
    ("completion", "told"),
    [
        ("raise", "^scorer '[^']+:judge' raised TimeoutError on item 'i1': fix it"),
        ("nothing", "^scorer '[^']+:judge' returned a NoneType for item 'i1'"),
        ("cancelled", "^scorer '[^']+:judge' was cancelled on item 'i1': see what it shares"),
        ("exit", r"^async scorer '[^']+:judge' on item 'i.'.* ended its process \(status 7\)"),
    ],
)
def test_an_async_scorer_that_fails_is_an_error(score: Score, completion: str, told: str) -> None:
    with pytest.raises(EvaluationError, match=told) as caught:
        score(["right", completion], "judge")
    assert the.SECRET not in str(caught.value)


def test_an_async_scorer_that_blocks_is_told_from_one_that_waits(
    score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell which of those under way blocks, so none of them is wrong for it."""
    monkeypatch.setattr(pool, "GRACE_SECONDS", 1.0)
    with pytest.raises(EvaluationError) as caught:
        score(["block", "hang"], "judge", 1.0)
    assert (
        "on item 'i0' and 1 more could not be cancelled within 1 s of scorer_timeout_seconds=1: it blocks"
        in str(caught.value)
    )
    all_end(the.noted({"room": tmp_path}, "pids"))


# -- at the start ------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("scorer", ["answers_hang", "judged_answers"])
def test_own_answers_are_tried_within_the_limit(split_of: Callable[..., HeldoutSplit], scorer: str) -> None:
    def check(answers: Sequence[str], seconds: float) -> None:
        scorers = SplitScorers(split_of(answers), f"{MODULE}:{scorer}", Limits(seconds, late_is_wrong=True))
        scorers.check_answers()

    check(["right", "fine"], AGES)
    with pytest.raises(SplitError) as caught:
        check(["hang"], 1.0)
    assert str(caught.value) == (
        f"scorer '{MODULE}:{scorer}' took longer than scorer_timeout_seconds=1 on item 'i0', with its own "
        "answer as completion: raise scorer_timeout_seconds"
    )
    with pytest.raises(
        SplitError, match=r"1 of 2 items do not score 1 .*ids: i0\)|on item 'i.'.* \(status 7\)"
    ):
        check(["exit", "right"], AGES)


# -- what is counted ---------------------------------------------------------------------------------------


@pytest.fixture
def evaluated(split_of: Callable[..., HeldoutSplit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the evaluation process's own code on these completions of as many items; None: cut off."""

    def run(made: Sequence[str | None], **settings: Any) -> dict[str, Any]:
        split_of(["right"] * len(made))
        config = {
            "split": tmp_path / "split",
            "evaluator": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "m"},
            "scorer_timeout_seconds": AGES,
            **settings,
        }
        evaluation = child.HeldoutEvaluation(HeldoutSettings.model_validate(config), tmp_path, first=False)
        rows = [[Completion(text or "", text, truncated=text is None)] for text in made]

        class Made:
            def complete(self, items: Any, request: EvaluationRequest) -> Completions:
                return Completions(rows, SAMPLING)

        monkeypatch.setattr(evaluation, "_evaluator", Made())
        return evaluation.run(EvaluationRequest(0, 1, tmp_path))

    return run


JUDGE, PLAIN = (f"{MODULE}:{name}" for name in ("judge", "plain"))
WRONG = {"scorer_timeout_seconds": 1.0, "on_scorer_timeout": "wrong"}


def test_what_timed_out_is_wrong_and_counted_of_all_completions(evaluated: Any) -> None:
    told = evaluated(["right", "hang", None, "right"], scorer=JUDGE, **WRONG)
    assert (told["items"], told["timed_out"], told["unscored"]) == ([1.0, 0.0, 0.0, 1.0], 0.25, 0.25)
    assert told["proxy_items"] is None


@pytest.mark.nightly
def test_what_the_training_grader_was_late_on_counts_too_once_for_each(evaluated: Any) -> None:
    told = evaluated(["right", "hang", "right"], scorer=JUDGE, proxy_scorer=JUDGE, **WRONG)
    assert (told["items"], told["proxy_items"]) == ([1.0, 0.0, 1.0],) * 2 and told["timed_out"] == 1 / 3
    for one, other in (("exact", JUDGE), (JUDGE, "exact")):
        told = evaluated(["right", "hang", "right"], scorer=one, proxy_scorer=other, **WRONG)
        assert told["timed_out"] == 1 / 3


def test_a_training_grader_that_is_late_costs_its_own_outcomes_alone(evaluated: Any) -> None:
    told = evaluated(["right", "hang"], scorer="exact", proxy_scorer=JUDGE, scorer_timeout_seconds=1.0)
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


def test_so_many_at_once_as_the_settings_say(evaluated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Limits] = []
    monkeypatch.setattr(
        "guard_service.heldout.scorers.ask_one_by_one", lambda asked, limits, take: seen.append(limits)
    )
    evaluated(["right"], scorer=PLAIN, scorer_concurrency=3)
    assert seen == [Limits(AGES, late_is_wrong=False, at_once=3)]
