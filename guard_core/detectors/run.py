"""The calibrated detector over a run: gathers the baseline from the first checkpoint, then judges the others.

The judge folds evaluations here when the policy asks for it. Pure; which evaluation to run next is said by
`wanted`, running it is the guard's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from guard_core.checkpoint_key import CheckpointKey
from guard_core.detectors.baseline import Baseline, Outcomes, check_items
from guard_core.detectors.calibrated import CalibratedDetector, DetectorStatus
from guard_core.detectors.gap import Gap
from guard_core.policy import CalibratedPolicy
from guard_core.wire import Code, Condition, DetectorReading, Level

#: Share of evaluations that may turn out to be none before a run can no longer be said to be judged.
FEW_NOT_COUNTED = 0.1

#: How often in a row a wanted pass is tried again that failed of what may pass.
MOST_RETRIES = 1

#: A starting score within this of 0 or 1 leaves the held-out score little room to move.
UNINFORMATIVE = 0.02


@dataclass(frozen=True, slots=True)
class Pass:
    """One evaluation of one checkpoint; `index` 0 is the first, later ones use fresh randomness."""

    attempt: int
    step: int
    path: str
    index: int

    def same_checkpoint(self, other: Pass) -> bool:
        """Whether both evaluate the same checkpoint."""
        return CheckpointKey.of(self) == CheckpointKey.of(other)


class CalibratedRun:
    """The baseline is the first checkpoint that was evaluated: it should be the starting policy.

    It is complete after `baseline_passes` evaluations of it, after two that agree in every item (greedy
    decoding: a third would be another copy), or when another checkpoint's evaluation arrives before (fewer
    passes: a wider baseline error, so a slower detector, not a less honest one).
    """

    def __init__(self, config: CalibratedPolicy) -> None:
        self._config = config
        self._passes: list[Outcomes] = []
        self._paid: list[Outcomes] = []
        self._last: Pass | None = None
        self._lost = 0  # wanted passes in a row that failed
        self._gave_up = False
        self._unusable = ""
        self._detector: CalibratedDetector | None = None

    def fold(
        self,
        evaluated: Pass,
        items: tuple[float, ...],
        in_loop_reward: float | None,
        proxy_items: tuple[float, ...] | None = None,
        in_loop_error: float | None = None,
    ) -> DetectorStatus | None:
        """Fold one evaluation; None while the baseline is gathered or if the items are unusable."""
        first, self._last, self._lost, self._gave_up = self._last, evaluated, 0, False
        try:
            outcomes = check_items(items, self._items)
            paid = None if proxy_items is None else check_items(proxy_items, outcomes.size)
        except ValueError as error:
            self._unusable = f"the evaluation at step {evaluated.step} cannot be judged: {error}"
            return None
        self._unusable = ""
        # An evaluation that was unusable has begun no baseline.
        begins = first is None or not self._passes or evaluated.same_checkpoint(first)
        if self._detector is None and begins:
            self._passes.append(Outcomes.of(outcomes))
            if paid is not None:
                self._paid.append(Outcomes.of(paid))
            greedy = len(self._passes) == 2 and self._passes[0].same_as(self._passes[1])
            if greedy or len(self._passes) == self._config.baseline_passes:
                self._close_baseline()
            return None
        detector = self._detector or self._close_baseline()
        return detector.update(
            evaluated.step, outcomes, in_loop_reward, proxy_items=paid, in_loop_error=in_loop_error
        )

    def lose(self, *, may_pass: bool) -> bool:
        """An evaluation that `wanted` asked for has failed.

        Args:
            may_pass: whether another try may do better. It is made, with a number of its own.

        Returns:
            Whether it is given up: the run goes on with what there is.
        """
        self._lost += 1
        self._gave_up = not may_pass or self._lost > MOST_RETRIES
        return self._gave_up

    def wanted(self) -> Pass | None:
        """The evaluation that should come before any other checkpoint's, or None."""
        last = self._last
        if last is None or self._gave_up or self._unusable:
            return None
        if self._detector is not None:
            status = self._detector.last_status
            if status is None or not status.needs_confirmation:
                return None
        return Pass(last.attempt, last.step, last.path, last.index + 1 + self._lost)

    @property
    def awaits_confirmation(self) -> bool:
        """Whether an alarm waits for a fresh pass of the newest checkpoint."""
        return self._detector is not None and self.wanted() is not None

    @property
    def passes_made(self) -> int:
        """Passes of the baseline so far, while it is gathered."""
        return len(self._passes)

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
        if self._detector is not None:
            yield from self._about_the_baseline(self._detector)
            yield from self._about_evaluations(self._detector)
        for reading in self.readings:
            if reading.level is Level.WARNING:
                yield Condition(code=reading.code, level=Level.WARNING, message=reading.message)

    def _about_the_baseline(self, detector: CalibratedDetector) -> Iterator[Condition]:
        if uninformative := uninformative_baseline(detector.score, detector.newest):
            yield uninformative
        if detector.greedy:
            yield Condition(
                code=Code.UNINFORMATIVE_BASELINE,
                level=Level.WARNING,
                advice=True,
                message="two passes of the starting policy agree in every item (temperature 0?): they say "
                "nothing about noise and count as one. Sampled with a temperature above 0, "
                f"{self._config.baseline_passes} passes would be worth as many, and a fresh evaluation of "
                "the same checkpoint could confirm an alarm",
            )

    def _about_evaluations(self, detector: CalibratedDetector) -> Iterator[Condition]:
        status = detector.last_status
        if status is None:
            return
        if lacks := detector.lacks():
            yield Condition(code=Code.WARMING_UP, level=Level.UNKNOWN, message=lacks)
        yield from _cannot_judge_yet(status.readings)
        if status.in_doubt:
            yield Condition(code=Code.FAST_DECLINE, level=Level.WARNING, message=status.in_doubt)
        if status.not_counted:
            made = detector.evaluations + status.not_counted
            yield Condition(
                code=Code.EVALUATION_FAILING,
                level=Level.WARNING,
                advice=status.not_counted <= max(1, FEW_NOT_COUNTED * made),
                message=f"{status.not_counted} of {made} evaluations "
                "are not counted: far below those before, and contradicted by the next (did the scorer or "
                "the server fail?)",
            )

    @property
    def _items(self) -> int | None:
        if self._detector is not None:
            return self._detector.items
        return len(self._passes[0].codes) if self._passes else None

    def _close_baseline(self) -> CalibratedDetector:
        paid = tuple(self._paid) if len(self._paid) == len(self._passes) else ()
        baseline = Baseline(tuple(self._passes), self._config.samples, paid)
        self._detector = CalibratedDetector(self._config, baseline)
        self._passes, self._paid = [], []
        return self._detector

    def to_state(self) -> dict[str, Any]:
        """Plain JSON, exact."""
        return {
            "config": self._config.model_dump(mode="json"),
            "passes": [outcomes.to_state() for outcomes in self._passes],
            "paid": [outcomes.to_state() for outcomes in self._paid],
            "last": None if self._last is None else asdict(self._last),
            "lost": self._lost,
            "gave_up": self._gave_up,
            "unusable": self._unusable,
            "detector": None if self._detector is None else self._detector.to_state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        run = cls(CalibratedPolicy.model_validate(state["config"]))
        run._passes = [Outcomes.from_state(outcomes) for outcomes in state["passes"]]
        run._paid = [Outcomes.from_state(outcomes) for outcomes in state["paid"]]
        run._last = None if state["last"] is None else Pass(**state["last"])
        run._lost, run._gave_up, run._unusable = state["lost"], state["gave_up"], state["unusable"]
        if state["detector"] is not None:
            run._detector = CalibratedDetector.from_state(state["detector"])
        return run


def _cannot_judge_yet(readings: Sequence[DetectorReading]) -> Iterator[Condition]:
    """Which parts have too little to go by. Without `gap` nobody compares the reward with the score, so a run
    has not been judged. What another part lacks is only said: until `peak` has a level to compare with, the
    others watch for a fall, and a grader that failed once has failed once.
    """
    for reading in readings:
        if reading.level is Level.UNKNOWN:
            yield Condition(
                code=Code.WARMING_UP,
                level=Level.UNKNOWN if reading.name == Gap.name else Level.HEALTHY,
                message=f"`{reading.name}` cannot judge yet: {reading.message}",
            )


def uninformative_baseline(score: float, newest: float | None) -> Condition | None:
    """What a starting score near 0 or 1 means for a run whose newest evaluation has the mean `newest`.

    Near 0 nothing can fall: while the score stays there, no decline has been looked for. Near 1 there is
    nothing left to learn.
    """
    if UNINFORMATIVE <= score <= 1 - UNINFORMATIVE:
        return None
    low = score < UNINFORMATIVE
    stuck = low and (newest is None or newest < UNINFORMATIVE)
    where = (
        f"below {UNINFORMATIVE:.0%}: it cannot fall, so only a rise can show anything. Take items that the "
        "model solves now and then, or a scorer that gives part of the credit"
        if low
        else f"above {1 - UNINFORMATIVE:.0%}: there is nothing left to gain. Take harder items"
    )
    return Condition(
        code=Code.UNINFORMATIVE_BASELINE,
        level=Level.UNKNOWN if stuck else Level.WARNING,
        advice=not stuck,
        message=f"the starting policy's held-out score is {score:.4f}, {where}",
    )
