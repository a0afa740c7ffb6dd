"""What a guard leaves behind: how it judged its run, in a file that goes into the pod's status."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path

from rlguard.core.trainer_view import status_view
from rlguard.core.wire import Verdict

log = logging.getLogger("rlguard.guard")

#: Fields of the verdict in it.
TOLD = (
    "level", "code", "fire", "halt", "stop", "latch_attempt", "latch_step", "latched_at", "attempt", "step",
    "steps", "rounds", "announced", "evaluated", "failed", "skipped", "refused", "waiting", "ended",
    "steps_since_evaluation", "longest_round",
)  # fmt: skip
#: Characters of a reason: the whole must stay below 1 KiB, also where each takes several bytes.
MAX_REASON = 150
MAX_BYTES = 1024


class TerminationMessage:
    """Rewrites the file whenever what it says changes. It is lost without harm to the run."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._written = path, b""
        self._told = False

    def write(self, verdict: Verdict, sequence: int) -> None:
        """Let the file say this; `sequence`: of the newest event in the log."""
        if self._path is None:
            return
        content = termination_message(verdict, sequence)
        if content == self._written:
            return
        try:
            self._path.write_bytes(content)
        except OSError as error:
            if not self._told:
                log.warning("%s cannot be written: %s", self._path, error.strerror or error)
            self._told = True
        else:
            self._written = content


def termination_message(verdict: Verdict, sequence: int) -> bytes:
    """What a supervisor that has not heard it needs of the verdict, in at most 1 KiB of JSON. Pure."""
    said = verdict.model_dump(mode="json", include=set(TOLD), exclude_none=True)
    said |= {"sequence": sequence, "reason": status_view(verdict).reason[:MAX_REASON]}
    return json.dumps(said, ensure_ascii=False).encode("utf-8", "replace")


def leave_error(path: Path | None, error: Exception) -> None:
    """Add why the guard ends to the verdict in the file, as far as 1 KiB has room for it.

    Without a verdict the kubelet takes the end of the log, which says it, too.
    """
    if path is None:
        return
    with suppress(OSError, ValueError):
        content = path.read_bytes()
        words = str(error).encode()[: (MAX_BYTES - len(content)) // 2].decode("utf-8", "ignore")
        path.write_text(json.dumps(json.loads(content) | {"error": words}, ensure_ascii=False), "utf-8")
