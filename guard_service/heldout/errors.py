"""What can go wrong in held-out evaluation.

Every message is fit for a log and a verdict: it names item ids, line numbers, files and settings, and never
a prompt, an answer, a completion or a single item's score (invariant 8).

    HeldoutError
    ├── SplitError        the split, the training prompts or the scorers are unusable: fix the files
    └── EvaluationError   one evaluation gave no outcome: the next one may
"""

from __future__ import annotations


class HeldoutError(Exception):
    """Base of the errors of held-out evaluation. `str(error)` is one message for people."""


class SplitError(HeldoutError):
    """A file or a name in the held-out settings cannot be used; nothing will be until it is mended."""


class EvaluationError(HeldoutError):
    """An evaluation did not finish. Its score is unknown, never 0."""
