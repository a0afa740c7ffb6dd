"""The compact state: a guard without a log goes on from it as the guard before it would have.

Aspects: the verdict after adoption, at once and after every further evaluation; that it is small, holds no
outcome of an item and no step; that another policy is refused; a baseline that is not complete.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlguard.core.codes import Code
from rlguard.core.compact import CompactState
from rlguard.core.judge import BASELINE_LOST, Judge
from rlguard.core.policy import CalibratedPolicy, DetectorName, Policy
from rlguard.core.rounds import Evaluation
from rlguard.core.wire import CheckpointReport, KlKind, StepReport, Verdict

ITEMS, PASSES, STEPS = 64, 2, 5


def policy(detector: DetectorName = "calibrated") -> Policy:
    return Policy(detector=detector, calibrated=CalibratedPolicy(baseline_passes=PASSES))


def outcomes(rng: np.random.Generator, share: float) -> tuple[float, ...]:
    return tuple((rng.random(ITEMS) < share).astype(float).tolist())


def go_on(judge: Judge, number: int, share: float, *, graded: bool = True) -> None:
    """One checkpoint: its steps, its evaluation, and the further passes that are wanted."""
    rng = np.random.default_rng(number)
    for step in range(STEPS * number, STEPS * (number + 1)):
        kl = 0.001 * step
        judge.fold_step(
            StepReport(attempt=0, step=step, reward=0.5 + kl, kl=kl, kl_kind=KlKind.REF_TOKEN_MEAN)
        )
    last = STEPS * (number + 1) - 1
    judge.fold_checkpoint(CheckpointReport(attempt=0, step=last, path=f"/c/{last}"))
    index: int | None = 0
    while index is not None:
        paid = outcomes(rng, 0.8) if graded else None
        items = outcomes(rng, share)
        judge.fold_evaluation(Evaluation(0, last, f"/c/{last}", items, "a" * 64, index, proxy_items=paid))
        wanted = judge.wanted_pass()
        index = None if wanted is None else wanted.index


def adopted(judge: Judge) -> Judge:
    """A judge that begins with the compact state of another, as it travels."""
    again = Judge(judge.policy)
    again.fold_adopted(CompactState.model_validate_json(judge.compact().model_dump_json()))
    for latch in judge.latches:
        again.fold_latch(latch)
    return again


def told(verdict: Verdict) -> tuple[object, ...]:
    """What a verdict says, with statistics as far as the rounding of means leaves them."""
    readings = [
        (
            one.name,
            one.level,
            one.code,
            None if one.statistic is None else pytest.approx(one.statistic, abs=1e-3),
        )
        for one in verdict.detectors
    ]
    rest = verdict.model_dump(exclude={"detectors", "conditions", "reason"})
    return rest, [(one.code, one.level, one.action) for one in verdict.conditions], readings


@pytest.mark.parametrize("detector", ["heldout_guard", "calibrated"])
@given(
    shares=st.lists(st.sampled_from([0.1, 0.45, 0.5, 0.55, 0.9]), min_size=2, max_size=10),
    at=st.integers(1, 9),
)
@settings(max_examples=20, deadline=None)
def test_the_run_goes_on_as_it_would_have(detector: DetectorName, shares: list[float], at: int) -> None:
    live = Judge(policy(detector))
    again = None
    for number, share in enumerate(shares):
        go_on(live, number, share)
        if again is not None:
            go_on(again, number, share)
        elif number + 1 == at:
            again = adopted(live)
        if again is not None:
            assert told(again.verdict()) == told(live.verdict())


def test_an_evaluation_takes_at_most_150_bytes() -> None:
    judge = Judge(policy())
    for number in range(40):
        go_on(judge, number, 0.5)
    travelling = json.loads(judge.compact().model_dump_json())
    evaluations = travelling["detector"]["state"]["series"]["evaluations"]
    assert len(evaluations) >= 39
    assert all(len(json.dumps(one, separators=(",", ":"))) <= 150 for one in evaluations)


def test_it_holds_neither_an_outcome_nor_a_step() -> None:
    """It is the same whichever items were right."""
    found = []
    for order in (slice(None), slice(None, None, -1)):
        judge = Judge(policy())
        for number in range(4):
            judge.fold_step(StepReport(attempt=0, step=number, reward=0.123456789))
            for index in range(PASSES if number == 0 else 1):
                items = outcomes(np.random.default_rng([number, index]), 0.5)[order]
                judge.fold_evaluation(Evaluation(0, number, "/c", items, None, index))
        judge.fold_step(StepReport(attempt=0, step=4, reward=0.987654321))
        found.append(judge.compact().model_dump_json())
    assert found[0] == found[1] and "0.987654321" not in found[0]
    lists = [value for value in json.loads(found[0]).values() if isinstance(value, list)]
    assert max(map(len, lists)) < ITEMS


def test_another_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="another policy"):
        Judge(policy()).fold_adopted(Judge(Policy()).compact())


def test_a_baseline_that_is_not_complete_is_begun_anew_and_that_is_said() -> None:
    judge = Judge(policy())
    judge.fold_step(StepReport(attempt=0, step=0, reward=0.5))
    judge.fold_evaluation(Evaluation(0, 0, "/c/0", outcomes(np.random.default_rng(0), 0.5)))
    again = adopted(judge)
    conditions = {one.code: one.message for one in again.verdict().conditions}
    assert conditions[Code.NO_BASELINE] == BASELINE_LOST
    go_on(again, 1, 0.5)
    assert again.verdict().baseline_passes == 0 and again.compact().detector is not None
