"""The evaluations of a run, one by one: what the judge wants first, then the queue in its order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from guard_service.errors import SettingsError, StoreError
from guard_service.event_log import EventLog
from guard_service.events import Begun, Failure, Note, NoteKind
from guard_service.heldout.errors import CheckpointGoneError, EvaluationError, SplitError
from guard_service.heldout.identity import Expected
from guard_service.heldout.worker import EvaluationRequest, EvaluationWorker
from guard_service.run import LoggedRun
from rlguard.core.checkpoint_key import CheckpointKey
from rlguard.core.rounds import Evaluation
from rlguard.core.wire import CheckpointReport, EvaluationSummary, FailureKind

log = logging.getLogger("rlguard.guard")

GATE_RETRY_SECONDS = 10.0
#: Guards that may end in the midst of one evaluation. Of two, a node may have been lost under each.
MOST_BEGUN = 3


@dataclass(frozen=True, slots=True)
class GateClosed:
    """No evaluation may begin yet, and why."""

    reason: str


class Evaluations:
    """Has the checkpoints of a run scored, and what became of each put into its log.

    Args:
        run: whose queue and log they are.
        worker: scores checkpoints.
        best: where the files of the best checkpoint are kept; None keeps none.
        newest_only: skip checkpoints for which a newer one waits already.
    """

    def __init__(
        self, run: LoggedRun, worker: EvaluationWorker, best: Path | None, newest_only: bool
    ) -> None:
        self._run, self._worker = run, worker
        self._best, self._newest_only = best, newest_only
        self._gate: GateClosed | None = GateClosed("the held-out split is still being checked")
        self._begun: Begun | None = None  # what this guard has begun last

    @property
    def gate(self) -> GateClosed | None:
        """Why held-out evaluation cannot begin yet; None once it can."""
        return self._gate

    async def run(self) -> None:
        """Evaluate until this is cancelled.

        Raises:
            SettingsError: the held-out split is unusable, or not that of the run.
        """
        while True:
            self._run.queued.clear()
            await self._pass_gate()
            request = self._next_request()
            # No checkpoint is to blame for a worker that cannot start.
            if self._gate is not None or request is None:
                await self._wait_for_a_checkpoint()
                continue
            failure = self._passed_over(request) or await self._score(request)
            if failure is not None:
                await self._give_up(failure)
            self._begun = None
            queue = self._run.queue
            if queue and request == self._of_queue(queue[0]):
                queue.popleft()

    async def give_up(self) -> None:
        """Note that this guard does not end of the evaluation under way; whoever calls has the lock."""
        if self._begun is not None:
            before = replace(self._begun, times=self._begun.times - 1)
            with contextlib.suppress(StoreError):
                await self._note_begun(before, self._run.open_store())

    async def _wait_for_a_checkpoint(self) -> None:
        """Or until it is time to try the gate again: on a cluster no trainer starts before it is passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if self._gate is None else GATE_RETRY_SECONDS):
                await self._run.queued.wait()

    # -- what is next --------------------------------------------------------------------------------------

    def _next_request(self) -> EvaluationRequest | None:
        judge, queue = self._run.judge, self._run.queue
        wanted = None if judge is None else judge.wanted_pass()
        if wanted is not None:
            return self._request(wanted.attempt, wanted.step, wanted.path, wanted.index)
        return self._of_queue(queue[0]) if queue else None

    def _of_queue(self, checkpoint: CheckpointReport) -> EvaluationRequest:
        return self._request(checkpoint.attempt, checkpoint.step, checkpoint.path, 0)

    def _request(self, attempt: int, step: int, path: str, index: int) -> EvaluationRequest:
        """A request with the sampling of the run, which its first checkpoint has fixed."""
        judge = self._run.judge
        return EvaluationRequest(attempt, step, Path(path), index, None if judge is None else judge.sampling)

    def _passed_over(self, request: EvaluationRequest) -> Failure | None:
        queue, last = self._run.queue, self._run.verdict.last_evaluation
        if not (self._newest_only and is_passed_over(request, queue, last)):
            return None
        message = f"skipped, because step {queue[-1].step} waits already (backlog: newest)"
        return Failure(request.attempt, request.step, 0, message, gone=True, kind=FailureKind.CHECKPOINT)

    # -- the gate ------------------------------------------------------------------------------------------

    async def _pass_gate(self) -> None:
        """Start the worker once: it checks the split and that the training prompts are disjoint from it."""
        if self._gate is None:
            return
        try:
            await self._worker.start()
            if (digest := self._worker.split_digest) is not None:
                measure = self._worker.measure
                await self._run.persist(lambda store: self._run.call(store.check_evaluation, digest, measure))
        except SplitError as error:
            raise SettingsError(str(error)) from error
        except SettingsError:
            raise
        except Exception as error:
            closed = GateClosed(_reason(error))
            if closed != self._gate:
                log.warning("held-out evaluation cannot begin: %s", closed.reason)
            self._gate = closed
        else:
            self._gate = None

    # -- scoring -------------------------------------------------------------------------------------------

    async def _score(self, request: EvaluationRequest) -> Failure | None:
        """Have one checkpoint scored and judged; how that failed, if it did."""
        try:
            await self._begin(request)
            await self._judge(await self._evaluation(request))
        except Exception as error:
            kind = error.kind if isinstance(error, EvaluationError) else FailureKind.UNDERWAY
            gone = isinstance(error, CheckpointGoneError)
            return Failure(
                request.attempt, request.step, request.pass_index, _reason(error), gone=gone, kind=kind
            )
        return None

    async def _begin(self, request: EvaluationRequest) -> None:
        """Note on disk what begins: a guard that it ends with its whole container can note nothing."""
        newest = await self._run.persist(lambda store: self._run.call(store.begun))
        before = begun_before(request, newest)
        refuse_once_more(request, before)
        self._begun = Begun(CheckpointKey.of(request), request.pass_index, before + 1)
        await self._run.persist(partial(self._note_begun, self._begun))

    async def _note_begun(self, begun: Begun, store: EventLog) -> None:
        content = [begun.pass_index, begun.times]
        await self._run.append(store, Note(NoteKind.BEGUN, content, begun.key))

    async def _evaluation(self, request: EvaluationRequest) -> Evaluation:
        """What the worker says, if it is of this checkpoint and no other."""
        refuse_overwritten(request, self._run.queue)
        expected = await self._run.persist(partial(self._expected, request))
        request = replace(request, expected=expected)
        if expected.pins is None:
            request = replace(request, expected=replace(expected, pins=await self._pins(request)))
        evaluation = await self._worker.evaluate(request)
        # Before, while or after its files were taken: nobody can tell.
        refuse_overwritten(request, self._run.queue)
        refuse_no_outcomes(evaluation)
        refuse_other_weights(evaluation, self._run.verdict.last_evaluation)
        return evaluation

    async def _judge(self, evaluation: Evaluation) -> None:
        """Put an evaluation into the log; it costs too much to be lost with a store that fails."""
        before = self._run.verdict.best_evaluation
        await self._run.persist(partial(self._settle, evaluation))
        _log_score(evaluation)
        best = self._run.verdict.best_evaluation
        new = best is not None and best != before and CheckpointKey.of(best) == CheckpointKey.of(evaluation)
        if self._best is not None and new and self._worker.staged is not None:
            await asyncio.to_thread(_keep, self._worker.staged, self._best)

    async def _give_up(self, failure: Failure) -> None:
        log.warning("checkpoint %d of attempt %d: %s", failure.step, failure.attempt, failure.message)
        await self._run.persist(partial(self._settle, failure))

    async def _settle(self, what: Evaluation | Failure, store: EventLog) -> None:
        """Append what became of an evaluation, if it is not on disk."""
        # A flush that reported an error may have reached the disk after all.
        if not await self._run.call(store.is_settled, CheckpointKey.of(what), what.pass_index):
            await self._run.append(store, what)

    async def _pins(self, request: EvaluationRequest) -> Mapping[str, str]:
        """Those of the first checkpoint, on disk before its template is given a prompt.

        Were they kept once it is scored, a template that always fails could be exchanged with every
        checkpoint, and each time ask another question about the prompts.
        """
        pins = await self._worker.pins(request)
        await self._run.persist(partial(self._pin, pins))
        return pins

    async def _pin(self, pins: Mapping[str, str], store: EventLog) -> None:
        await self._run.append(store, Note(NoteKind.PINS, dict(pins)))
        self._run.pins = pins

    async def _expected(self, request: EvaluationRequest, store: EventLog) -> Expected:
        """What the checkpoint must be. Of a later pass the weights are compared with those of the first (see
        `refuse_other_weights`), and its files may have been touched or written again meanwhile.
        """
        pins = self._run.pins
        if request.pass_index > 0:
            return Expected(pins=pins)
        note = await self._run.call(store.newest_note, NoteKind.MANIFEST, CheckpointKey.of(request))
        announced = None if note is None else note.content
        last = self._run.verdict.last_evaluation
        return Expected(announced, pins, None if last is None else last.sha256)


