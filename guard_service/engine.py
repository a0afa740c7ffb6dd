"""What a guard does for its run beside steps: its life, checkpoints, the end, handing over, and reading."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from guard_service.display_data import DisplayStore
from guard_service.errors import GuardError, Problem, ProblemType, StoreError
from guard_service.evaluations import Evaluations, GateClosed
from guard_service.event_log import EventLog
from guard_service.events import Conflict, Note, NoteKind, RefusedCheckpoint
from guard_service.evidence import evidence_files
from guard_service.handover import RunState
from guard_service.heldout.identity import manifest
from guard_service.history import BEFORE_ALL, STAYS_HERE
from guard_service.outcomes import evaluation_of, items_of, refuse_late, refuse_other_values, wanted_pass
from guard_service.run import Kind, LoggedRun, Unavailable
from guard_service.verdicts import halted
from rlguard.core.checkpoint_key import CheckpointKey
from rlguard.core.display import side_by_side
from rlguard.core.judge import Latch
from rlguard.core.terminal import is_unicode
from rlguard.core.wire import CheckpointReport, EndReport, EvaluationReport, MomentRollouts

log = logging.getLogger("rlguard.guard")

TICK_SECONDS = 1.0
LONGEST_TICK = 2  # ticks that one counts as silence, however late it comes
EXAMINED_STEPS = 10_000  # of a longer run, for its evidence

A = TypeVar("A")
T = TypeVar("T")


class _Found(NamedTuple):
    """What was found where a checkpoint is said to be. `manifest`: None if its files cannot be listed."""

    path: Path
    unfit: str
    manifest: str | None


class Engine:
    """One guarded run. Construct it (no I/O), `start` it, and `close` it, all on one event loop.

    Args:
        run: its log and its verdict; it takes the steps.
        elsewhere: where checkpoints are scored if another guard of the run does it: announcements are refused
            with it. Empty: nobody else does.
        keep_best: keep the files of the best checkpoint in `<state_dir>/best`.
        newest_only: skip checkpoints for which a newer one waits already.

    `on_fatal` is called with the error when the guard must end.
    """

    def __init__(
        self, run: LoggedRun, *, elsewhere: str = "", keep_best: bool = False, newest_only: bool = False
    ) -> None:
        self.on_fatal: Callable[[GuardError], None] = lambda error: log.error("%s", error)
        self.run, self._elsewhere = run, elsewhere
        #: What its trainer gave for people to see.
        self.display = DisplayStore(run.state_dir)
        self._evaluations: Evaluations | None = None
        if run.worker is not None:
            best = run.state_dir / "best" if keep_best else None
            self._evaluations = Evaluations(run, run.worker, best, newest_only)
        self._handed_over = asyncio.Event()  # since `hand_over` was asked for
        self._tasks: list[asyncio.Task[None]] = []

    # -- life ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the store and begin. A store that cannot be read is retried, and the verdict says `unknown`.

        Raises:
            ChangedRunError: the store belongs to a run with another policy.
        """
        try:
            await self.run.recover()
        except StoreError as error:
            self.run.fail(error)
        await self.display.load()
        self._begin(self._tick())
        if self._evaluations is not None:
            self._begin(self._evaluations.run())
        elif not self.run.takes_outcomes:
            why = self._elsewhere or "no held-out evaluation is configured: only the KL rule can fire"
            log.warning("%s", why)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this until the guard ends. It ends if this fails, for then nobody would do it."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._end_if_failed)
        self._tasks.append(task)

    def _end_if_failed(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, GuardError):  # of what nobody foresaw no word: it may be about an item
            log.error("internal error at\n%s", "".join(traceback.format_tb(error.__traceback__)))
            error = GuardError(f"internal error ({type(error).__name__})")
        self.on_fatal(error)

    async def close(self) -> None:
        """Finish the flush under way, end the evaluation process, close the log."""
        async with self.run.lock:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self.run.worker is not None:
                await self.run.worker.close()
            if self._evaluations is not None:
                await self._evaluations.give_up()
            await self.display.save(now=True)
            await self.run.close()

    async def _tick(self) -> None:
        """Once a second: try a broken store again, judge the silence, and keep what is shown."""
        now = time.monotonic()
        while True:
            before = now
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            self.run.silent_for += min(now - before, LONGEST_TICK * TICK_SECONDS)
            if self.run.store_works:
                await self._judge_silence()
            else:
                await self._try_again()
            await self.display.save()

    async def _try_again(self) -> None:
        try:
            await self.run.recover()
        except GuardError as error:
            self.run.fail(error)
        else:
            log.warning("the store works: %s", self.run.open_store().path)

    async def _judge_silence(self) -> None:
        """Silence and refusals: one that passes its limit is an event, if it stops the run."""
        run = self.run
        async with run.lock:
            judge = run.judge
            if judge is None or not run.store_works:
                return
            if self.run.worker is not None and (judge.waiting or judge.wanted_pass()):
                run.silent_for = 0.0
            halt = halted(judge, run.silent_for, run.refusals.condition())
            if halt is not None:
                try:
                    await run.append(run.open_store(), halt)
                except StoreError as error:
                    run.fail(error)
                    return
            run.publish()

    @property
    def not_ready(self) -> Unavailable | GateClosed | None:
        """Why the guard is not ready; None if it is."""
        return self.run.outage or (None if self._evaluations is None else self._evaluations.gate)

    # -- checkpoints ---------------------------------------------------------------------------------------

    async def add_checkpoint(self, report: CheckpointReport) -> bool:
        """Queue a checkpoint for its evaluation; False if it is known already.

        Raises:
            Problem: 422 if the path is not a directory under the checkpoint root, or what is in it cannot be
                listed or can never be scored, 409 if the same step was announced with another path, 503 if
                the store is unavailable.
        """
        try:
            with self.run.refusing(Kind.CHECKPOINTS):
                new = await self._announce(report)
        except Problem as problem:
            if problem.is_refusal:
                await self._remember_refused(RefusedCheckpoint(CheckpointKey.of(report)))
            raise
        self.run.refusals.accepted(Kind.CHECKPOINTS)
        self.run.publish()
        return new

    async def _remember_refused(self, refused: RefusedCheckpoint) -> None:
        """Nobody judges it: that must not be forgotten at a restart.

        Raises:
            Problem: 503 if the store is unavailable; it is announced again, and refused then.
        """
        async with self.run.for_request() as store:
            judge = self.run.judge
            full = self.run.allowance.refuses_announcement(store.size) is not None
            if full or judge is None or not judge.counts_as_refused(refused.key):
                return
            await self.run.append(store, refused)
            self.run.publish()

    async def _announce(self, report: CheckpointReport) -> bool:
        """Store that a checkpoint waits for its evaluation; False if it is known already."""
        run = self.run
        found = await asyncio.to_thread(self._look, report.path)
        resolved = report.model_copy(update={"path": str(found.path)})
        async with run.for_request() as store:
            known = await run.call(store.is_known_checkpoint, resolved)
            if isinstance(known, Conflict):
                if run.takes_outcomes:
                    return False  # nobody loads it, so it does not matter where it is
                raise Problem(ProblemType.CONFLICT, known.detail, known.errors)
            if known and not await self._was_saved_again(store, resolved, found):
                return False
            if (full := run.allowance.refuses_announcement(store.size)) is not None:
                raise full
            files = [] if found.manifest is None else [_manifest_note(resolved, found.manifest)]
            if known:
                await run.append(store, *files)
                return False
            # A repeated announcement is fine after the checkpoint was rotated away; a new one is not.
            await self._check_new(report.path, found)
            await run.append(store, resolved, *files)
            run.ended = False
        run.queue.append(resolved)
        run.queued.set()
        return True

    async def _was_saved_again(self, store: EventLog, report: CheckpointReport, found: _Found) -> bool:
        """Whether the files of one that waits are others than those that were announced."""
        key = CheckpointKey.of(report)
        if found.manifest is None or key not in map(CheckpointKey.of, self.run.queue):
            return False
        known = await self.run.call(store.newest_note, NoteKind.MANIFEST, key)
        return known is None or known.content != found.manifest

    async def _check_new(self, path: str, found: _Found) -> None:
        """Raises `Problem` 422 if there is nothing that can be scored, now or ever."""
        if self._elsewhere:
            raise _bad_path(f"{path} is not scored here: {self._elsewhere}")
        if not await asyncio.to_thread(os.path.isdir, found.path):
            raise _bad_path(f"{path} is not a directory: announce a checkpoint once it is complete")
        if found.unfit:
            raise _bad_path(f"{path} can never be scored: {found.unfit}")
        if found.manifest is None and self.run.worker is not None:  # what is changed would not be noticed
            raise _bad_path(
                f"the files in {path} cannot be listed: see that the guard can read the directory, and "
                "announce it again"
            )

    def _look(self, path: str) -> _Found:
        """Raises `Problem` 422 if the path does not lie under the checkpoint root."""
        resolved = _resolved(self.run.root, path)
        unfit = "" if self.run.worker is None else self.run.worker.unfit(resolved)
        return _Found(resolved, unfit, manifest(resolved))

    async def add_evaluation(self, report: EvaluationReport) -> tuple[bool, int | None]:
        """Take the outcomes of a checkpoint from whoever evaluated it.

        Returns:
            Whether it is new, and the further pass of the same checkpoint that would help now.

        Raises:
            Problem: 422 if these are not the outcomes of this run's items, 409 if the evaluation contradicts
                one on disk or comes too late, 503 if the store is unavailable, 507 if it is full.
        """
        run = self.run
        async with run.for_request() as store:
            announced = await run.call(store.announced, report.step, report.attempt)
            checkpoint = announced or _announced_herewith(report, run.verdict.attempt or 0)
            key, note = CheckpointKey.of(checkpoint), await run.call(store.newest_note, NoteKind.ITEMS)
            items = items_of(report) if note is None else note.content
            evaluation = evaluation_of(report, checkpoint, items)
            known = await run.call(store.evaluation, key, report.pass_index)
            if known is not None:
                refuse_other_values(known, evaluation)
            else:
                wanted = wanted_pass(run.judge, checkpoint)
                refuse_late(evaluation, run.verdict.last_evaluation, wanted)
                if (full := run.allowance.refuses_announcement(store.size)) is not None:
                    raise full
                before = [] if announced else [checkpoint]
                notes = [Note(NoteKind.ITEMS, items)] if note is None else []
                await run.append(store, *before, *notes, evaluation)
                run.queue = deque(one for one in run.queue if CheckpointKey.of(one) != key)
                run.publish()
            return known is None, wanted_pass(run.judge, checkpoint)

    async def note_end(self, report: EndReport) -> None:
        """The trainer has finished. An attempt of whose steps none was fit to be reported may end too.

        Raises:
            Problem: 409 if no step was reported yet, or a later attempt has reported one; 503 if the store is
                unavailable.
        """
        run, newest = self.run, self.run.verdict.attempt
        message = ""
        if newest is None:
            message = f"attempt {report.attempt} has reported no step yet, so it cannot have ended"
        elif report.attempt < newest:
            message = f"attempt {report.attempt} is not the newest that reported a step: {newest}"
        if message:
            raise Problem.of_field(ProblemType.CONFLICT, "attempt", message)
        async with run.for_request() as store:
            finishes = report.finished and not run.ended
            if finishes or run.judge is None or not run.judge.knows_end(report):
                if (full := run.allowance.refuses_announcement(store.size)) is not None:
                    raise full
                await run.append(store, report)
            run.ended = run.ended or report.finished
            run.publish()
        run.queued.set()  # the last checkpoint may be wanted once more

    # -- handing over --------------------------------------------------------------------------------------

    def run_state(self) -> RunState:
        """What another guard of this run would have to know.

        Raises:
            Problem: 503 while nothing is known.
        """
        judge = self.run.judge
        if judge is None:
            raise self.run.unavailable()
        self._handed_over.set()
        return RunState.of(self.run.sequence, judge.compact(), judge.latches, self.run.pins)

    async def adopt(self, state: RunState) -> bool:
        """Begin with what the supervisor knows of this run; False if something is known already.

        A latch that is closed elsewhere is closed in any case.

        Raises:
            Problem: 422 if the state was made under another policy, 503 if the store is unavailable.
        """
        run, events = self.run, state.events(self.run.policy)
        if run.judge is not None or not self.run.has_supervisor:
            for latch in events:
                if isinstance(latch, Latch):
                    await run.adopt_latch(latch)
            return False
        run.adopted = events
        await self._try_again()
        if run.judge is None:
            raise run.unavailable()
        return True

    async def hand_over(self, seconds: float) -> None:
        """Return once the supervisor has fetched the state of a run that ends, or after so many seconds."""
        if not self.run.has_supervisor or self.run.judge is None:
            return
        self._handed_over.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._handed_over.wait()

    # -- what is read ----------------------------------------------------------------------------------------

    async def history(self) -> AsyncIterator[dict[str, Any]]:
        """Every line of the history, without per-item outcomes.

        Raises:
            Problem: 503 if the store is unavailable.
        """
        after = BEFORE_ALL
        while page := await self._read(EventLog.history_page, after):
            after = page[-1][0]
            for _, line in page:
                for name in STAYS_HERE:
                    line.pop(name, None)
                if "pass_index" not in line:
                    yield line

    async def thinned_history(self, points: int) -> dict[str, Any]:
        """The history with at most `points` steps, for a plot.

        Raises:
            Problem: 503 if the store is unavailable.
        """
        return await self._read(EventLog.thinned_history, points)

    def rollouts(self) -> tuple[MomentRollouts, ...]:
        """Rollouts of the start, of the last good checkpoint, and of the latch or else the newest."""
        return side_by_side(self.display.data.rollouts, self.run.verdict)

    async def evidence(self) -> dict[str, str]:
        """What stays of the run when this guard is gone, as files by name; no outcome of an item is in it.

        Raises:
            Problem: 503 if the store is unavailable.
        """
        from rlguard.core.kept_steps import written_steps  # numpy takes a third of a guard's start

        best = self.run.verdict.best_evaluation
        rounds = await self._read(EventLog.kept_rounds, None if best is None else CheckpointKey.of(best))
        examined = await self._read(EventLog.thinned_history, EXAMINED_STEPS)
        steps, total = examined["steps"], examined["total_steps"]
        written = await asyncio.to_thread(written_steps, steps, self.display.data.figures, total)
        return evidence_files(rounds, written, self.rollouts())

    async def _read(self, query: Callable[[EventLog, A], T], argument: A) -> T:
        async with self.run.for_request() as store:
            return await self.run.call(query, store, argument)


