"""The calibrated detector: the parts of `parts.py` under one latch and one false-stop rate.

alpha is split over the parts that run, in proportion to `alpha_shares`, so that by the union bound the
probability of a false stop is at most the sum of what each part holds. What each part holds is said in its
docstring: `guaranteed` and `peak` by a theorem, `fast` by simulation of the baseline, `gap` by a theorem
where the held-out gains with the proxy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from guard_core.detectors import fast
from guard_core.detectors.baseline import Array, Baseline, Outcomes, check_items
from guard_core.detectors.eprocess import Reference
from guard_core.detectors.parts import Fast, Gap, Guaranteed, Observed, Part, Peak
from guard_core.policy import CalibratedPolicy
from guard_core.wire import DetectorReading, Level

#: 3: the fast part has another prior, which its thresholds are for. A guard folds its events again on another
#: version.
STATE_VERSION = 3

PARTS = ("guaranteed", "fast", "peak", "gap")


@dataclass(frozen=True, slots=True)
class DetectorStatus:
    """The judgement after one evaluation.

    `rule`: the code of the part that fired first, None while none has; `reason`: its sentence, else that of
    the most severe reading; `needs_confirmation`: a fresh evaluation of the same checkpoint would decide an
    alarm now.
    """

    fire: bool
    level: Level
    step: int
    rule: str | None
    reason: str
    readings: tuple[DetectorReading, ...]
    needs_confirmation: bool = False


class CalibratedDetector:
    """Sequential tests of the held-out items against the baseline. One `update` is one evaluation; it
    latches.

    Args:
        config: `Policy.calibrated`.
        baseline: R passes of the starting policy.
        parts: which parts run; each gets alpha in proportion to its share among them.

    Raises:
        ValueError: an unknown part, or none.
    """

    def __init__(self, config: CalibratedPolicy, baseline: Baseline, parts: Sequence[str] = PARTS) -> None:
        alphas = split_alpha(config, parts)
        reference = Reference.of(baseline, min(alphas.values()))
        thresholds = fast.thresholds(reference.strata, config, alphas["fast"]) if "fast" in alphas else None
        self._assemble(config, tuple(parts), reference, thresholds)

    def _assemble(
        self,
        config: CalibratedPolicy,
        parts: tuple[str, ...],
        reference: Reference,
        thresholds: tuple[float, float] | None,
    ) -> None:
        self.config, self.part_names = config, parts
        self._reference, self._fast_thresholds = reference, thresholds
        alphas = split_alpha(config, parts)
        self._parts = tuple(_build(name, config, reference, alphas[name], thresholds) for name in parts)
        self._rule: str | None = None
        self._reason = ""
        self._last: DetectorStatus | None = None

    @property
    def last_status(self) -> DetectorStatus | None:
        """The status of the last `update`, or None before the first."""
        return self._last

    @property
    def items(self) -> int:
        """How many held-out items the baseline has."""
        return len(self._reference.strata.groups)

    def update(
        self,
        step: int,
        items: Sequence[float] | Array,
        in_loop_reward: float | None = None,
        kl: float | None = None,
    ) -> DetectorStatus:
        """Fold one evaluation and judge it.

        Args:
            step: optimizer step; it is repeated in the status and gates nothing.
            items: outcomes in [0, 1], shape (n,), in the order of the baseline.
            in_loop_reward: mean in-loop reward since the last evaluation, reward units; None: not known, or
                this is a second evaluation of the same checkpoint.
            kl: KL to the reference, nats/token. It gates nothing: learning costs KL too (Gao et al. 2022).

        Raises:
            ValueError: items of another number or outside [0, 1], or a value that is not finite; the detector
            is
                then unchanged.
        """
        outcomes = Outcomes.of(check_items(items, self.items))
        for name, value in (("in_loop_reward", in_loop_reward), ("kl", kl)):
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name} must be finite, got {value!r}")
        seen = Observed(outcomes, in_loop_reward)
        readings = tuple(part.update(seen) for part in self._parts)
        if self._rule is None:
            fired = next((r for r in readings if r.level is Level.FIRED), None)
            if fired is not None:
                self._rule, self._reason = fired.code.value, fired.message
        self._last = self._judge(step, readings)
        return self._last

    def _judge(self, step: int, readings: tuple[DetectorReading, ...]) -> DetectorStatus:
        if self._rule is not None:
            return DetectorStatus(True, Level.FIRED, step, self._rule, self._reason, readings)
        # A part that cannot judge says so in its reading; the whole is unknown only if none can.
        known = [r for r in readings if r.level is not Level.UNKNOWN] or list(readings)
        worst = max(known, key=lambda r: r.level.severity)
        confirm = any(isinstance(part, Fast) and part.awaits_confirmation for part in self._parts)
        return DetectorStatus(False, worst.level, step, None, worst.message, readings, confirm)

    def to_state(self) -> dict[str, Any]:
        """The whole detector as plain JSON; `from_state` gives back an equal one, floats exactly."""
        return {
            "version": STATE_VERSION,
            "config": self.config.model_dump(mode="json"),
            "reference": self._reference.to_state(),
            "fast_thresholds": None if self._fast_thresholds is None else list(self._fast_thresholds),
            "parts": {part.name: part.to_state() for part in self._parts},
            "rule": self._rule,
            "reason": self._reason,
            "last": None if self._last is None else _dump_status(self._last),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Rebuild a detector from `to_state`.

        Raises:
            ValueError: the state is of another version.
            KeyError: a key is missing.
        """
        if state.get("version") != STATE_VERSION:
            raise ValueError(
                f"CalibratedDetector state has version {state.get('version')!r}; "
                f"this program reads {STATE_VERSION}"
            )
        detector = cls.__new__(cls)
        thresholds = state["fast_thresholds"]
        detector._assemble(
            CalibratedPolicy.model_validate(state["config"]),
            tuple(state["parts"]),
            Reference.from_state(state["reference"]),
            None if thresholds is None else (thresholds[0], thresholds[1]),
        )
        for part in detector._parts:
            part.restore(state["parts"][part.name])
        detector._rule, detector._reason = state["rule"], state["reason"]
        detector._last = None if state["last"] is None else _load_status(state["last"])
        return detector


