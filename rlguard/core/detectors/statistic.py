"""One statistic for every question: how far a mean has fallen below a level that it had.

A series is the outcome y of each evaluation, with variance v given the policy. For each moment of change and
for each level before it (everything before, with the baseline; the newest 4; the newest 16), let D be the
level, minus the accepted loss, minus the mean since the change, and s² = v (1/j + 1/m) for j evaluations
since and m of the level. The evidence is the maximum of D²/2s² over D > 0, in nats: the generalised
likelihood ratio of a change in a Gaussian mean (Willsky and Jones, 1976), with the level estimated too.

Its threshold is a table, made by `tools/thresholds.py`. Pure: numpy, no state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rlguard.core.detectors.thresholds import ALPHAS, RATIOS, THRESHOLDS
from rlguard.core.means import LEAST_VARIANCE

Array = npt.NDArray[np.float64]

#: Evaluations of a level that was reached since the start.
WINDOWS = (4, 16)

#: A change is looked for among this many of the newest evaluations.
REACH = 64

#: Evaluations that the table is for; the threshold of a longer run grows with its logarithm.
HORIZON = 100

#: Outcomes of the starting policy below which nobody knows its level and noise.
LEAST_OUTCOMES = 32

#: Levels at which the variance of a level is taken at the least and at the most.
_LEVELS = (0.02, 0.98)

#: Newest evaluations that are no evidence of a run's own movement: a fall would hide in it.
_NEWEST = 4

#: Second differences that count as those of independent items beside those seen, and standard errors by which
#: they have to exceed them.
_PRIOR, _SHOWN = 4.0, 3.0


class Start(NamedTuple):
    """What the passes of the starting policy say of one quantity.

    `level`: its mean; `variance`: of one evaluation, given the policy; `passes`: how many independent
    evaluations the level is worth; `spread`: variance over items, which later evaluations are compared with;
    `outcomes`: independent ones that all of this is known from.
    """

    level: float
    variance: float
    passes: int
    spread: float
    outcomes: int = LEAST_OUTCOMES

    @property
    def noise(self) -> float:
        """Standard deviation of one evaluation."""
        return math.sqrt(self.variance)


@dataclass(frozen=True, slots=True)
class Fall:
    """The fall of a series for which there is the most evidence, nats; 0 for none.

    `level`: what it fell from; `now`: its mean since; `since`: evaluations since; `window`: evaluations of
    the level, 0 for the start and all before the change.
    """

    evidence: float = 0.0
    level: float = math.nan
    now: float = math.nan
    since: int = 0
    window: int = 0

    @property
    def is_from_start(self) -> bool:
        """Whether it fell from where it started, and not from a level reached since."""
        return self.window == 0


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Evidence, level and mean since, each of shape (..., a), for the levels of one window."""

    window: int
    evidence: Array
    level: Array
    now: Array


def largest_fall(scores: Array, start: Start, accepted: float, spreads: Array | None = None) -> Fall:
    """The fall by more than `accepted` for which there is the most evidence.

    Args:
        scores: shape (t,), oldest first.
        start: of the same quantity.
        accepted: the loss that is no finding, in units of the score; negative where a gain is due.
        spreads: shape (t,): variance over items of each evaluation; None where it follows the level.
    """
    best = Fall()
    for found in _candidates(scores, start, accepted, spreads):
        k = int(np.argmax(found.evidence))
        if found.evidence[k] > best.evidence:
            since = found.evidence.shape[-1] - k
            best = Fall(
                float(found.evidence[k]), float(found.level[k]), float(found.now[k]), since, found.window
            )
    return best


def shortfall(scores: Array, start: Start, due: float) -> float:
    """Evidence, nats, that the newest scores, shape (t,), lie less than `due` above the start."""
    since = np.arange(1, min(len(scores), REACH) + 1)
    lacking = np.maximum(start.level + due - scores[::-1][: len(since)].cumsum() / since, 0.0)
    relative = float(_of_level(np.array(start.level + due), start)) * float(movement(scores, start))
    variance = start.variance * relative * (1 / since + 1 / start.passes)
    return float((lacking**2 / (2 * variance)).max(initial=0.0))


def evidence(scores: Array, start: Start, accepted: float) -> Array:
    """Evidence of the largest fall in each of many series, nats: shape (..., t) gives (...)."""
    most: Array = np.maximum.reduce(
        [one.evidence.max(-1) for one in _candidates(scores, start, accepted, None)]
    )
    return most


