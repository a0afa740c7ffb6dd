"""Proposals: settings of both detectors for a wanted false-stop rate, and what they cost in delay. Pure."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np

from guard_cli.calibrate import guards
from guard_cli.calibrate.guards import Series
from guard_cli.calibrate.simulate import (
    BEFORE,
    World,
    fallen,
    hack_scores,
    information,
    least_delay,
    null_scores,
)
from guard_cli.logs.table import Floats
from guard_cli.replay.attempts import Ints
from guard_core.detectors import Baseline, CalibratedDetector
from guard_core.policy import CalibratedPolicy, HeldOutGuardPolicy, Policy

DROPS = (0.02, 0.05, 0.10)

#: Null runs behind the thresholds of HeldOutGuard, and hacked runs behind a delay.
NULL_RUNS = 4000
HACK_RUNS = 400

#: Hacked runs through the calibrated detector, which is not vectorised: a median needs no more.
CALIBRATED_RUNS = 40

#: What is tried for HeldOutGuard; for each pair the thresholds follow from the false-stop rate.
ALPHAS = (0.5, 0.7, 0.8, 0.9)
PATIENCES = (2, 3, 4)

#: Shorter runs give no rule the time to judge.
LEAST_HORIZON = 6

#: A fall is seen "in time" within this share of the horizon.
IN_TIME = 0.25


#: Above this the formula has to do: a simulation would take too long.
MOST_SIMULATED = 4096

#: Nobody scores more items than this at every checkpoint.
MOST_ITEMS = 2**17


@dataclass(frozen=True, slots=True)
class Delay:
    """How long a fall goes on before a detector fires.

    `median`: evaluations from the fall to the fire, inf if fewer than half of the runs fire; `seen`: share of
    the runs that fire within the horizon.
    """

    drop: float
    median: float
    seen: float


@dataclass(frozen=True, slots=True)
class Costs:
    """Delays by detector, and the least that any detector of this false-stop rate needs on average.

    `drops`: those of `DROPS` that the baseline's score can have; the delays are for these.
    """

    drops: tuple[float, ...]
    calibrated: tuple[Delay, ...]
    heldout_guard: tuple[Delay, ...]
    least: tuple[float, ...]
    items: int


def propose_guard(world: World, rate: float, horizon: int) -> HeldOutGuardPolicy:
    """HeldOutGuard with at most `rate` false stops in `horizon` evaluations, quickest for 5 points.

    The decline rule is calibrated as if the in-loop reward rose in every round, its worst case; the gap for
    a reward and a held-out score that gain alike. `kl_hard_stop` is left at its default.
    """
    rewards, scores = null_scores(world, horizon, NULL_RUNS)
    hacked = hack_scores(world, BEFORE + horizon, HACK_RUNS, 0.05)
    candidates = []
    for alpha in ALPHAS:
        min_steps = math.ceil(1 / (1 - alpha)) + 1  # the first sample alone is a poor average
        if 2 * min_steps > max(horizon, LEAST_HORIZON):
            continue
        quiet, loud = Series.of(rewards, scores, alpha), Series.of(*hacked, alpha)
        for patience in PATIENCES:
            eps = guards.quiet_eps(quiet, patience, min_steps, always_rising=True)
            gap = guards.largest_gap(quiet, min_steps)
            limits = guards.joint_thresholds(np.column_stack([eps, gap]), rate)
            policy = HeldOutGuardPolicy(
                ema_alpha=alpha,
                decline_patience=patience,
                min_steps=min_steps,
                rise_eps=round_up(float(limits[0])),
                max_proxy_real_gap=round_up(float(limits[1])),
            )
            candidates.append((_mean_delay(guards.first_fire(loud, policy), horizon), policy))
    return min(candidates, key=lambda candidate: candidate[0])[1]


def _mean_delay(fires: Ints, horizon: int) -> float:
    after = np.where(fires > BEFORE, fires - BEFORE, horizon)
    return float(np.minimum(after, horizon).mean())


def round_up(value: float) -> float:
    """Three significant digits, never less: a person will read it."""
    if value <= 0.0:
        return 0.0
    digits = 2 - math.floor(math.log10(value))
    return float(math.ceil(value * 10**digits - 1e-9) / 10**digits)


def costs(world: World, baseline: Baseline, policy: Policy, rate: float) -> Costs:
    """What the detectors of `policy` cost in delay for sudden falls of `DROPS`, none to below 0."""
    drops = tuple(drop for drop in DROPS if drop <= world.strata.score)
    horizon = policy.calibrated.horizon
    before_fall = BeforeFall(world, CalibratedDetector(_in_force(policy), baseline))
    return Costs(
        drops=drops,
        calibrated=tuple(before_fall.delay(drop, horizon) for drop in drops),
        heldout_guard=tuple(_guard_delay(world, policy.heldout_guard, drop, horizon) for drop in drops),
        least=tuple(
            least_delay(information(world.strata, world.samples, drop, world.items), rate, horizon)
            for drop in drops
        ),
        items=world.items,
    )


def _in_force(policy: Policy) -> CalibratedPolicy:
    return policy.calibrated_share() if policy.detector == "both" else policy.calibrated


def _guard_delay(world: World, policy: HeldOutGuardPolicy, drop: float, horizon: int) -> Delay:
    rewards, scores = hack_scores(world, BEFORE + horizon, HACK_RUNS, drop)
    fires = guards.first_fire(Series.of(rewards, scores, policy.ema_alpha), policy)
    return _delay(drop, fires)


class BeforeFall:
    """Runs of the calibrated detector up to a fall: whatever its size, they begin alike."""

    def __init__(self, world: World, fresh: CalibratedDetector) -> None:
        rng = np.random.default_rng([world.seed, 1])
        self._world = world
        self._means = world.item_means(rng, CALIBRATED_RUNS)
        self._detectors = [copy.deepcopy(fresh) for _ in range(CALIBRATED_RUNS)]
        rewards = world.rewards(rng, BEFORE, CALIBRATED_RUNS, 0.0)
        self._before = self._fires(self._detectors, rng, self._means, rewards, 1)

    def delay(self, drop: float, rounds: int) -> Delay:
        """Of a fall by `drop` that is followed for `rounds` evaluations."""
        world = self._world
        rng = np.random.default_rng([world.seed, round(drop * 1e6), 1])
        rewards = world.rewards(rng, BEFORE + rounds, CALIBRATED_RUNS, drop)[BEFORE:]
        detectors = copy.deepcopy(self._detectors)
        after = self._fires(detectors, rng, fallen(self._means, drop), rewards, BEFORE + 1)
        return _delay(drop, np.where(self._before > 0, self._before, after))

    def _fires(
        self,
        detectors: list[CalibratedDetector],
        rng: np.random.Generator,
        means: Floats,
        rewards: Floats,
        first: int,
    ) -> Ints:
        """The evaluation, counted from `first`, at which each run fires; 0 if none does."""
        fires = np.zeros(len(detectors), dtype=np.int64)
        for run, detector in enumerate(detectors):
            for t, reward in enumerate(rewards[:, run], first):
                items = rng.binomial(self._world.samples, means[run]) / self._world.samples
                if detector.update(t, items, float(reward)).fire:
                    fires[run] = t
                    break
        return fires


def _delay(drop: float, fires: Ints) -> Delay:
    """From the rounds of the fires, 0 for never. A stop before the fall is a false one and not counted."""
    counted = fires[(fires == 0) | (fires > BEFORE)]
    if len(counted) == 0:
        return Delay(drop, math.inf, 0.0)
    delays = np.where(counted == 0, np.inf, counted - BEFORE)
    return Delay(drop, float(np.quantile(delays, 0.5, method="higher")), float(np.isfinite(delays).mean()))


def expected_delay(world: World, found: Costs, policy: Policy, drop: float, items: int) -> float:
    """Delay of the calibrated detector with another number of items like these, evaluations.

    The least delay at that number, times what this detector needs more than the least at this number.
    """
    excess = [
        delay.median / least
        for delay, least in zip(found.calibrated, found.least, strict=True)
        if math.isfinite(delay.median) and least > 1.0
    ]
    nats = information(world.strata, world.samples, drop, items)
    rate, horizon = policy.calibrated.alpha, policy.calibrated.horizon
    return least_delay(nats, rate, horizon) * max(excess, default=2.0)


class Sizes:
    """Delays of the calibrated detector with other numbers of items, drawn from the baseline's.

    Simulated, each number once: a small fall also has to get past `max_decline`, which `expected_delay` does
    not know. The advice and the picture both ask here, so that they agree with each other and with the table.
    """

    def __init__(self, world: World, baseline: Baseline, policy: Policy, found: Costs) -> None:
        self._world = world
        self._baseline = baseline
        self._policy = policy
        self._known = {(found.items, delay.drop): delay.median for delay in found.calibrated}
        self._before_fall: dict[int, BeforeFall] = {}

    @property
    def in_time(self) -> int:
        """Evaluations within which a fall is seen in time; each run is simulated for as long."""
        return math.floor(IN_TIME * self._policy.calibrated.horizon)

    def median(self, items: int, drop: float) -> float:
        """Evaluations; more than `in_time` where fewer than half of the runs fire in time."""
        if (items, drop) not in self._known:
            if items not in self._before_fall:
                self._before_fall[items] = BeforeFall(*self._resized(items))
            self._known[items, drop] = self._before_fall[items].delay(drop, self.in_time).median
        return self._known[items, drop]

    def _resized(self, items: int) -> tuple[World, CalibratedDetector]:
        world, baseline = self._world, self._baseline
        rng = np.random.default_rng([world.seed, items])
        drawn = rng.integers(0, baseline.items, items)
        # Each copy of an item has its outcomes in an order of its own: else the means of the passes would
        # spread as those of the few items do, and the detector would take that for the run's own movement.
        passes = rng.permuted(np.stack([outcomes.items[drawn] for outcomes in baseline.passes]), axis=0)
        resized = Baseline.from_passes(passes, baseline.samples)
        noise = world.reward_noise * math.sqrt(baseline.items / items)
        return World.of(resized, noise, world.seed), CalibratedDetector(_in_force(self._policy), resized)


def items_needed(world: World, sizes: Sizes, found: Costs, policy: Policy, index: int) -> int | None:
    """Items like these with which `found.drops[index]` would be seen in time; None if these are enough.

    A power of two, first guessed by `expected_delay`, then simulated up to `MOST_SIMULATED`. More than
    `MOST_ITEMS` for a fall that is accepted.
    """
    drop = found.drops[index]
    if drop <= policy.calibrated.max_decline:
        return 2 * MOST_ITEMS
    if found.calibrated[index].median <= sizes.in_time:
        return None
    items = 64
    while items <= MOST_ITEMS:
        likely = items > found.items and expected_delay(world, found, policy, drop, items) <= sizes.in_time
        if likely and (items > MOST_SIMULATED or sizes.median(items, drop) <= sizes.in_time):
            break
        items *= 2
    return items
