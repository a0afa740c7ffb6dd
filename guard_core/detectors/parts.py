"""Three parts of the calibrated detector, and what all are made of. Each folds evaluations; none latches.

A part sees an `Observed`: the compressed outcomes and the in-loop reward. Its statistic is in nats and its
reading is `fired` at its threshold, which is an alarm: whether that stops the run, the latch, the split of
alpha and the JSON envelope are in `calibrated.py`. A part rebinds its attributes and changes nothing that
they refer to, so a shallow copy of it is the part as it was.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from guard_core.detectors import eprocess, fast
from guard_core.detectors.baseline import Array, Baseline, Outcomes, Pay, Strata
from guard_core.policy import CalibratedPolicy
from guard_core.wire import Code, DetectorReading, Level


@dataclass(frozen=True, slots=True)
class Observed:
    """One evaluation.

    `in_loop_reward`: mean since the last evaluation, reward units; None if not known. `in_loop_error`: its
    standard error, as far as the steps behind it tell.
    `paid`: what the training grader gives the same completions; None without such a grader.
    `dispersion`: how many times the variance of independent items the run has shown; see `fast.dispersion`.
    """

    outcomes: Outcomes
    in_loop_reward: float | None
    in_loop_error: float | None = None
    paid: Pay | None = None
    dispersion: float = 1.0


class Part(Protocol):
    """A part of the calibrated detector."""

    name: ClassVar[str]

    def update(self, seen: Observed) -> DetectorReading:
        """Fold one evaluation and judge it."""

    def to_state(self) -> dict[str, Any]:
        """What `restore` needs, as plain JSON; constants of the baseline are not repeated."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state made by `to_state`."""


#: No smaller chance is told: what it rests on, that passes are independent, is not known that well.
LEAST_CHANCE = 1e-6


def certainty(evidence: float, threshold: float) -> str:
    """What the evidence, nats, amounts to, as the end of a sentence about what it is evidence of.

    A run in which it is not so ever has evidence E with a chance of at most e^-E (Ville's inequality).
    """
    if not evidence >= threshold:  # NaN shows nothing
        return f"is not shown ({int(100 * max(0.0, evidence / threshold))} % of the evidence for a stop)"
    runs = math.floor(min(math.exp(min(evidence, 100.0)), 1 / LEAST_CHANCE) + 1e-9)
    return f"is shown (chance alone does that in at most 1 of {runs:,} runs)"


class EProcess:
    """A live e-process (eprocess.py) against one reference, no evaluation folded yet: `log_s` (L, J)."""

    def __init__(self, reference: eprocess.Reference, tolerance: float) -> None:
        self.reference = reference
        self.log_s = np.full((len(eprocess.BETS), eprocess.GRID), -np.inf)
        self._targets = reference.targets(tolerance)
        # Evaluations nearly always have the same few outcomes, so the table of the last one is kept.
        self._levels, self._factors = np.empty(0), np.empty(0)

    def fold(self, outcomes: Outcomes, log_weight: float, dispersion: float) -> EProcess:
        """After one evaluation; `log_weight` is that of the process that starts before it.

        Its evidence counts for 1/`dispersion`, which was known before it.
        """
        folded = copy.copy(self)
        if not np.array_equal(outcomes.levels, self._levels):
            folded._levels = outcomes.levels
            folded._factors = eprocess.log_factors(self._targets, outcomes.levels, eprocess.BETS)
        table = outcomes.table(self.reference.strata.groups, self.reference.strata.count)
        grown = eprocess.growth(folded._factors, table) / dispersion
        folded.log_s = eprocess.step(self.log_s, log_weight, grown)
        return folded

    def at(self, log_s: Array) -> EProcess:
        """The same process with other evidence folded."""
        moved = copy.copy(self)
        moved.log_s = log_s
        return moved

    @property
    def log_evidence(self) -> float:
        """log E_t, nats."""
        return float(eprocess.log_evidence(self.log_s, self.reference.log_n))