def begun_before(request: EvaluationRequest, newest: Begun | None) -> int:
    """How many guards have begun this very evaluation, and did not live to say what became of it. Pure."""
    if newest is None or (newest.key, newest.pass_index) != (CheckpointKey.of(request), request.pass_index):
        return 0
    return newest.times


def refuse_once_more(request: EvaluationRequest, before: int) -> None:
    """Leave what ends guards, of which none can tell why: that may depend on an item. Pure.

    Raises:
        EvaluationError: so many have ended in the midst of it.
    """
    if before >= MOST_BEGUN:
        raise EvaluationError(
            f"the guard ended {before} times in the midst of evaluating step {request.step}, so it is not "
            "begun once more: see how its container ended; if it was out of memory, give it more, lower "
            "batch_size, or see what the checkpoint has beside its weights"
        )


def is_passed_over(
    request: EvaluationRequest, queue: Sequence[CheckpointReport], last: EvaluationSummary | None
) -> bool:
    """Whether a newer checkpoint than this one waits in the queue, of which the request is the first. Pure.

    Never a pass that the judge wants, nor the first of a run, with which the others are compared.
    """
    return last is not None and request.pass_index == 0 and len(queue) > 1


def refuse_overwritten(request: EvaluationRequest, queue: Iterable[CheckpointReport]) -> None:
    """Score nothing under a name that may not be its own: its directory may hold a later checkpoint. Pure.

    All that waits in the queue, but for the request's own announcement, was announced after it.

    Raises:
        CheckpointGoneError: another checkpoint was announced with the same path since.
    """
    mine = CheckpointKey.of(request)
    for later in queue:
        if later.path == str(request.path) and CheckpointKey.of(later) != mine:
            raise CheckpointGoneError(
                f"{request.path} was announced again, as step {later.step}, before step {request.step} "
                "had been scored: save each checkpoint to a directory of its own"
            )


