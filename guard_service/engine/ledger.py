"""The ledger of one run: its store, and the judge that has folded what is in it, always in step.

It is the one owner of state. What is done with the store and what is folded of it happen under one lock; a
store that fails is given up, and opened and read again by `recover`.
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
from typing import TYPE_CHECKING, Any, TypeVar

from guard_core.checkpoint_key import CheckpointKey
from guard_core.judge import Evaluation, Judge, Latch
from guard_core.policy import Policy
from guard_core.wire import CheckpointReport, Verdict
from guard_service.engine.liveness import Liveness, port_taken
from guard_service.engine.published import Published
from guard_service.engine.recovery import Elsewhere, FoldedState, fold_event, is_empty, restore
from guard_service.engine.scoring import ScoringWorker
from guard_service.engine.verdicts import beside, verdict_now, without_store
from guard_service.errors import GuardError, Problem, StoreError, store_unavailable
from guard_service.metrics import GuardMetrics
from guard_service.store import Failure, Store, StoredEvent
from guard_service.store.witness import read_latches

if TYPE_CHECKING:
    from guard_core.judge import Ahead

log = logging.getLogger("rlguard.guard")

SNAPSHOT_EVERY = 20_000  # events; a restart replays no more than about this many

Resume = Callable[[], Awaitable[Elsewhere | None]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unavailable:
    """In place of a store: none can be used now."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Settled:
    """The judge after an evaluation that is on disk, and the latches that it has closed."""

    judge: Judge
    latches: tuple[Latch, ...]