class Guaranteed:
    """The e-process against the baseline: P(ever fires) <= alpha while the mean stays above it - max_decline.

    The theorem and its assumptions are in `eprocess.py`. alpha is the part's own share.
    """

    name: ClassVar[str] = "guaranteed"

    def __init__(self, config: CalibratedPolicy, reference: eprocess.Reference, alpha: float) -> None:
        self._process = EProcess(reference, config.max_decline)
        self._accepted, self._horizon = config.max_decline, config.horizon
        self._threshold = math.log(1 / alpha)
        self._count = 0

    def update(self, seen: Observed) -> DetectorReading:
        """Fold one evaluation and judge it."""
        self._count += 1
        weight = eprocess.log_restart_weight(self._count, self._horizon)
        self._process = self._process.fold(seen.outcomes, weight, seen.dispersion)
        evidence = self._process.log_evidence
        return make_reading(
            self.name,
            Code.GUARANTEED_DECLINE,
            evidence,
            self._threshold,
            f"held-out {seen.outcomes.mean:.4f}, {self._process.reference.strata.score:.4f} at the start: a "
            f"decline by more than {self._accepted:g} {certainty(evidence, self._threshold)}",
        )

    def to_state(self) -> dict[str, Any]:
        """What `restore` needs, as plain JSON."""
        return {"count": self._count, "log_s": dump_logs(self._process.log_s)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state made by `to_state`."""
        self._count, self._process = state["count"], self._process.at(load_logs(state["log_s"]))


class Fast:
    """The two charts of `fast.py`.

    `thresholds`: of the start and of the plateau chart, log odds. The reading shows the chart that is nearer
    to its own, moved so that both alarm at log(1/alpha), as the other parts do. A decline that is proven, but
    not to be more than what is accepted, is a warning; so is one from a level that is too fresh to stop for.
    """

    name: ClassVar[str] = "fast"

    def __init__(
        self, config: CalibratedPolicy, strata: Strata, thresholds: tuple[float, float], alpha: float
    ) -> None:
        self._design, self._thresholds = fast.Design.of(strata, config), thresholds
        self._score, self._lacks = strata.score, fast.lacks(strata)
        self._threshold = math.log(1 / alpha)
        self._history = fast.ScoreHistory.empty()

    def update(self, seen: Observed) -> DetectorReading:
        """Fold one evaluation and judge it."""
        mean, accepted = seen.outcomes.mean, self._design.accepted
        self._history = self._history.add(self._design, np.array([[mean]]))
        if self._lacks:
            return make_reading(self.name, Code.FAST_DECLINE, None, self._threshold, self._lacks)
        excess = self._excess()
        statistic = max(excess) + self._threshold
        since = f", {self._score:.4f} at the start" if excess[0] >= excess[1] else ""
        whence = "" if since else " from a level reached since the start"
        # The thresholds hold the rate of false stops by simulation: beyond them no smaller chance is known.
        shown = certainty(min(statistic, self._threshold), self._threshold)
        sentence = f"held-out {mean:.4f}{since}: a decline by more than {accepted:g}{whence} {shown}"
        level = Level.FIRED if statistic >= self._threshold else Level.HEALTHY
        if level is Level.HEALTHY and self._declined():
            level, sentence = Level.WARNING, f"{sentence}; that it is lower at all is shown"
        elif level is Level.HEALTHY and (fall := fast.fall_from_fresh(self._design, self._history)):
            level, sentence = (
                Level.WARNING,
                f"{sentence}; but it had risen to {fall.before:.4f} and is {fall.now:.4f} in the newest "
                f"{fall.evaluations} evaluations; that level is too fresh to stop a run for",
            )
        return make_reading(self.name, Code.FAST_DECLINE, statistic, self._threshold, sentence, level)

    def _excess(self) -> tuple[float, float]:
        """Nats of each chart above its threshold."""
        start, plateau = fast.readings(self._design, self._history, self._design.accepted)
        return float(start[0, 0]) - self._thresholds[0], float(plateau[0, 0]) - self._thresholds[1]

    def _declined(self) -> bool:
        """Whether any decline is proven: log odds of log(1/alpha) are what Ville's inequality asks for."""
        charts = fast.readings(self._design, self._history, 0.0)
        return max(float(chart[0, 0]) for chart in charts) >= self._threshold

    def to_state(self) -> dict[str, Any]:
        """What `restore` needs, as plain JSON."""
        return {"sums": self._history.sums[0, 0].tolist(), "count": self._history.count}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state made by `to_state`."""
        sums = np.asarray(state["sums"], dtype=np.float64)[None, None, :]
        self._history = fast.ScoreHistory(sums, state["count"])


class Peak:
    """Decline from a level reached mid-run: e-processes against blocks of 2·lag consecutive evaluations.

    Each finished block becomes the reference of its own e-process, as the baseline is of `Guaranteed` (whose
    theorem covers references whose passes come from different policies: q is then their mean). The newest
    LIVE blocks are kept, and the evidence is the sum over blocks with weights that sum to 1, so P(ever fires)
    <= alpha while the mean never falls more than `max_decline` below the mean of such a block. No maximum
    is taken over noisy scores: a running maximum is biased upward, a block fixed beforehand is not.
    """

    name: ClassVar[str] = "peak"

    #: Blocks that later evaluations are compared with.
    LIVE = 3

    def __init__(self, config: CalibratedPolicy, alpha: float) -> None:
        self._length, self._accepted = 2 * config.lag, config.max_decline
        self._samples, self._alpha = config.samples, alpha
        self._blocks = max(1, math.ceil(config.horizon / self._length))
        self._span = self.LIVE * self._length
        self._pending: list[Outcomes] = []
        self._gathered: eprocess.Gathered | None = None
        self._done = 0
        self._live: list[tuple[int, EProcess]] = []

    def update(self, seen: Observed) -> DetectorReading:
        """Fold one evaluation and judge it."""
        weight = -math.log(self._span)
        self._live = [(b, process.fold(seen.outcomes, weight, seen.dispersion)) for b, process in self._live]
        threshold = math.log(1 / self._alpha)
        evidence: float | None = None
        sentence = f"the first block of {self._length} evaluations is not complete"
        if self._live:
            weighed = [self._log_weight(block) + process.log_evidence for block, process in self._live]
            evidence = float(np.logaddexp.reduce(np.sort(weighed)))
            best = self._live[int(np.argmax(weighed))][1].reference.strata.score
            sentence = (
                f"held-out {seen.outcomes.mean:.4f}, {best:.4f} in an earlier block of {self._length} "
                f"evaluations: a decline by more than {self._accepted:g} {certainty(evidence, threshold)}"
            )
        self._gather(seen.outcomes)
        if len(self._pending) == self._length:
            self._close_block(seen.dispersion)
        return make_reading(self.name, Code.PEAK_DECLINE, evidence, threshold, sentence)

    def _log_weight(self, block: int) -> float:
        return eprocess.log_restart_weight(block, self._blocks)

    def _gather(self, outcomes: Outcomes) -> None:
        gathered = self._gathered or eprocess.Gathered.empty(len(outcomes.codes))
        self._pending = [*self._pending, outcomes]
        self._gathered = gathered.add(outcomes)

    def _close_block(self, dispersion: float) -> None:
        assert self._gathered is not None
        baseline, gathered = Baseline(tuple(self._pending), self._samples), self._gathered
        self._pending, self._gathered, self._done = [], None, self._done + 1
        alpha = self._alpha * math.exp(self._log_weight(self._done))
        reference = eprocess.Reference.close(gathered, baseline, alpha, dispersion)
        process = EProcess(reference, self._accepted)
        self._live = [*self._live[-(self.LIVE - 1) :], (self._done, process)]

    def to_state(self) -> dict[str, Any]:
        """What `restore` needs, as plain JSON."""
        return {
            "pending": [outcomes.to_state() for outcomes in self._pending],
            "done": self._done,
            "live": [
                {"block": block, "reference": p.reference.to_state(), "log_s": dump_logs(p.log_s)}
                for block, p in self._live
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state made by `to_state`."""
        self._pending, self._gathered = [], None
        for outcomes in state["pending"]:
            self._gather(Outcomes.from_state(outcomes))
        self._done = state["done"]
        self._live = []
        for live in state["live"]:
            process = EProcess(eprocess.Reference.from_state(live["reference"]), self._accepted)
            self._live.append((live["block"], process.at(load_logs(live["log_s"]))))


#: What is shown for odds too small for a float, nats: that of the smallest one. JSON has no -inf.
NO_EVIDENCE = math.log(5e-324)


def make_reading(
    name: str,
    code: Code,
    statistic: float | None,
    threshold: float,
    message: str,
    level: Level | None = None,
) -> DetectorReading:
    """A reading; without `level` it fires at the threshold, and is unknown without a statistic."""
    if statistic is not None:
        statistic = max(statistic, NO_EVIDENCE)
    if level is None:
        level = Level.UNKNOWN if statistic is None else Level.HEALTHY
        if statistic is not None and statistic >= threshold:
            level = Level.FIRED
    return DetectorReading(
        name=name, level=level, code=code, statistic=statistic, threshold=threshold, message=message
    )


def dump_logs(log_s: Array) -> list[list[float | None]]:
    """A matrix of logs as JSON, which has no -inf."""
    return [[None if value == -math.inf else value for value in row] for row in log_s.tolist()]


def load_logs(rows: list[list[float | None]]) -> Array:
    """The matrix that `dump_logs` was given."""
    return np.array([[-math.inf if value is None else value for value in row] for row in rows])
