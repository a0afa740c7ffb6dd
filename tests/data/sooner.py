"""The next checkpoint sooner when in doubt, and charts that look for ramps, in simulated and recorded runs.

    python tests/data/sooner.py simulated     # the first table of docs/detection.md; half an hour of one core
    python tests/data/sooner.py sizes         # the second one; ten minutes
    python tests/data/sooner.py recorded      # the third one; half an hour

Time is in steps at which there could be a checkpoint. A rule evaluates one every so many steps, and the next
one sooner where the detector is within some nats of a threshold. An alarm is decided by a fresh pass of the
same checkpoint, as under a guard. Half of the steps sooner, within 3 nats, is what the guard has; the ramps
are prototypes. The charts are those of `guard_core/detectors/fast.py`. Simulated runs are
judged by these alone, with thresholds that stop as many runs of an accepted decline as the regular rule's;
recorded ones by the whole detector.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from unittest import mock
from zlib import crc32

import numpy as np
import numpy.typing as npt
from redrawn_runs import DRAWS, Redrawn, fresh, moved, redraw
from table_runs import RUNS, half_lost_at, kind, lowest, replayed, start

from guard_cli.replay.run import Run
from guard_core.detectors import PARTS, CalibratedDetector, fast
from guard_core.detectors.baseline import Strata
from guard_core.detectors.calibrated import split_alpha
from guard_core.policy import Policy

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

CONFIG = Policy().calibrated

#: Of simulated runs: steps between two regular checkpoints, how many of these there are, and the split.
PER, REGULAR, ITEMS, SCORE, GAIN = 4, 100, 256, 0.5, 0.10
STEPS = PER * REGULAR
#: Runs behind a delay, and behind a share of stopped runs.
RUNS_EACH, NULL_EACH = 1000, 2000


@dataclass(frozen=True)
class Rule:
    """Every `every` steps, and `sooner` steps after an evaluation within `near` nats of a threshold.

    `sooner` None: never. `ramps`: evaluations that a decline takes that the charts look for, too.
    """

    name: str
    every: int
    sooner: int | None = None
    near: float = 0.0
    ramps: tuple[int, ...] = ()

    def after(self, step: int, nats: float) -> int:
        """The step of the next evaluation; `nats`: how near the detector is to a threshold."""
        regular = (step // self.every + 1) * self.every
        soon = self.sooner is not None and nats <= self.near
        return min(step + self.sooner, regular) if soon and self.sooner is not None else regular


# -- ramps ---------------------------------------------------------------------------------------------------


def shapes(width: int, most: int) -> Array:
    """What is lost beyond `max_decline`, in units of the drop: (most, most).

    A row for each number of evaluations since the change, a column for each of the newest, oldest first: a
    straight line over `width` evaluations, then level.
    """
    whole = 1 + CONFIG.max_decline / CONFIG.design_drop
    line = np.maximum(whole * np.minimum(np.arange(1, most + 1) / width, 1.0) - (whole - 1), 0.0)
    rows = np.zeros((most, most))
    for since in range(1, most + 1):
        rows[since - 1, most - since :] = line[:since]
    return rows


def ramp_odds(
    history: fast.ScoreHistory, since: fast.Indices, level: Array, weight: Array, width: int, reach: int
) -> tuple[Array, Array]:
    """What was found of a ramp, and the information in it, in units of the drop: (B, m, K).

    Of changes `since` evaluations ago, against a level (B, m, K), less what is accepted, that is known from
    `weight` evaluations. A level of noise is common to all later ones, so they are weighed together.
    """
    rows = shapes(width, reach)[since - 1]
    first, second = rows.sum(axis=1), (rows**2).sum(axis=1)
    newest = history.means[..., -reach:]
    of_newest = newest @ rows[:, reach - newest.shape[-1] :].T
    own = since * level - (history.sums[..., -1:] - history.sums[..., -1 - since])
    found = first * level - of_newest - first * own / (weight + since)
    return found, second - first**2 / (weight + since)


def odds(drop: Array, found: Array, known: Array, noise: Array) -> Array:
    """As `fast.odds`: the mean over a drop and its double."""
    once = np.exp(np.minimum((drop * found - drop**2 * known / 2) / noise, fast.CEILING))
    return np.asarray((once + once**2 * np.exp(-(drop**2) * known / noise)) / 2)


@contextmanager
def looking_for(ramps: tuple[int, ...]) -> Iterator[None]:
    """The charts of `fast` with these ramps beside sudden declines, each with the same share of the prior."""
    start_odds, plateau_odds = fast.start_odds, fast.plateau_odds
    share = 1 / (1 + len(ramps))

    def of_start(design: fast.Design, history: fast.ScoreHistory, accepted: float, wider: Array) -> Array:
        since = np.arange(1, min(design.reach, history.count) + 1)
        weight = design.passes[..., None] + (history.count - since)
        level = (design.passes * design.score)[..., None] + history.sums[..., -1 - since]
        drop = np.minimum(design.drops[0], design.score / 4)[..., None]
        of_ramps = []
        for width in ramps:
            found, known = ramp_odds(history, since, level / weight - accepted, weight, width, design.reach)
            found = found / np.sqrt(wider)[..., None]
            of_ramps.append(odds(drop, found, known, design.noise[..., None]) / design.horizon)
        return share * np.concatenate([start_odds(design, history, accepted, wider), *of_ramps], axis=-1)

    def of_plateau(
        design: fast.Design, history: fast.ScoreHistory, accepted: float, wider: Array
    ) -> tuple[Array, Flags]:
        sudden, risen = plateau_odds(design, history, accepted, wider)
        kept = min(history.count, design.kept)
        since, length = fast._plateaus(design.reach, design.windows, kept)
        if len(since) == 0:
            return sudden, risen
        before = history.sums[..., -1 - since]
        level = (before - history.sums[..., -1 - since - length]) / length
        now = history.level(design.windows[0])
        drop, noise = np.minimum(design.drops[1], now / 4)[..., None], design.variance(now)[..., None]
        prior = 1 / (design.horizon * len(design.windows))
        of_ramps = []
        for width in ramps:
            found, known = ramp_odds(history, since, level - accepted, length, width, design.reach)
            of_ramps.append(prior * odds(drop, found / np.sqrt(wider)[..., None], known, noise))
        return share * np.concatenate([sudden, *of_ramps], axis=-1), np.concatenate(
            [risen] * (1 + len(ramps)), axis=-1
        )

    if not ramps:
        yield
        return
    with mock.patch.object(fast, "start_odds", of_start), mock.patch.object(fast, "plateau_odds", of_plateau):
        yield


# -- simulated runs ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Played:
    """The step at which each run was stopped, STEPS if never; evaluations of each up to there."""

    stopped: npt.NDArray[np.intp]
    evaluations: npt.NDArray[np.intp]


Levels = Callable[[np.random.Generator, int], Array]


def play(
    rule: Rule, levels: Levels, limits: tuple[float, float], runs: int, seed: int, items: int = ITEMS
) -> Played:
    """Runs under a guard with this rule; all of them are at their evaluation of the same number at once.

    Args:
        levels: true means of each run at each step, (runs, STEPS).
        limits: thresholds of the start and of the plateau chart, nats.
    """
    rng = np.random.default_rng(seed)
    design = fast.Design.of(strata(items), CONFIG)
    # All have one baseline, so its error is in the runs.
    off = rng.normal(0.0, float(np.sqrt(design.noise[0, 0] / design.passes[0, 0])), (runs, 1))
    truth = levels(rng, runs) + off
    stopped, count = np.full(runs, STEPS), np.zeros(runs, dtype=np.intp)
    alive, history = np.arange(runs), fast.ScoreHistory.empty(1, runs)
    step, again = np.full(runs, rule.every), np.zeros(runs, dtype=np.bool_)
    while len(alive):
        means = rng.binomial(items, np.clip(truth[alive, step - 1], 0, 1)) / items
        history = history.add(design, means[None])
        count[alive] += 1
        charts = fast.readings(design, history, design.accepted)
        nats = np.min([limit - chart[0] for limit, chart in zip(limits, charts, strict=True)], axis=0)
        alarms = nats <= 0
        stops = alarms & again
        stopped[alive[stops]] = step[stops]
        again = alarms & ~again
        following = np.array([rule.after(int(s), float(n)) for s, n in zip(step, nats, strict=True)])
        step = np.where(again, step, following)
        goes_on = ~stops & (step <= STEPS)
        alive, step, again = alive[goes_on], step[goes_on], again[goes_on]
        history = fast.ScoreHistory(history.sums[:, goes_on], history.count)
    return Played(stopped, count)


def risen(runs: int, onto: float = GAIN) -> Array:
    """Levels that rise in the first fifth of a run, and stay."""
    return np.broadcast_to(SCORE + onto * np.minimum(np.arange(STEPS) / (20 * PER), 1.0), (runs, STEPS))


def still(_: np.random.Generator, runs: int) -> Array:
    return np.full((runs, STEPS), SCORE)


def dips(rng: np.random.Generator, runs: int) -> Array:
    """A decline by what is accepted for ten regular checkpoints, from anywhere; half from a plateau."""
    onset, time = rng.integers(0, STEPS, runs)[:, None], np.arange(STEPS)[None, :]
    level = np.where(np.arange(runs)[:, None] % 2, risen(runs), SCORE)
    return np.asarray(level - CONFIG.max_decline * ((time >= onset) & (time < onset + 10 * PER)))


def wobble(stays: int) -> Levels:
    """A plateau that moves by 2.5 points, anew after so many steps."""

    def levels(rng: np.random.Generator, runs: int) -> Array:
        moves = rng.normal(0.0, 0.025, (runs, STEPS // stays))
        return np.asarray(risen(runs) + np.repeat(moves, stays, axis=1))

    return levels


@dataclass(frozen=True)
class Decline:
    """Loses `points` in `takes` regular checkpoints, from about checkpoint `at` on; from a plateau or not."""

    points: float
    takes: int
    at: int = 50
    plateau: bool = True

    @property
    def name(self) -> str:
        """Of its column."""
        taking = f"{100 * self.points:.0f} points" + (f" in {self.takes}" if self.takes else ", at once")
        return taking + ("" if self.plateau else ", no plateau")

    def onsets(self, runs: int) -> npt.NDArray[np.intp]:
        """Evenly between two checkpoints."""
        return self.at * PER + np.arange(runs) % PER

    def levels(self, _: np.random.Generator, runs: int) -> Array:
        since = np.arange(STEPS)[None, :] - self.onsets(runs)[:, None]
        lost = self.points * np.clip((since + 1) / max(self.takes * PER, 1), 0.0, 1.0)
        return np.asarray((risen(runs) if self.plateau else SCORE) - lost)


#: Items of the splits of the second table.
SIZES = (32, 64, 128, 256, 512, 1024)
DECLINES = (
    Decline(0.06, 0, plateau=False),
    Decline(0.06, 0),
    Decline(0.10, 0),
    Decline(0.12, 20, at=40),
    Decline(0.12, 40, at=40),
    Decline(0.30, 10, at=40),
)

SIMULATED = (
    Rule("every 4 steps", PER),
    Rule("every 3 steps", 3),
    Rule("every 2 steps", 2),
    Rule("every 4, after 2 within 3 nats", PER, 2, 3.0),
    Rule("every 4, after 1 within 3 nats", PER, 1, 3.0),
    Rule("every 4, after 1 within 1 nat", PER, 1, 1.0),
    Rule("every 4, after 1 within 5 nats", PER, 1, 5.0),
    Rule("every 4, ramps of 10 and 20 as well", PER, ramps=(10, 20)),
    Rule("every 4, ramps of 20 and 40 as well", PER, ramps=(20, 40)),
)


@cache
def strata(items: int = ITEMS) -> Strata:
    """Of items that are alike."""
    return Strata.from_scores(np.zeros(items, dtype=np.intp), np.array([SCORE]), CONFIG.baseline_passes)


def share(played: Played) -> float:
    """Of the runs that were stopped."""
    return float((played.stopped < STEPS).mean())


def like(rule: Rule, limits: tuple[float, float], wanted: float) -> tuple[float, float]:
    """Both thresholds moved by one number, such that `wanted` of the accepted declines are stopped."""
    low, high = -2.0, 3.0
    for _ in range(7):
        middle = (low + high) / 2
        moved_by = (limits[0] + middle, limits[1] + middle)
        low, high = (
            (middle, high) if share(play(rule, dips, moved_by, NULL_EACH, 1)) > wanted else (low, middle)
        )
    return limits[0] + high, limits[1] + high


def simulated() -> None:
    """Print the table."""
    names = [decline.name for decline in DECLINES]
    head = ["rule", "thresholds", "evaluations", *names, "dips", "nothing changes", "wobble", "slow wobble"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    alpha = split_alpha(CONFIG, PARTS)["fast"]
    wanted = None
    for rule in SIMULATED:
        with looking_for(rule.ramps):
            shipped = fast.thresholds(strata(), CONFIG, alpha)
            as_is = share(play(rule, dips, shipped, NULL_EACH, 1))
            wanted = as_is if wanted is None else wanted
            limits = shipped if rule.name == SIMULATED[0].name else like(rule, shipped, wanted)
            print(simulated_row(rule, limits, limits[0] - shipped[0], as_is), flush=True)


def simulated_row(rule: Rule, limits: tuple[float, float], by: float, as_is: float) -> str:
    """A line of the table: delays in steps, and how many are stopped after half of the loss."""
    cells = [rule.name, f"{by:+.1f} ({as_is:.1%})"]
    null = play(rule, still, limits, NULL_EACH, 3)
    cells.append(f"{null.evaluations.mean() / REGULAR:.2f}")
    for decline in DECLINES:
        played, onset = play(rule, decline.levels, limits, RUNS_EACH, 2), decline.onsets(RUNS_EACH)
        seen = played.stopped > onset
        delay = (played.stopped - onset)[seen]
        late = f", {(delay >= decline.takes * PER / 2).mean():.0%} late" if decline.takes else ""
        cells.append(f"{delay.mean():.1f}{late}")
    for levels in (dips, still, wobble(1), wobble(PER)):
        cells.append(f"{share(play(rule, levels, limits, NULL_EACH, 4)):.1%}")
    return f"| {' | '.join(cells)} |"


def sizes(counts: tuple[int, ...] = SIZES) -> None:
    """Print what the guard's rule does with its thresholds as they are, by the number of items."""
    head = [
        "items",
        "rule",
        "evaluations",
        *(decline.name for decline in DECLINES[:3]),
        "dips",
        "nothing changes",
    ]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    alpha = split_alpha(CONFIG, PARTS)["fast"]
    for items in counts:
        limits = fast.thresholds(strata(items), CONFIG, alpha)
        for rule in (SIMULATED[0], SIMULATED[3]):
            null = play(rule, still, limits, RUNS_EACH, 3, items)
            cells = [str(items), rule.name, f"{null.evaluations.mean() / REGULAR:.2f}"]
            for decline in DECLINES[:3]:
                played, onset = (
                    play(rule, decline.levels, limits, RUNS_EACH, 2, items),
                    decline.onsets(RUNS_EACH),
                )
                cells.append(f"{(played.stopped - onset)[played.stopped > onset].mean():.1f}")
            dipped = share(play(rule, dips, limits, NULL_EACH, 1, items))
            print(f"| {' | '.join(cells)} | {dipped:.1%} | {share(null):.1%} |", flush=True)


