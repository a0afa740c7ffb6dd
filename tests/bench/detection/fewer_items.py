"""What it would save to score a part of the items, and the rest only in doubt. A prototype: not in the guard.

    python tests/bench/detection/fewer_items.py     # prints the table of docs/detection.md; minutes

At each checkpoint `first` items are scored, and the others of `N` where a chart comes within NEAR nats of its
threshold. The charts are those of `guard_core/detectors/fast.py`, with evaluations that weigh as much as they
have items; items are alike, and the run's own movement is not estimated. Each rule has thresholds of its own,
simulated as that file does: ALPHA of the runs that decline by what is accepted, for ten evaluations, are
stopped. An alarm counts if a fresh evaluation of all items of the same checkpoint alarms, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

#: Items of the split, passes of the baseline over them, evaluations of a run.
N, PASSES, T = 256, 16, 100
#: Of `fast` beside the other parts at the defaults; decline that is accepted; drop that a chart is tuned to.
ALPHA, ACCEPTED, DROP = 0.0372, 0.03, 0.045
REACH, WINDOWS, RISEN, DIP = 48, (4, 16, 32), 2.0, 10
SCORE, GAIN = 0.5, 0.10
RUNS, NULL_RUNS = 1000, 2000

Levels = Callable[[np.random.Generator, int], Array]


@dataclass(frozen=True)
class Rule:
    """`first` items at each checkpoint, and all within `near` nats of a threshold; None: never more."""

    name: str
    first: int
    near: float | None = None


@dataclass(frozen=True)
class Found:
    """What became of runs: `stopped` at an evaluation, or T; `items` of each run up to there."""

    stopped: npt.NDArray[np.intp]
    items: Array


RULES = (
    Rule("all 256", N),
    Rule("128", 128),
    Rule("64", 64),
    Rule("128, all within 3 nats", 128, 3.0),
    Rule("64, all within 3 nats", 64, 3.0),
    Rule("64, all within 5 nats", 64, 5.0),
)


def charts(right: Array, items: Array, score: Array) -> tuple[Array, Array]:
    """Nats of the start and of the plateau chart, shape (runs,), after checkpoints (runs, t) with so many
    right answers and items each; `score`: of the baselines, shape (runs,).
    """
    t = right.shape[1]
    zero = np.zeros((len(right), 1))
    sums = np.concatenate([zero, np.cumsum(right, axis=1)], axis=1)
    count = np.concatenate([zero, np.cumsum(items, axis=1)], axis=1)
    since = np.arange(1, min(REACH, t) + 1)
    variance = score[:, None] * (1 - score[:, None])
    n_after = count[:, -1:] - count[:, t - since]
    after = (sums[:, -1:] - sums[:, t - since]) / n_after

    def odds(level: Array, n_level: Array) -> Array:
        spread, fall = variance * (1 / n_after + 1 / n_level), level - after - ACCEPTED
        once = np.exp(np.minimum((DROP * fall - DROP**2 / 2) / spread, 340.0))
        return np.asarray((once + once**2 * np.exp(-(DROP**2) / spread)) / 2)

    known = PASSES * N + count[:, t - since]
    start = odds((PASSES * N * score[:, None] + sums[:, t - since]) / known, known).sum(axis=1) / T
    plateau = np.zeros(len(right))
    for length in WINDOWS:
        fits = since <= t - length
        if not fits.any():
            continue
        begins = np.maximum(t - since - length, 0)
        n_level = np.maximum(count[:, t - since] - count[:, begins], 1.0)
        level = (sums[:, t - since] - sums[:, begins]) / n_level
        error = np.sqrt(variance * (1 / n_level + 1 / (PASSES * N)))
        risen = (level >= score[:, None] + RISEN * error) & fits
        plateau += (odds(level, n_level) * risen).sum(axis=1) / (T * len(WINDOWS))
    with np.errstate(divide="ignore"):
        return np.log(start), np.log(plateau)


def play(rule: Rule, levels: Levels, limits: tuple[float, float], runs: int, seed: int) -> Found:
    """Runs under a guard with this rule, until it stops them."""
    rng = np.random.default_rng(seed)
    truth = levels(rng, runs)
    score = rng.binomial(PASSES * N, SCORE, runs) / (PASSES * N)
    right, items = np.zeros((runs, T)), np.zeros((runs, T))
    stopped, spent = np.full(runs, T), np.zeros(runs)

    def score_more(who: npt.NDArray[np.intp], t: int, more: int) -> npt.NDArray[np.bool_]:
        """Whether a chart of these runs is at its limit less `more`."""
        found = charts(right[who, : t + 1], items[who, : t + 1], score[who])
        return np.asarray((found[0] >= limits[0] - more) | (found[1] >= limits[1] - more), dtype=np.bool_)

    def add(who: npt.NDArray[np.intp], t: int, count: int) -> None:
        right[who, t] += rng.binomial(count, truth[who, t])
        items[who, t] += count
        spent[who] += count

    for t in range(T):
        live = np.flatnonzero(stopped == T)
        if not len(live):
            break
        add(live, t, rule.first)
        if rule.near is not None:
            add(live[score_more(live, t, rule.near)], t, N - rule.first)
        alarmed = live[score_more(live, t, 0)]
        add(alarmed, t, rule.first if rule.near is None else N)
        if len(alarmed):
            stopped[alarmed[score_more(alarmed, t, 0)]] = t
    return Found(stopped, spent)


def dips(rng: np.random.Generator, runs: int) -> Array:
    """Declines by what is accepted, from anywhere, half of them from a plateau."""
    onset = rng.integers(0, T, runs)[:, None]
    time = np.arange(T)[None, :]
    risen = GAIN * np.minimum(time / 20, 1.0) * (np.arange(runs)[:, None] % 2)
    return np.asarray(SCORE + risen - ACCEPTED * ((time >= onset) & (time < onset + DIP)))


def still(rng: np.random.Generator, runs: int) -> Array:
    return np.full((runs, T), SCORE)


def wobble(rng: np.random.Generator, runs: int) -> Array:
    """A plateau that moves by 2.5 points from each evaluation to the next."""
    plateau = GAIN * np.minimum(np.arange(T) / 20, 1.0)
    return np.asarray(SCORE + plateau + rng.normal(0.0, 0.025, (runs, T)))


def fall(points: float, at: int, gain: float = 0.0, ramp: int = 1) -> Levels:
    """Loses so many points from evaluation `at` on, over `ramp` evaluations."""

    def levels(rng: np.random.Generator, runs: int) -> Array:
        time = np.arange(T)
        lost = points * np.clip((time - at + 1) / ramp, 0.0, 1.0)
        return np.broadcast_to(SCORE + gain * np.minimum(time / 20, 1.0) - lost, (runs, T)).copy()

    return levels


FALLS = {
    "6 points, from the start": (0, fall(0.06, 0)),
    "6 points, at 50": (50, fall(0.06, 50)),
    "6 points, at 50, from a plateau": (50, fall(0.06, 50, GAIN)),
    "10 points, at 50, from a plateau": (50, fall(0.10, 50, GAIN)),
    "12 points in 20 evaluations, from 30 on, from a plateau": (30, fall(0.12, 30, GAIN, 20)),
}


def calibrated(rule: Rule) -> tuple[float, float]:
    """One number above log(1/ALPHA)'s nats for both charts, with which ALPHA of the dips are stopped."""
    low, high = -3.0, 8.0
    for _ in range(9):
        middle = (low + high) / 2
        limit = math.log(1 / ALPHA) + middle - 3.0
        rate = float((play(rule, dips, (limit, limit), NULL_RUNS, 1).stopped < T).mean())
        low, high = (middle, high) if rate > ALPHA else (low, middle)
    limit = math.log(1 / ALPHA) + high - 3.0
    return limit, limit


