"""How many samples are behind an outcome is what was done, whatever the policy says of it."""

from __future__ import annotations

import numpy as np
import pytest

from guard_core.judge import Judge
from guard_core.policy import CalibratedPolicy, Policy
from guard_core.preflight import evaluations_needed
from guard_core.rounds import Evaluation
from guard_core.wire import DetectorReading, EvaluationSampling, SamplingSource, StepReport

from simulated import draw  # isort: skip

N, PASSES, ROUNDS = 128, 1, 12


def policy(samples: int) -> Policy:
    calibrated = CalibratedPolicy(baseline_passes=PASSES, samples=samples)
    return Policy(calibrated=calibrated)


def sampling(samples: int) -> EvaluationSampling:
    source = SamplingSource.SETTINGS
    return EvaluationSampling(temperature=1.0, max_new_tokens=64, samples=samples, source=source)


def judged(says: int, does: int, told: bool = True, seed: int = 0) -> tuple[DetectorReading, ...]:
    """Readings of a run that stays as it is. `says`: the policy; `told`: whether evaluations say `does`."""
    judge, rng = Judge(policy(says)), np.random.default_rng(seed)
    for round_ in range(ROUNDS):
        judge.fold_step(StepReport(attempt=0, step=round_, reward=0.5))
        judge.fold_checkpoint()
        for index in range(PASSES if round_ == 0 else 1):
            items = draw(rng, np.full(N, 0.5), does)
            of = Evaluation(
                *(0, round_, f"/c/{round_}", tuple(items.tolist())),
                pass_index=index,
                sampling=sampling(does) if told else None,
            )
            judge.fold_evaluation(of)
            judge = judge.copy()
    return judge.verdict().detectors


@pytest.mark.parametrize("does", [1, 4])
def test_an_evaluation_that_says_it_is_believed(does: int) -> None:
    assert judged(says=8, does=does) == judged(says=does, does=does)


def test_of_one_that_does_not_the_policy_is() -> None:
    assert judged(says=4, does=4, told=False) == judged(says=4, does=4)
    assert judged(says=1, does=4, told=False) != judged(says=4, does=4)


@pytest.mark.parametrize("does", [1, 4])
def test_what_is_needed_is_told_for_what_will_be_done(does: int) -> None:
    assert evaluations_needed(policy(8), N, sampling(does)) == evaluations_needed(
        policy(does), N, sampling(does)
    )
    more, fewer = (evaluations_needed(policy(1), N, sampling(k)).long_rounds for k in (1, 4))
    assert fewer is not None
    assert more is None or fewer < more
