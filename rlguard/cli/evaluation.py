"""Held-out evaluation from the command line: the guard's own worker process, and no other way to score."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rlguard.cli.errors import CliError

if TYPE_CHECKING:
    from guard_service.heldout.config import HeldoutSettings
    from guard_service.heldout.worker import EvaluationWorker
    from rlguard.core.rounds import Evaluation

#: Takes the worker once it has started: it knows what came of the items' own answers.
Started = Callable[["EvaluationWorker"], None]


def evaluate(
    settings: HeldoutSettings,
    folder: Path,
    started: Started,
    model: Path | None = None,
    another: Callable[[Evaluation], bool] = lambda _: False,
) -> None:
    """Start a worker, which checks split and scorers, and score a model again and again.

    Args:
        settings: as the guard has them.
        folder: where a copy of the model lies meanwhile; it is removed.
        started: called once split and scorers are known to be usable.
        model: its directory; None: nothing is scored.
        another: takes the result of a pass and tells whether another one is wanted.

    Raises:
        SplitError: split, scorer or training prompts must be mended first.
        CliError: an evaluation failed. The worker's log is kept, and named.
    """
    from guard_service.heldout.errors import EvaluationError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="rlguard-", dir=folder))
    except OSError as error:
        raise CliError(f"{folder} cannot be written: {error.strerror}") from None
    log = scratch / "worker.log"
    try:
        asyncio.run(_evaluate(settings, scratch, started, model, another))
    except EvaluationError as error:
        if log.exists() and log.stat().st_size:
            kept, scratch = scratch, Path()
            raise CliError(f"{error} (log: {kept / log.name})") from None
        raise CliError(str(error)) from None
    finally:
        if scratch != Path():
            shutil.rmtree(scratch, ignore_errors=True)


async def _evaluate(
    settings: HeldoutSettings,
    scratch: Path,
    started: Started,
    model: Path | None,
    another: Callable[[Evaluation], bool],
) -> None:
    from guard_service.heldout.worker import EvaluationRequest, EvaluationWorker

    worker = EvaluationWorker(settings, scratch)
    try:
        await worker.start()
        started(worker)
        index = 0
        while model is not None and another(await worker.evaluate(EvaluationRequest(0, 0, model, index))):
            index += 1
    finally:
        await worker.close()
