"""When `status.guard` is written: at once for a latch, soon for a change, and as a heartbeat otherwise.

The reporter reads the status before it first writes, and again after a write that was refused, because it
must repeat a fire that is there word for word. A failure never ends it and never reaches the trainer: the
verdict is in every response of the guard, with or without an API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from guard_core.policy import Policy
from guard_service.cluster.client import CONFLICT, JobStatus, JobStatusError
from guard_service.cluster.mapping import (
    Json,
    Known,
    differs,
    essential,
    guard_status,
    has_its_history,
    last_word,
    latches,
    pins_in,
    resumed,
    wants_steps,
    without_steps,
)
from guard_service.engine import Engine
from guard_service.errors import Problem, ResumeError
from guard_service.store import Note, NoteKind, StoredEvent

log = logging.getLogger("rlguard.guard")

CHANGE_SECONDS = 5.0
HEARTBEAT_SECONDS = 15.0
POLL_SECONDS = 1.0  # how often it is looked whether something has changed
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.5, 8.0
MAX_RETRY_AFTER_SECONDS = 30.0
#: Refusals after which the status is read again: there may be another object, or a fire of another guard.
READ_AGAIN = frozenset({404, CONFLICT, 422})
#: Refusals that may be about what was written: an older CRD gives 500 for a field that it does not know.
UNFIT = frozenset({400, 422, 500})
#: Such refusals in a row before a report is cut to what stops the run and shows that the guard is alive. A
#: heartbeat has more time, because a cut report takes the counts and the detector's state out of the status.
LATCH_TRIES, HEARTBEAT_TRIES = 2, 8
FULL_AGAIN = 20  # of so many reports that would be cut, one is tried in full
#: On exit: for the last word, and for a latch that is not reported yet. A pod has 30 s by default.
GOODBYE_SECONDS, LATCH_GOODBYE_SECONDS = 2.0, 15.0
#: For gathering the steps that are kept. Without them a fire is one all the same.
STEPS_SECONDS = 1.0


def is_due(since_write: float | None, changed: bool, latched: bool) -> bool:
    """Whether to write now. Pure.

    Args:
        since_write: seconds since the last accepted write, None if there was none.
        changed: there is something new to say.
        latched: a latch has closed that was not accepted yet.
    """
    if since_write is None or latched:
        return True
    return since_write >= (CHANGE_SECONDS if changed else HEARTBEAT_SECONDS)


def backoff(failures: int, retry_after: float | None, chance: float) -> float:
    """Seconds to wait after that many failures in a row; `chance` in [0, 1) spreads guards apart. Pure."""
    ceiling = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 16))
    asked = min(retry_after or 0.0, MAX_RETRY_AFTER_SECONDS)
    return asked + ceiling * (0.5 + 0.5 * chance)


async def resume(job: JobStatus, policy: Policy) -> Sequence[StoredEvent]:
    """What a guard whose log is empty begins with: what the job's status tells of; nothing for a new run.

    Raises:
        ResumeError: the status cannot be read, so it is not known whether the run has fired.
    """
    try:
        status = await job.read()
    except JobStatusError as error:
        raise ResumeError(
            f"the store is empty and the job's status, which may hold a fire, cannot be read: {error}"
        ) from error
    state = resumed(policy, status)
    if state is None:
        return ()
    log.warning("the log is empty: resumed from the status of %s", job.job)
    if state.lost:
        log.warning("%s", state.lost)
    pins = pins_in(status)
    notes = [] if pins is None else [Note(NoteKind.PINS, pins)]
    return (state, *latches(status), *notes)


class StatusReporter:
    """Writes what `engine` knows to `job`. `start` and `close` it on the engine's event loop."""

    def __init__(self, engine: Engine, job: JobStatus, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._job, self._clock = engine, job, clock
        self._former: Json | None = None  # as read or last tried; None: to be read before the next write
        self._written: Json = {}  # as last accepted
        self._written_at: float | None = None
        self._failures = 0
        self._unfit = 0  # refusals of full reports in a row that may be about what was written
        self._cut = 0  # reports since then that were cut, or tried in full once more
        self._wait = POLL_SECONDS
        self._closing = False
        self._knows_steps = True  # the API server: whether its CRD has `keptSteps`
        self._left: frozenset[bool] = frozenset()  # which latches the kubelet has
        self._last_error = ""
        self._latched = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to report."""
        self._engine.on_latch = self._latched.set
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Say the last word, if the API server takes it in time, and end. A latch is tried for longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._closing = True
        seconds = LATCH_GOODBYE_SECONDS if self._latch_waits() else GOODBYE_SECONDS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not await self._try():  # noqa: ASYNC110 - nothing to wait for
                    await asyncio.sleep(FIRST_RETRY_SECONDS)
        if self._latch_waits():
            log.error("ended before the API server accepted the latch: %s", self._last_error)
        await self._job.close()

    async def _run(self) -> None:
        while True:
            wait = POLL_SECONDS if await self._try(self._is_due) else self._wait
            # Not wait_for: up to Python 3.11 it swallows a cancel that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._latched.wait()
            self._latched.clear()

    async def _try(self, due: Callable[[], bool] = lambda: True) -> bool:
        """Report if that is due, whatever happens: a defect must not end the reports. False: try again."""
        try:
            if not due():
                return True
            self._leave_last_word()
            return await self._report()
        except Exception as error:
            log.exception("reporting failed")
            self._note_failure(JobStatusError(f"internal error ({type(error).__name__})"))
            return False

    def _leave_last_word(self) -> None:
        """Once per latch. The trainer stops by it and takes this pod along, API server or not."""
        latched = frozenset(latch.fire for latch in self._engine.latches)
        if latched - self._left:
            self._job.leave(last_word(self._status(())))
            self._left = latched

    def _is_due(self) -> bool:
        since = None if self._written_at is None else self._clock() - self._written_at
        return is_due(since, differs(self._status(()), self._written), self._latch_waits())

    def _latch_waits(self) -> bool:
        return any(latch.kind not in self._written for latch in self._engine.latches)

    def _status(
        self, rounds: list[Json] | tuple[()], steps: str | None = None, *, over: bool = False
    ) -> Json:
        engine = self._engine
        known = Known(
            engine.verdict,
            engine.latches,
            engine.compact_state(),
            rounds,
            engine.ended,
            engine.latched_at,
            engine.rollouts(),
            steps,
            engine.pins,
            over,
        )
        return guard_status(known, self._former or {}, datetime.now(UTC))

    async def _report(self) -> bool:
        """Write once; whether it was accepted. A refusal is counted, and told once."""
        try:
            try:
                status = await self._write()
            except JobStatusError as error:
                if error.status != CONFLICT:
                    raise
                status = await self._write()  # somebody wrote since, most likely the operator: no failure yet
        except JobStatusError as error:
            self._note_failure(error)
            return False
        self._note_success(status)
        return True

    async def _write(self) -> Json:
        """Write what is known now, after reading what is there if that is not known; what was accepted."""
        if self._former is None:
            self._former = await self._job.read()
        for latch in latches(self._former):
            await self._engine.adopt_latch(latch)
        over = self._closing or self._engine.ended or bool(self._engine.latches) or self._job.trainer_ended
        rounds, steps = await self._rounds(), await self._steps(over)
        # What was tried may have been accepted although no response came: it is said again word for word.
        self._former = status = self._status(rounds, steps, over=over)
        if not self._knows_steps:
            status = without_steps(status)
        if cut := self._must_cut():
            status = essential(status)
        try:
            await self._job.apply(status)
        except JobStatusError as error:
            if error.status in READ_AGAIN:
                self._former = None
            if error.status in UNFIT:
                self._unfit += 1
                self._knows_steps = self._knows_steps and "keptSteps" not in str(error)
            raise
        if not cut:
            self._unfit = self._cut = 0
        return status

    def _must_cut(self) -> bool:
        """Whether the API server refuses a full report again and again, and this one is not a new attempt."""
        if self._unfit < (LATCH_TRIES if self._latch_waits() else HEARTBEAT_TRIES):
            return False
        self._cut += 1
        return self._cut % FULL_AGAIN != 0

    async def _rounds(self) -> list[Json]:
        """The rounds that are kept; a store that fails does not hold the fire up."""
        if has_its_history(self._former or {}):
            return []
        try:
            return await self._engine.kept_rounds()
        except Problem:
            return []

    async def _steps(self, over: bool) -> str | None:
        """The steps that a last word has. Nothing that goes wrong with them holds the fire up."""
        engine = self._engine
        if not self._knows_steps or not wants_steps(engine.verdict, over, self._former or {}):
            return None
        try:
            async with asyncio.timeout(STEPS_SECONDS):
                return await engine.kept_steps()
        except (Problem, TimeoutError) as error:
            log.warning("the steps are not kept in the status of %s: %s", self._job.job, error or "no time")
        except Exception:
            log.exception("the steps are not kept in the status of %s", self._job.job)
        return None

    def _note_success(self, status: Json) -> None:
        if self._last_error:
            log.warning("the API server takes reports of %s again", self._job.job)
        if self._latch_waits():
            log.warning("the latch is in the status of %s", self._job.job)
        self._failures, self._last_error = 0, ""
        self._written, self._written_at = status, self._clock()
        self._engine.metrics.last_report = time.time()

    def _note_failure(self, error: JobStatusError) -> None:
        self._failures += 1
        self._engine.metrics.report_failures.inc()
        if str(error) != self._last_error:
            log.error("status.guard was not written: %s", error)
        self._last_error = str(error)
        self._wait = backoff(self._failures, error.retry_after, random.random())  # noqa: S311 - not a secret