def split_alpha(config: CalibratedPolicy, parts: Sequence[str]) -> dict[str, float]:
    """alpha of each part: one part alone gets all of it, several share it as `alpha_shares` says.

    Raises:
        ValueError: an unknown part, or none.
    """
    unknown = sorted(set(parts) - set(PARTS))
    if unknown or not parts:
        raise ValueError(f"parts must be some of {', '.join(PARTS)}; got {list(parts)}")
    shares = {name: float(getattr(config.alpha_shares, name)) for name in parts}
    total = sum(shares.values())
    return {name: config.alpha * share / total for name, share in shares.items()}


def _build(
    name: str,
    config: CalibratedPolicy,
    reference: Reference,
    alpha: float,
    thresholds: tuple[float, float] | None,
) -> Part:
    if name == "guaranteed":
        return Guaranteed(config, reference, alpha)
    if name == "peak":
        return Peak(config, alpha)
    if name == "gap":
        return Gap(config, reference, alpha)
    assert thresholds is not None
    return Fast(config, reference.strata, thresholds, alpha)


def _dump_status(status: DetectorStatus) -> dict[str, Any]:
    return asdict(replace(status, readings=())) | {
        "level": status.level.value,
        "readings": [reading.model_dump(mode="json") for reading in status.readings],
    }


def _load_status(state: Mapping[str, Any]) -> DetectorStatus:
    readings = tuple(DetectorReading.model_validate(r) for r in state["readings"])
    return DetectorStatus(**{**state, "level": Level(state["level"]), "readings": readings})
