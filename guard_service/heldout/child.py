"""The evaluation process: reads requests as JSON lines from stdin, answers on stdout, ends with the guard.

`EvaluationWorker` starts it as `python -m guard_service.heldout.child`. The first line gives the settings and
is answered with the split's size and digest; each further line is one evaluation. An error that nobody
foresaw is answered by its type only, and ends the process: what it left behind is not trusted.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import threading
import traceback
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO

from guard_service.heldout.config import HeldoutSettings, OpenAIEvaluatorSettings
from guard_service.heldout.disjoint import check_disjoint
from guard_service.heldout.errors import HeldoutError, SplitError
from guard_service.heldout.evaluators import Evaluator
from guard_service.heldout.evaluators.checkpoint import CheckpointEvaluator
from guard_service.heldout.evaluators.openai import OpenAIEvaluator
from guard_service.heldout.scorers import Scoring
from guard_service.heldout.split import HeldoutSplit, read_train_prompts
from guard_service.heldout.worker import EvaluationRequest

NICENESS = 10  # ingest must never wait for an evaluation
OOM_SCORE = 500  # out of memory, this process goes first, and not the guard


class Evaluation:
    """Split, scorers and evaluator of one run, checked."""

    def __init__(self, settings: HeldoutSettings, scratch: Path, *, disjoint: bool) -> None:
        """Load and check everything but the checkpoints.

        Raises:
            SplitError: something must be mended first.
        """
        self._split = HeldoutSplit.load(settings.split)
        self._scoring = Scoring(self._split, settings.scorer)
        self._evaluator: Evaluator = (
            OpenAIEvaluator(settings.evaluator)
            if isinstance(settings.evaluator, OpenAIEvaluatorSettings)
            else CheckpointEvaluator(settings.evaluator, scratch)
        )
        self._evaluator.check(self._split.items)
        if disjoint and settings.train_prompts is not None:
            report = check_disjoint(read_train_prompts(settings.train_prompts), self._split)
            if not report.disjoint:
                raise SplitError(f"{settings.split} and {settings.train_prompts}: {report.summary()}")

    def ready(self) -> dict[str, Any]:
        """What the guard wants to know of the split."""
        return {"items": len(self._split), "digest": self._split.digest}

    def warm_up(self) -> None:
        """See `Evaluator.warm_up`."""
        self._evaluator.warm_up()

    def run(self, request: EvaluationRequest) -> dict[str, Any]:
        """One evaluation.

        Raises:
            EvaluationError: there is no outcome.
        """
        completions = self._evaluator.complete(self._split.items, request)
        outcomes = [
            fmean(self._scoring.score(item, text) for text in texts)
            for item, texts in zip(self._split.items, completions.texts, strict=True)
        ]
        staged = completions.staged
        return {
            "items": outcomes,
            "sha256": completions.sha256,
            "staged": None if staged is None else str(staged),
        }


def serve(lines: queue.SimpleQueue[bytes], answers: BinaryIO) -> None:
    """Answer the first line, then one line after the other, for as long as the guard lives."""
    first = json.loads(lines.get())
    try:
        settings = HeldoutSettings.model_validate(first["settings"])
        evaluation = Evaluation(settings, Path(first["scratch"]), disjoint=first["check_disjoint"])
    except Exception as error:
        _send(answers, _told(error, over=True))
        raise SystemExit(1) from error
    _send(answers, evaluation.ready())
    evaluation.warm_up()
    while True:
        message = json.loads(lines.get())
        try:
            answer = evaluation.run(EvaluationRequest(**{**message, "path": Path(message["path"])}))
        except HeldoutError as error:
            answer = _told(error, over=False)
        except Exception as error:
            _send(answers, _told(error, over=True))
            raise SystemExit(1) from error
        _send(answers, answer)


def _told(error: Exception, *, over: bool) -> dict[str, Any]:
    """The answer to a request that failed. An unforeseen error may quote a prompt: only its type is told.

    `over`: this process ends, and takes no further request.
    """
    traceback.print_exception(error)
    if isinstance(error, HeldoutError):
        kind, message = "split" if isinstance(error, SplitError) else "evaluation", str(error)
    else:
        kind, message = "evaluation", f"the evaluation process failed with {type(error).__name__}"
    return {"error": {"kind": kind, "message": message, "over": over}}


def _send(answers: BinaryIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _read_until_the_guard_ends(requests: BinaryIO, lines: queue.SimpleQueue[bytes]) -> None:
    for line in requests:
        lines.put(line)
    os._exit(0)


def _die_with_parent() -> None:
    """Linux: SIGKILL when the thread that started this process ends, even in a call that holds the GIL."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _yield_to_ingest() -> None:
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))


def main() -> None:
    """Run the evaluation process."""
    _die_with_parent()
    _yield_to_ingest()
    # What a scorer or a library prints must not get between the answers.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the guard, which ends this process
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_until_the_guard_ends, args=(requests, lines), daemon=True).start()
    serve(lines, answers)


if __name__ == "__main__":
    main()
