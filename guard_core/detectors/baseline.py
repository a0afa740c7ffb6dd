"""The baseline: what the starting policy scores on each held-out item, and the risk groups made from it.

R passes of the starting policy over the n items give R·n outcomes in [0, 1]. Items with the same baseline
score are exchangeable for every detector here, so they are pooled into *risk groups* (the strata of a
risk-adjusted chart); a detector sees an evaluation only as a table "how many items of group g had outcome v".
That makes every statistic exactly independent of the order of the items, and cheap.

Pure: numpy only, no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Codes = npt.NDArray[np.intp]

#: More groups than this are merged: the gain of finer strata is far below the noise of a group's own score.
MAX_GROUPS = 32

#: Bounds of the prior's concentration a + b: items as different as can be, and items that are all alike.
CONCENTRATION = (0.2, 200.0)

#: The variance of an evaluation is at least that of a level this far from 0 and 1: one odd outcome must not
#: be infinite evidence. Levels are never lifted: a start at 0.001 would look like a fall from 0.005.
EDGE = 0.005

#: Squared differences that were as independent items have them, which are counted beside those seen.
PRIOR_SQUARES = 4.0

#: Standard errors by which the variance of evaluations must exceed that of independent items to count as
#: more. Without that half of all runs would be judged later for nothing but the noise of this estimate.
SHOWN = 1.5

#: A pass lies too far from the others for one of the same policy: so many standard errors of independent
#: items, and so many of the passes themselves, which vary more where items succeed or fail together.
FAR, FAR_FOR_PASSES = 4.5, 6.0

#: Standard deviations of a normal variable in one median absolute deviation.
_OF_A_MEDIAN = 1.4826

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"


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
    """One evaluation, compressed: the distinct outcomes and which of them each item had.

    `levels`: shape (v,), ascending; `codes`: shape (n,), so that `levels[codes]` are the items.
    """

    levels: Array
    codes: Codes

    @classmethod
    def of(cls, items: Array) -> Self:
        """Compress checked items of shape (n,)."""
        levels, codes = np.unique(items, return_inverse=True)
        return cls(levels, codes)

    @property
    def items(self) -> Array:
        """The outcomes again, shape (n,)."""
        return self.levels[self.codes]

    @property
    def mean(self) -> float:
        """Mean outcome; the same whatever the order of the items."""
        return float(np.bincount(self.codes, minlength=len(self.levels)) @ self.levels) / len(self.codes)

    def same_as(self, other: Outcomes) -> bool:
        """Whether every item had the same outcome."""
        return bool(np.array_equal(self.levels, other.levels) and np.array_equal(self.codes, other.codes))

    def table(self, groups: Codes, count: int) -> Array:
        """How many items of each group had each level: shape (count, v)."""
        v = len(self.levels)
        flat = np.bincount(groups * v + self.codes, minlength=count * v)
        return flat.reshape(count, v).astype(np.float64)

    def to_state(self) -> dict[str, Any]:
        """Compact JSON: the levels once, and two characters or one for each item."""
        return {"levels": self.levels.tolist(), "codes": _pack(self.codes, len(self.levels))}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        levels = np.asarray(state["levels"], dtype=np.float64)
        return cls(levels, _unpack(state["codes"], len(levels)))


@dataclass(frozen=True, slots=True)
class Pay:
    """What the training grader gave the completions of one evaluation.

    `given`: mean of each item; `fooled`: of each item the mean over its completions of [p = 1] (1 - t), for
    one with the outcome t that is paid p; None where nobody told it. Both in [0, 1].
    """

    given: Outcomes
    fooled: Outcomes | None = None

    @classmethod
    def of(
        cls,
        items: int,
        given: Sequence[float] | Array | None,
        fooled: Sequence[float] | Array | None = None,
    ) -> Self | None:
        """From outcomes of so many items, or None where the grader gave nothing.

        Raises:
            ValueError: see `check_items`.
        """
        if given is None:
            return None
        told = None if fooled is None else Outcomes.of(check_items(fooled, items))
        return cls(Outcomes.of(check_items(given, items)), told)

    def to_state(self) -> dict[str, Any]:
        """Compact JSON; see `Outcomes.to_state`."""
        return {
            "given": self.given.to_state(),
            "fooled": None if self.fooled is None else self.fooled.to_state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        fooled = state["fooled"]
        return cls(
            Outcomes.from_state(state["given"]), None if fooled is None else Outcomes.from_state(fooled)
        )


def strays(passes: Sequence[Outcomes], accepted: float, samples: int = 1) -> tuple[int, ...]:
    """Which passes of one policy are none: a server failed, or a scorer accepted everything.

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
    variance = max(middle * (1 - middle), EDGE * (1 - EDGE)) / (len(passes[0].codes) * samples)
    if len(means) == 2:  # each is half of the difference away
        far = (accepted + FAR * math.sqrt(2 * variance)) / 2
    else:
        among = FAR_FOR_PASSES * _OF_A_MEDIAN * median(away) if len(means) > 3 else 0.0
        far = accepted + max(FAR * math.sqrt(variance * (1 + 1 / len(means))), among)
    return tuple(i for i, distance in enumerate(away) if distance > far)


