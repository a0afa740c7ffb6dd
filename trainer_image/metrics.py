"""What the trainer measured in one optimizer step, read without changing what anybody else sees.

TRL trainers collect values in `trainer._metrics["train"]`, a dict of lists, and clear it in `log()`, every
`logging_steps` steps. `StepMetrics` reads what was appended since it last looked. Nothing is filled in:
a value that is missing, None, NaN or infinite is absent.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from guard_core.wire import KlKind

log = logging.getLogger(__name__)

_KEYS = ("reward", "kl", "entropy", "reward_std")


@dataclass(frozen=True, slots=True)
class StepSample:
    """One step; reward units for `reward` and `reward_std`, nats/token for `entropy`, nats for `kl`."""

    step: int
    reward: float
    kl: float | None = None
    kl_kind: KlKind = KlKind.ABSENT
    entropy: float | None = None
    reward_std: float | None = None


@dataclass
class StepMetrics:
    """Values of the current step, gathered from the live lists of a TRL trainer."""

    _values: dict[str, list[float]] = field(default_factory=dict)
    # The list that was read, and how far. Holding the list itself tells a cleared one from a grown one.
    _read: dict[str, tuple[Any, int]] = field(default_factory=dict)

    def gather(self, lists: Mapping[str, Any]) -> None:
        """Take what `lists` (a trainer's `_metrics["train"]`) has beyond what was read before."""
        for key in _KEYS:
            values = lists.get(key)
            if not isinstance(values, list):
                continue
            known, count = self._read.get(key, (None, 0))
            start = count if known is values and count <= len(values) else 0
            self._values.setdefault(key, []).extend(values[start:])
            self._read[key] = (values, len(values))

    def take(self, step: int, kl_kind: KlKind) -> StepSample | None:
        """The sample of the step that just ended, or None if it has no reward; starts the next step."""
        values, self._values = self._values, {}
        return sample_of(step, {key: mean_of(values.get(key, ())) for key in _KEYS}, kl_kind)


def sample_of(step: int, values: Mapping[str, Any], kl_kind: KlKind) -> StepSample | None:
    """A sample from values by their TRL names, or None without a finite reward.

    A KL estimate below 0 can only be rounding (k3 is >= 0 term by term); it says nothing and is absent.
    """
    found = {key: _finite(values.get(key)) for key in _KEYS}
    reward, kl, spread = found["reward"], found["kl"], found["reward_std"]
    if reward is None:
        return None
    if _number(values.get("kl")) == math.inf:
        log.warning("KL of step %d is infinite, which the guard cannot be told: it counts as absent", step)
    if kl_kind is KlKind.ABSENT or kl is None or kl < 0.0:
        kl, kl_kind = None, KlKind.ABSENT
    return StepSample(
        step=step,
        reward=reward,
        kl=kl,
        kl_kind=kl_kind,
        entropy=found["entropy"],
        reward_std=spread if spread is not None and spread >= 0.0 else None,
    )


def mean_of(values: Iterable[Any]) -> float | None:
    """Mean of the values that are not NaN, as TRL's own `log()` takes it; None if there is none."""
    numbers = (_number(value) for value in values)
    valid = [number for number in numbers if number is not None and not math.isnan(number)]
    return sum(valid) / len(valid) if valid else None


def kl_kind_of(args: Any) -> KlKind:
    """What `kl` means under these training arguments.

    TRL's GRPO logs the k3 estimate of KL(policy || reference), mean over tokens, and only if `beta` is not
    0. The same key in async GRPO is the drift between the policy and the rollouts. Any other trainer's `kl`
    may be anything, so it counts as absent and the KL rule stays inert.
    """
    bases = {base.__name__ for base in type(args).__mro__ if base.__module__.startswith("trl.")}
    if "AsyncGRPOConfig" in bases:
        return KlKind.BEHAVIOUR
    if "GRPOConfig" in bases and args.beta != 0.0:
        return KlKind.REF_TOKEN_MEAN
    return KlKind.ABSENT


def _finite(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and math.isfinite(number) else None


def _number(value: Any) -> float | None:
    """A Python, numpy or one-element tensor number as float; None for anything else."""
    if value is None or isinstance(value, bool | str | bytes):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
