"""The engine: takes reports, stores them, folds them into the judge, runs evaluations, says the verdict.

Every event is stored, then folded, then answered. Requests that arrive while a flush is under way wait
for the next one and share it (group commit). A latch is on disk before a verdict announces it. When the
store fails, nothing is acknowledged and the verdict reads `unknown` until the store works again; a fire
or stop that was announced stays in force.

One event loop owns all state here; only the store's calls run in a thread. It knows no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import shutil
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from guard_core.judge import Evaluation, Judge, Latch
from guard_core.policy import Policy
from guard_core.wire import CheckpointReport, Code, Condition, Level, StepReport, Verdict
from guard_service.errors import (
    FieldError,
    GuardError,
    Problem,
    SettingsError,
    StoreCorruptError,
    StoreError,
    conflict,
    invalid,
    store_unavailable,
)
from guard_service.heldout.errors import EvaluationError, SplitError
from guard_service.heldout.worker import EvaluationRequest, EvaluationResult
from guard_service.metrics import Metrics
from guard_service.store import BEFORE_ALL, Appended, Conflict, Event, Failure, Round, Store

log = logging.getLogger("rlguard.guard")

TICK_SECONDS = 1.0
GATE_RETRY_SECONDS = 10.0
GROUP_STEPS = 4_000  # steps of one transaction: more would make the first of them wait too long
SNAPSHOT_EVERY = 20_000  # events; a restart replays no more than about this many

A = TypeVar("A")
T = TypeVar("T")


class Evaluator(Protocol):
    """Scores checkpoints on the held-out split; `EvaluationWorker` does it in a process of its own."""

    split_digest: str | None

    async def start(self) -> None:
        """Make ready. Raise `SplitError` if the run must not begin, `EvaluationError` to be tried again."""

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        """Score one checkpoint, or raise `EvaluationError`."""

    async def close(self) -> None:
        """Give up what is under way and release everything."""


@dataclass(slots=True)
class _Restored:
    """What is known of a run after its store was read."""

    store: Store
    judge: Judge
    seq: int
    queue: list[CheckpointReport]


class Engine:
    """One guarded run. Construct it (no I/O), `start` it, and `close` it, all on one event loop.

    Args:
        state_dir: directory of the store; made if missing.
        checkpoint_root: directory under which every checkpoint must lie.
        policy: the thresholds of the run.
        worker: scores checkpoints; None leaves them waiting, which becomes `stale`.
        keep_best: keep the files of the best checkpoint in `<state_dir>/best`.
        resume: asked once for what is known elsewhere of this run, if the store is empty: a judge, or None
            for a new run. It raises `ResumeError` to be asked again; until it answers nothing is known.
        clock: monotonic seconds.

    `on_fatal` is called with the error when the guard must end, because the held-out split is unusable.
    `on_latch` is called when a fire or stop has latched and is on disk.
    """

    def __init__(
        self,
        *,
        state_dir: Path,
        checkpoint_root: Path,
        policy: Policy,
        worker: Evaluator | None = None,
        keep_best: bool = False,
        resume: Callable[[], Awaitable[Judge | None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state_dir = state_dir
        self._root = checkpoint_root
        self._policy = policy
        self._worker = worker
        self._keep_best = keep_best
        self._resume = resume
        self.on_fatal: Callable[[GuardError], None] = lambda error: log.error("%s", error)
        self.on_latch: Callable[[], None] = lambda: None
        self._clock = clock
        self.metrics = Metrics()
        self.metrics.observe(self)

        self._store: Store | None = None
        self._judge: Judge | None = None  # None until the store was read
        self._seq = 0  # newest event that is folded
        self._snapshot_seq = 0
        self._stored_latches: frozenset[Latch] = frozenset()
        self._trouble = "the store has not been opened yet"
        # Why held-out evaluation cannot begin yet; "" once it can.
        self._gate = "" if worker is None else "the held-out split is still being checked"
        self._last_step_at = clock()
        self._publish_nothing_known()

        self._lock = asyncio.Lock()  # one user of the store at a time, and no fold beside it
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._waiting: deque[tuple[Sequence[StepReport], asyncio.Future[Appended | Problem]]] = deque()
        self._steps_wait = asyncio.Event()
        self._queue: deque[CheckpointReport] = deque()
        self._checkpoints_wait = asyncio.Event()
        self._available = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # -- life ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the store and begin. A store that cannot be read is retried, and the verdict says `unknown`.

        Raises:
            ChangedRunError: the store belongs to a run with another policy.
        """
        try:
            await self._recover()
        except StoreError as error:
            self._fail(error)
        self._tasks = [asyncio.create_task(self._write_steps()), asyncio.create_task(self._tick())]
        if self._worker is not None:
            self._tasks.append(asyncio.create_task(self._evaluate(self._worker)))
        else:
            log.warning("no held-out evaluation is configured: only the KL rule can fire")

    async def close(self) -> None:
        """Finish the flush under way, end the evaluation process, save a snapshot, close the store."""
        async with self._lock:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            while self._waiting:  # not on disk, so not acknowledged
                self._waiting.popleft()[1].set_result(self._unavailable())
            if self._worker is not None:
                await self._worker.close()
            if self._store is not None:
                with contextlib.suppress(StoreError):
                    await self._save_snapshot(self._store)
                await self._call(self._store.close)
        self._thread.shutdown()

    # -- what clients ask ------------------------------------------------------------------------------------

    @property
    def verdict(self) -> Verdict:
        """The verdict now."""
        return self._verdict

    @property
    def verdict_json(self) -> bytes:
        """The verdict now, encoded once per change."""
        return self._verdict_json

    @property
    def latches(self) -> tuple[Latch, ...]:
        """Every latch that has closed: at most one fire and one stop."""
        return () if self._judge is None else self._judge.latches

    def judge_state(self) -> dict[str, Any] | None:
        """The judge's state, per-item data included; None until the store was read."""
        return None if self._judge is None else self._judge.to_state()

    @property
    def not_ready(self) -> str:
        """Why the guard is not ready, or "" if it is."""
        return self._trouble or self._gate

    @property
    def store_works(self) -> bool:
        """Whether the store can be read and written, as far as is known."""
        return not self._trouble

    @property
    def queue_length(self) -> int:
        """Checkpoints that wait for their evaluation, the one under way included."""
        return len(self._queue)

    @property
    def silent_for(self) -> float:
        """Seconds since the last new step, or since the guard started."""
        return self._clock() - self._last_step_at

    async def add_steps(self, reports: Sequence[StepReport]) -> Appended:
        """Store and fold steps; what is returned is on disk and in the verdict.

        Raises:
            Problem: 409 if one of them contradicts what is on disk, 503 if the store is unavailable. In both
                cases none of them was kept.
        """
        future: asyncio.Future[Appended | Problem] = asyncio.get_running_loop().create_future()
        self._waiting.append((reports, future))
        self._steps_wait.set()
        result = await future
        if isinstance(result, Problem):
            raise result
        return result

    async def add_checkpoint(self, report: CheckpointReport) -> bool:
        """Queue a checkpoint for its evaluation; False if it is known already.

        Raises:
            Problem: 422 if the path is not a directory under the checkpoint root, 409 if the same step was
                announced with another path, 503 if the store is unavailable.
        """
        path = await asyncio.to_thread(self._resolve, report.path)
        report = report.model_copy(update={"path": str(path)})
        async with self._lock:
            try:
                store = self._open_store()
                known = await self._call(store.is_known_checkpoint, report)
                if isinstance(known, Conflict):
                    raise conflict(known.detail, known.errors)
                if known:
                    return False
                # A repeated announcement is fine after the checkpoint was rotated away; a new one is not.
                if not await asyncio.to_thread(os.path.isdir, path):
                    raise _bad_path(
                        f"{report.path} is not a directory: announce a checkpoint once it is complete"
                    )
                await self._call(store.append_checkpoint, report)
                self._seq += 1
                self._folding.fold_checkpoint()
                await self._store_latches(store)
            except StoreError as error:
                self._fail(error)
                raise self._unavailable() from error
            self._publish()
        self._queue.append(report)
        self._checkpoints_wait.set()
        return True

    async def history(self) -> AsyncIterator[dict[str, Any]]:
        """Every line of the history, without per-item outcomes.

        Raises:
            Problem: 503 if the store is unavailable.
        """
        after = BEFORE_ALL
        while page := await self._read(Store.history_page, after):
            after = page[-1][0]
            for _, line in page:
                line.pop("items", None)
                if "pass_index" not in line:
                    yield line

    async def thinned_history(self, points: int) -> dict[str, Any]:
        """The history with at most `points` steps, for a plot.

        Raises:
            Problem: 503 if the store is unavailable.
        """
        return await self._read(Store.thinned_history, points)

    async def recent_rounds(self, count: int) -> list[dict[str, Any]]:
        """The last evaluation rounds; see `Store.recent_rounds`.

        Raises:
            Problem: 503 if the store is unavailable.
        """
        return await self._read(Store.recent_rounds, count)

    async def adopt_latch(self, latch: Latch) -> None:
        """Close a latch that is known elsewhere. It is announced even if the store cannot keep it now."""
        async with self._lock:
            if self._judge is None or any(known.fire == latch.fire for known in self._judge.latches):
                return
            self._judge.fold_latch(latch)
            try:
                await self._store_latches(self._open_store())
            except StoreError as error:  # put there when the store works again
                self._fail(error)
            self._publish()

    def _resolve(self, path: str) -> Path:
        """The directory that `path` names once links are followed; it must lie under the checkpoint root."""
        try:
            root = self._root.resolve()
            resolved = (root / path).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise _bad_path(f"{path!r} cannot be resolved: {error}") from None
        if resolved == root or not resolved.is_relative_to(root):
            raise _bad_path(f"{path!r} is not below the checkpoint root {root}, once links are followed")
        return resolved

    # -- steps -----------------------------------------------------------------------------------------------

    async def _write_steps(self) -> None:
        while True:
            await self._steps_wait.wait()
            self._steps_wait.clear()
            while self._waiting:
                async with self._lock:
                    group = self._take_group()
                    results = await self._commit([reports for reports, _ in group])
                    for (_, future), result in zip(group, results, strict=True):
                        if not future.done():
                            future.set_result(result)
                    await self._snapshot_if_due()

    def _take_group(self) -> list[tuple[Sequence[StepReport], asyncio.Future[Appended | Problem]]]:
        group, size = [], 0
        while self._waiting and size < GROUP_STEPS:
            group.append(self._waiting.popleft())
            size += len(group[-1][0])
        return group

    async def _commit(self, batches: list[Sequence[StepReport]]) -> Sequence[Appended | Problem]:
        """Store and fold one group; one result for each request of it."""
        try:
            store = self._open_store()
            started = time.perf_counter()
            results = await self._call(store.append_steps, batches)
            self.metrics.commit_seconds.observe(time.perf_counter() - started)
            self._fold_steps(results)
            await self._store_latches(store)
        except StoreError as error:
            self._fail(error)
            return [self._unavailable()] * len(batches)
        except Exception as error:
            log.exception("the judge failed on a stored step")
            self._judge = None
            self._fail(StoreError(f"internal error ({type(error).__name__}) while folding a stored step"))
            return [self._unavailable()] * len(batches)
        self._publish()
        return [r if isinstance(r, Appended) else conflict(r.detail, r.errors) for r in results]

    def _fold_steps(self, results: Sequence[Appended | Conflict]) -> None:
        judge, folded = self._folding, 0
        for result in results:
            if isinstance(result, Appended):
                for report in result.new:
                    judge.fold_step(report)
                folded += len(result.new)
                self.metrics.duplicate_steps.inc(result.duplicates)
            else:
                self.metrics.conflicts.inc()
        if folded:
            self._seq += folded
            self._last_step_at = self._clock()

    async def _store_latches(self, store: Store) -> None:
        """Put on disk the latches that folding has just closed, before any answer tells of them."""
        if new := self._new_latches(self._folding):
            await self._call(store.append_latches, new)
            self._adopt_latches(new)

    def _new_latches(self, judge: Judge) -> tuple[Latch, ...]:
        return tuple(latch for latch in judge.latches if latch not in self._stored_latches)

    def _adopt_latches(self, latches: Sequence[Latch]) -> None:
        self._seq += len(latches)
        self._stored_latches |= frozenset(latches)
        for latch in latches:
            log.error("%s latched: %s", "fire" if latch.fire else "stop", latch.message)
        if latches:
            self.on_latch()

    # -- evaluations -----------------------------------------------------------------------------------------

    async def _evaluate(self, worker: Evaluator) -> None:
        """Run the evaluations one by one: what the judge wants first, then the queue in its order."""
        while True:
            self._checkpoints_wait.clear()
            request, failure = self._next_request(), ""
            try:
                await self._pass_gate(worker)
                if request is not None:
                    await self._score(worker, request)
            except EvaluationError as error:
                failure = str(error)
            except Exception as error:
                log.error("evaluation ended with an unexpected %s", type(error).__name__)
                failure = f"internal error ({type(error).__name__})"
            if failure and self._gate and failure != self._gate:
                log.warning("held-out evaluation cannot begin: %s", failure)
                self._gate = failure
            if request is None:
                await self._wait_for_a_checkpoint()
                continue
            if failure:
                await self._give_up(request, failure)
            if self._queue and request == _request(self._queue[0]):
                self._queue.popleft()

    async def _wait_for_a_checkpoint(self) -> None:
        """Or until it is time to try the gate again: on a cluster no trainer starts before it is passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATE_RETRY_SECONDS if self._gate else None):
                await self._checkpoints_wait.wait()

    def _next_request(self) -> EvaluationRequest | None:
        wanted = None if self._judge is None else self._judge.wanted_pass()
        if wanted is not None:
            return EvaluationRequest(wanted.attempt, wanted.step, Path(wanted.path), wanted.index)
        return _request(self._queue[0]) if self._queue else None

    async def _pass_gate(self, worker: Evaluator) -> None:
        """Start the worker once: it checks the split and that the training prompts are disjoint from it."""
        if not self._gate:
            return
        try:
            await worker.start()
            digest = worker.split_digest
            if digest is not None:
                await self._when_available(lambda store: store.check_split(digest))
        except (SplitError, SettingsError) as error:
            self.on_fatal(SettingsError(str(error)))
            await asyncio.Event().wait()  # the guard is being ended: score nothing
        self._gate = ""

    async def _score(self, worker: Evaluator, request: EvaluationRequest) -> None:
        result = await worker.evaluate(request)
        if not result.items or not all(math.isfinite(x) and 0.0 <= x <= 1.0 for x in result.items):
            raise EvaluationError("the evaluator returned no outcomes, or outcomes outside [0, 1]")
        self.metrics.evaluation_seconds.observe(result.seconds)
        evaluation = Evaluation(
            request.attempt,
            request.step,
            str(request.path),
            result.items,
            result.sha256,
            request.pass_index,
        )
        # Closing a baseline takes seconds, for which nobody else should have to wait.
        ahead = None if self._judge is None else await asyncio.to_thread(self._judge.fold_ahead, evaluation)
        await self._decide(
            request,
            lambda judge: judge.fold_evaluation(evaluation, ahead),
            lambda store, judge, latches: store.append_evaluation(evaluation, _round(judge), latches),
        )
        is_best = request.pass_index == 0 and self._verdict.best_evaluation == evaluation.summary()
        if self._keep_best and is_best and result.staged is not None:
            await asyncio.to_thread(_keep, result.staged, self._state_dir / "best")

    async def _give_up(self, request: EvaluationRequest, message: str) -> None:
        log.warning("checkpoint %d of attempt %d: %s", request.step, request.attempt, message)
        self.metrics.evaluation_failures.inc()
        failure = Failure(request.attempt, request.step, request.pass_index, message)
        await self._decide(
            request,
            lambda judge: judge.fold_failure(message, request.pass_index),
            lambda store, _, latches: store.append_failure(failure, latches),
        )

    async def _decide(
        self,
        request: EvaluationRequest,
        fold: Callable[[Judge], Any],
        append: Callable[[Store, Judge, tuple[Latch, ...]], None],
    ) -> None:
        """Fold what became of a request into a copy of the judge, store it, and adopt the copy.

        While the store is unavailable this waits: an evaluation is too dear to be lost.
        """

        def decide(store: Store) -> tuple[Judge, tuple[Latch, ...]] | None:
            # A flush that reported an error may have reached the disk after all.
            if store.is_settled(request.attempt, request.step, request.pass_index):
                return None
            judge = Judge.from_state(self._folding.to_state())
            fold(judge)
            latches = self._new_latches(judge)
            append(store, judge, latches)
            return judge, latches

        def adopt(decided: tuple[Judge, tuple[Latch, ...]] | None) -> None:
            if decided is not None:
                self._judge, latches = decided
                self._seq += 1
                self._adopt_latches(latches)

        await self._when_available(decide, adopt)

    async def _when_available(
        self, use: Callable[[Store], T], then: Callable[[T], None] = lambda _: None
    ) -> None:
        """Call `use` with the store, again and again until the store works; then `then`, undisturbed."""
        while True:
            await self._available.wait()
            async with self._lock:
                try:
                    then(await self._call(use, self._open_store()))
                except StoreError as error:
                    self._fail(error)
                else:
                    self._publish()
                    return

    # -- the store -------------------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Open the store and fold what is in it and not yet folded.

        Raises:
            StoreError, ChangedRunError: see `Store`.
        """
        elsewhere = None
        if self._resume is not None and self._judge is None and await self._call(self._is_empty):
            elsewhere = await self._resume()
        async with self._lock:
            known = None if self._judge is None else (self._judge.to_state(), self._seq)
            restored = await self._call(_restore, self._state_dir, self._policy, known, elsewhere)
            self._store, self._judge, self._seq = restored.store, restored.judge, restored.seq
            self._stored_latches = frozenset(restored.judge.latches)
            self._snapshot_seq = self._seq
            self._queue = deque(restored.queue)
            self._checkpoints_wait.set()
            if self._trouble and self._tasks:
                log.warning("the store works again: %s", restored.store.path)
            self._trouble = ""
            self._available.set()
            self._publish()

    def _is_empty(self) -> bool:
        """Whether the store knows nothing of a run. Raises as `Store` does."""
        store = Store(self._state_dir, self._policy)
        try:
            return store.last_seq() == 0 and store.snapshot() is None
        finally:
            store.close()

    def _fail(self, error: GuardError) -> None:
        """Note that the store does not work. The next tick tries to open it again."""
        if self._trouble != str(error):
            log.error("%s", error)
        self.metrics.store_errors.inc()
        self._trouble = str(error)
        self._available.clear()
        if self._store is not None:
            self._store.close()
            self._store = None
        self._publish()

    def _open_store(self) -> Store:
        if self._store is None:
            raise StoreError(self._trouble)
        return self._store

    @property
    def _folding(self) -> Judge:
        """The judge, which is there whenever the store is open."""
        assert self._judge is not None
        return self._judge

    async def _read(self, query: Callable[[Store, A], T], argument: A) -> T:
        async with self._lock:
            try:
                return await self._call(query, self._open_store(), argument)
            except StoreError as error:
                self._fail(error)
                raise self._unavailable() from error

    async def _snapshot_if_due(self) -> None:
        if self._store is not None and self._seq - self._snapshot_seq >= SNAPSHOT_EVERY:
            try:
                await self._save_snapshot(self._store)
            except StoreError as error:
                self._fail(error)

    async def _save_snapshot(self, store: Store) -> None:
        if self._seq > self._snapshot_seq:
            await self._call(store.save_snapshot, self._seq, self._folding.to_state())
            self._snapshot_seq = self._seq

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a call of the store in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    def _unavailable(self) -> Problem:
        return store_unavailable(self._trouble, self._verdict_json)

    # -- the verdict -----------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Once a second: try a broken store again, and judge the silence."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self._trouble:
                try:
                    await self._recover()
                except GuardError as error:
                    self._fail(error)
                continue
            async with self._lock:
                await self._judge_silence()

    async def _judge_silence(self) -> None:
        if self._store is None:
            return
        silent_for = self.silent_for
        verdict = self._folding.verdict(silent_for)
        if not verdict.halt and any(c.policy == "stop" for c in verdict.conditions):
            judge = Judge.from_state(self._folding.to_state())
            judge.fold_silence(silent_for)
            latches = self._new_latches(judge)
            try:
                await self._call(self._store.append_latches, latches)
            except StoreError as error:
                self._fail(error)
                return
            self._judge = judge
            self._adopt_latches(latches)
        self._publish()

    def _publish(self) -> None:
        """Make the verdict that every answer carries from now on."""
        if self._judge is not None:
            self._verdict = self._judge.verdict(self.silent_for)
        if self._trouble:
            self._verdict = without_store(self._verdict, self._trouble)
        self._verdict_json = self._verdict.model_dump_json().encode()

    def _publish_nothing_known(self) -> None:
        self._verdict = without_store(Judge(self._policy).verdict(), self._trouble)
        self._verdict_json = self._verdict.model_dump_json().encode()