def _pack(codes: Codes, count: int) -> str:
    if count <= len(_ALPHABET):
        return "".join(_ALPHABET[c] for c in codes.tolist())
    return "".join(_ALPHABET[c // 64] + _ALPHABET[c % 64] for c in codes.tolist())


def _unpack(text: str, count: int) -> Codes:
    digits = np.asarray([_ALPHABET.index(c) for c in text], dtype=np.intp)
    return digits if count <= len(_ALPHABET) else digits[0::2] * 64 + digits[1::2]


@dataclass(frozen=True, slots=True)
class Pool:
    """Items pooled by the sum of their outcomes over some passes: `groups` (n,), `sums` ascending (G,)."""

    groups: Codes
    sums: Array

    @classmethod
    def empty(cls, n: int) -> Self:
        """Before the first pass: one group."""
        return cls(np.zeros(n, dtype=np.intp), np.zeros(1))

    def add(self, outcomes: Outcomes) -> Pool:
        """After one more pass. Only the few distinct (sum, outcome) pairs are sorted, never the items."""
        v = len(outcomes.levels)
        pairs = self.groups * v + outcomes.codes
        seen = np.flatnonzero(np.bincount(pairs, minlength=len(self.sums) * v))
        sums, merged = np.unique(self.sums[seen // v] + outcomes.levels[seen % v], return_inverse=True)
        label = np.zeros(len(self.sums) * v, dtype=np.intp)
        label[seen] = merged
        return Pool(label[pairs], sums)


@dataclass(frozen=True)
class Baseline:
    """R passes of the starting policy over n items.

    `passes`: R evaluations of n items; `samples`: independent samples behind each outcome (k).

    `paid`: what the training grader gave each pass, None where it failed; () without a grader.

    `sampled`: whether the completions are draws with a temperature above 0; None: not known.

    Passes at temperature 0 carry the information of one, and count as one in `precision`, also where a server
    or a scorer makes a few items of them differ: the copies would look as if the policy had hardly any noise.
    So do passes of which nothing is known that are all identical.
    """

    passes: tuple[Outcomes, ...]
    samples: int = 1
    paid: tuple[Pay | None, ...] = ()
    sampled: bool | None = None

    @classmethod
    def from_passes(
        cls,
        passes: Sequence[Sequence[float]] | Array,
        samples: int = 1,
        paid: Sequence[Sequence[float] | None] | Array = (),
        fooled: Sequence[Sequence[float] | None] | Array = (),
    ) -> Self:
        """Check and keep passes from a log. More than two of them are draws: of greedy decoding none is made.

        Args:
            passes: shape (R, n), R >= 1; all passes over the same items in the same order.
            samples: independent samples that each outcome is the mean of, >= 1.
            paid: what the training grader gave each pass, of the same shape; None for a pass on which it
                failed, () without a grader.
            fooled: as in `Pay`, for each pass of `paid`; None for one of which it is not known, () for all.

        Raises:
            ValueError: no pass, passes of different length, or an outcome outside [0, 1].
        """
        if len(passes) == 0:
            raise ValueError("a baseline needs at least one pass of the starting policy, got none")
        if samples < 1:
            raise ValueError(f"samples must be >= 1, got {samples!r}")
        first = check_items(passes[0])
        for outcomes in (paid, fooled):
            if len(outcomes) not in (0, len(passes)):
                raise ValueError(
                    f"{len(passes)} passes, but the training grader's outcomes are for {len(outcomes)}"
                )
        truths = tuple(Outcomes.of(check_items(outcomes, first.size)) for outcomes in passes)
        wrongly = fooled if len(fooled) else (None,) * len(paid)
        graded = tuple(Pay.of(first.size, given, told) for given, told in zip(paid, wrongly, strict=True))
        return cls(truths, samples, graded, len(passes) > 2 or None)

    @property
    def graded(self) -> tuple[tuple[Outcomes, Pay], ...]:
        """The passes that the training grader scored, each with what it gave."""
        paid = self.paid or (None,) * len(self.passes)
        return tuple((p, given) for p, given in zip(self.passes, paid, strict=True) if given is not None)

    @property
    def tells_fooled(self) -> bool:
        """Whether each of those tells where the grader was fooled; else none is compared by that."""
        return all(given.fooled is not None for _, given in self.graded)

    @property
    def items(self) -> int:
        """n."""
        return len(self.passes[0].codes)

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
        return bool(others) and all(first.same_as(other) for other in others)

    @property
    def precision(self) -> int:
        """Independent samples behind an item's baseline mean: R·k, or k if all passes are identical."""
        return self.samples * (1 if self.greedy else len(self.passes))

    @cached_property
    def strata(self) -> Strata:
        """The risk groups with their shrunken means."""
        pool = Pool.empty(self.items)
        for outcomes in self.passes:
            pool = pool.add(outcomes)
        return self.strata_of(pool)

    def strata_of(self, pool: Pool) -> Strata:
        """The same of items that were pooled as the passes came."""
        strata = Strata.of(pool, len(self.passes), self.precision)
        if self.greedy or len(self.passes) == 1:
            return strata
        means = np.array([outcomes.mean for outcomes in self.passes])
        noise = max(strata.variance, EDGE * (1 - EDGE)) / (self.items * self.samples)
        return replace(strata, spread=float(means.var(ddof=1)) / noise, degrees=len(means) - 1)


@dataclass(frozen=True)
class Strata:
    """Risk groups: items with (nearly) the same reference mean.

    `groups`: shape (n,), the group of each item; `sizes`, `scores`, `centres`: shape (G,): items in the
    group, their mean outcome in the reference, and that mean shrunken by an empirical-Bayes Beta prior.
    `prior`: its (a, b); `precision`: independent samples behind each item's mean. `spread`: variance of the
    means of the passes, relative to that of independent items, with so many `degrees` of freedom.
    """

    groups: Codes
    sizes: Array
    scores: Array
    centres: Array
    prior: tuple[float, float]
    precision: int
    spread: float = 1.0
    degrees: int = 0

    @classmethod
    def of(cls, pool: Pool, passes: int, precision: int) -> Self:
        """From items pooled over `passes` passes; neighbours are merged if there are more than MAX_GROUPS."""
        groups, scores = pool.groups, pool.sums / passes
        if len(scores) > MAX_GROUPS:
            sizes = np.bincount(groups)
            _, merged = np.unique(np.floor(scores * (MAX_GROUPS - 1) + 0.5), return_inverse=True)
            scores = np.bincount(merged, weights=sizes * scores) / np.bincount(merged, weights=sizes)
            groups = merged[groups]
        return cls.from_scores(groups, scores, precision)

    @classmethod
    def from_scores(cls, groups: Codes, scores: Array, precision: int) -> Self:
        """From the grouping and the groups' mean outcomes, shape (G,)."""
        sizes = np.bincount(groups, minlength=len(scores)).astype(np.float64)
        prior = _fit_prior(float(sizes @ scores) / len(groups), sizes, scores, precision)
        centres = (prior[0] + precision * scores) / (sum(prior) + precision)
        return cls(groups, sizes, scores, centres, prior, precision)

    @property
    def score(self) -> float:
        """Mean outcome of the reference over all items."""
        return float(self.sizes @ self.scores) / len(self.groups)

    @property
    def dispersion(self) -> float:
        """How many times the variance of independent items the mean of a pass has, at least 1.

        It is more than 1 where items succeed or fail together and nobody said so.
        """
        return float(overdispersion(self.degrees * self.spread, self.degrees, 2.0))

    @property
    def variance(self) -> float:
        """Mean variance of one sample of an item: the mean of q(1 - q) over the shrunken means."""
        return float(self.sizes @ (self.centres * (1 - self.centres))) / len(self.groups)

    def to_state(self) -> dict[str, Any]:
        """Plain JSON, exact: one character an item and one number a group."""
        groups = _pack(self.groups, self.count)
        plain = {name: getattr(self, name) for name in ("precision", "spread", "degrees")}
        return {"groups": groups, "scores": self.scores.tolist(), **plain}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        scores = np.asarray(state["scores"], dtype=np.float64)
        strata = cls.from_scores(_unpack(state["groups"], len(scores)), scores, state["precision"])
        return replace(strata, spread=state["spread"], degrees=state["degrees"])

    @property
    def count(self) -> int:
        """G."""
        return len(self.scores)


def overdispersion(squares: Array | float, count: int, width: float) -> Array:
    """The factor by which evaluations vary more than independent items say; 1 unless that is shown.

    Args:
        squares: sum of `count` squared differences, each with mean 1 under independent items.
        count: how many; width: variance of such a square (2), times what their overlap costs.
    """
    degrees = PRIOR_SQUARES + count
    found = np.asarray((PRIOR_SQUARES + squares) / degrees)
    return np.where(found > 1 + SHOWN * math.sqrt(width / degrees), found, 1.0)


def _fit_prior(mean: float, sizes: Array, scores: Array, precision: int) -> tuple[float, float]:
    """Beta(a, b) of the items' true means by the method of moments.

    Var(item mean) = t² + (m(1-m) - t²)/precision, with t² the variance of the true means and
    a + b = m(1-m)/t² - 1. One standard error is taken off t²: items that differ make an evaluation less
    noisy, and a spread that is only noise must not narrow it. One sample per item says nothing about t²: then
    the items are taken to be alike, which is the largest variance that the mean of an evaluation can have.
    """
    mean = min(max(mean, 1.0 / (sizes.sum() * precision + 2)), 1 - 1.0 / (sizes.sum() * precision + 2))
    spread = mean * (1 - mean)
    concentration = CONCENTRATION[1]
    if precision > 1:
        items = float(sizes.sum())
        squares = (scores - mean) ** 2
        observed = float(sizes @ squares) / items
        observed -= math.sqrt(float(sizes @ (squares - observed) ** 2)) / items
        between = (observed - spread / precision) / (1 - 1 / precision)
        if between > 0:
            concentration = min(max(spread / between - 1, CONCENTRATION[0]), CONCENTRATION[1])
    return mean * concentration, (1 - mean) * concentration
