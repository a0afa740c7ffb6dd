"""The calibrated detector over a run: gathers the baseline from the first checkpoint, then judges the others.

The judge folds evaluations here when the policy asks for it. Pure; which evaluation to run next is said by
`wanted`, running it is the guard's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from guard_core.detectors.baseline import Baseline, Outcomes, check_items
from guard_core.detectors.calibrated import CalibratedDetector, DetectorStatus
from guard_core.policy import CalibratedPolicy
from guard_core.wire import Code, Condition, DetectorReading, Level


@dataclass(frozen=True, slots=True)
class Pass:
    """One evaluation of one checkpoint; `index` 0 is the first, later ones use fresh randomness."""

    attempt: int
    step: int
    path: str
    index: int

    def same_checkpoint(self, other: Pass) -> bool:
        """Whether both evaluate the same checkpoint."""
        return (self.attempt, self.step) == (other.attempt, other.step)


class CalibratedRun:
    """The baseline is the first checkpoint that was evaluated: it should be the starting policy.

    It is complete after `baseline_passes` evaluations of it, or when another checkpoint's evaluation arrives
    before (fewer passes: a wider baseline error, so a slower detector, not a less honest one).
    """

    def __init__(self, config: CalibratedPolicy) -> None:
        self._config = config
        self._passes: list[Outcomes] = []
        self._last: Pass | None = None
        self._gave_up = False
        self._unusable = ""
        self._detector: CalibratedDetector | None = None

    def fold(
        self, evaluated: Pass, items: tuple[float, ...], in_loop_reward: float | None
    ) -> DetectorStatus | None:
        """Fold one evaluation; None while the baseline is gathered or if the items are unusable."""
        first, self._last, self._gave_up = self._last, evaluated, False
        try:
            outcomes = check_items(items, self._items)
        except ValueError as error:
            self._unusable = f"the evaluation at step {evaluated.step} cannot be judged: {error}"
            return None
        self._unusable = ""
        if self._detector is None and (first is None or evaluated.same_checkpoint(first)):
            self._passes.append(Outcomes.of(outcomes))
            if len(self._passes) == self._config.baseline_passes:
                self._close_baseline()
            return None
        detector = self._detector or self._close_baseline()
        return detector.update(evaluated.step, outcomes, in_loop_reward)

    def give_up(self) -> None:
        """An evaluation that `wanted` asked for has failed: go on with what there is."""
        self._gave_up = True

    def wanted(self) -> Pass | None:
        """The evaluation that should come before any other checkpoint's, or None."""
        last = self._last
        if last is None or self._gave_up or self._unusable:
            return None
        if self._detector is None:
            return Pass(last.attempt, last.step, last.path, len(self._passes))
        status = self._detector.last_status
        alarmed = status is not None and status.needs_confirmation and last.index == 0
        return Pass(last.attempt, last.step, last.path, 1) if alarmed else None

    @property
    def readings(self) -> tuple[DetectorReading, ...]:
        """What each part says after the newest evaluation."""
        status = self._detector.last_status if self._detector else None
        return status.readings if status else ()

    def conditions(self) -> Iterator[Condition]:
        """What holds now, except a fire, which the judge latches."""
        if self._unusable:
            yield Condition(code=Code.NO_BASELINE, level=Level.UNKNOWN, message=self._unusable)
        elif not self.readings:
            done, wanted = len(self._passes), self._config.baseline_passes
            message = (
                f"{done} of {wanted} passes of the starting policy are done"
                if self._detector is None
                else "no checkpoint after the baseline has been evaluated"
            )
            yield Condition(code=Code.NO_BASELINE, level=Level.UNKNOWN, message=message)
        for reading in self.readings:
            if reading.level is Level.WARNING:
                yield Condition(code=reading.code, level=Level.WARNING, message=reading.message)

    @property
    def _items(self) -> int | None:
        if self._detector is not None:
            return self._detector.items
        return len(self._passes[0].codes) if self._passes else None

    def _close_baseline(self) -> CalibratedDetector:
        baseline = Baseline(tuple(self._passes), self._config.samples)
        self._detector = CalibratedDetector(self._config, baseline)
        self._passes = []
        return self._detector

    def to_state(self) -> dict[str, Any]:
        """Plain JSON, exact."""
        return {
            "config": self._config.model_dump(mode="json"),
            "passes": [outcomes.to_state() for outcomes in self._passes],
            "last": None if self._last is None else asdict(self._last),
            "gave_up": self._gave_up,
            "unusable": self._unusable,
            "detector": None if self._detector is None else self._detector.to_state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        run = cls(CalibratedPolicy.model_validate(state["config"]))
        run._passes = [Outcomes.from_state(outcomes) for outcomes in state["passes"]]
        run._last = None if state["last"] is None else Pass(**state["last"])
        run._gave_up, run._unusable = state["gave_up"], state["unusable"]
        if state["detector"] is not None:
            run._detector = CalibratedDetector.from_state(state["detector"])
        return run
