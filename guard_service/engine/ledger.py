"""The ledger of one run: its log, and the judge that has folded what is in it, always in step.

It is the one owner of state. The log is used under one lock; one that fails is given up, and opened and read
again by `recover`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from guard_core.checkpoint_key import CheckpointKey
from guard_core.compact import CompactState
from guard_core.judge import Evaluation, Judge, Latch
from guard_core.policy import Policy
from guard_core.wire import CheckpointReport, StepReport, Verdict
from guard_service.engine.fold import Folded, append, append_steps, fold, is_new, restore
from guard_service.engine.liveness import Liveness
from guard_service.engine.published import Published
from guard_service.engine.scoring import ScoringWorker
from guard_service.engine.termination import TerminationMessage
from guard_service.engine.verdicts import beside, verdict_now, without_store
from guard_service.errors import GuardError, NotAdoptedError, Problem, StoreError, store_unavailable
from guard_service.metrics import GuardMetrics
from guard_service.store import Appended, Conflict, EventLog, Failure, StoredEvent

log = logging.getLogger("rlguard.guard")

Resume = Callable[[], Awaitable[Sequence[StoredEvent]]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unavailable:
    """In place of a log: none can be used now."""

    reason: str


class Ledger:
    """Log, judge and verdict of one run.

    Args:
        state_dir: directory of the store; made if missing.
        root: what the verdict says that every checkpoint must lie below.
        policy: the thresholds of the run.
        liveness: what is known of the trainer beside the store.
        metrics: where failures of the store are counted.
        worker: what the verdict says of how checkpoints are scored; None if they are not.
    """

    def __init__(
        self,
        *,
        state_dir: Path,
        root: Path,
        policy: Policy,
        liveness: Liveness,
        metrics: GuardMetrics,
        worker: ScoringWorker | None,
        takes_outcomes: bool,
        termination_message: Path | None,
    ) -> None:
        self._state_dir, self._root, self._policy = state_dir, root.absolute(), policy
        self._liveness, self._metrics, self._worker = liveness, metrics, worker
        #: Whether somebody else evaluates checkpoints, and reports the outcomes.
        self.takes_outcomes = takes_outcomes
        self._termination = TerminationMessage(termination_message)
        self._store: EventLog | Unavailable = Unavailable("the store has not been opened yet")
        self._folded: Folded | None = None  # None until the log was read
        #: Whether the trainer has said that it finished, and reported nothing since.
        self.ended = False
        #: Checkpoints that wait for their evaluation, the one under way included.
        self.queue: deque[CheckpointReport] = deque()
        #: The files that every checkpoint must have, by name; None before one was scored.
        self.pins: Mapping[str, str] | None = None
        self.queued = asyncio.Event()  # set whenever the queue has grown
        self.lock = asyncio.Lock()  # one user of the store at a time, and no fold beside it
        self._available = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._verdict = Judge(policy).verdict()
        #: What every response carries.
        self.published = Published(self._verdict)
        self.publish()

    # -- life ----------------------------------------------------------------------------------------------

    async def recover(self, resume: Resume | None) -> None:
        """Open the log and fold what is in it and not yet folded.

        Raises:
            StoreError, ChangedRunError: see `EventLog`.
        """
        adopted: Sequence[StoredEvent] = ()
        if resume and self._folded is None and await self.call(is_new, self._state_dir, self._policy):
            adopted = await resume()
        async with self.lock:
            restored = await self.call(restore, self._state_dir, self._policy, self._folded, adopted)
            self._store = restored.log
            self.ended = restored.ended
            self._adopt(restored.folded)
            self.queue = deque(restored.queue)
            self.pins = restored.pins
            self.queued.set()
            self._available.set()
            self.publish()

    async def close(self) -> None:
        """Close the log; whoever calls has the lock."""
        if isinstance(self._store, EventLog):
            await self.call(self._store.close)
        self._thread.shutdown()

    # -- what is known -------------------------------------------------------------------------------------

    @property
    def verdict(self) -> Verdict:
        """The verdict now."""
        return self._verdict

    @property
    def latches(self) -> tuple[Latch, ...]:
        """Every latch that has closed: at most one fire and one halt."""
        return () if self._folded is None else self._folded.judge.latches

    @property
    def known_judge(self) -> Judge | None:
        """The judge; None until the log was read."""
        return None if self._folded is None else self._folded.judge

    @property
    def judge(self) -> Judge:
        """The judge, which is there whenever the log is open."""
        return self._known.judge

    @property
    def _known(self) -> Folded:
        assert self._folded is not None
        return self._folded

    @property
    def sequence(self) -> int:
        """Number of the newest event that was folded; 0 until the log was read."""
        return 0 if self._folded is None else self._folded.seq

    @property
    def compact_state(self) -> CompactState | None:
        """What a guard without this log goes on from; None until the log was read."""
        return None if self._folded is None else self._folded.judge.compact()

    @property
    def outage(self) -> Unavailable | None:
        """Why the store cannot be used now; None if it can, as far as is known."""
        return self._store if isinstance(self._store, Unavailable) else None

    @property
    def store_bytes(self) -> int | None:
        """Size of the store; None if it cannot be used now."""
        return self._store.size if isinstance(self._store, EventLog) else None

    # -- using the store -----------------------------------------------------------------------------------

    def open_store(self) -> EventLog:
        """The store; raises `StoreError` if there is none now."""
        if isinstance(self._store, Unavailable):
            raise StoreError(self._store.reason)
        return self._store

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a call of the store in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    @contextlib.asynccontextmanager
    async def for_request(self) -> AsyncIterator[EventLog]:
        """The store, for a request that gets a 503 if it fails."""
        async with self.lock:
            try:
                yield self.open_store()
            except StoreError as error:
                self.fail(error)
                raise self.unavailable() from error

    async def persist(self, work: Callable[[EventLog], Awaitable[T]]) -> T:
        """What `work` makes of the store; it is done again, from its beginning, until the store works."""
        while True:
            await self._available.wait()
            async with self.lock:
                try:
                    done = await work(self.open_store())
                except StoreError as error:
                    self.fail(error)
                else:
                    self.publish()
                    return done

    def fail(self, error: GuardError) -> None:
        """Note that the store does not work. The next tick tries to open it again."""
        failed, before = Unavailable(str(error)), self._store
        if isinstance(error, NotAdoptedError):
            if before != failed:
                log.info("%s", error)
        else:
            if before != failed:
                log.error("%s", error)
            self._metrics.store_errors.inc()
        self._store = failed
        self._available.clear()
        if isinstance(before, EventLog):
            before.close()
        self.publish()

    def unavailable(self) -> Problem:
        """The response to a request of which nothing was kept."""
        return store_unavailable(self.outage.reason if self.outage else "", self.published.trainer_json)

    # -- appending -----------------------------------------------------------------------------------------

    async def append(self, store: EventLog, *events: StoredEvent) -> None:
        """Append events with the latches that they close, and fold them; whoever calls has the lock."""
        self._adopt(await self.call(append, store, self._known, events))

    async def append_steps(
        self, store: EventLog, batches: Sequence[Sequence[StepReport]]
    ) -> list[Appended | Conflict]:
        """The same of what is new in several requests; one result for each."""
        results, folded = await self.call(append_steps, store, self._known, batches)
        self._adopt(folded)
        return results

    async def settle(self, what: Evaluation | Failure, store: EventLog) -> None:
        """The same of what became of an evaluation, if it is not on disk already."""
        # A flush that reported an error may have reached the disk after all.
        if not await self.call(store.is_settled, CheckpointKey.of(what), what.pass_index):
            await self.append(store, what)

    def drop_from_queue(self, key: CheckpointKey) -> None:
        """Let this checkpoint wait no longer; whoever calls has the lock."""
        self.queue = deque(one for one in self.queue if CheckpointKey.of(one) != key)

    async def adopt_latch(self, latch: Latch) -> None:
        """Close a latch that is known elsewhere. It is announced even if the log cannot keep it now."""
        async with self.lock:
            if self._folded is None or any(known.fire == latch.fire for known in self.latches):
                return
            try:
                await self.append(self.open_store(), latch)
            except StoreError as error:  # put there when the log works again
                at = {**self._known.latched_at, latch.fire: datetime.now(UTC)}
                self._adopt(Folded(fold(self.judge, [latch]), self._known.seq, at))
                self.fail(error)
            self.publish()

    def _adopt(self, folded: Folded) -> None:
        """Let this be what is known of the run, and log the latches that are new in it."""
        new = [latch for latch in folded.judge.latches if latch not in self.latches]
        self._folded = folded
        for latch in new:
            log.error("%s latched: %s", latch.kind, latch.message)

    # -- the verdict ---------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Make the verdict that every response carries from now on."""
        verdict = self._verdict
        if self._folded is not None:
            liveness = self._liveness
            verdict = verdict_now(self._folded.judge, liveness.silent_for, liveness.refusals.condition())
            verdict = beside(verdict, liveness.following.condition())
        if isinstance(self._store, Unavailable):
            verdict = without_store(verdict, self._store.reason)
        at = None if self._folded is None or not verdict.stop else self._folded.latched_at.get(verdict.fire)
        known = {"checkpoint_root": str(self._root), "ended": self.ended, "latched_at": at}
        verdict = verdict.model_copy(update=known)
        if (worker := self._worker) is not None:
            verdict = verdict.model_copy(update={"adapters": worker.adapters, "needed": worker.needed})
        else:  # nobody makes further passes, nor, without outcomes from outside, any evaluation
            left = max(0, verdict.announced - verdict.evaluated - verdict.failed - verdict.skipped)
            waiting = left if self.takes_outcomes else 0
            made = {"next_pass": None, "baseline_passes": 0, "baseline_planned": 0}
            verdict = verdict.model_copy(update=made | {"waiting": waiting})
        self._verdict, before = verdict, self.published.revision
        self.published.put(verdict)
        if self.published.revision != before:
            self._termination.write(verdict, self.sequence)
