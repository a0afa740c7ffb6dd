"""What can go wrong in held-out evaluation.

Every message is fit for a log and a verdict: it names item ids, line numbers, files and settings, and never
a prompt, an answer, a completion or a single item's score (invariant 8).

    HeldoutError
    ├── SplitError        the split, the training prompts or the scorers are unusable: fix the files
    │   └── GraderError           because the training grader is
    └── EvaluationError   one evaluation gave no outcome: the next one may
        ├── StartAgainError       because it needs an evaluation process that is new
        ├── CheckpointGoneError   because its checkpoint is no longer on the disk
        └── EngineLostError       and this evaluation process gives no other any more
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rlguard.core.terminal import escaped
from rlguard.core.wire import FailureKind


class HeldoutError(Exception):
    """Base of the errors of held-out evaluation. `str(error)` is one message for people."""


class SplitError(HeldoutError):
    """A file or a name in the held-out settings cannot be used; nothing will be until it is mended."""


class GraderError(SplitError):
    """The same, of the training grader (`proxy_scorer`)."""


class EvaluationError(HeldoutError):
    """An evaluation did not finish. Its score is unknown, never 0.

    `kind`: all of it that a trainer may know. Only what is found before the first item is looked at has
    another one than `underway`. Of what the message quotes, such as names that a checkpoint has, characters
    that are not printable are escaped.
    """

    def __init__(self, message: str, kind: FailureKind = FailureKind.UNDERWAY) -> None:
        super().__init__(escaped(message))
        self.kind = kind


class CheckpointGoneError(EvaluationError):
    """The checkpoint was removed before it was evaluated, or while it was copied: nothing failed here."""


class StartAgainError(EvaluationError):
    """What was loaded before is in the way of this request. Nothing failed: a new process can take it."""


class EngineLostError(EvaluationError):
    """What the evaluation process has loaded is not to be trusted any more: it ends, and gives all back."""


#: How errors are called that cross from the evaluation process, the more special before what they are, too.
KINDS = {
    "grader": GraderError,
    "split": SplitError,
    "gone": CheckpointGoneError,
    "again": StartAgainError,
    "evaluation": EvaluationError,
}


@contextmanager
def failing_as(kind: FailureKind) -> Iterator[None]:
    """Give what fails here this kind, unless it has one that says more."""
    try:
        yield
    except EvaluationError as error:
        if error.kind is FailureKind.UNDERWAY:
            error.kind = kind
        raise


def one_line(error: Exception) -> str:
    """What a library says, short enough for a verdict."""
    return " ".join(str(error).split())[:500]
