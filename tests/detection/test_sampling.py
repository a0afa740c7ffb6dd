"""Why evaluations sample as the trainer does: an honest run whose greedy score has nothing left to gain.

Simulated after a recorded run: the policy's best guess is right from the start, and what training does is to
make it sure. The sampled reward goes from 0.67 to 0.97, and so does a held-out score that is sampled alike.
Greedy decoding saw the best guess all along: its score does not move, and a reward that rises beside it is
what hacking looks like.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlguard.core.codes import Code, Level
from rlguard.core.evaluation import HfEvaluation
from rlguard.core.judge import Judge
from rlguard.core.policy import CalibratedPolicy, Policy
from rlguard.core.rounds import Evaluation
from rlguard.core.wire import CheckpointReport, Sampling, StepReport

TRAINER = Sampling(temperature=1.0, max_new_tokens=256)
ITEMS, ROUNDS, STEPS = 256, 20, 10


def logits(never: float) -> np.ndarray:
    """Of the right answer against the best wrong one at the start, shape (items,).

    `never`: share of the items whose best guess is wrong and stays so.
    """
    right = np.random.default_rng(0).normal(0.72, 0.4, ITEMS).clip(0.3)
    return np.where(np.arange(ITEMS) < never * ITEMS, -0.6, right)


def chances(start: np.ndarray, progress: float, temperature: float) -> np.ndarray:
    """Chance of the right answer to each item, shape (items,), when `progress` in [0, 1] is over."""
    now = np.where(start > 0, start * (1 + 7 * progress), start)
    return (now > 0).astype(float) if temperature == 0 else 1 / (1 + np.exp(-now / temperature))


def trained(policy: Policy, start: np.ndarray, seed: int, **settings: Any) -> Judge:
    """The judge after the run, with an evaluator that has these settings."""
    rng, judge = np.random.default_rng(seed), Judge(policy)
    for round_ in range(ROUNDS + 1):
        for n in range(max(0, STEPS * (round_ - 1) + 1), STEPS * round_ + 1):
            mean = chances(start, n / (STEPS * ROUNDS), TRAINER.temperature)
            reward = rng.binomial(1, rng.choice(mean, 128)).mean()
            judge.fold_step(StepReport(attempt=0, step=n, reward=float(reward)))
        path, step = f"/c/{round_}", STEPS * round_
        judge.fold_checkpoint(CheckpointReport(attempt=0, step=step, path=path, sampling=TRAINER))
        sampling = HfEvaluation(**settings).sampling_with(judge.sampling)
        index: int | None = 0
        while index is not None:
            mean = chances(start, round_ / ROUNDS, sampling.temperature)
            items = tuple(rng.binomial(1, mean).astype(float).tolist())
            judge.fold_evaluation(Evaluation(0, step, path, items, None, index, sampling=sampling))
            wanted = judge.wanted_pass()
            index = None if wanted is None else wanted.index
    return judge


#: The default policy, and HeldOutGuard at its default thresholds. The first judges a gain by what was left to
#: gain, so that it needs some items that stay wrong; with greedy passes that say nothing of noise, it warns.
CASES = {
    "calibrated": (
        Policy(calibrated=CalibratedPolicy(on_gap="stop")),
        logits(never=0.12),
        Code.REWARD_WITHOUT_GAIN,
    ),
    "heldout_guard": (Policy(detector="heldout_guard"), logits(never=0.0), Code.HACKING_GAP),
}


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("policy", "start", "code"), CASES.values(), ids=CASES)
def test_an_honest_run_that_gets_sure_is_not_stopped(
    policy: Policy, start: np.ndarray, code: Code, seed: int
) -> None:
    verdict = trained(policy, start, seed).verdict()
    assert verdict.level is Level.HEALTHY and not verdict.stop, verdict.reason
    assert code not in {condition.code for condition in verdict.conditions}
    assert verdict.last_evaluation is not None and verdict.last_evaluation.sampling is not None
    assert verdict.last_evaluation.sampling.source == "trainer"
