"""The part `gap`: the in-loop reward has risen, and the held-out score provably not as it should have.

HeldOutGuard subtracts the two gains, which means something only if both are on one scale. Here the reward has
*risen* when the rewards after some round lie RISEN standard errors above those before it, over all rounds of
the run and in whatever units. While it has, the held-out mean is due a gain: FRACTION of what the reward
gained, but no more than `gap_gain`, and no more than FRACTION of what was left to gain, so that neither a
reward in other units nor a score near 1 asks for too much; from a start near 0 as much is due as reaches
REACHED, if that is more than `gap_gain`. An e-process tests whether the held-out mean is at least that far
above its baseline, and fires when that is refuted. What is due is known before the evaluation's outcomes
are, so that they are betted against as `eprocess.py` says.

P(ever fires) <= alpha over runs whose held-out mean has gained what was due whenever their reward has risen:
runs that are honest in that sense. A run in which nothing changes is protected by RISEN, and by the little
that is due for a small rise. A large rise of LIKELY standard errors stops nothing, and is a warning until the
held-out score has risen too. What cannot be told from the reward's noise is no rise: it is only shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from guard_core.detectors import eprocess
from guard_core.detectors.parts import EProcess, Observed, certainty, dump_logs, load_logs, make_reading
from guard_core.policy import CalibratedPolicy
from guard_core.rounds import MIN_STEPS
from guard_core.wire import Code, DetectorReading, Level

#: Share of the e-process that starts when the reward is first seen to have risen.
AT_FIRST_RISE = 0.5


@dataclass(frozen=True, slots=True)
class Rise:
    """What the reward gained, reward units; `z`: in standard errors, None while its noise is not known."""

    gain: float
    z: float | None


@dataclass(frozen=True)
class Proxy:
    """The in-loop reward's rise on its own scale: every field is invariant to an offset of the reward.

    `origin`: the first reward; `last`: up to WINDOW rewards minus it; `blocks`: sums of `per` such rewards
    each, of which the last may have fewer; `squares`: sum of squared successive differences, `count` rewards
    so far; `errors`: sum of the squared standard errors that came with `known` of them.
    """

    origin: float = 0.0
    last: tuple[float, ...] = ()
    blocks: tuple[float, ...] = ()
    per: int = 1
    squares: float = 0.0
    count: int = 0
    errors: float = 0.0
    known: int = 0

    #: Fewest rewards on either side of a rise, once there are twice as many.
    WINDOW: ClassVar[int] = 5

    #: Rewards with a standard error from which on their noise is known.
    KNOWN: ClassVar[int] = 4

    #: Degrees of freedom of a standard error, which comes from four steps or more.
    PER_ERROR: ClassVar[float] = 4.0

    #: Most blocks; beyond, neighbours become one. Even.
    MOST: ClassVar[int] = 128

    def fold(self, reward: float, error: float | None) -> Proxy:
        """Fold the mean reward since the last evaluation, and its standard error where it is known."""
        origin = self.origin if self.count else reward
        value = reward - origin
        step = value - self.last[-1] if self.last else 0.0
        blocks, per = self.blocks, self.per
        if self.count == self.MOST * per:
            blocks, per = tuple(a + b for a, b in zip(blocks[::2], blocks[1::2], strict=True)), 2 * per
        begun = self.count % per > 0
        return Proxy(
            origin,
            (*self.last, value)[-self.WINDOW :],
            (*blocks[:-1], blocks[-1] + value) if begun else (*blocks, value),
            per,
            self.squares + step * step,
            self.count + 1,
            self.errors + (0.0 if error is None else error * error),
            self.known + (error is not None),
        )

    @cached_property
    def rise(self) -> Rise:
        """The rise at the round where it stands out most; of one that has gone by half, what is left."""
        window = max(1, min(self.WINDOW, self.count // 2))
        before = self.per * np.arange(1, len(self.blocks))
        fits = (before >= window) & (self.count - before >= window)
        if not fits.any():
            return Rise(0.0, None)
        sums, before = np.cumsum(self.blocks)[:-1][fits], before[fits]
        after = self.count - before
        low, high = sums / before, (math.fsum(self.blocks) - sums) / after
        at = int(np.argmax((high - low) / np.sqrt(1 / before + 1 / after)))
        level, count = float(high[at]), int(after[at])
        newest = math.fsum(self.last[-window:]) / window
        if newest < (float(low[at]) + level) / 2:
            level, count = newest, window
        gain = level - float(low[at])
        return Rise(gain, self._z(gain, math.sqrt(1 / int(before[at]) + 1 / count)))

    def _z(self, gain: float, scale: float) -> float | None:
        """`gain` in units of `scale` times the noise of one reward; None while that is not known.

        The variance of one reward is the mean square of the standard errors, which the steps behind each
        reward give, or that of successive rewards (von Neumann, 1941: half the mean squared successive
        difference, whatever slow trend there is) once there are enough of them; the larger of the two,
        because steps may go together.
        """
        found = []  # variances, and the degrees of freedom that each is about worth
        if self.known >= self.KNOWN:
            found.append((self.errors / self.known, self.PER_ERROR * self.known))
        if self.count >= 2 * self.WINDOW:
            found.append((self.squares / (2 * (self.count - 1)), 2 * (self.count - 1) / 3))
        variance, freedom = map(max, zip(*found, strict=True)) if found else (0.0, 0.0)
        return as_normal(gain / (scale * math.sqrt(variance)), freedom) if variance else None


def as_normal(t: float, freedom: float) -> float:
    """The normal deviate that is about as rare as Student's t (Wallace, 1959)."""
    wide = math.sqrt(freedom * math.log1p(t * t / freedom))
    return math.copysign(wide * (8 * freedom + 1) / (8 * freedom + 3), t)


