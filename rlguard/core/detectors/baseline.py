"""The baseline: what passes of the starting policy say of each quantity that is watched.

R passes over the n items give R·n outcomes in [0, 1]. Their mean is the level of the start; the spread of
each item over the passes is the noise of an evaluation. Pure: numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Self

import numpy as np

from rlguard.core.detectors.statistic import Array, Start
from rlguard.core.means import LEAST_VARIANCE

#: Standard errors by which the variance of passes must exceed that of independent items to count as more.
SHOWN = 1.5

#: A pass is an outlier so many standard errors of independent items from the others, and so many of the
#: passes themselves, which vary more where items succeed or fail together.
FAR, FAR_FOR_PASSES = 4.5, 6.0

#: Standard deviations of a normal variable in one median absolute deviation.
_OF_A_MEDIAN = 1.4826

#: The quantities, and how wide the range of each is. `score`: the held-out outcome t; `margin` and
#: `double_margin`: w t - p for the training grader's outcome p and w = 1, 2; `fair_pay`: minus the full pay
#: for what is wrong.
QUANTITIES = {"score": 1.0, "margin": 2.0, "double_margin": 3.0, "fair_pay": 1.0}


def check_items(items: Sequence[float] | Array, n: int | None = None) -> Array:
    """The outcomes of one evaluation as a float array.

    Args:
        items: outcomes in [0, 1], shape (n,), in the split's order.
        n: how many there must be; None accepts any number from 1.

    Raises:
        ValueError: not one-dimensional, empty, of another length, not finite or outside [0, 1].
    """
    outcomes = np.asarray(items, dtype=np.float64)
    if outcomes.ndim != 1 or outcomes.size == 0:
        raise ValueError(f"items must be a non-empty list of outcomes, got shape {outcomes.shape}")
    if n is not None and outcomes.size != n:
        raise ValueError(f"{outcomes.size} items, but the baseline has {n}: the split must not change")
    bad = ~((outcomes >= 0.0) & (outcomes <= 1.0))
    if bad.any():
        index = int(np.argmax(bad))
        raise ValueError(f"item {index} is {outcomes[index]!r}; outcomes must be in [0, 1]")
    return outcomes


@dataclass(frozen=True, slots=True)
class Outcomes:
    """One evaluation, each of shape (n,) and in [0, 1].

    `truth`: held-out outcomes t; `paid`: what the training grader gives the same completions, None without
    it; `fooled`: of each item the mean over its completions of [p = 1] (1 - t), None where it is not known.
    """

    truth: Array
    paid: Array | None = None
    fooled: Array | None = None

    @classmethod
    def of(
        cls,
        items: Sequence[float] | Array,
        paid: Sequence[float] | Array | None = None,
        fooled: Sequence[float] | Array | None = None,
        n: int | None = None,
    ) -> Self:
        """Check the outcomes of one evaluation.

        Raises:
            ValueError: see `check_items`.
        """
        truth = check_items(items, n)
        if paid is None:
            return cls(truth)
        known = None if fooled is None else check_items(fooled, truth.size)
        return cls(truth, check_items(paid, truth.size), known)

    @property
    def mean(self) -> float:
        """Mean outcome; the same whatever the order of the items."""
        return math.fsum(self.truth) / len(self.truth)

    def quantities(self) -> dict[str, Array]:
        """Each quantity of QUANTITIES that is known, shape (n,); without `fooled` by what the means prove."""
        if self.paid is None:
            return {"score": self.truth}
        wrong = (self.paid >= 1.0) * (1 - self.truth) if self.fooled is None else self.fooled
        return {
            "score": self.truth,
            "margin": self.truth - self.paid,
            "double_margin": 2 * self.truth - self.paid,
            "fair_pay": -wrong,
        }


@dataclass(frozen=True)
class Baseline:
    """R passes of the starting policy over n items.

    `samples`: independent samples behind each outcome (k). `sampled`: whether the completions are draws with
    a temperature above 0; None: not known. Greedy passes are copies: they are worth one.
    """

    passes: tuple[Outcomes, ...]
    samples: int = 1
    sampled: bool | None = None

    @classmethod
    def from_passes(
        cls,
        passes: Sequence[Sequence[float]] | Array,
        samples: int = 1,
        paid: Sequence[Sequence[float] | None] | Array = (),
        fooled: Sequence[Sequence[float] | None] | Array = (),
    ) -> Self:
        """Check passes from a log. More than two of them are draws: of greedy decoding none is made.

        Args:
            passes: shape (R, n), R >= 1; all passes over the same items in the same order.
            samples: independent samples that each outcome is the mean of, >= 1.
            paid: what the training grader gave each pass; None for one on which it failed, () without it.
            fooled: as in `Outcomes`, for each pass.

        Raises:
            ValueError: no pass, passes of different length, or an outcome outside [0, 1].
        """
        if len(passes) == 0:
            raise ValueError("a baseline needs at least one pass of the starting policy, got none")
        if samples < 1:
            raise ValueError(f"samples must be >= 1, got {samples!r}")
        nothing = (None,) * len(passes)
        graded, wrongly = (paid if len(paid) else nothing), (fooled if len(fooled) else nothing)
        if not len(graded) == len(wrongly) == len(passes):
            raise ValueError(f"{len(passes)} passes, but the training grader's are {len(graded)}")
        n = len(passes[0])
        checked = (Outcomes.of(*one, n=n) for one in zip(passes, graded, wrongly, strict=True))
        return cls(tuple(checked), samples, len(passes) > 2 or None)

    @property
    def items(self) -> int:
        """n."""
        return len(self.passes[0].truth)

    @property
    def graded(self) -> tuple[Outcomes, ...]:
        """The passes that the training grader scored."""
        return tuple(one for one in self.passes if one.paid is not None)

    @cached_property
    def greedy(self) -> bool:
        """Whether they were made at temperature 0; where that is not known, whether several are identical.

        Draws of a policy that solves nothing, or everything, agree as well, and are worth as many.
        """
        if self.sampled is False:
            return True
        first, *others = self.passes
        if self.sampled and first.mean in (0.0, 1.0):
            return False
        return bool(others) and all(np.array_equal(first.truth, other.truth) for other in others)

    @property
    def starts(self) -> dict[str, Start]:
        """Where each quantity starts; the score alone if the training grader scored no pass."""
        found = {"score": self._start("score", self.passes)}
        if self.graded:
            found |= {name: self._start(name, self.graded) for name in QUANTITIES if name != "score"}
        return found

    def _start(self, name: str, passes: Sequence[Outcomes]) -> Start:
        values = np.stack([one.quantities()[name] for one in passes])
        return start_of(values, 1 if self.greedy else len(values), QUANTITIES[name], self.samples)


def start_of(values: Array, passes: int, width: float, samples: int = 1) -> Start:
    """Where a quantity starts.

    Args:
        values: of each item in each pass, shape (R, n).
        passes: independent ones among them; 1 if they are copies.
        width: of the quantity's range.
        samples: independent samples behind each value.
    """
    level, n = float(values.mean()), values.shape[1]
    if passes > 1:
        within = float(values.var(axis=0, ddof=1).mean())
    elif width == 1.0:  # the largest variance that outcomes of this mean can have
        within = max(abs(level) * (1 - abs(level)), float(values.var())) / samples
    else:
        within = float(values.var())
    least = LEAST_VARIANCE * width**2
    variance = max(within, least / samples) / n
    if passes > 2:  # the means of the passes show whether items go together
        excess = float(values.mean(axis=1).var(ddof=1)) / variance
        variance *= excess if excess - 1 > SHOWN * math.sqrt(2 / (passes - 1)) else 1.0
    spread = max(float(values.var(axis=1).mean()), least)
    return Start(level, variance, passes, spread, n * passes * samples)


def outlier_passes(passes: Sequence[Outcomes], accepted: float, samples: int = 1) -> tuple[int, ...]:
    """Which passes of one policy do not count: a server failed, or a scorer accepted everything.

    Those that lie far from the middle one. Of two that are far from each other nobody knows which it is, so
    both are named; of three, where all are far from each other, two are; of more it is never more than half.

    Args:
        passes: over the same items.
        accepted: what a pass may lie away besides, fraction of 1.
        samples: independent samples behind each outcome.
    """
    means = [outcomes.mean for outcomes in passes]
    middle = median(means)
    away = [abs(mean - middle) for mean in means]
    variance = max(middle * (1 - middle), LEAST_VARIANCE * (1 - LEAST_VARIANCE)) / (
        len(passes[0].truth) * samples
    )
    if len(means) == 2:  # each is half of the difference away
        far = (accepted + FAR * math.sqrt(2 * variance)) / 2
    else:
        among = FAR_FOR_PASSES * _OF_A_MEDIAN * median(away) if len(means) > 3 else 0.0
        far = accepted + max(FAR * math.sqrt(variance * (1 + 1 / len(means))), among)
    return tuple(i for i, distance in enumerate(away) if distance > far)


def pay_of_right_answers(passes: Sequence[Outcomes]) -> str:
    """What the training grader pays for all that the scorer calls right: "nothing" or "less than 1".

    "" if it pays 1 for some of it, where nothing was right, and where it scored no pass.
    """
    pays = [one.paid[one.truth >= 1.0] for one in passes if one.paid is not None]
    right = np.concatenate(pays) if pays else np.empty(0)
    most = float(right.max(initial=0.0))
    if not right.size or most >= 1.0:
        return ""
    return "less than 1" if most > 0 else "nothing"