def delay(rule: Rule, limits: tuple[float, float], at: int, levels: Levels) -> str:
    """Mean evaluations from the onset to the stop, of the runs that were not stopped before it."""
    stopped = play(rule, levels, limits, RUNS, 2).stopped
    seen = stopped[stopped >= at]
    missed = float((seen == T).mean())
    return f"{float((seen - at + 1).mean()):.1f}" + (f" ({missed:.0%} never)" if missed else "")


def row(rule: Rule) -> str:
    """The rule's line of the table."""
    limits = calibrated(rule)
    delays = [delay(rule, limits, at, levels) for at, levels in FALLS.values()]
    null = play(rule, still, limits, NULL_RUNS, 3)
    cost = float(null.items.sum() / (np.minimum(null.stopped + 1, T).sum() * N))
    stops = [
        (play(rule, levels, limits, NULL_RUNS, 4).stopped < T).mean() for levels in (dips, still, wobble)
    ]
    cells = [rule.name, f"{cost:.0%}", *delays, *(f"{rate:.1%}" for rate in stops)]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    print(f"| items | cost | {' | '.join(FALLS)} | dips stopped | nothing changes | wobble |")
    print(f"|---{'|---' * (len(FALLS) + 4)}|")
    for rule in RULES:
        print(row(rule), flush=True)


if __name__ == "__main__":
    main()
