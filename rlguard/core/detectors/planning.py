"""How soon a fall is seen, and whether a run can be judged yet: closed forms, no simulation. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlguard.core.detectors.questions import DECLINE, SHARES, points
from rlguard.core.detectors.statistic import REACH, WINDOWS, Start, threshold
from rlguard.core.detectors.statistic import evaluations_to_see as to_see
from rlguard.core.means import LEAST_VARIANCE
from rlguard.core.policy import CalibratedPolicy

#: A run can be judged once a drop of this size, or of half of a smaller start, would have been seen.
DROP_TO_SEE = 0.10

#: Evaluations until there is one after a level reached in the run.
TO_STAND = WINDOWS[-1] + 1


def expected_start(score: float, items: int, passes: int, samples: int = 1) -> Start:
    """What a baseline comes to, for items that are alike: the noisiest case.

    Args:
        score: of the starting policy, in [0, 1].
        items: held-out items, n.
        passes: of the starting policy; under greedy decoding 1.
        samples: independent samples behind each outcome.
    """
    spread = max(score * (1 - score), LEAST_VARIANCE)
    outcomes = items * samples * passes
    return Start(score, spread / (items * samples), passes, spread, outcomes)


def decline_limit(start: Start, config: CalibratedPolicy) -> float:
    """Threshold for a decline within the first 100 evaluations, nats."""
    return threshold(start, config.max_decline, config.alpha * SHARES[DECLINE], 1)


def evaluations_to_detect(
    score: float, items: int, passes: int, drop: float, config: CalibratedPolicy
) -> int | None:
    """Evaluations after a sudden drop from the start until an alarm is expected; arguments as above.

    Returns:
        None if no number of them is enough, or if the drop is accepted.
    """
    start = expected_start(score, items, passes, config.samples)
    return to_see(start, score, passes, drop, config.max_decline, decline_limit(start, config))


def evaluations_once_risen(items: int, passes: int, config: CalibratedPolicy) -> int | None:
    """Evaluations until a run can be judged that has risen to one half, the noisiest level.

    None: a drop from there would not be seen.
    """
    start = expected_start(0.5, items, passes, config.samples)
    return TO_STAND if _sees_from(0.5, start, decline_limit(start, config), config) else None


def least_drop(score: float, items: int, passes: int, since: int, config: CalibratedPolicy) -> float:
    """The smallest sudden drop from the start that alarms after `since` evaluations, fraction of 1."""
    start = expected_start(score, items, passes, config.samples)
    excess = math.sqrt(2 * decline_limit(start, config) * start.variance * (1 / since + 1 / passes))
    return config.max_decline + excess


def drop_to_see(score: float) -> float:
    """The drop that a run has to be watched for from this score: DROP_TO_SEE, or half of a smaller score."""
    return min(DROP_TO_SEE, score / 2)


def cannot_fall(score: float, config: CalibratedPolicy) -> bool:
    """Whether a start at this score is too low for a fall to stop a run."""
    return score < 2 * config.max_decline


def _sees_from(level: float, start: Start, limit: float, config: CalibratedPolicy) -> bool:
    """Whether a drop from a level of the newest evaluations would be seen."""
    return to_see(start, level, WINDOWS[-1], drop_to_see(level), config.max_decline, limit) is not None


def lacks(scores: Sequence[float], start: Start, limit: float, config: CalibratedPolicy) -> str:
    """What is missing before a run can be judged, and what would help; "" if nothing is.

    A run is also judged once it stands on a level that can fall by more than what is accepted.
    """
    drop = drop_to_see(start.level)
    needed = to_see(start, start.level, start.passes, drop, config.max_decline, limit)
    if needed is not None and len(scores) >= needed:
        return ""
    newest = scores[-WINDOWS[-1] :]
    level = math.fsum(newest) / len(newest) if newest else start.level
    if len(scores) >= TO_STAND and _sees_from(level, start, limit, config):
        return ""
    said = f"{len(scores)} evaluations so far: a fall of {100 * drop:.3g} points from the start"
    if needed is not None:
        return f"{said} shows after {needed}"
    if cannot_fall(start.level, config):
        return (
            f"{said} at {points(start.level)} is too little to be seen beside the "
            f"{100 * config.max_decline:.3g} that are accepted; a level that the run has risen to is watched "
            f"from {TO_STAND} evaluations on"
        )
    return f"{said} does not show within {REACH}: take more items, or more passes of the starting policy"