# -- recorded runs -------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What became of the draws of recorded runs under a rule, in runs of a draw."""

    late: float = 0.0
    lost: float = 0.0
    stopped: float = 0.0
    evaluations: float = 0.0

    def hack(self, run: Run, drawn: Redrawn, found: list[tuple[int | None, int]]) -> None:
        """Count one that lost: late is from half of its loss on; where it is not stopped, all is lost."""
        half, whole = half_lost_at(run), start(run) - lowest(run)
        at = [place for place, _ in found]
        self.late += fmean(place is None or drawn.steps[place] >= half for place in at)
        self.lost += fmean(1.0 if p is None else (start(run) - drawn.levels[p]) / whole for p in at)

    def good(self, found: list[tuple[int | None, int]]) -> None:
        """Count one that must not be stopped."""
        self.stopped += fmean(place is not None for place, _ in found)
        self.evaluations += fmean(made for _, made in found)


def played(rule: Rule, run: Redrawn, state: dict[str, object]) -> Iterator[tuple[int | None, int]]:
    """For each draw the checkpoint at which the guard stops it, and the evaluations made."""
    rng = np.random.default_rng(crc32(run.name.encode()))
    means = [moved(run.items, level) for level in run.levels]
    for _ in range(DRAWS):
        yield drawn(CalibratedDetector.from_state(state), rule, run.steps, means, rng)


