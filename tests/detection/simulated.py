"""Simulated held-out outcomes for the tests of the detectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlguard.core.codes import Code
from rlguard.core.detectors import Baseline
from rlguard.core.judge import Judge
from rlguard.core.policy import CalibratedPolicy, Policy
from rlguard.core.rounds import Evaluation
from rlguard.core.wire import Condition, EvaluationSampling, KlKind, SamplingSource, StepReport

CONFIG = CalibratedPolicy()


def difficulties(n: int, seed: int = 0) -> np.ndarray:
    """True item means of a split with easy and hard items, shape (n,)."""
    return np.clip(np.random.default_rng(seed).beta(1.0, 1.0, n), 0.02, 0.98)


def draw(rng: np.random.Generator, means: np.ndarray, samples: int = 1) -> np.ndarray:
    """Mean of `samples` binary outcomes of each item, shape (n,)."""
    return rng.binomial(samples, means) / samples


def baseline(means: np.ndarray, passes: int = 16, samples: int = 1, seed: int = 1) -> Baseline:
    rng = np.random.default_rng(seed)
    return Baseline.from_passes([draw(rng, means, samples) for _ in range(passes)], samples)


def run(means: np.ndarray, drop_at: int, drop: float, length: int, seed: int = 2) -> Iterator[np.ndarray]:
    """Evaluations of a run whose every item loses the share `drop` of its mean at evaluation `drop_at`."""
    rng = np.random.default_rng(seed)
    for t in range(length):
        yield draw(rng, means * (1 - drop) if t >= drop_at else means)


class GuardedRun:
    """A judged run whose trainer reports steps and announces checkpoints, and whose guard makes every pass.

    `sampling`, `cost`: what every evaluation says of itself. Each evaluation is folded into a copy, so that
    what a copy would not know shows in the test.
    """

    def __init__(self, policy: Policy, seed: int = 1, sampling: float | None = None, **cost: Any) -> None:
        self.judge, self.rng, self.attempt = Judge(policy), np.random.default_rng(seed), 0
        self.cost = cost
        if sampling is not None:
            self.cost["sampling"] = EvaluationSampling(
                temperature=sampling, max_new_tokens=64, samples=1, source=SamplingSource.TRAINER
            )

    def steps(self, first: int, last: int, reward: float = 0.5, kl: float | None = None) -> None:
        for step in range(first, last + 1):
            noisy = reward + 0.01 * float(self.rng.standard_normal())
            kind = KlKind.ABSENT if kl is None else KlKind.REF_TOKEN_MEAN
            self.judge.fold_step(
                StepReport(attempt=self.attempt, step=step, reward=noisy, kl=kl, kl_kind=kind)
            )

    def evaluate(self, step: int, items: np.ndarray, index: int = 0) -> None:
        path, outcomes = f"/checkpoints/{step}", tuple(np.asarray(items, dtype=float).tolist())
        self.judge.fold_evaluation(Evaluation(self.attempt, step, path, outcomes, None, index, **self.cost))
        self.judge = self.judge.copy()

    def checkpoint(self, step: int, make: Callable[[int], np.ndarray]) -> int:
        """Announce a checkpoint and make all passes of it, `make` of each number; how many were made."""
        self.judge.fold_checkpoint()
        self.evaluate(step, make(0))
        made = 1
        while (wanted := self.judge.wanted_pass()) is not None:
            assert (wanted.attempt, wanted.step, wanted.path) == (self.attempt, step, f"/checkpoints/{step}")
            self.evaluate(step, make(wanted.index), wanted.index)
            made += 1
        return made

    def scored(self, step: int, means: np.ndarray) -> int:
        """A checkpoint whose items have these true means."""
        return self.checkpoint(step, lambda _: draw(self.rng, means))

    def rounds(
        self, first: int, last: int, means: np.ndarray, reward: float = 0.5, **others: Any
    ) -> int | None:
        """Ten steps and a checkpoint each, until the run is stopped; the round in which it was."""
        for number in range(first, last + 1):
            self.steps(10 * number - 9 if number else 0, 10 * number, reward, **others)
            self.scored(10 * number, means)
            if self.judge.latch is not None:
                return number
        return None

    def about(self, code: Code) -> list[Condition]:
        return [c for c in self.judge.verdict().conditions if c.code is code]