def without_store(verdict: Verdict, reason: str) -> Verdict:
    """The last verdict, while the store is unavailable: `unknown`, unless a fire was known. Pure."""
    condition = Condition(code=Code.STORE_UNAVAILABLE, level=Level.UNKNOWN, message=reason)
    others = tuple(c for c in verdict.conditions if c.code is not Code.STORE_UNAVAILABLE)
    if verdict.fire:
        return verdict.model_copy(update={"conditions": (*others, condition)})
    return verdict.model_copy(
        update={
            "level": condition.level,
            "code": condition.code,
            "reason": condition.message,
            "conditions": (condition, *others),
        }
    )


def _restore(
    state_dir: Path, policy: Policy, known: tuple[dict[str, Any], int] | None, elsewhere: Judge | None
) -> _Restored:
    """Open the store and fold what is in it: the events after `known` (state, seq), or after a snapshot.

    `elsewhere`: what an empty store begins with.

    Raises:
        StoreError, ChangedRunError: see `Store`; also if acknowledged events are gone or cannot be folded.
    """
    store = Store(state_dir, policy)
    try:
        last = store.last_seq()
        if known is not None and last < known[1]:
            raise StoreCorruptError(
                f"{store.path} has {last} events, but {known[1]} were acknowledged: it was replaced or cut"
            )
        if elsewhere is not None:
            store.save_snapshot(0, elsewhere.to_state())
        judge, seq = _starting_point(store, policy, known, last)
        for number, event in store.events(after=seq):
            _fold(judge, event)
            seq = number
        stored = store.latch_kinds()
        missing = [latch for latch in judge.latches if latch.fire not in stored]
        store.append_latches(missing)
        return _Restored(store, judge, seq + len(missing), store.pending_checkpoints())
    except GuardError:
        store.close()
        raise
    except Exception as error:
        store.close()
        raise StoreCorruptError(f"{store.path} cannot be folded ({type(error).__name__})") from error