class Ledger:
    """Store, judge and verdict of one run.

    Args:
        state_dir: directory of the store; made if missing.
        root: what the verdict says that every checkpoint must lie below.
        policy: the thresholds of the run.
        liveness: what is known of the trainer beside the store.
        metrics: where failures of the store are counted.
        worker: what the verdict says of how checkpoints are scored; None if they are not.
        on_latch: called when a fire or halt has latched and is on disk.
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
        on_latch: Callable[[], None],
    ) -> None:
        self._state_dir, self._root, self._policy = state_dir, root.absolute(), policy
        self._liveness, self._metrics, self._worker, self._on_latch = liveness, metrics, worker, on_latch
        self._store: Store | Unavailable = Unavailable("the store has not been opened yet")
        self._judge: Judge | None = None  # None until the store was read
        self._seq = 0  # newest event that is folded
        self._snapshot_seq = 0
        self._stored_latches: frozenset[Latch] = frozenset()
        #: When the fire (True) and the halt (False) latched, where that is known.
        self.latched_at: dict[bool, datetime] = {}
        #: Checkpoints that wait for their evaluation, the one under way included.
        self.queue: deque[CheckpointReport] = deque()
        #: The files that every checkpoint must have, as of `Store.pins`.
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
        """Open the store and fold what is in it and not yet folded.

        Raises:
            StoreError, ChangedRunError: see `Store`.
        """
        elsewhere = None
        nothing_known = self._judge is None
        if resume and nothing_known and await self.call(is_empty, self._state_dir, self._policy):
            elsewhere = await resume()
        async with self.lock:
            known = None if self._judge is None else FoldedState(self._judge.to_state(), self._seq)
            restored = await self.call(restore, self._state_dir, self._policy, known, elsewhere)
            self._store, self._judge, self._seq = restored.store, restored.judge, restored.seq
            self._stored_latches = frozenset(restored.judge.latches)
            self.latched_at = restored.latched_at | self.latched_at
            self._snapshot_seq = self._seq
            self.queue = deque(restored.queue)
            self.pins = restored.pins
            self.queued.set()
            self._available.set()
            self.publish()

    async def keep_closed(self) -> None:
        """A latch stays closed while the store cannot be read: it is kept beside it, too."""
        with contextlib.suppress(StoreError):
            latches = await self.call(read_latches, self._state_dir)
            judge = Judge(self._policy)
            for latch in latches:
                judge.fold_latch(latch)
            self._verdict = judge.verdict()
            self._keep(latches)
            self.publish()

    async def close(self) -> None:
        """Save a snapshot and close the store; whoever calls has the lock."""
        if isinstance(self._store, Store):
            with contextlib.suppress(StoreError):
                await self._save_snapshot(self._store)
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
        return tuple(self._stored_latches) if self._judge is None else self._judge.latches

    @property
    def known_judge(self) -> Judge | None:
        """The judge; None until the store was read."""
        return self._judge

    @property
    def judge(self) -> Judge:
        """The judge, which is there whenever the store is open."""
        assert self._judge is not None
        return self._judge

    @property
    def outage(self) -> Unavailable | None:
        """Why the store cannot be used now; None if it can, as far as is known."""
        return self._store if isinstance(self._store, Unavailable) else None

    @property
    def store_bytes(self) -> int | None:
        """Size of the store; None if it cannot be used now."""
        return self._store.size if isinstance(self._store, Store) else None

    # -- using the store -----------------------------------------------------------------------------------

    def open_store(self) -> Store:
        """The store; raises `StoreError` if there is none now."""
        if isinstance(self._store, Unavailable):
            raise StoreError(self._store.reason)
        return self._store

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a call of the store in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    @contextlib.asynccontextmanager
    async def for_request(self) -> AsyncIterator[Store]:
        """The store, for a request that gets a 503 if it fails."""
        async with self.lock:
            try:
                yield self.open_store()
            except StoreError as error:
                self.fail(error)
                raise self.unavailable() from error

    async def persist(self, work: Callable[[Store], Awaitable[T]]) -> T:
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
        if before != failed:
            log.error("%s", error)
        self._metrics.store_errors.inc()
        self._store = failed
        self._available.clear()
        if isinstance(before, Store):
            before.close()
        self.publish()

    def distrust(self, reason: str) -> None:
        """Give the judge up: it is made anew from the store."""
        self._judge = None
        self.fail(StoreError(reason))

    def unavailable(self) -> Problem:
        """The response to a request of which nothing was kept."""
        return store_unavailable(self.outage.reason if self.outage else "", self.published.trainer_json)

    async def snapshot_if_due(self) -> None:
        """Save the judge's state now and then; whoever calls has the lock."""
        if isinstance(self._store, Store) and self._seq - self._snapshot_seq >= SNAPSHOT_EVERY:
            try:
                await self._save_snapshot(self._store)
            except StoreError as error:
                self.fail(error)

    async def _save_snapshot(self, store: Store) -> None:
        if self._seq > self._snapshot_seq:
            await self.call(store.save_snapshot, self._seq, self.judge.to_state())
            self._snapshot_seq = self._seq

    # -- folding what is stored ----------------------------------------------------------------------------

    def fold(self, event: StoredEvent) -> None:
        """Fold an event that was just stored; whoever calls has the lock."""
        fold_event(self.judge, event)
        self._seq += 1

    async def store_latches(self, store: Store) -> None:
        """Put on disk the latches that folding has just closed, before any response tells of them."""
        if new := _new_latches(self.judge, self._stored_latches):
            await self.call(store.append_latches, new)
            self._adopt_latches(new)

    async def adopt(self, judge: Judge, store: Store) -> None:
        """Let a judge in which a latch has closed be the run's, once that is on disk."""
        latches = _new_latches(judge, self._stored_latches)
        await self.call(store.append_latches, latches)
        self._judge = judge
        self._adopt_latches(latches)

    async def adopt_latch(self, latch: Latch) -> None:
        """Close a latch that is known elsewhere. It is announced even if the store cannot keep it now."""
        async with self.lock:
            if self._judge is None or any(known.fire == latch.fire for known in self._judge.latches):
                return
            self._judge.fold_latch(latch)
            try:
                await self.store_latches(self.open_store())
            except StoreError as error:  # put there when the store works again
                self.fail(error)
            self.publish()

    async def settle(self, what: Evaluation | Failure, store: Store, ahead: Ahead | None = None) -> None:
        """Fold what became of an evaluation into a copy of the judge, store it, and adopt the copy."""
        settled = await self.call(_settled, store, self.judge, self._stored_latches, what, ahead)
        if settled is not None:
            self._judge = settled.judge
            self._seq += 1
            self._adopt_latches(settled.latches)

    def _adopt_latches(self, latches: Sequence[Latch]) -> None:
        """Latches that have just closed, and are on disk."""
        self._seq += len(latches)
        self.latched_at |= {latch.fire: datetime.now(UTC) for latch in latches}
        self._keep(latches)

    def _keep(self, latches: Sequence[Latch]) -> None:
        self._stored_latches |= frozenset(latches)
        for latch in latches:
            log.error("%s latched: %s", latch.kind, latch.message)
        if latches:
            self._on_latch()

    # -- the verdict ---------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Make the verdict that every response carries from now on."""
        verdict = self._verdict
        if self._judge is not None:
            liveness = self._liveness
            verdict = verdict_now(self._judge, liveness.silent_for, liveness.refusals.condition())
            verdict = beside(verdict, port_taken(liveness.taken_ports))
            verdict = beside(verdict, liveness.following.condition())
        if isinstance(self._store, Unavailable):
            verdict = without_store(verdict, self._store.reason)
        verdict = verdict.model_copy(update={"checkpoint_root": str(self._root)})
        if (worker := self._worker) is not None:
            verdict = verdict.model_copy(update={"adapters": worker.adapters, "needed": worker.needed})
        else:  # nobody makes these evaluations: nobody should wait for them
            verdict = verdict.model_copy(update={"waiting": 0})
        self._verdict = verdict
        self.published.put(verdict)


def _new_latches(judge: Judge, stored: frozenset[Latch]) -> tuple[Latch, ...]:
    return tuple(latch for latch in judge.latches if latch not in stored)


def _settled(
    store: Store,
    judge: Judge,
    stored: frozenset[Latch],
    what: Evaluation | Failure,
    ahead: Ahead | None,
) -> _Settled | None:
    """Store what became of an evaluation, with the latches that it closes; None if it is on disk already."""
    # A flush that reported an error may have reached the disk after all.
    if store.is_settled(CheckpointKey.of(what), what.pass_index):
        return None
    copy = Judge.from_state(judge.to_state())
    if isinstance(what, Evaluation):
        round_ = copy.fold_evaluation(what, ahead)
        latches = _new_latches(copy, stored)
        store.append_evaluation(what, round_, latches)
    else:
        fold_event(copy, what)
        latches = _new_latches(copy, stored)
        store.append_failure(what, latches)
    return _Settled(copy, latches)
