"""What a trainer reports: steps, checkpoints, its end. Each is on disk before it is acknowledged.

Requests that arrive while a flush is under way wait for the next one and share it (group commit).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from guard_core.checkpoint_key import CheckpointKey
from guard_core.terminal import is_unicode
from guard_core.wire import CheckpointReport, EndReport, StepReport
from guard_service.engine.allowance import Allowance
from guard_service.engine.ledger import Ledger
from guard_service.engine.liveness import Liveness
from guard_service.engine.scoring import ScoringWorker
from guard_service.errors import FieldError, Problem, StoreError, conflict, invalid
from guard_service.heldout.identity import manifest
from guard_service.metrics import GuardMetrics
from guard_service.refusals import Kind
from guard_service.store import Appended, Conflict, EventLog, Note, NoteKind, RefusedCheckpoint

log = logging.getLogger("rlguard.guard")

GROUP_STEPS = 4_000  # steps of one transaction: more would make the first of them wait too long


class _Waiting(NamedTuple):
    """A request whose steps wait for the next flush."""

    reports: Sequence[StepReport]
    result: asyncio.Future[Appended | Problem]


class _Found(NamedTuple):
    """What was found where a checkpoint is said to be. `manifest`: None if its files cannot be listed."""

    path: Path
    unfit: str
    manifest: str | None


class Ingest:
    """Takes the reports of a run into its ledger."""

    def __init__(
        self,
        ledger: Ledger,
        liveness: Liveness,
        metrics: GuardMetrics,
        root: Path,
        worker: ScoringWorker | None,
        allowance: Allowance,
        elsewhere: str,
    ) -> None:
        self._ledger, self._liveness, self._metrics = ledger, liveness, metrics
        self._root, self._worker, self._allowance = root, worker, allowance
        self._elsewhere = elsewhere
        self._waiting: deque[_Waiting] = deque()
        self._steps_wait = asyncio.Event()

    @contextlib.contextmanager
    def refusing(self, kind: Kind) -> Iterator[None]:
        """Count it if a report is refused here for good; a store that fails refuses nothing."""
        try:
            yield
        except Problem as problem:
            if _is_refusal(problem):
                self._liveness.refusals.refused(kind, problem)
                self._ledger.publish()
            raise

    # -- steps ---------------------------------------------------------------------------------------------

    async def add_steps(self, reports: Sequence[StepReport]) -> Appended:
        """Store and fold steps; see `Engine.add_steps`."""
        waiting = _Waiting(reports, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._steps_wait.set()
        result = await waiting.result
        if isinstance(result, Problem):
            with self.refusing(Kind.STEPS):
                raise result
        return result

    async def write_steps(self) -> None:
        """Store and fold what waits, group after group, until this is cancelled."""
        while True:
            await self._steps_wait.wait()
            self._steps_wait.clear()
            while self._waiting:
                async with self._ledger.lock:
                    group = self._take_group()
                    results = await self._commit([waiting.reports for waiting in group])
                    for waiting, result in zip(group, results, strict=True):
                        if not waiting.result.done():
                            waiting.result.set_result(result)

    def give_up(self) -> None:
        """Refuse what still waits: it is not on disk, so it is not acknowledged."""
        while self._waiting:
            self._waiting.popleft().result.set_result(self._ledger.unavailable())

    def _take_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._waiting and size < GROUP_STEPS:
            group.append(self._waiting.popleft())
            size += len(group[-1].reports)
        return group

    async def _commit(self, batches: list[Sequence[StepReport]]) -> Sequence[Appended | Problem]:
        """Append and fold one group; one result for each request of it."""
        ledger = self._ledger
        try:
            store = ledger.open_store()
            started = time.perf_counter()
            now = time.monotonic()
            refused = [self._allowance.refuses_steps(len(reports), store.size, now) for reports in batches]
            taken = [reports for reports, no in zip(batches, refused, strict=True) if no is None]
            results = await ledger.append_steps(store, taken) if taken else []
        except StoreError as error:
            ledger.fail(error)
            return [ledger.unavailable()] * len(batches)
        except Exception as error:
            log.exception("the judge failed on a step")
            ledger.fail(StoreError(f"internal error ({type(error).__name__}) while folding a step"))
            return [ledger.unavailable()] * len(batches)
        self._metrics.commit_seconds.observe(time.perf_counter() - started)
        self._count(results)
        ledger.publish()
        said = (r if isinstance(r, Appended) else conflict(r.detail, r.errors) for r in results)
        return [next(said) if no is None else no for no in refused]

    def _count(self, results: Sequence[Appended | Conflict]) -> None:
        for result in results:
            if isinstance(result, Appended):
                self._liveness.refusals.accepted(Kind.STEPS)
                self._metrics.duplicate_steps.inc(result.duplicates)
            else:
                self._metrics.conflicts.inc()
        if any(isinstance(result, Appended) and result.new for result in results):
            self._ledger.ended = False
            self._liveness.start_anew()

    # -- checkpoints ---------------------------------------------------------------------------------------

    async def add_checkpoint(self, report: CheckpointReport) -> bool:
        """Queue a checkpoint for its evaluation; see `Engine.add_checkpoint`."""
        try:
            with self.refusing(Kind.CHECKPOINTS):
                new = await self._announce(report)
        except Problem as problem:
            if _is_refusal(problem):
                await self._remember_refused(RefusedCheckpoint(CheckpointKey.of(report)))
            raise
        self._liveness.refusals.accepted(Kind.CHECKPOINTS)
        self._ledger.publish()
        return new

    async def _remember_refused(self, refused: RefusedCheckpoint) -> None:
        """Nobody judges it: that must not be forgotten at a restart.

        Raises:
            Problem: 503 if the store is unavailable; it is announced again, and refused then.
        """
        async with self._ledger.for_request() as store:
            full = self._allowance.refuses_announcement(store.size) is not None
            if full or not self._ledger.judge.counts_as_refused(refused.key):
                return
            await self._ledger.append(store, refused)
            self._ledger.publish()

    async def _announce(self, report: CheckpointReport) -> bool:
        """Store that a checkpoint waits for its evaluation; False if it is known already."""
        found = await asyncio.to_thread(self._look, report.path)
        resolved = report.model_copy(update={"path": str(found.path)})
        async with self._ledger.for_request() as store:
            known = await self._ledger.call(store.is_known_checkpoint, resolved)
            if isinstance(known, Conflict) and self._ledger.takes_outcomes:
                return False  # nobody loads it, so it does not matter where it is
            if isinstance(known, Conflict):
                raise conflict(known.detail, known.errors)
            if known:
                await self._renew(store, resolved, found)
                return False
            if (full := self._allowance.refuses_announcement(store.size)) is not None:
                raise full
            # A repeated announcement is fine after the checkpoint was rotated away; a new one is not.
            await self._check_new(report.path, found)
            await self._ledger.append(store, resolved, *_manifest_note(resolved, found))
            self._ledger.ended = False
        self._ledger.queue.append(resolved)
        self._ledger.queued.set()
        return True

    async def _renew(self, store: EventLog, report: CheckpointReport, found: _Found) -> None:
        """Note what the files are now, if it was saved again by a trainer that was started again.

        Raises:
            Problem: 507 if there is no room for it. It is not scored then: its files were changed.
        """
        key, waiting = CheckpointKey.of(report), map(CheckpointKey.of, self._ledger.queue)
        if found.manifest is None or key not in waiting:
            return
        known = await self._ledger.call(store.newest_note, NoteKind.MANIFEST, key)
        if known is not None and found.manifest == known.content:
            return
        if (full := self._allowance.refuses_announcement(store.size)) is not None:
            raise full
        await self._ledger.append(store, *_manifest_note(report, found))

    async def _check_new(self, path: str, found: _Found) -> None:
        """Raises `Problem` 422 if there is nothing that can be scored, now or ever."""
        if self._elsewhere:
            raise _bad_path(f"{path} is not scored here: {self._elsewhere}")
        if not await asyncio.to_thread(os.path.isdir, found.path):
            raise _bad_path(f"{path} is not a directory: announce a checkpoint once it is complete")
        if found.unfit:
            raise _bad_path(f"{path} can never be scored: {found.unfit}")
        loads_checkpoints = self._worker is not None and self._worker.adapters is not None
        if found.manifest is None and loads_checkpoints:  # whatever is changed would not be noticed
            raise _bad_path(
                f"the files in {path} cannot be listed: see that the guard can read the directory, and "
                "announce it again"
            )

    def _look(self, path: str) -> _Found:
        """Raises `Problem` 422 if the path does not lie under the checkpoint root."""
        resolved = _resolved(self._root, path)
        unfit = "" if self._worker is None else self._worker.unfit(resolved)
        return _Found(resolved, unfit, manifest(resolved))

    # -- the end -------------------------------------------------------------------------------------------

    async def note_end(self, report: EndReport) -> None:
        """The trainer is over; see `Engine.note_end`."""
        newest = self._ledger.verdict.attempt
        if newest is None:
            message = f"attempt {report.attempt} has reported no step yet, so it cannot have ended"
            raise conflict(message, [FieldError(field="attempt", message=message)])
        if report.attempt < newest:
            message = f"attempt {report.attempt} is not the newest that reported a step"
            raise conflict(f"{message}: {newest}", [FieldError(field="attempt", message=message)])
        async with self._ledger.for_request() as store:
            finishes = report.finished and not self._ledger.ended
            if finishes or not self._ledger.judge.knows_end(report):
                if (full := self._allowance.refuses_announcement(store.size)) is not None:
                    raise full
                await self._ledger.append(store, report)
            self._ledger.ended = self._ledger.ended or report.finished
            self._ledger.publish()
        self._ledger.queued.set()  # the last checkpoint may be wanted once more


def _manifest_note(report: CheckpointReport, found: _Found) -> list[Note]:
    """What the files of a checkpoint are, if they can be listed."""
    if found.manifest is None:
        return []
    return [Note(NoteKind.MANIFEST, found.manifest, CheckpointKey.of(report))]


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


def _is_refusal(problem: Problem) -> bool:
    """Whether sending it again will not help: what nobody keeps, nobody judges."""
    later = problem.status == HTTPStatus.TOO_MANY_REQUESTS
    full = problem.status == HTTPStatus.INSUFFICIENT_STORAGE
    return full or (problem.status < HTTPStatus.INTERNAL_SERVER_ERROR and not later)


def _bad_path(message: str) -> Problem:
    return invalid(message, [FieldError(field="path", message=message)])
