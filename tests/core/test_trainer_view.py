"""A trainer is told scores to one percent: what one item changes is not seen."""

from __future__ import annotations

import pytest

from guard_core.codes import Code
from guard_core.trainer_view import for_trainer
from guard_core.wire import Condition, EvaluationSummary, Level, Verdict

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
