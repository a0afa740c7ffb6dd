"""A run: its log, the judge that has folded it, and the verdict that every response carries.

A report is appended to the log together with the latch that it closes, in one transaction; then it is folded;
then it is acknowledged. What could not be put on disk has changed nothing. While the log cannot be written,
nothing is acknowledged, and the verdict reads `unknown`; a fire or halt that was announced stays in force.

One event loop owns all state here; only calls of the log run in a thread, one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from guard_service.errors import GuardError, NotAdoptedError, Problem, ProblemType, StoreError
from guard_service.event_log import (
    MAX_BYTES,
    Allowance,
    EventLog,
    Folded,
    append,
    append_steps,
    fold,
    restore,
)
from guard_service.events import Appended, Conflict, NoteKind, StoredEvent
from guard_service.feed import FollowerHealth
from guard_service.heldout.worker import EvaluationWorker
from guard_service.termination import TerminationMessage
from guard_service.verdicts import beside, refusal_in_one_line, without_store
from rlguard.core.codes import Code
from rlguard.core.judge import Judge, Latch
from rlguard.core.policy import Policy, RefusedPolicy
from rlguard.core.trainer_view import Released, for_trainer, release
from rlguard.core.wire import CheckpointReport, Condition, StepReport, Verdict

log = logging.getLogger("rlguard.guard")

#: What most steps change, and sentences. The rest is worth waking a client for.
_CHANGES_WITH_STEPS = {
    *("step", "steps", "steps_since_evaluation", "longest_round", "latched_at"),
    *("kl_ema", "in_loop_ema", "proxy_real_gap", "reason", "conditions"),
}
GROUP_STEPS = 4_000  # steps of one transaction: more would make the first of them wait too long
T = TypeVar("T")


class Published:
    """The newest verdict, for whoever asks and whoever waits."""

    def __init__(self, verdict: Verdict, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._released: Released | None = None
        self._changed = asyncio.Event()
        self._closed = False
        self.revision = ""
        self.put(verdict)

    def put(self, verdict: Verdict) -> None:
        """Give out this verdict from now on, and wake who waits if its revision is another."""
        self.verdict, self._reader_json = verdict, b""
        self._released = release(verdict, self._released, self._clock())
        told = for_trainer(verdict, self._released)
        #: What a trainer is told of it.
        self.trainer_json = told.model_dump_json().encode()
        if (revision := _revision(told)) != self.revision:
            self.revision = revision
            self._wake()

    @property
    def reader_json(self) -> bytes:
        """All of it."""
        if not self._reader_json:
            self._reader_json = self.verdict.model_dump_json().encode()
        return self._reader_json

    async def wait(self, since: str, seconds: float) -> None:
        """Return once the revision differs from `since`, or after so many seconds.

        How many wait is bounded by the connections that the guard takes.
        """
        if self.revision != since or self._closed:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def close(self) -> None:
        """Let nobody wait any longer."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _revision(told: Verdict) -> str:
    """Digest what a trainer is told: a digest of more would confirm what it guesses.

    It is the same after a restart of the guard.
    """
    conditions = [(one.code, one.action) for one in told.conditions]
    lasting = told.model_dump_json(exclude=_CHANGES_WITH_STEPS)
    return hashlib.sha256(f"{lasting}{conditions}".encode()).hexdigest()[:16]


class Kind(StrEnum):
    """What is reported; a refused checkpoint is not made good by an accepted step."""

    STEPS = "steps"
    CHECKPOINTS = "checkpoints"


@dataclass(slots=True)
class Refusals:
    """What was refused since the last report of its kind was accepted."""

    policy: RefusedPolicy
    _in_a_row: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    _newest: dict[Kind, str] = field(default_factory=dict)

    def refused(self, kind: Kind, problem: Problem) -> None:
        """Count a report that was refused for what it says."""
        self._in_a_row[kind] += 1
        self._newest[kind] = refusal_in_one_line(problem)

    def accepted(self, kind: Kind) -> None:
        """A report of this kind is fine again."""
        self._in_a_row[kind] = 0

    def condition(self) -> Condition | None:
        """`reports_refused`, if it holds; with its action from as many refusals as the policy asks for."""
        kind = max(Kind, key=lambda kind: self._in_a_row[kind])
        count = self._in_a_row[kind]
        if not count:
            return None
        what = "1 report" if count == 1 else f"{count} reports in a row"
        return Condition.of(
            Code.REPORTS_REFUSED,
            f"{what} of {kind} refused, the newest: {self._newest[kind]}",
            action=self.policy.action if count >= self.policy.after else None,
        )


@dataclass(frozen=True, slots=True)
class Unavailable:
    """In place of a log: none can be used now."""

    reason: str


class _Waiting(NamedTuple):
    """A request whose steps wait for the next flush."""

    reports: Sequence[StepReport]
    result: asyncio.Future[Appended | Problem]


