"""A trainer is told scores to one percent, one a minute: what one item changes is not seen."""

from __future__ import annotations

import pytest

from rlguard.core.codes import Code
from rlguard.core.trainer_view import RELEASE_SECONDS, for_trainer, release
from rlguard.core.wire import Condition, EvaluationSummary, Level, Verdict

#: One of these items more, or fewer, moves the mean by 0.0039.
ITEMS = 256


def verdict(score: float, code: Code = Code.OK) -> Verdict:
    summary = EvaluationSummary(attempt=0, step=1, score=score, items=ITEMS, path="/c")
    sentence = f"held-out {score:.4f}, {score + 0.1:.6f} at the start, after 11 checkpoints"
    return Verdict(
        level=Level.HEALTHY,
        code=code,
        reason=sentence,
        fire=False,
        halt=False,
        stop=False,
        conditions=(Condition(code=code, level=Level.HEALTHY, message=sentence),),
        heldout_ema=score,
        proxy_real_gap=0.9 - score,
        last_evaluation=summary,
        best_evaluation=summary,
    )


@pytest.mark.parametrize("code", [Code.OK, Code.HELDOUT_DECLINE, Code.HACKING_GAP])
def test_one_item_more_is_not_seen(code: Code) -> None:
    count = 128
    one, other = (for_trainer(verdict(n / ITEMS, code)) for n in (count, count + 1))
    assert one.model_dump_json() == other.model_dump_json()


def test_a_trainer_still_sees_its_score_to_one_percent() -> None:
    told = for_trainer(verdict(0.6337))
    assert told.last_evaluation is not None and told.last_evaluation.score == 0.63
    assert told.reason == "held-out 0.63, 0.73 at the start, after 11 checkpoints"


def test_a_trainer_is_told_one_evaluation_a_minute() -> None:
    first, second = (verdict(n / 10) for n in (4, 7))
    released = release(first, None, 0.0)
    early = for_trainer(second, release(second, released, RELEASE_SECONDS - 1))
    assert (early.last_evaluation, early.heldout_ema) == (for_trainer(first).last_evaluation, 0.4)
    assert early.best_evaluation == early.last_evaluation and early.proxy_real_gap == 0.5
    assert "0.7" not in early.model_dump_json()
    assert for_trainer(second, release(second, released, RELEASE_SECONDS)) == for_trainer(second)


def test_the_minute_begins_with_the_evaluation_and_not_with_what_is_told_of_it_again() -> None:
    first, second = (verdict(n / 10) for n in (4, 7))
    again = release(first, release(first, None, 0.0), RELEASE_SECONDS - 1)
    assert release(second, again, RELEASE_SECONDS).newest == second.last_evaluation


def test_a_run_that_must_stop_is_told_at_once() -> None:
    first = verdict(0.4)
    fire = verdict(0.2, Code.HELDOUT_DECLINE).model_copy(update={"fire": True, "stop": True})
    assert for_trainer(fire, release(fire, release(first, None, 0.0), 1.0)) == for_trainer(fire)
