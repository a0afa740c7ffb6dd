"""What ends a command early, and what `rlguard run` and `rlguard demo` exit with."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum

from rlguard.follow.errors import InputError


class Result(StrEnum):
    """How a run ended, in `run.json`; exit code 5 stands for several of them."""

    FINISHED = "finished"
    WARNING = "finished with a warning"
    NOT_JUDGED = "not judged"
    GUARD_LOST = "guard lost"
    FIRED = "fired"
    HALTED = "halted"
    INTERRUPTED = "interrupted"
    FAILED = "trainer failed"


class ExitCode(IntEnum):
    """Exit codes of `rlguard run` and `rlguard demo`. Any other code is the trainer's own.

    A trainer may use one of these numbers for itself; `run.json` in the report says who ended the run.
    """

    FINISHED = 0
    USAGE = 2
    FIRED = 3
    HALTED = 4
    NOT_PASSED = 5

    @property
    def meaning(self) -> str:
        """One line for the help text and the docs."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.FINISHED: "the trainer finished; every checkpoint was judged, and the last verdict is healthy",
    ExitCode.USAGE: "wrong arguments or files; nothing was started",
    ExitCode.FIRED: "a fire: a rule of the policy fired, perhaps after the last step; the last line "
    "says what it found",
    ExitCode.HALTED: "a halt: no rule fired, but the policy's action for silent, stale, "
    "evaluation_failing or refused is `stop`",
    ExitCode.NOT_PASSED: "the run has not passed: it finished with a warning, was not fully judged, or "
    "lost its guard; the last line says which",
}


#: Those of `rlguard run`, for its help text.
RUN_EXIT_CODES: Mapping[int | str, str] = {
    **{code.value: code.meaning for code in ExitCode},
    "128+N": "interrupted by signal N",
    "other": "the trainer's own",
}


class CliError(InputError):
    """Something the user gave cannot be used, or a part failed. Shown as one line, without a traceback."""