class LoggedRun:
    """Log, judge and verdict of one run.

    Args:
        state_dir: directory of the store; made if missing.
        checkpoint_root: directory under which every checkpoint must lie.
        policy: the thresholds of the run.
        worker: scores checkpoints; None leaves them waiting, which becomes `stale`.
        takes_outcomes: somebody else evaluates checkpoints, and reports the outcomes.
        max_store_bytes: size of the store from which on reports are refused; see `Allowance`.
        has_supervisor: an empty log waits until `adopted` says what it begins with.
        termination_message: file that says how the run is judged, for whoever finds the guard ended.
    """

    def __init__(
        self,
        *,
        state_dir: Path,
        checkpoint_root: Path,
        policy: Policy,
        worker: EvaluationWorker | None = None,
        takes_outcomes: bool = False,
        max_store_bytes: int = MAX_BYTES,
        has_supervisor: bool = False,
        termination_message: Path | None = None,
    ) -> None:
        self.state_dir, self.root, self.policy = state_dir, checkpoint_root, policy
        self.worker, self.takes_outcomes = worker, takes_outcomes
        self.allowance = Allowance(max_store_bytes)
        self.has_supervisor = has_supervisor
        #: What the log of a new run begins with; None until the supervisor has said it.
        self.adopted: Sequence[StoredEvent] | None = None if has_supervisor else ()
        #: Whether the trainer has said that it finished, and reported nothing since.
        self.ended = False
        #: Checkpoints that wait for their evaluation, the one under way included.
        self.queue: deque[CheckpointReport] = deque()
        self.queued = asyncio.Event()  # set whenever the queue has grown
        #: The files that every checkpoint must have, by name; None before one was scored.
        self.pins: Mapping[str, str] | None = None
        #: Seconds since the last new step, since the guard started, or since evaluations last waited. A guard
        #: that was frozen has heard nothing, and reads what came meanwhile before it counts on.
        self.silent_for = 0.0
        self.refusals = Refusals(policy.refused)
        #: Health of the follower; None where the trainer reports.
        self.following: FollowerHealth | None = None
        self.lock = asyncio.Lock()  # one user of the store at a time, and no fold beside it
        self._store: EventLog | Unavailable = Unavailable("the store has not been opened yet")
        self._available = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._folded: Folded | None = None  # None until the log was read
        self._waiting: deque[_Waiting] = deque()
        self._termination = TerminationMessage(termination_message)
        #: The verdict as every response carries it.
        self.published = Published(Judge(policy).verdict())
        self.publish()

    # -- what is known -------------------------------------------------------------------------------------

    @property
    def verdict(self) -> Verdict:
        """The verdict now."""
        return self.published.verdict

    @property
    def trainer_json(self) -> bytes:
        """What a trainer is told of the verdict now."""
        return self.published.trainer_json

    @property
    def judge(self) -> Judge | None:
        """The judge; None until the log was read."""
        return None if self._folded is None else self._folded.judge

    @property
    def latches(self) -> tuple[Latch, ...]:
        """Every latch that has closed: at most one fire and one halt."""
        return () if self._folded is None else self._folded.judge.latches

    @property
    def sequence(self) -> int:
        """Number of the newest event that was folded; 0 until the log was read."""
        return 0 if self._folded is None else self._folded.seq

    @property
    def outage(self) -> Unavailable | None:
        """Why the store cannot be used now; None if it can, as far as is known."""
        return self._store if isinstance(self._store, Unavailable) else None

    @property
    def store_works(self) -> bool:
        """Whether the store can be read and written, as far as is known."""
        return self.outage is None

    # -- using the store -----------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Open the log, unless it is open, and fold what is in it and not yet folded.

        Raises:
            StoreError, ChangedRunError: see `restore`.
        """
        async with self.lock:
            if self.store_works:  # somebody else was faster
                return
            store, folded = await self.call(restore, self.state_dir, self.policy, self._folded, self.adopted)
            pins = await self.call(store.newest_note, NoteKind.PINS)
            self.pins = None if pins is None else pins.content
            self.ended = await self.call(store.has_ended)
            self.queue = deque(await self.call(store.pending_checkpoints))
            self._store = store
            self._take(folded)
            self.queued.set()
            self._available.set()
            self.publish()

    async def close(self) -> None:
        """Close the log; whoever calls has the lock. What still waits is not on disk, so it is refused."""
        store, self._store = self._store, Unavailable("the guard has ended")
        if isinstance(store, EventLog):
            await self.call(store.close)
        self._thread.shutdown()

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
        if before != failed:
            level = logging.INFO if isinstance(error, NotAdoptedError) else logging.ERROR
            log.log(level, "%s", error)
        self._store = failed
        self._available.clear()
        if isinstance(before, EventLog):
            before.close()
        self.publish()

    def unavailable(self) -> Problem:
        """The response to a request of which nothing was kept."""
        reason = self.outage.reason if self.outage else ""
        return Problem(
            ProblemType.STORE_UNAVAILABLE,
            f"the guard's store is unavailable, so nothing of this request was kept; send it again. {reason}",
            verdict=self.trainer_json,
        )

    async def append(self, store: EventLog, *events: StoredEvent) -> None:
        """Append events with the latches that they close, and fold them; whoever calls has the lock."""
        self._take(await self.call(append, store, self._folded, events))

    def _take(self, folded: Folded) -> None:
        """Let this be what is known of the run; the latches that are new in it are logged."""
        new = [latch for latch in folded.judge.latches if latch not in self.latches]
        self._folded = folded
        for latch in new:
            log.error("%s latched: %s", latch.kind, latch.message)

    # -- steps ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def refusing(self, kind: Kind) -> Iterator[None]:
        """Count it if a report is refused here for good; a store that fails refuses nothing."""
        try:
            yield
        except Problem as problem:
            if problem.is_refusal:
                self.refusals.refused(kind, problem)
                self.publish()
            raise

    async def add_steps(self, reports: Sequence[StepReport]) -> Appended:
        """Store and fold steps; what is returned is on disk and in the verdict.

        Requests that arrive while a flush is under way wait for the next one, and share it.

        Raises:
            Problem: 409 if one of them contradicts what is on disk, 429 or 507 if there are too many, 503 if
                the store is unavailable. In each case none of them was kept.
        """
        mine = _Waiting(reports, asyncio.get_running_loop().create_future())
        self._waiting.append(mine)
        # A request that is given up must not break off the flush that others share.
        await asyncio.shield(asyncio.ensure_future(self._write(mine)))
        result = mine.result.result()
        if isinstance(result, Problem):
            with self.refusing(Kind.STEPS):
                raise result
        return result

    async def _write(self, mine: _Waiting) -> None:
        """Store and fold the requests that have waited longest, unless `mine` was written with others."""
        async with self.lock:
            if mine.result.done():
                return
            group: list[_Waiting] = []
            size = 0
            while self._waiting and size < GROUP_STEPS:
                group.append(self._waiting.popleft())
                size += len(group[-1].reports)
            results = await self._commit([waiting.reports for waiting in group])
            for waiting, result in zip(group, results, strict=True):
                if not waiting.result.done():
                    waiting.result.set_result(result)

    async def _commit(self, batches: list[Sequence[StepReport]]) -> Sequence[Appended | Problem]:
        """Append and fold one group; one result for each request of it."""
        now = time.monotonic()
        results: list[Appended | Conflict] = []
        try:
            store = self.open_store()
            refused = [self.allowance.refuses_steps(len(one), store.size, now) for one in batches]
            if taken := [one for one, no in zip(batches, refused, strict=True) if no is None]:
                results, folded = await self.call(append_steps, store, self._folded, taken)
                self._take(folded)
        except StoreError as error:
            self.fail(error)
            return [self.unavailable()] * len(batches)
        except Exception as error:
            log.exception("the judge failed on a step")
            self.fail(StoreError(f"internal error ({type(error).__name__}) while folding a step"))
            return [self.unavailable()] * len(batches)
        told = map(self._told, results)
        answers = [next(told) if no is None else no for no in refused]
        self.publish()
        return answers

    def _told(self, result: Appended | Conflict) -> Appended | Problem:
        """What a request is told of its steps."""
        if isinstance(result, Conflict):
            return Problem(ProblemType.CONFLICT, result.detail, result.errors)
        self.refusals.accepted(Kind.STEPS)
        if result.new:
            self.ended, self.silent_for = False, 0.0
        return result

    # -- what is no report of the trainer ------------------------------------------------------------------

    async def adopt_latch(self, latch: Latch) -> None:
        """Close a latch that is known elsewhere. It is announced even if the log cannot keep it now."""
        async with self.lock:
            if self._folded is None or any(known.fire == latch.fire for known in self.latches):
                return
            try:
                await self.append(self.open_store(), latch)
            except StoreError as error:  # put there when the log works again
                at = {**self._folded.latched_at, latch.fire: datetime.now(UTC)}
                self._take(Folded(fold(self._folded.judge, [latch]), self._folded.seq, at))
                self.fail(error)
            self.publish()

    # -- the verdict ---------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Make the verdict that every response carries from now on."""
        verdict = self.verdict
        if self._folded is not None:
            verdict = self._folded.judge.verdict(self.silent_for)
            health = None if self.following is None else self.following.condition()
            for condition in (self.refusals.condition(), health):
                if condition is not None:
                    verdict = beside(verdict, condition)
        if isinstance(self._store, Unavailable):
            verdict = without_store(verdict, self._store.reason)
        at = None if self._folded is None or not verdict.stop else self._folded.latched_at.get(verdict.fire)
        known = {"checkpoint_root": str(self.root.absolute()), "ended": self.ended, "latched_at": at}
        if (worker := self.worker) is not None:
            known |= {"adapters": worker.adapters, "needed": worker.needed}
        else:  # nobody makes further passes, nor, without outcomes from outside, any evaluation
            left = max(0, verdict.announced - verdict.evaluated - verdict.failed - verdict.skipped)
            known |= {"waiting": left if self.takes_outcomes else 0}
            known |= {"next_pass": None, "baseline_passes": 0, "baseline_planned": 0}
        before = self.published.revision
        self.published.put(verdict.model_copy(update=known))
        if self.published.revision != before:
            self._termination.write(self.verdict, self.sequence)