class Gap:
    """Proxy gain against held-out gain, each on its own scale; see above. `alpha` is the part's own share.

    While the proxy has risen, or is likely to have risen so far that the most is due, and neither a held-out
    rise nor its absence is shown, the level is warning.
    """

    name: ClassVar[str] = "gap"

    #: Standard errors by which the proxy must have gained, wherever in 100 rounds that is looked for.
    RISEN = 4.5

    #: And by which a gain that is large is likely enough for a warning.
    LIKELY = 3.5

    #: Of the reward's gain, and of what is left to gain, that is due.
    FRACTION = 0.25

    #: The held-out mean up to which a gain may be due beyond `gap_gain`: of 256 items a handful more are
    #: right by 2 % than by 0.2 %, which is too little to tell soon from 3 points.
    REACHED = 0.05

    def __init__(self, config: CalibratedPolicy, reference: eprocess.Reference, alpha: float) -> None:
        self._process = EProcess(reference, 0.0)
        score = reference.strata.score
        self._most = min(max(config.gap_gain, self.REACHED - score), self.FRACTION * (1 - score))
        self._horizon = config.horizon
        self._threshold = math.log(1 / alpha)
        self._proxy = Proxy()
        self._rises = 0
        self._recent: tuple[float, ...] = ()
        self._first: tuple[tuple[float, float | None], ...] = ()  # rewards of the run, and their errors

    def update(self, seen: Observed) -> DetectorReading:
        """Fold one evaluation and judge it."""
        self._recent = (*self._recent, seen.outcomes.mean)[-Proxy.WINDOW :]
        if seen.in_loop_reward is not None:
            self._proxy = self._proxy.fold(seen.in_loop_reward, seen.in_loop_error)
            self._first = (*self._first, (seen.in_loop_reward, seen.in_loop_error))[: Proxy.WINDOW]
        gain, z = self._proxy.rise.gain, self._proxy.rise.z
        if z is None:
            count = self._proxy.count
            still = count >= 2 * Proxy.WINDOW  # enough of them, and yet no noise
            sentence = (
                f"the in-loop reward is the same in all {count} rounds, so it has not risen"
                if still
                else f"{count} in-loop rewards are too few to know their noise (it takes {Proxy.KNOWN} "
                f"rounds of {MIN_STEPS} steps or more, or {2 * Proxy.WINDOW} of fewer)"
            )
            known = Level.HEALTHY if still else Level.UNKNOWN
            return make_reading(self.name, Code.CALIBRATED_GAP, None, self._threshold, sentence, known)
        risen, due = z >= self.RISEN, min(self._most, self.FRACTION * max(gain, 0.0))
        if risen:
            self._rises += 1
            due_now = EProcess(self._process.reference, -due).at(self._process.log_s)
            self._process = due_now.fold(
                seen.outcomes, _log_weight(self._rises, self._horizon), seen.dispersion
            )
        evidence = self._process.log_evidence
        strata, runs = self._process.reference.strata, len(self._recent)
        gained = math.fsum(self._recent) / runs - strata.score
        error = math.sqrt(strata.variance / len(strata.groups) * (1 / runs + 1 / strata.precision))
        need = "" if risen else f"; it counts from {self.RISEN:g} on"
        sentence = (
            f"in-loop reward gained {gain:+.4f} ({z:.1f} standard errors{need}), held-out {gained:+.4f} ± "
            f"{2 * error:.4f}: that the held-out gained less than is due for that (now {due:.4f}) "
            f"{certainty(evidence, self._threshold)}"
        )
        level = None
        if evidence < self._threshold:
            matters = risen or (z >= self.LIKELY and due == self._most)
            level = Level.WARNING if matters and gained <= 2 * error else Level.HEALTHY
        elif not risen:
            level = Level.WARNING
        return make_reading(self.name, Code.CALIBRATED_GAP, evidence, self._threshold, sentence, level)

    def begin_after(self, former: Gap) -> None:
        """Take over the first rewards of a run whose trainer says that it starts from scratch.

        They are its starting policy's. Whoever goes on with a reward that had risen says the same.
        """
        self._first = former._first
        for reward, error in self._first:
            self._proxy = self._proxy.fold(reward, error)

    def to_state(self) -> dict[str, Any]:
        """What `restore` needs, as plain JSON."""
        proxy = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self._proxy).items()}
        return {
            "rises": self._rises,
            "recent": list(self._recent),
            "first": [list(one) for one in self._first],
            "proxy": proxy,
            "log_s": dump_logs(self._process.log_s),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state made by `to_state`."""
        proxy = dict(state["proxy"])
        self._proxy = replace(Proxy(**proxy), last=tuple(proxy["last"]), blocks=tuple(proxy["blocks"]))
        self._rises, self._recent = state["rises"], tuple(state["recent"])
        self._first = tuple((reward, error) for reward, error in state["first"])
        self._process = self._process.at(load_logs(state["log_s"]))


def _log_weight(rise: int, horizon: int) -> float:
    """log weight of the process that starts at the rise with this number, 1, 2, …; the weights sum to 1."""
    if rise == 1:
        return math.log(AT_FIRST_RISE)
    return math.log(1 - AT_FIRST_RISE) + eprocess.log_restart_weight(rise - 1, horizon)