def _candidates(scores: Array, start: Start, accepted: float, spreads: Array | None) -> Iterator[_Candidates]:
    t = scores.shape[-1]
    if t == 0:
        return
    sums = np.concatenate([np.zeros((*scores.shape[:-1], 1)), scores.cumsum(-1)], -1)
    change = np.arange(max(0, t - REACH), t)
    since = t - change
    now = (sums[..., [t]] - sums[..., change]) / since
    wide = 1.0 if spreads is None else _widening(spreads, start)
    moves = movement(scores, start, None if spreads is None else wide)[..., None]
    for window in (0, *WINDOWS):
        at = change[change >= window]
        if not len(at):
            continue
        if window == 0:
            size = start.passes + at
            level = (start.passes * start.level + sums[..., at]) / size
        else:
            size = np.full(len(at), window)
            level = (sums[..., at] - sums[..., at - window]) / window
        relative = _of_level(level - accepted, start) if spreads is None else np.full(len(at), wide)
        after, j = now[..., -len(at) :], since[-len(at) :]
        loss = np.maximum(level - accepted - after, 0.0)
        variance = start.variance * relative * moves * (1 / j + 1 / size)
        yield _Candidates(window, loss**2 / (2 * variance), level, after)


def _of_level(level: Array, start: Start) -> Array:
    """The variance of a score at this level, relative to that at the start: q(1 - q) between bounds."""
    level = np.clip(level, *_LEVELS)
    edge = min(start.level, 1 - start.level) < 0.05
    at_start = max(start.level * (1 - start.level), LEAST_VARIANCE)
    return np.clip(level * (1 - level) / at_start, 0.2, 60.0 if edge else 1.5)


def _widening(spreads: Array, start: Start) -> float:
    """How much wider the items of the newest evaluations lie than those of the start; at least 1."""
    newest = float(np.mean(spreads[-WINDOWS[0] :]))
    return max(newest / start.spread, 1.0)


def movement(scores: Array, start: Start, wide: float | None = None) -> Array:
    """How many times the variance of its items a run itself moves, at least 1: shape (..., t) gives (...).

    By second differences at distances 1, 2 and 4, which a trend does not enter (von Neumann, 1941), without
    the newest four evaluations; 1 unless more is shown. `wide`: the variance of an evaluation over that at
    the start; None where it follows the level.
    """
    seen = scores[..., : max(scores.shape[-1] - _NEWEST, 0)]
    most = np.ones(scores.shape[:-1])
    for k in (1, 2, 4):
        if seen.shape[-1] <= 2 * k:
            break
        before, at, after = seen[..., : -2 * k], seen[..., k:-k], seen[..., 2 * k :]
        relative = _of_level((before + at + after) / 3, start) if wide is None else wide
        bends = (after - 2 * at + before) ** 2 / (6 * start.variance * relative)
        count = bends.shape[-1] + _PRIOR
        ratio = (bends.sum(-1) + _PRIOR) / count
        most = np.maximum(most, np.where(ratio - 1 > _SHOWN / math.sqrt(count), ratio, 1.0))
    return most


def threshold(start: Start, accepted: float, alpha: float, evaluations: int) -> float:
    """Evidence, nats, that a run without such a fall reaches with probability `alpha` in HORIZON evaluations.

    Interpolated in the accepted loss over the noise of an evaluation and in log alpha. Beyond the table's
    least alpha, and beyond the horizon, it grows by the logarithm.

    Args:
        start: of the quantity.
        accepted: the loss that is accepted for ten evaluations; below 0 counts as 0.
        alpha: of this question.
        evaluations: made so far.
    """
    ratio = min(max(accepted, 0.0) / start.noise, RATIOS[-1])
    column = [float(np.interp(ratio, RATIOS, row)) for row in zip(*THRESHOLDS, strict=True)]
    logs = [-math.log(one) for one in ALPHAS]
    wanted = -math.log(alpha)
    level = float(np.interp(wanted, logs, column)) + max(wanted - logs[-1], 0.0)
    return level - max(logs[0] - wanted, 0.0) + math.log(max(evaluations / HORIZON, 1.0))


def chance(found: float, start: Start, evaluations: int) -> float:
    """The p-value of so much evidence of any fall: how often a run without one shows it at some time."""
    alpha = ALPHAS[-1]
    return min(1.0, alpha * math.exp(threshold(start, 0.0, alpha, evaluations) - found))


def evaluations_to_see(
    start: Start, level: float, size: int, drop: float, accepted: float, limit: float
) -> int | None:
    """Evaluations after a sudden drop until the statistic is expected at `limit`; None: REACH are too few.

    Args:
        start: of the held-out score.
        level: that it drops from; `size`: evaluations that this level is known from.
        drop, accepted: losses, fractions of 1.
        limit: the threshold, nats.
    """
    variance = start.variance * float(_of_level(np.array(level - accepted), start))
    excess = drop - accepted
    if excess <= 0 or level <= 2 * accepted or start.outcomes < LEAST_OUTCOMES:
        return None
    room = excess**2 / (2 * limit * variance) - 1 / size
    since = math.ceil(1 / room) if room > 0 else REACH + 1
    return since if since <= REACH else None