def _announced_herewith(report: EvaluationReport, newest: int) -> CheckpointReport:
    """A checkpoint that counts as announced with its outcomes; `newest`: attempt that is reported."""
    attempt = newest if report.attempt is None else report.attempt
    return CheckpointReport(attempt=attempt, step=report.step, path=report.path or f"step {report.step}")


def _manifest_note(report: CheckpointReport, files: str) -> Note:
    """What the files of a checkpoint are."""
    return Note(NoteKind.MANIFEST, files, CheckpointKey.of(report))


def _resolved(root: Path, path: str) -> Path:
    """The directory that `path` names once links are followed; it must lie under the checkpoint root."""
    try:
        root = root.resolve()
        resolved = (root / path).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise _bad_path(f"{path!r} cannot be resolved: {error}") from None
    if resolved == root or not resolved.is_relative_to(root):
        raise _bad_path(f"{path!r} is not below the checkpoint root {root}, once links are followed")
    if not is_unicode(str(resolved)):  # what stores and passes it on takes no other
        raise _bad_path(f"{path!r} is {os.fsencode(resolved)!r}, a name that is not UTF-8: rename it")
    return resolved


def _bad_path(message: str) -> Problem:
    return Problem.of_field(ProblemType.INVALID_CONTENT, "path", message)
