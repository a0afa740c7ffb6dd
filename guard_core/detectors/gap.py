"""The part `gap`: the in-loop reward has risen, and the held-out score provably not as it should have.

HeldOutGuard subtracts the two gains, which means something only if both are on one scale. Here the reward has
*risen* when its gain is RISEN times its own noise, whatever its units. While it has, the held-out mean is due
a gain: FRACTION of what the reward gained, but no more than `gap_gain`, and no more than FRACTION of what was
left to gain, so that neither a reward in other units nor a score near 1 asks for too much. An e-process
tests whether the held-out mean is at least that far above its baseline, and fires when that is refuted. What
is due is known before the evaluation's outcomes are, so that they are betted against as `eprocess.py` says.

P(ever fires) <= alpha over runs whose held-out mean has gained what was due whenever their reward has risen:
runs that are honest in that sense. A run in which nothing changes is protected by RISEN, and by the little
that is due for a small rise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from guard_core.detectors import eprocess
from guard_core.detectors.parts import EProcess, Observed, certainty, dump_logs, load_logs, make_reading
from guard_core.policy import CalibratedPolicy
from guard_core.rounds import MIN_STEPS
from guard_core.wire import Code, DetectorReading, Level

#: Share of the e-process that starts when the reward is first seen to have risen.
AT_FIRST_RISE = 0.5


@dataclass(frozen=True)
class Proxy:
    """The in-loop reward's rise on its own scale: every field is invariant to an offset of the reward.

    `origin`: the first reward; `first`, `last`: up to WINDOW rewards minus it; `squares`: sum of squared
    successive differences, `count` rewards so far; `errors`: sum of the squared standard errors that came
    with `known` of them.
    """

    origin: float = 0.0
    first: tuple[float, ...] = ()
    last: tuple[float, ...] = ()
    squares: float = 0.0
    count: int = 0
    errors: float = 0.0
    known: int = 0

    WINDOW: ClassVar[int] = 5

    #: Rewards with a standard error from which on their noise is known.
    KNOWN: ClassVar[int] = 4

    def fold(self, reward: float, error: float | None) -> Proxy:
        """Fold the mean reward since the last evaluation, and its standard error where it is known."""
        origin = self.origin if self.count else reward
        value = reward - origin
        step = value - self.last[-1] if self.last else 0.0
        return Proxy(
            origin,
            (*self.first, value)[: self.WINDOW],
            (*self.last, value)[-self.WINDOW :],
            self.squares + step * step,
            self.count + 1,
            self.errors + (0.0 if error is None else error * error),
            self.known + (error is not None),
        )

    @property
    def window(self) -> int:
        """How many of the first and of the last rewards are compared; one reward is both."""
        return max(1, min(self.WINDOW, self.count // 2))

    @property
    def gain(self) -> float:
        """Mean of the last window minus mean of the first, reward units."""
        k = self.window
        return (math.fsum(self.last[-k:]) - math.fsum(self.first[:k])) / k

    @property
    def z(self) -> float | None:
        """`gain` in units of its noise; None while that is not known.

        The variance of one reward is the mean square of the standard errors, which the steps behind each
        reward give, or that of successive rewards (von Neumann, 1941: half the mean squared successive
        difference, whatever slow trend there is) once there are enough of them; the larger of the two,
        because steps may go together.
        """
        variances = []
        if self.known >= self.KNOWN:
            variances.append(self.errors / self.known)
        if self.count >= 2 * self.WINDOW:
            variances.append(self.squares / (2 * (self.count - 1)))
        variance = max(variances, default=0.0)
        return None if variance == 0.0 else self.gain / math.sqrt(2 * variance / self.window)


class Gap:
    """Proxy gain against held-out gain, each on its own scale; see above. `alpha` is the part's own share.

    While the proxy has risen and neither a held-out rise nor its absence is shown, the level is warning.
    """

    name: ClassVar[str] = "gap"

    #: Standard errors by which the proxy must have gained.
    RISEN = 6.0

    #: Of the reward's gain, and of what is left to gain, that is due.
    FRACTION = 0.25

    def __init__(self, config: CalibratedPolicy, reference: eprocess.Reference, alpha: float) -> None:
        self._process = EProcess(reference, 0.0)
        self._most = min(config.gap_gain, self.FRACTION * (1 - reference.strata.score))
        self._horizon = config.horizon
        self._threshold = math.log(1 / alpha)
        self._proxy = Proxy()
        self._rises = 0
        self._recent: tuple[float, ...] = ()

    def update(self, seen: Observed) -> DetectorReading:
        """Fold one evaluation and judge it."""
        self._recent = (*self._recent, seen.outcomes.mean)[-Proxy.WINDOW :]
        if seen.in_loop_reward is not None:
            self._proxy = self._proxy.fold(seen.in_loop_reward, seen.in_loop_error)
        z = self._proxy.z
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
        risen, due = z >= self.RISEN, min(self._most, self.FRACTION * max(self._proxy.gain, 0.0))
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
        sentence = (
            f"in-loop reward gained {self._proxy.gain:+.4f} ({z:.1f} standard errors), held-out "
            f"{gained:+.4f} ± {2 * error:.4f}: that the held-out gained less than is due for that (now "
            f"{due:.4f}) {certainty(evidence, self._threshold)}"
        )
        level = None
        if evidence < self._threshold:
            level = Level.WARNING if risen and gained <= 2 * error else Level.HEALTHY
        elif not risen:
            level = Level.WARNING
        return make_reading(self.name, Code.CALIBRATED_GAP, evidence, self._threshold, sentence, level)

    def to_state(self) -> dict[str, Any]:
        """What `restore` needs, as plain JSON."""
        proxy = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self._proxy).items()}
        return {
            "rises": self._rises,
            "recent": list(self._recent),
            "proxy": proxy,
            "log_s": dump_logs(self._process.log_s),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state made by `to_state`."""
        proxy = dict(state["proxy"])
        self._proxy = replace(Proxy(**proxy), first=tuple(proxy["first"]), last=tuple(proxy["last"]))
        self._rises, self._recent = state["rises"], tuple(state["recent"])
        self._process = self._process.at(load_logs(state["log_s"]))


def _log_weight(rise: int, horizon: int) -> float:
    """log weight of the process that starts at the rise with this number, 1, 2, …; the weights sum to 1."""
    if rise == 1:
        return math.log(AT_FIRST_RISE)
    return math.log(1 - AT_FIRST_RISE) + eprocess.log_restart_weight(rise - 1, horizon)
