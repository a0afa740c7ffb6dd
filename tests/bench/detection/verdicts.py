"""False stops of the whole default verdict: `CalibratedDetector` as it ships, under a guard.

Every run is live: a fresh evaluation of the same checkpoint follows wherever the detector asks for one. The
policy is the default one and all questions share alpha. Every run has an in-loop reward, and no training
grader.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from detection.truth import CLIMB, EVALUATIONS, PLATEAU_GAIN, item_means, moved

from rlguard.core.detectors import Baseline, CalibratedDetector
from rlguard.core.policy import CalibratedPolicy

BASELINES, RUNS = 8, 5

#: Runs after each baseline where the share that is stopped is not far from alpha.
CLOSE = 8

#: The same, where nothing changes: enough to tell alpha from twice that.
MANY = 32

CONFIG = CalibratedPolicy()

Level = Callable[[int, np.random.Generator], float]
Moves = Callable[[np.random.Generator], np.ndarray]
Spoil = Callable[[np.random.Generator, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Case:
    """Runs that should not be stopped, or of which it is said how many are.

    `score`: mean of alike items, None for mixed ones about 1/2; `level`: mean of an evaluation relative to
    the baseline's, which the reward follows; `families`: sizes of those that succeed or fail together, over
    and over, and `grouped` says whether the split tells them; `spoil`: what is done to the evaluation
    `spoiled`, but not to a fresh one of its checkpoint; `moves`: how the level of a run moves besides;
    `hacked`: what the reward gains besides; `runs`: after each baseline.
    """

    name: str
    items: int = 128
    passes: int = 16
    score: float | None = None
    level: Level = lambda t, rng: 0.0
    families: tuple[int, ...] = (1,)
    grouped: bool = False
    spoil: Spoil | None = None
    spoiled: int = 0
    moves: Moves = lambda rng: np.zeros(EVALUATIONS)
    hacked: Callable[[int], float] = lambda t: 0.0
    runs: int = RUNS

    @cached_property
    def firsts(self) -> np.ndarray:
        """Place of the first item of each family."""
        ends = np.cumsum(np.resize(self.families, self.items))
        return np.concatenate([[0], ends[ends < self.items]])

    @property
    def means(self) -> np.ndarray:
        """True item means under the starting policy."""
        return item_means(self.items, True) if self.score is None else np.full(self.items, self.score)


@dataclass(frozen=True)
class Found:
    """Share of so many runs stopped, its standard error with baselines as clusters, and fresh evaluations per
    100.
    """

    stopped: float
    error: float
    fresh: float
    runs: int


def dip(at: int, points: float = 0.03, length: int = 10, plateau: float = 0.0) -> Level:
    """Falls for `length` evaluations and recovers."""

    def level(t: int, rng: np.random.Generator) -> float:
        return min(t / CLIMB, 1.0) * plateau - (points if at <= t < at + length else 0.0)

    return level


def rise(lost: float, at: int = 10, length: int = EVALUATIONS) -> Level:
    """Gains 20 points in six evaluations and loses some again for `length` evaluations."""

    def level(t: int, rng: np.random.Generator) -> float:
        return min(t / 6, 1.0) * 0.2 - (lost if at <= t < at + length else 0.0)

    return level


def wobble(t: int, rng: np.random.Generator) -> float:
    """A plateau that moves by 2.5 points from each evaluation to the next."""
    return min(t / CLIMB, 1.0) * PLATEAU_GAIN + rng.normal(0.0, 0.025)


def with_memory(deviation: float, correlation: float) -> Moves:
    """A level that moves by so much, and stays where it went: an AR(1) process from its stationary law."""

    def moves(rng: np.random.Generator) -> np.ndarray:
        fresh = np.sqrt(1 - correlation**2)
        found = [rng.standard_normal()]
        for _ in range(EVALUATIONS - 1):
            found.append(correlation * found[-1] + fresh * rng.standard_normal())
        return deviation * np.array(found)

    return moves


def learns(points: float) -> Level:
    """Gains some points in ten evaluations and keeps them."""
    return lambda t, rng: min((t + 1) / 10, 1.0) * points


def hacks(t: int) -> float:
    """60 points of reward in 40 evaluations for nothing that the held-out score knows."""
    return 0.6 * min(t / 40, 1.0)


def climb(t: int, rng: np.random.Generator) -> float:
    """Gains 10 points and keeps them."""
    return min(t / CLIMB, 1.0) * PLATEAU_GAIN


SPOILS: dict[str, Spoil] = {
    "all 0": lambda rng, items: np.zeros(len(items)),
    "half of the items 0": lambda rng, items: items * (np.arange(len(items)) < len(items) / 2),
    "all 1": lambda rng, items: np.ones(len(items)),
}

CASES: dict[str, tuple[Case, ...]] = {
    "Baseline passes": tuple(
        Case(
            f"{passes} {'pass' if passes == 1 else 'passes'}, {name} items",
            passes=passes,
            score=score,
            runs=MANY,
        )
        for passes in (1, 2, 4, 16)
        for name, score in (("alike", 0.5), ("mixed", None))
    ),
    "Start near 0 or 1": tuple(
        Case(
            f"start at {score:g}, {passes} {'pass' if passes == 1 else 'passes'}", score=score, passes=passes
        )
        for score in (0.0, 0.001, 0.003, 0.02, 0.98, 1.0)
        for passes in (2, 16)
    ),
    "A decline of 3 points for ten evaluations": tuple(
        Case(f"{items} items, {name}", items=items, level=level, runs=CLOSE)
        for items in (128, 256)
        for name, level in (
            ("from the start", dip(0)),
            ("from evaluation 30", dip(30)),
            ("from a plateau", dip(50, plateau=PLATEAU_GAIN)),
        )
    ),
    "A decline that stays, 256 items": (
        *(
            Case(f"{points} points from evaluation 20 on", 256, level=dip(20, points / 100, EVALUATIONS))
            for points in (1, 2, 3, 4, 6)
        ),
    ),
    "A rise of 20 points in six evaluations, 256 items": (
        Case("kept", 256, level=rise(0.0)),
        Case("3 points lost after four evaluations, for ten", 256, level=rise(0.03, length=10)),
        Case("12 points lost after two evaluations", 256, level=rise(0.12, at=8)),
        Case("12 points lost after four evaluations", 256, level=rise(0.12)),
    ),
    "Wobble on a plateau, standard deviation 2.5 points": tuple(
        Case(f"{items} items", items, level=wobble, runs=CLOSE) for items in (128, 256)
    ),
    "The same with memory, 256 items": tuple(
        Case(
            f"standard deviation {100 * deviation:g} points, correlation {correlation:g}",
            256,
            level=climb,
            moves=with_memory(deviation, correlation),
            runs=CLOSE,
        )
        for deviation, correlation in ((0.025, 0.5), (0.025, 0.8), (0.015, 0.9))
    ),
    "The reward alone gains 60 points in 40 evaluations, 256 items": tuple(
        Case(
            f"the score goes from {100 * start:g} to {100 * start + points:g} points in ten",
            256,
            score=start,
            level=learns(points / 100),
            hacked=hacks,
        )
        for start, points in ((0.3, 0), (0.3, 3), (0.3, 4), (0.3, 6), (0.01, 6))
    ),
    "Families that succeed or fail together, 128 items": tuple(
        Case(
            f"{name}, {'with' if grouped else 'without'} `group`", families=sizes, grouped=grouped, runs=CLOSE
        )
        for grouped in (True, False)
        for name, sizes in (("2 alike", (2,)), ("4 alike", (4,)), ("1, 2, 4 and 8 alike", (1, 2, 4, 8)))
    ),
    "One broken evaluation, 64 items": tuple(
        Case(f"{name}, evaluation {at}", 64, spoil=spoil, spoiled=at)
        for name, spoil in SPOILS.items()
        for at in (0, 30)
    ),
}


#: Falls whose delay is measured: sudden, from the start and from a plateau.
DELAYS = tuple(
    Case(
        f"{points} points of {items} items, from {'a plateau' if plateau else 'the start'}",
        items,
        level=dip(50 if plateau else 0, points / 100, EVALUATIONS, plateau),
        spoiled=50 if plateau else 0,
    )
    for items in (64, 128, 256, 1024)
    for points in (5, 10)
    for plateau in (0.0, PLATEAU_GAIN)
)


@dataclass(frozen=True)
class Delay:
    """Share of the runs that a fall stops, and evaluations until then: the median of all, inf for none."""

    stopped: float
    median: float


def delay(case: Case, runs: int) -> Delay:
    """How long a fall goes on that begins at the evaluation `spoiled`."""
    rng = np.random.default_rng([ord(c) for c in case.name])
    [fresh_detector] = _ready(case.items, case.passes, case.score, case.families, case.grouped, 1)
    ends = [_run(case, copy.copy(fresh_detector), rng)[2] for _ in range(runs)]
    waits = [math.inf if end is None or end < case.spoiled else end - case.spoiled + 1 for end in ends]
    return Delay(float(np.mean(np.isfinite(waits))), float(np.median(waits)))


def measure(case: Case, baselines: int = BASELINES) -> Found:
    """Simulate a case."""
    rng = np.random.default_rng([ord(c) for c in case.name])
    stopped, fresh = np.zeros((baselines, case.runs)), 0
    kind = (case.items, case.passes, case.score, case.families, case.grouped)
    for b, fresh_detector in enumerate(_ready(*kind, baselines)):
        for r in range(case.runs):
            stopped[b, r], asked, _ = _run(case, copy.copy(fresh_detector), rng)
            fresh += asked
    error = float(stopped.mean(axis=1).std() / np.sqrt(max(baselines - 1, 1)))
    return Found(float(stopped.mean()), error, 100 * fresh / (stopped.size * EVALUATIONS), stopped.size)


@lru_cache(maxsize=4)
def _ready(
    items: int, passes: int, score: float | None, families: tuple[int, ...], grouped: bool, baselines: int
) -> list[CalibratedDetector]:
    """Detectors before the first evaluation; cases of one kind begin with the same baselines."""
    case = Case("", items, passes, score, families=families, grouped=grouped)
    rng = np.random.default_rng([items, passes, len(families), grouped, False])
    detectors = []
    for _ in range(baselines):
        drawn = Baseline.from_passes([_drawn(case, case.means, rng) for _ in range(passes)])
        detectors.append(CalibratedDetector(CONFIG, replace(drawn, sampled=True)))
    return detectors


def _run(case: Case, detector: CalibratedDetector, rng: np.random.Generator) -> tuple[bool, int, int | None]:
    """Whether the run is stopped, how many fresh evaluations it took, and at which evaluation."""
    fresh, moves = 0, case.moves(rng)
    for t in range(EVALUATIONS):
        level = round(case.level(t, rng) + float(moves[t]), 3)
        means = _at(case.items, case.score, level)
        items = _drawn(case, means, rng)
        if case.spoil is not None and t == case.spoiled:
            items = case.spoil(rng, items)
        reward = 0.6 + level + rng.normal(0.0, 0.025)
        status = detector.update(t, items, reward + case.hacked(t))
        while status.needs_confirmation:
            items, fresh = _drawn(case, means, rng), fresh + 1
            status = detector.update(t, items)
        if status.fire:
            return True, fresh, t
    return False, fresh, None


@lru_cache(maxsize=1024)
def _at(items: int, score: float | None, level: float) -> np.ndarray:
    """Item means at a level, relative to that of the starting policy."""
    means = Case("", items, score=score).means
    return moved(means, min(max(float(means.mean()) + level, 0.001), 0.999)) if level else means


def _drawn(case: Case, means: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Outcomes of one evaluation: a family has the fate of its first item, and counts once if it is told."""
    outcomes = (rng.random(len(case.firsts)) < means[case.firsts]).astype(float)
    if case.grouped:
        return outcomes
    return np.repeat(outcomes, np.diff(np.append(case.firsts, case.items)))
