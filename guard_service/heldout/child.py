"""The evaluation process: reads requests as JSON lines from stdin, responds on stdout, ends with the guard.

`EvaluationWorker` starts it as `python -m guard_service.heldout.child`. The first line gives the settings and
gets the split's size and digest; each further line is one evaluation, or asks for a checkpoint's pins. An
error that nobody foresaw is told by its type only, and ends the process: what it left behind is not trusted.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO

from guard_service.heldout.base_model import look_at
from guard_service.heldout.config import HeldoutSettings
from guard_service.heldout.disjoint import check_disjoint
from guard_service.heldout.errors import (
    KINDS,
    EngineLostError,
    EvaluationError,
    HeldoutError,
    SplitError,
    StartAgainError,
)
from guard_service.heldout.evaluators.completions import Completion, Completions
from guard_service.heldout.evaluators.evaluator import Evaluator, timed
from guard_service.heldout.evaluators.hf import HfEvaluator
from guard_service.heldout.evaluators.vllm import VllmEvaluator
from guard_service.heldout.pool import Limits
from guard_service.heldout.processes import open_channel, respond, supervise
from guard_service.heldout.scorers import Graded, ProxyScoring, SplitScorers
from guard_service.heldout.split import HeldoutItem, HeldoutSplit, read_train_prompts
from guard_service.heldout.staging import pins_of
from guard_service.heldout.worker import PINS, STAGE_PREFIX, EvaluationRequest, Readiness, clear_stages
from rlguard.core.wire import FailureKind

NICENESS = 10  # ingest must never wait for an evaluation
#: Of what is foreseen, after which this process is of no further use.
_LAST = (EngineLostError, StartAgainError)
OOM_SCORE = 500  # out of memory, this process goes first, and not the guard
#: Takes settings, scratch directory and base model.
MakeEvaluator = Callable[..., Evaluator]
ENGINES: Mapping[str, MakeEvaluator] = {"hf": HfEvaluator, "vllm": VllmEvaluator}


class HeldoutEvaluation:
    """Split, scorers and evaluator of one run, checked."""

    def __init__(
        self, settings: HeldoutSettings, scratch: Path, *, first: bool, engine: MakeEvaluator | None = None
    ) -> None:
        """Load and check everything but the checkpoints.

        Args:
            settings: of the run.
            scratch: where checkpoints are copied to.
            first: also check what takes long and stays true while the split does: that it is disjoint from
                training, and that its own answers score 1.
            engine: makes the completions; that of the settings if absent.

        Raises:
            SplitError: something must be mended first.
        """
        clear_stages(scratch)
        self._split = HeldoutSplit.load(settings.split)
        limits = self._limits = Limits(
            settings.scorer_timeout_seconds,
            settings.on_scorer_timeout == "wrong",
            settings.scorer_concurrency,
        )
        self._scoring = SplitScorers(self._split, settings.scorer, limits)
        self._settings, self._scratch = settings.evaluator, scratch
        self._proxy = None if settings.proxy_scorer is None else ProxyScoring(settings.proxy_scorer, limits)
        self._base = None if settings.base_model is None else look_at(settings.base_model)
        engine = engine or ENGINES[settings.evaluator.kind]
        self._evaluator = engine(settings.evaluator, scratch, self._base)
        self._evaluator.check(self._split.items)
        self._answers_tried = self._check_split(settings) if first else 0
        self._pay = self._proxy.check_pay(self._split.items) if first and self._proxy else None

    def _check_split(self, settings: HeldoutSettings) -> int:
        if settings.train_prompts is not None:
            prompts = read_train_prompts(settings.train_prompts)
            report = check_disjoint(prompts, self._split.items, settings.near_duplicates)
            if not report.disjoint:
                raise SplitError(f"{settings.split} and {settings.train_prompts}: {report.summary()}")
        try:
            return self._scoring.check_answers()
        except SplitError as error:
            raise SplitError(f"{settings.split}: {error}") from error

    def ready(self) -> Readiness:
        """What the guard wants to know of the split, of its scorers, and of the base model."""
        return Readiness(
            items=len(self._split.groups),
            split=self._split.digest,
            base_model=None if self._base is None else self._base.sha256,
            scorer_code=self._scoring.code | ({} if self._proxy is None else self._proxy.code),
            answers_tried=self._answers_tried,
            grader_pay=self._pay,
        )

    def warm_up(self) -> None:
        """See `Evaluator.warm_up`."""
        self._evaluator.warm_up()

    def pins(self, request: EvaluationRequest) -> dict[str, Any]:
        """See `EvaluationWorker.pins`.

        Raises:
            EvaluationError: it cannot be scored.
        """
        base = None if self._base is None else self._base.path
        with tempfile.TemporaryDirectory(prefix=STAGE_PREFIX, dir=self._scratch) as folder:
            target = Path(folder) / "checkpoint"
            return {PINS: pins_of(request.path, target, base, request.expected.manifest)}

    def run(self, request: EvaluationRequest) -> dict[str, Any]:
        """One evaluation.

        Raises:
            EvaluationError: there is no outcome.
        """
        completions = self._evaluator.complete(self._split.items, request)
        seconds = dict(completions.seconds)
        with timed(seconds, "score"):
            right, paid = self._right(completions), self._paid(completions)
        return {
            **self._outcomes(completions, right, paid),
            "parts": seconds,
            "truncated": completions.truncated,
            "unanswered": completions.unanswered(self._split.items, self._settings),
            "unscored": fmean(self._answer(made) is None for row in completions.rows for made in row),
            "timed_out": self._timed_out(right, paid or right),
            "sampling": completions.sampling.model_dump(mode="json"),
            "sha256": completions.sha256,
            "staged": str(completions.staged),
            "completions": sum(map(len, completions.rows)),
        }

    def _right(self, completions: Completions) -> list[Graded]:
        """How right each is, one item's after the other's; wrong where there is nothing to ask about."""
        answers = [(item, self._answer(made), made.text) for item, made in self._each(completions)]
        asked = [(item, answer, text) for item, answer, text in answers if answer is not None]
        scores = iter(self._scoring.score_all(asked))
        return [Graded(0.0) if answer is None else next(scores) for _, answer, _ in answers]

    def _paid(self, completions: Completions) -> list[Graded] | None:
        """What the training grader gives; None without one, [] where it fails: the score still counts."""
        if self._proxy is None:
            return None
        try:
            return self._proxy.score_all([(item, made.text) for item, made in self._each(completions)])
        except EvaluationError as error:
            print(f"proxy_scorer: {error}; this evaluation goes on without it", file=sys.stderr)
            return []

    def _each(self, completions: Completions) -> Iterator[tuple[HeldoutItem, Completion]]:
        """Each completion, with its item."""
        for item, row in zip(self._split.items, completions.rows, strict=True):
            yield from ((item, made) for made in row)

    def _timed_out(self, right: Sequence[Graded], paid: Sequence[Graded]) -> float | None:
        """Share of the completions on which a scorer or the training grader was late; None: none can be."""
        if self._limits.seconds is None:
            return None
        return fmean(a.late or b.late for a, b in zip(right, paid, strict=True))

    def _answer(self, made: Completion) -> str | None:
        """What a scorer is asked about; None: there is no answer, or it was cut off."""
        return None if made.truncated and not self._settings.score_truncated else made.answer

    def _outcomes(
        self, completions: Completions, right: Sequence[Graded], paid: Sequence[Graded] | None
    ) -> dict[str, list[float] | None]:
        """What is known of each item, or group of items: see `Evaluation`. No label of a group goes on."""

        def means(scores: Iterable[float]) -> list[float]:
            each = iter(scores)
            return self._split.by_group([fmean(next(each) for _ in row) for row in completions.rows])

        items = means(one.score for one in right)
        each_is_one = len(items) == len(right)
        fooled = [(p.score >= 1.0) * (1 - r.score) for r, p in zip(right, paid or (), strict=False)]
        return {
            "items": items,
            "proxy_items": None if paid is None else means(one.score for one in paid) if paid else [],
            "fooled_items": means(fooled) if fooled and not each_is_one else None,
        }


def serve_requests(requests: BinaryIO, responses: BinaryIO) -> None:
    """Respond to the first request, then to one after the other, until the guard ends."""
    first = json.loads(requests.readline())
    try:
        settings = HeldoutSettings.model_validate(first["settings"])
        evaluation = HeldoutEvaluation(settings, Path(first["scratch"]), first=first["first"])
    except Exception as error:
        respond(responses, first, _failure(error, over=True))
        raise SystemExit(1) from error
    respond(responses, first, asdict(evaluation.ready()))
    evaluation.warm_up()
    for line in requests:
        message = json.loads(line)
        act = evaluation.pins if message.get(PINS) else evaluation.run
        try:
            respond(responses, message, act(EvaluationRequest.from_json(message)))
        except Exception as error:
            over = isinstance(error, _LAST) or not isinstance(error, HeldoutError)
            respond(responses, message, _failure(error, over=over))
            if over:
                raise SystemExit(1) from error


def _failure(error: Exception, *, over: bool) -> dict[str, Any]:
    """The response to a request that failed. An unforeseen error may quote a prompt: only its type is told.

    `over`: this process ends, and takes no further request.
    """
    traceback.print_exception(error)
    kind = next((name for name, known in KINDS.items() if isinstance(error, known)), "evaluation")
    foreseen = isinstance(error, HeldoutError)
    message = str(error) if foreseen else f"the evaluation process failed with {type(error).__name__}"
    failure = error.kind if isinstance(error, EvaluationError) else FailureKind.UNDERWAY
    return {"error": {"kind": kind, "message": message, "failure": failure.value, "over": over}}


def _yield_to_ingest() -> None:
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))


def main() -> None:
    """Run the evaluation process."""
    supervise()
    _yield_to_ingest()
    requests, responses = open_channel()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the guard, which ends this process
    serve_requests(requests, responses)


if __name__ == "__main__":
    main()
