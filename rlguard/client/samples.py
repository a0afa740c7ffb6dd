"""What a loop reports: the values of one step, and what is wrong in a report.

Nothing is filled in: a value that is missing, None, NaN or infinite is absent. A step without a finite reward
is reported without one, and a KL to the reference that is NaN or infinite as such.
"""

from __future__ import annotations

import math
import operator
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlguard.client.log import log
from rlguard.core.wire import MAX_FIGURE_NAME, MAX_FIGURES, KlKind, PostedStep, Rollout

#: The kinds that a loop can name; the others say that there is no KL.
_KINDS = (KlKind.REF_TOKEN_MEAN, KlKind.REF_SEQ_SUM, KlKind.BEHAVIOUR)
_KINDS_IN_WORDS = (
    "kl_kind='ref_token_mean' (KL to the reference, mean over tokens), 'ref_seq_sum' (its sum over a "
    "completion) or 'behaviour' (to the policy that sampled)"
)
#: The largest value that the wire carries.
LARGEST = 1e100
_LAST_STEP = 2**53


@dataclass(frozen=True, slots=True)
class StepSample:
    """One step; reward units for `reward` and `reward_std`, nats/token for `entropy`, nats for `kl`.

    `reward` is None where it was not finite. `figures` (as `fit_figures` has them) and `rollouts` (as
    `rlguard.client.rollouts.selected` has them) are for people.
    """

    step: int
    reward: float | None
    kl: float | None = None
    kl_kind: KlKind = KlKind.ABSENT
    entropy: float | None = None
    reward_std: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    rollouts: tuple[Rollout, ...] = ()

    def report(self, attempt: int) -> PostedStep:
        """Convert to the wire model.

        Raises:
            pydantic.ValidationError: a value is not one that the wire carries.
        """
        return PostedStep(
            attempt=attempt,
            step=self.step,
            reward=self.reward,
            kl=self.kl,
            kl_kind=self.kl_kind,
            entropy=self.entropy,
            reward_std=self.reward_std,
            figures={**self.figures} or None,
            rollouts=self.rollouts or None,
        )


def sample_of(step: int, values: Mapping[str, Any], kl_kind: KlKind) -> StepSample:
    """Make a sample from values by their names in a report."""
    spread = _finite(values.get("reward_std"))
    kl, kl_kind = _kl_of(values.get("kl"), kl_kind)
    return StepSample(
        step=step,
        reward=_finite(values.get("reward")),
        kl=kl,
        kl_kind=kl_kind,
        entropy=_finite(values.get("entropy")),
        reward_std=spread if spread is not None and spread >= 0.0 else None,
    )


def wrong_in_step(step: object, values: Mapping[str, Any], kl_kind: object) -> str | None:
    """What is wrong in the arguments of a step, in one sentence; None if nothing is.

    A value that is None, NaN or infinite is not wrong: it is unknown.
    """
    if (wrong := wrong_in_number_of(step)) is not None:
        return wrong
    for name, value in values.items():
        number = number_of(value)
        if value is not None and number is None:
            return f"{name} must be a number, got {_shown(value)}"
        if number is not None and math.isfinite(number) and abs(number) > LARGEST:
            return f"{name} must lie between -1e100 and 1e100, got {_shown(value)}"
    if kl_kind is not None and not (isinstance(kl_kind, str) and kl_kind in _KINDS):
        return f"it must be {_KINDS_IN_WORDS}, got {_shown(kl_kind)}"
    if kl_kind is None and values.get("kl") is not None:
        return f"kl says nothing without its kind: give {_KINDS_IN_WORDS}"
    return None


def fit_figures(figures: Mapping[Any, Any]) -> dict[str, float]:
    """The further figures of a step that can be sent: at most `MAX_FIGURES` finite numbers by their names."""
    fit: dict[str, float] = {}
    for name, value in figures.items():
        number = number_of(value)
        named = isinstance(name, str) and 0 < len(name) <= MAX_FIGURE_NAME
        if named and number is not None and abs(number) <= LARGEST and len(fit) < MAX_FIGURES:
            fit[name.encode("utf-8", "replace").decode()] = number
    return fit


def wrong_in_checkpoint(path: object, step: object) -> str | None:
    """What is wrong in the announcement of a checkpoint, in one sentence; None if nothing is."""
    if (wrong := wrong_in_number_of(step)) is not None:
        return wrong
    if not (isinstance(path, str | os.PathLike) and isinstance(os.fspath(path), str)):
        return f"path must be the path of a directory, got {_shown(path)}"
    if not os.path.isdir(path):
        return f"there is no directory {os.fspath(path)!r} to score: report a checkpoint when it is on disk"
    return None


def let_the_guard_read(checkpoint: Path) -> None:
    """Let whoever may list the checkpoint read its weights. For the process that wrote them, and no other.

    safetensors from 0.8 on writes files of mode 0600 whatever the umask, and a guard in a pod is another user
    than the trainer. The mode of the directory says what the umask wants. A link, or a file that has another
    name too, may be another's, and keeps its mode. A failure is a warning: the guard itself tells if it
    cannot read.
    """
    try:
        readers = checkpoint.stat().st_mode & 0o044
    except OSError as error:
        log.warning("the guard may not be able to read %s: %s", checkpoint, error)
        return
    for path in checkpoint.glob("*.safetensors"):
        try:
            _let_read(path, readers)
        except OSError as error:
            log.warning("the guard may not be able to read %s: %s", path, error)


def _let_read(path: Path, readers: int) -> None:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            os.fchmod(file, stat.S_IMODE(status.st_mode) | readers)
    finally:
        os.close(file)


def number_of(value: Any) -> float | None:
    """A Python, numpy or one-element tensor number as float; None for anything else."""
    if value is None or isinstance(value, bool | str | bytes):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def wrong_in_number_of(step: object) -> str | None:
    """What is wrong in a step's number, in one sentence; None if nothing is."""
    try:
        number = None if isinstance(step, bool) else operator.index(step)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        number = None
    if number is None or not 0 <= number < _LAST_STEP:
        return f"step must be a whole number >= 0, got {_shown(step)}"
    return None


def _shown(value: object) -> str:
    """The value for a sentence; a tensor's may be long."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # a whole number of more digits than Python writes
        return f"a number of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _kl_of(value: Any, kind: KlKind) -> tuple[float | None, KlKind]:
    """The KL and what it is.

    An estimate below 0 is noise about 0 (k1, of RLOO) or rounding (k3 is >= 0 term by term): it counts as 0.
    """
    kl = number_of(value)
    if kl is None or kind is KlKind.ABSENT:
        return None, KlKind.ABSENT
    if not math.isfinite(kl):
        return None, KlKind.ABSENT if kind is KlKind.BEHAVIOUR else KlKind.NOT_FINITE
    return max(kl, 0.0), kind


def _finite(value: Any) -> float | None:
    number = number_of(value)
    return number if number is not None and math.isfinite(number) else None