def drawn(
    detector: CalibratedDetector,
    rule: Rule,
    steps: tuple[int, ...],
    means: list[Array],
    rng: np.random.Generator,
) -> tuple[int | None, int]:
    """One draw; `means`: of the items at each checkpoint."""
    place, made = rule.every, 0
    while place <= len(means):
        mean, asked = means[place - 1], True
        while asked:
            status = detector.update(steps[place - 1], (rng.random(len(mean)) < mean).astype(float))
            made, asked = made + 1, status.needs_confirmation
        if status.fire:
            return place - 1, made
        pairs = ((r.threshold, r.statistic) for r in status.readings)
        near = [most - nats for most, nats in pairs if most is not None and nats is not None]
        place = rule.after(place, min(near, default=np.inf))
    return None, made


def recorded_rules() -> tuple[Rule, ...]:
    """Of the second table."""
    return (
        Rule("each", 1),
        Rule("every 2nd", 2),
        Rule("every 2nd, and the next within 3 nats", 2, 1, 3.0),
        Rule("every 4th", 4),
        Rule("every 4th, and the next but one within 3 nats", 4, 2, 3.0),
        Rule("every 4th, and the next within 3 nats", 4, 1, 3.0),
    )


def recorded() -> None:
    """Print the table."""
    manifest = json.loads((RUNS / "manifest.json").read_text())["runs"]
    # Those of tuning were not all evaluated at every step.
    names = [name for name, entry in manifest.items() if entry["use"] in ("validation", "testing")]
    rules, counted = recorded_rules(), {"hack": 0, "slight": 0, "good": 0}
    tallies = {rule: Tally() for rule in rules}
    for name in names:
        run = replayed(name)
        became, again = kind(run, lowest(run)), redraw(name, run)
        counted[became] += 1
        if became == "slight":
            continue
        state = fresh(run, CONFIG)
        for rule in rules:
            found = list(played(rule, again, state))
            if became == "hack":
                tallies[rule].hack(run, again, found)
            else:
                tallies[rule].good(found)
        print(name, file=sys.stderr, flush=True)
    hacks, good = counted["hack"], counted["good"]
    print("| evaluated | late | lost at the stop | good runs stopped | evaluations of a good run |")
    print("|---|---|---|---|---|")
    for rule, tally in tallies.items():
        cells = [
            f"{tally.late:.1f} of {hacks}",
            f"{tally.lost / hacks:.0%}",
            f"{tally.stopped:.1f} of {good}",
        ]
        print(f"| {rule.name} | {' | '.join(cells)} | {tally.evaluations / good:.1f} |")


if __name__ == "__main__":
    {"simulated": simulated, "sizes": sizes, "recorded": recorded}[sys.argv[1]]()
