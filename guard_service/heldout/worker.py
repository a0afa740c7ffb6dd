"""The guard's side of held-out evaluation: one child process that loads models, asks servers and scores.

The child (`guard_service.heldout.child`) gets requests as JSON lines on its stdin and answers on its stdout.
It is the only process that imports torch or a user's scorer, so ingest never waits for either, and a crash,
an out-of-memory kill or a time-out costs one evaluation and not the guard. A fresh child is started for the
next request.

The child's stderr goes to `worker.log` in the scratch directory, readable by the guard only, and not to the
guard's log: what a library or a scorer prints may quote a prompt (invariant 8).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guard_service.heldout.config import HeldoutSettings
from guard_service.heldout.errors import EvaluationError, HeldoutError, SplitError

__all__ = [
    "EvaluationError",
    "EvaluationRequest",
    "EvaluationResult",
    "EvaluationWorker",
    "HeldoutError",
    "SplitError",
]

MAX_ANSWER_BYTES = 1 << 28  # one line: about 20 bytes per held-out item
MAX_LOG_BYTES = 1 << 20
ENDING_SECONDS = 5.0
STAGE_PREFIX = "stage-"
_OWN_SETTINGS = ("RLGUARD_GUARD_", "RLGUARD_TOKEN")


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """Score the checkpoint at `path`. `pass_index` > 0 repeats it with other sampling noise."""

    attempt: int
    step: int
    path: Path
    pass_index: int = 0


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Outcome of one evaluation; it stays in the guard (invariant 8).

    `items`: outcome of each held-out item in the split's order, each in [0, 1]; shape (n_items,).
    `sha256`: digest of the scored weights, None where they are remote.
    `seconds`: wall time.
    `staged`: directory with the files that were hashed and scored, None where they are remote. It is removed
    at the next request; rename it to keep it.
    """

    items: tuple[float, ...]
    sha256: str | None
    seconds: float
    staged: Path | None


class EvaluationWorker:
    """Runs one evaluation at a time in a child process. All methods belong to one event loop."""

    def __init__(self, settings: HeldoutSettings, scratch_dir: Path) -> None:
        self._settings = settings
        self._scratch = scratch_dir
        self._child: Process | None = None
        self._lock = asyncio.Lock()
        self.split_items: int | None = None
        self.split_digest: str | None = None

    @property
    def log_path(self) -> Path:
        """Where the child's stderr goes."""
        return self._scratch / "worker.log"

    async def start(self) -> None:
        """Start the child, and check there the split, the scorers and the disjointness from training.

        The check against 100,000 training prompts takes tens of seconds; await it beside the server.

        Raises:
            SplitError: the split, a scorer or the training prompts must be mended first.
            EvaluationError: the child could not be started.
        """
        async with self._lock:
            try:
                self._scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                raise EvaluationError(f"{self._scratch} cannot be made: {error.strerror}") from error
            self._clear_stages()
            await self._start_child()

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        """Score one checkpoint.

        Raises:
            EvaluationError: there is no outcome; the message says why and names no prompt or answer.
        """
        async with self._lock:
            self._clear_stages()
            started = time.monotonic()
            if self._child is None or self._child.returncode is not None:
                try:
                    await self._start_child()
                except SplitError as error:
                    raise EvaluationError(str(error)) from error
            assert self._child is not None
            answer = await self._ask(
                self._child,
                {
                    "attempt": request.attempt,
                    "step": request.step,
                    "path": str(request.path),
                    "pass_index": request.pass_index,
                },
            )
            staged = answer["staged"]
            return EvaluationResult(
                items=tuple(answer["items"]),
                sha256=answer["sha256"],
                seconds=time.monotonic() - started,
                staged=None if staged is None else Path(staged),
            )

    async def close(self) -> None:
        """End the child and remove what it staged. An evaluation under way is given up."""
        await self._kill()
        self._clear_stages()

    async def _start_child(self) -> None:
        """Start a child. Until one has been ready, it checks the disjointness too: no score comes without."""
        await self._kill()
        try:
            log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
        except OSError as error:
            raise EvaluationError(f"{self.log_path} cannot be written: {error.strerror}") from error
        try:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "guard_service.heldout.child",
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                limit=MAX_ANSWER_BYTES,
                env=_child_environment(),
            )
        except OSError as error:
            raise EvaluationError(f"the evaluation process could not be started: {error}") from error
        finally:
            os.close(log)
        ready = await self._ask(
            self._child,
            {
                "settings": self._settings.model_dump(mode="json"),
                "scratch": str(self._scratch.absolute()),
                "check_disjoint": self.split_digest is None,
            },
        )
        if self.split_digest not in (None, ready["digest"]):
            await self._kill()
            raise SplitError(
                f"{self._settings.split} changed while the guard ran: its scores cannot be compared with the "
                "earlier ones; restore the file, or start a new run"
            )
        self.split_items, self.split_digest = ready["items"], ready["digest"]

    async def _ask(self, child: Process, message: dict[str, Any]) -> dict[str, Any]:
        """Send one line, await one line. Whatever goes wrong, no child is left half-way through."""
        assert child.stdin is not None and child.stdout is not None
        limit = self._settings.evaluator.timeout_seconds
        line = b""
        try:
            with contextlib.suppress(ConnectionError):  # a dead child is told by its missing answer
                child.stdin.write(json.dumps(message).encode() + b"\n")
                await child.stdin.drain()
            async with asyncio.timeout(limit):
                line = await child.stdout.readline()
            if not line:  # it is ending: let it, so that the reason is its own and not our SIGKILL
                await _ended_within(child, ENDING_SECONDS)
        except TimeoutError:
            raise EvaluationError(
                f"no answer from the evaluation process within timeout_seconds={limit:g}: raise it, or "
                "shorten the split, max_new_tokens or samples"
            ) from None
        finally:
            if not line.endswith(b"\n"):
                await self._kill()
        if not line.endswith(b"\n"):
            raise EvaluationError(
                f"{_how_it_ended(await child.wait())}; its last words are in {self.log_path}"
            )
        self._trim_log()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            if answer["error"]["over"]:
                await self._kill()
            kind = SplitError if answer["error"]["kind"] == "split" else EvaluationError
            raise kind(answer["error"]["message"])
        return answer

    async def _kill(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        if child.stdin is not None:
            child.stdin.close()
        await child.wait()

    def _trim_log(self) -> None:
        with contextlib.suppress(OSError):
            if self.log_path.stat().st_size > MAX_LOG_BYTES:
                os.truncate(self.log_path, 0)

    def _clear_stages(self) -> None:
        for stage in self._scratch.glob(f"{STAGE_PREFIX}*"):
            shutil.rmtree(stage, ignore_errors=True)


async def _ended_within(child: Process, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await child.wait()


def _child_environment() -> dict[str, str]:
    """The guard's environment without its own settings, which hold its tokens; no hub, no telemetry."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_SETTINGS)}
    return kept | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _how_it_ended(returncode: int | None) -> str:
    if returncode is not None and returncode < 0:
        name = signal.Signals(-returncode).name
        hint = " (out of memory?)" if -returncode == signal.SIGKILL else ""
        return f"the evaluation process was ended by {name}{hint}"
    return f"the evaluation process ended with status {returncode} before it answered"
