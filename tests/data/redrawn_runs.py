"""What a guard would have said of the recorded runs.

In a replay the next checkpoint has to confirm an alarm, where a guard evaluates the same one again. So
each recorded run is drawn anew, DRAWS times: its level at a checkpoint is the mean of five recorded ones
around it, its items are those of the baseline moved there by one odds ratio, and every pass that the
detector asks for is drawn too. What that level does is then known, so "late" has no noise of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from zlib import crc32

import numpy as np
import numpy.typing as npt

from rlguard.cli.replay.run import Run
from rlguard.core.detectors import Baseline, CalibratedDetector
from rlguard.core.policy import CalibratedPolicy

Array = npt.NDArray[np.float64]

DRAWS = 10

#: Recorded checkpoints around one whose mean is its level.
AROUND = 5


@dataclass(frozen=True)
class Redrawn:
    """A recorded run as it is drawn anew: `steps` and `levels` of its checkpoints, `items` at the start."""

    name: str
    steps: tuple[int, ...]
    levels: Array
    items: Array

    def stopped(self, baseline: Baseline, policy: CalibratedPolicy) -> list[int | None]:
        """The step at which a guard with this baseline stops each draw."""
        rng = np.random.default_rng(crc32(self.name.encode()))
        means = [moved(self.items, level) for level in self.levels]
        return [self._stopped(CalibratedDetector(policy, baseline), means, rng) for _ in range(DRAWS)]

    def _stopped(
        self, detector: CalibratedDetector, means: list[Array], rng: np.random.Generator
    ) -> int | None:
        for step, mean in zip(self.steps, means, strict=True):
            status = detector.update(step, (rng.random(len(mean)) < mean).astype(float))
            while status.needs_confirmation:
                status = detector.update(step, (rng.random(len(mean)) < mean).astype(float))
            if status.fire:
                return step
        return None


def redraw(name: str, run: Run) -> Redrawn:
    """A recorded run, ready to be drawn anew."""
    seen = [evaluation for evaluation in run.evaluations if evaluation.pass_index == 0]
    scores, reach = [evaluation.score for evaluation in seen], AROUND // 2
    levels = [fmean(scores[max(0, i - reach) : i + reach + 1]) for i in range(len(scores))]
    passes = np.asarray(run.baseline)
    # As if there had been one more pass with every item at the mean: no item is certain.
    items = (passes.sum(axis=0) + passes.mean()) / (len(passes) + 1)
    return Redrawn(name, tuple(evaluation.step for evaluation in seen), np.asarray(levels), items)


def moved(items: Array, target: float) -> Array:
    """The items under the common odds ratio that gives them the mean `target`."""
    logits, low, high = np.log(items / (1 - items)), -12.0, 12.0
    for _ in range(50):
        middle = (low + high) / 2
        over = float(np.mean(1 / (1 + np.exp(-logits - middle)))) > target
        low, high = (low, middle) if over else (middle, high)
    return np.asarray(1 / (1 + np.exp(-logits - low)))
