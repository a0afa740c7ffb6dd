"""Held-out evaluation from the command line: the guard's own worker process, and no other way to score."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from guard_cli.errors import CliError

if TYPE_CHECKING:
    from guard_service.heldout.config import HeldoutSettings
    from guard_service.heldout.worker import EvaluationResult, EvaluationWorker

#: Takes the result of a pass and tells whether another one is wanted.
Another = Callable[["EvaluationResult"], bool]
Act = Callable[["EvaluationWorker"], Awaitable[None]]
#: Takes the worker once it has started: it knows what came of the items' own answers.
Started = Callable[["EvaluationWorker"], None]


def _nobody_asks(_: EvaluationWorker) -> None:
    """For who does not want to know."""


def evaluate(
    settings: HeldoutSettings, model: Path, folder: Path, another: Another, started: Started = _nobody_asks
) -> None:
    """Start a worker, which checks split and scorers, and score one model again and again.

    Args:
        settings: as the guard has them.
        model: directory of the model.
        folder: where a copy of the model lies meanwhile; it is removed.
        another: called after each pass, with its sampling noise.
        started: called once split and scorers are known to be usable.

    Raises:
        SplitError: split, scorer or training prompts must be mended first.
        CliError: an evaluation failed. The worker's log is kept, and named.
    """

    async def score(worker: EvaluationWorker) -> None:
        from guard_service.heldout.worker import EvaluationRequest

        index = 0
        while another(await worker.evaluate(EvaluationRequest(0, 0, model, index))):
            index += 1

    _in_scratch(settings, folder, score, started)


def start(settings: HeldoutSettings, folder: Path, started: Started) -> None:
    """Start a worker, which checks split and scorers, and end it; arguments as of `evaluate`.

    Raises:
        SplitError: split, scorer or training prompts must be mended first.
        CliError: it did not start.
    """

    async def nothing(worker: EvaluationWorker) -> None:
        """Having started is enough."""

    _in_scratch(settings, folder, nothing, started)


def _in_scratch(settings: HeldoutSettings, folder: Path, act: Act, started: Started) -> None:
    """Let a worker act in a folder of its own. It is removed, unless a log in it explains a failure."""
    from guard_service.heldout.errors import EvaluationError

    scratch = _make_scratch(folder)
    try:
        _with_worker(settings, scratch, act, started)
    except EvaluationError as error:
        log = scratch / "worker.log"
        if not log.exists() or not log.stat().st_size:
            shutil.rmtree(scratch, ignore_errors=True)
            raise CliError(str(error)) from None
        raise CliError(f"{error} (log: {log})") from None
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    shutil.rmtree(scratch, ignore_errors=True)


def _with_worker(settings: HeldoutSettings, scratch: Path, act: Act, started: Started) -> None:
    from guard_service.heldout.worker import EvaluationWorker

    async def all_of_it() -> None:
        worker = EvaluationWorker(settings, scratch)
        try:
            await worker.start()
            started(worker)
            await act(worker)
        finally:
            await worker.close()

    asyncio.run(all_of_it())


def _make_scratch(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="rlguard-", dir=folder))
    except OSError as error:
        raise CliError(f"{folder} cannot be written: {error.strerror}") from None