def refuse_no_outcomes(evaluation: Evaluation) -> None:
    """Raises `EvaluationError` if these are no outcomes that can be judged. Pure."""
    items = evaluation.items
    graders = [some for some in (evaluation.proxy_items, evaluation.fooled_items) if some]
    if not items or not all(0.0 <= x <= 1.0 for some in (items, *graders) for x in some):
        raise EvaluationError("the evaluator returned no outcomes, or outcomes outside [0, 1]")  # NaN too
    if any(len(some) != len(items) for some in graders):
        raise EvaluationError("the evaluator returned another number of outcomes for the training grader")


def refuse_other_weights(evaluation: Evaluation, first: EvaluationSummary | None) -> None:
    """A later pass is one of the same policy, or its checkpoint was saved over. Pure.

    Raises:
        EvaluationError: the weights are not those of the checkpoint's first evaluation.
    """
    if evaluation.pass_index == 0 or first is None or None in (first.sha256, evaluation.sha256):
        return
    if CheckpointKey.of(first) == CheckpointKey.of(evaluation) and first.sha256 != evaluation.sha256:
        raise EvaluationError(
            f"what lies in {evaluation.path} is not what was scored before as step {evaluation.step}: save "
            "each checkpoint to a directory of its own, and leave it as it is until it has been scored",
            FailureKind.CHECKPOINT,
        )


def _reason(error: Exception) -> str:
    """What is told of an error; of one that nobody foresaw no word, for it may be about an item."""
    if isinstance(error, EvaluationError):
        return str(error)
    log.error("evaluation ended with an unexpected %s", type(error).__name__)
    return f"internal error ({type(error).__name__})"


def _log_score(evaluation: Evaluation) -> None:
    again = f", pass {evaluation.pass_index + 1}" if evaluation.pass_index else ""
    where = f"checkpoint {evaluation.step} of attempt {evaluation.attempt}{again}"
    score, seconds = evaluation.score, evaluation.seconds or 0.0
    facts = {"step": evaluation.step, "attempt": evaluation.attempt, "score": score, "seconds": seconds}
    log.info("%s: held-out %.4f, evaluated in %.1f s", where, score, seconds, extra=facts)
    if evaluation.timed_out:
        log.warning("%s: %.1f%% of its completions timed out in a scorer", where, 100 * evaluation.timed_out)


def _keep(staged: Path, best: Path) -> None:
    """Keep in `best` what lies in `staged`; at any moment the former or the new one is complete on disk.

    `staged` stays, for further passes are made of it: many of the starting policy, which is the best while
    there is no other. Nobody writes to its files, so both have them, and they take no more room.
    """
    new, old = best.with_suffix(".new"), best.with_suffix(".old")
    try:
        _put_back(old, best)
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(staged, new, copy_function=_linked)
        if best.exists():
            best.rename(old)
        new.rename(best)
    except OSError as error:
        log.error("the best checkpoint could not be kept in %s: %s", best, error)
        with contextlib.suppress(OSError):
            _put_back(old, best)
    shutil.rmtree(new, ignore_errors=True)
    if best.exists():
        shutil.rmtree(old, ignore_errors=True)


def _put_back(old: Path, best: Path) -> None:
    """The former one takes its place again, where none has taken it."""
    if old.exists() and not best.exists():
        old.rename(best)


def _linked(source: str, target: str) -> None:
    """A further name of the file; a copy where the file system has no such."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