def _starting_point(
    store: Store, policy: Policy, known: tuple[dict[str, Any], int] | None, last: int
) -> tuple[Judge, int]:
    if known is not None:
        return Judge.from_state(known[0]), known[1]
    snapshot = store.snapshot()
    if snapshot is not None:
        seq, state = snapshot
        try:
            judge = Judge.from_state(state)
            if seq <= last and judge.policy == policy:
                return judge, seq
        except (ValueError, KeyError, TypeError):
            pass
        log.warning("the snapshot is not of this program's form: every event is folded again")
    return Judge(policy), 0


def _fold(judge: Judge, event: Event) -> None:
    match event:
        case StepReport():
            judge.fold_step(event)
        case CheckpointReport():
            judge.fold_checkpoint()
        case Evaluation():
            judge.fold_evaluation(event)
        case Latch():
            judge.fold_latch(event)
        case Failure():
            judge.fold_failure(event.message, event.pass_index)


def _round(judge: Judge) -> Round:
    verdict = judge.verdict()
    return Round(
        rounds=verdict.rounds,
        in_loop_ema=verdict.in_loop_ema,
        heldout_ema=verdict.heldout_ema,
        proxy_real_gap=verdict.proxy_real_gap,
        kl_ema=verdict.kl_ema,
    )


def _keep(staged: Path, best: Path) -> None:
    """Move `staged` to `best`; at any moment the former or the new one is complete on disk."""
    new, old = best.with_suffix(".new"), best.with_suffix(".old")
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        shutil.move(staged, new)
        if best.exists():
            best.rename(old)
        new.rename(best)
    except OSError as error:
        log.error("the best checkpoint could not be kept in %s: %s", best, error)
    shutil.rmtree(old, ignore_errors=True)


def _request(checkpoint: CheckpointReport) -> EvaluationRequest:
    return EvaluationRequest(checkpoint.attempt, checkpoint.step, Path(checkpoint.path))


def _bad_path(message: str) -> Problem:
    return invalid(message, [FieldError(field="path", message=message)])
