"""HeldOutGuard behind the interface of the calibrated detector, and both side by side. For replay and
benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from guard_core.detectors.baseline import Array, Baseline, Outcomes, check_items
from guard_core.detectors.calibrated import PARTS, CalibratedDetector, DetectorStatus
from guard_core.heldout_guard import HeldOutGuard
from guard_core.policy import Policy
from guard_core.wire import Code, DetectorReading, Level

#: Every detector by name. The four parts alone get all of alpha; with `both` the calibrated gets half.
DETECTORS = ("heldout_guard", *PARTS, "calibrated", "both")


class HeldOutGuardDetector:
    """`HeldOutGuard`, its semantics unchanged, fed with the mean of the items. It needs no baseline."""

    def __init__(self, guard: HeldOutGuard) -> None:
        self.guard = guard

    def update(
        self,
        step: int,
        items: Sequence[float] | Array,
        in_loop_reward: float | None = None,
        kl: float | None = None,  # noqa: ARG002 - the signature of every detector
        **_: object,
    ) -> DetectorStatus:
        """Fold one evaluation; without an in-loop reward nothing is folded.

        It asks for nothing else: as in the judge, the KL is the step monitor's.
        """
        score = Outcomes.of(check_items(items)).mean
        if in_loop_reward is not None:
            self.guard.update(step, in_loop_reward, score)
        status = self.guard.last_status
        fire, rule = self.guard.fired, self.guard.fired_rule
        warm = self.guard.count >= max(1, self.guard.min_steps)
        level = Level.FIRED if fire else Level.HEALTHY if warm else Level.UNKNOWN
        reason = status.reason if status is not None and fire else f"{self.guard.count} rounds folded"
        reading = DetectorReading(
            name="heldout_guard",
            level=level,
            code=Code(rule) if rule else Code.OK if warm else Code.WARMING_UP,
            message=reason,
        )
        return DetectorStatus(fire, level, step, rule, reason, (reading,))

    @property
    def evaluations(self) -> int:
        """Rounds since the first, which is its baseline."""
        return max(0, self.guard.count - 1)

    @property
    def alarmed(self) -> bool:
        """Never: it fires at once."""
        return False

    def begin_again(self) -> None:
        """See `HeldOutGuard.begin_again`."""
        self.guard.begin_again()


class BothDetectors:
    """HeldOutGuard and the calibrated detector; either may fire, and the first to fire is the rule."""

    def __init__(self, first: HeldOutGuardDetector, second: CalibratedDetector) -> None:
        self._first, self._second = first, second
        self._fired: DetectorStatus | None = None

    def update(
        self,
        step: int,
        items: Sequence[float] | Array,
        in_loop_reward: float | None = None,
        kl: float | None = None,
        proxy_items: Sequence[float] | Array | None = None,
        in_loop_error: float | None = None,
        fooled_items: Sequence[float] | Array | None = None,
    ) -> DetectorStatus:
        """Fold one evaluation into both."""
        statuses = (
            self._second.update(step, items, in_loop_reward, kl, proxy_items, in_loop_error, fooled_items),
            self._first.update(step, items, in_loop_reward, kl),
        )
        if self._fired is None:
            self._fired = next((s for s in statuses if s.fire), None)
        worst = self._fired or max(statuses, key=lambda s: s.level.severity)
        readings = statuses[1].readings + statuses[0].readings
        confirm = statuses[0].needs_confirmation and not worst.fire
        return DetectorStatus(worst.fire, worst.level, step, worst.rule, worst.reason, readings, confirm)

    @property
    def evaluations(self) -> int:
        """As either counts them."""
        return max(self._first.evaluations, self._second.evaluations)

    @property
    def alarmed(self) -> bool:
        """See `CalibratedDetector.alarmed`."""
        return self._second.alarmed

    def begin_again(self) -> None:
        """See `CalibratedDetector.begin_again`."""
        self._first.begin_again()
        self._second.begin_again()


Detector = HeldOutGuardDetector | CalibratedDetector | BothDetectors


def build_detector(name: str, policy: Policy, baseline: Baseline | None) -> Detector:
    """A detector by name, with nothing folded yet.

    Args:
        name: one of DETECTORS.
        policy: `heldout_guard` and `calibrated` are read; `detector` is not.
        baseline: passes of the starting policy; only `heldout_guard` does without.

    Raises:
        ValueError: an unknown name, or a missing baseline.
    """
    if name not in DETECTORS:
        raise ValueError(f"no detector {name!r}; there are {', '.join(DETECTORS)}")
    guard = HeldOutGuardDetector(policy.heldout_guard.build())
    if name == "heldout_guard":
        return guard
    if baseline is None:
        raise ValueError(f"detector {name!r} needs passes of the starting policy over the held-out items")
    config = policy.calibrated_share() if name == "both" else policy.calibrated
    parts = None if name in ("calibrated", "both") else (name,)
    calibrated = CalibratedDetector(config, baseline, parts)
    return BothDetectors(guard, calibrated) if name == "both" else calibrated
