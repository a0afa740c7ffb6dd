"""One guarded run: its ledger, what goes into it, and what clients ask of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, TypeVar

from guard_core.checkpoint_key import CheckpointKey
from guard_core.compact import CompactState
from guard_core.figures import Points, kept_figures
from guard_core.judge import Latch
from guard_core.kept_steps import written_steps
from guard_core.policy import Policy
from guard_core.rollouts import kept_rollouts, side_by_side
from guard_core.wire import (
    CheckpointReport,
    EndReport,
    EvaluationReport,
    FiguresReport,
    MomentRollouts,
    PostedStep,
    RolloutsReport,
    StepReport,
    Verdict,
)
from guard_service.engine.adoption import Adoption, RunState
from guard_service.engine.allowance import MAX_BYTES, Allowance
from guard_service.engine.evaluations import Evaluations, GateClosed
from guard_service.engine.evidence import evidence_files
from guard_service.engine.ingest import Ingest
from guard_service.engine.ledger import Ledger, Resume, Unavailable
from guard_service.engine.liveness import Liveness
from guard_service.engine.outcomes import ReportedOutcomes
from guard_service.engine.published import Published
from guard_service.engine.scoring import ScoringWorker
from guard_service.engine.shown import ShownBook
from guard_service.engine.verdicts import halted
from guard_service.errors import GuardError, StoreError
from guard_service.feed import Standing
from guard_service.metrics import GuardMetrics
from guard_service.refusals import Kind
from guard_service.store import BEFORE_ALL, FIGURES, ROLLOUTS, STAYS_HERE, Appended, EventLog

log = logging.getLogger("rlguard.guard")

TICK_SECONDS = 1.0
LONGEST_TICK = 2  # ticks that one counts as silence, however late it comes
EXAMINED_STEPS = 10_000  # of a longer run, for its evidence
FIGURES_SECONDS = 10.0  # between two writes of a file that may have some 100 KiB

A = TypeVar("A")
T = TypeVar("T")


class Engine:
    """One guarded run. Construct it (no I/O), `start` it, and `close` it, all on one event loop.

    Args:
        state_dir: directory of the store; made if missing.
        checkpoint_root: directory under which every checkpoint must lie.
        policy: the thresholds of the run.
        worker: scores checkpoints; None leaves them waiting, which becomes `stale`.
        elsewhere: where they are scored if another guard of the run does it: announcements are refused with
            it. Empty: nobody else does.
        keep_best: keep the files of the best checkpoint in `<state_dir>/best`.
        newest_only: skip checkpoints for which a newer one waits already.
        takes_outcomes: somebody else evaluates checkpoints, and reports the outcomes.
        max_store_bytes: size of the store from which on reports are refused; see `allowance`.
        resume: asked once for the events that the log begins with if it is empty: what is known elsewhere of
            this run. It raises `StoreError` to be asked again; until it returns nothing is known.
        termination_message: file that says how the run is judged, for whoever finds the guard ended.

    `on_fatal` is called with the error when the guard must end, because the held-out split is unusable.
    """

    def __init__(
        self,
        *,
        state_dir: Path,
        checkpoint_root: Path,
        policy: Policy,
        worker: ScoringWorker | None = None,
        elsewhere: str = "",
        keep_best: bool = False,
        newest_only: bool = False,
        takes_outcomes: bool = False,
        max_store_bytes: int = MAX_BYTES,
        resume: Resume | None = None,
        termination_message: Path | None = None,
    ) -> None:
        self.on_fatal: Callable[[GuardError], None] = lambda error: log.error("%s", error)
        self.metrics = GuardMetrics()
        self._worker, self._resume = worker, resume
        #: The thresholds of the run.
        self.policy = policy
        self._liveness = Liveness(policy)
        self._ledger = Ledger(
            state_dir=state_dir,
            root=checkpoint_root,
            policy=policy,
            liveness=self._liveness,
            metrics=self.metrics,
            worker=worker,
            takes_outcomes=takes_outcomes,
            termination_message=termination_message,
        )
        self._allowance = Allowance(max_store_bytes)
        self._outcomes = ReportedOutcomes(self._ledger, self._allowance)
        self._ingest = Ingest(
            self._ledger, self._liveness, self.metrics, checkpoint_root, worker, self._allowance, elsewhere
        )
        self._elsewhere, self._takes_outcomes = elsewhere, takes_outcomes
        self._evaluations: Evaluations | None = None
        if worker is not None:
            best = state_dir / "best" if keep_best else None
            self._evaluations = Evaluations(
                self._ledger, worker, self.metrics, best, newest_only, on_fatal=self._tell_fatal
            )
        self._rollouts = ShownBook(ROLLOUTS, state_dir)
        self._figures = ShownBook(FIGURES, state_dir, FIGURES_SECONDS)
        self._handed_over = asyncio.Event()  # since `hand_over` was asked for
        self._tasks: list[asyncio.Task[None]] = []
        self.metrics.observe(self)

    # -- life ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the store and begin. A store that cannot be read is retried, and the verdict says `unknown`.

        Raises:
            ChangedRunError: the store belongs to a run with another policy.
        """
        try:
            await self._ledger.recover(self._resume)
        except StoreError as error:
            self._ledger.fail(error)
        await self._rollouts.load()
        await self._figures.load()
        self._tasks = [asyncio.create_task(self._ingest.write_steps()), asyncio.create_task(self._tick())]
        if self._evaluations is not None:
            self._tasks.append(asyncio.create_task(self._evaluations.run()))
        elif not self._takes_outcomes:
            why = self._elsewhere or "no held-out evaluation is configured: only the KL rule can fire"
            log.warning("%s", why)

    async def close(self) -> None:
        """Finish the flush under way, end the evaluation process, close the log."""
        async with self._ledger.lock:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._ingest.give_up()
            if self._worker is not None:
                await self._worker.close()
            if self._evaluations is not None:
                await self._evaluations.give_up()
            await self._rollouts.save(now=True)
            await self._figures.save(now=True)
            await self._ledger.close()

    def _tell_fatal(self, error: GuardError) -> None:
        self.on_fatal(error)

    async def _tick(self) -> None:
        """Once a second: try a broken store again, judge the silence, and keep what is shown."""
        now = time.monotonic()
        while True:
            before = now
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            self._liveness.silent_for += min(now - before, LONGEST_TICK * TICK_SECONDS)
            if not self.store_works:
                await self._try_again()
            else:
                await self._judge_what_is_no_event()
            await self._rollouts.save()
            await self._figures.save()

    async def _try_again(self) -> None:
        try:
            await self._ledger.recover(self._resume)
        except GuardError as error:
            self._ledger.fail(error)
        else:
            log.warning("the store works: %s", self._ledger.open_store().path)

    async def _judge_what_is_no_event(self) -> None:
        """Silence and refusals: one that passes its limit is an event, if it stops the run."""
        ledger, liveness = self._ledger, self._liveness
        async with ledger.lock:
            if not self.store_works:
                return
            if self._worker is not None and (ledger.judge.waiting or ledger.judge.wanted_pass()):
                liveness.start_anew()
            halt = halted(ledger.judge, liveness.silent_for, liveness.refusals.condition())
            if halt is not None:
                try:
                    await ledger.append(ledger.open_store(), halt)
                except StoreError as error:
                    ledger.fail(error)
                    return
            ledger.publish()

    # -- what is known ---------------------------------------------------------------------------------------

    @property
    def verdict(self) -> Verdict:
        """The verdict now."""
        return self._ledger.verdict

    @property
    def published(self) -> Published:
        """The verdict now as clients get it, and how they wait for another."""
        return self._ledger.published

    @property
    def trainer_json(self) -> bytes:
        """What a trainer is told of the verdict now."""
        return self._ledger.published.trainer_json

    @property
    def latches(self) -> tuple[Latch, ...]:
        """Every latch that has closed: at most one fire and one halt."""
        return self._ledger.latches

    @property
    def store_bytes(self) -> int | None:
        """Size of the store; None if it cannot be used now."""
        return self._ledger.store_bytes

    @property
    def store_full(self) -> bool | None:
        """Whether the store takes no further steps; None if it cannot be used now."""
        size = self.store_bytes
        return None if size is None else self._allowance.is_full(size)

    def compact_state(self) -> CompactState | None:
        """What a guard without this one's log goes on from; None until the log was read."""
        return self._ledger.compact_state

    @property
    def pins(self) -> Mapping[str, str] | None:
        """The files that every checkpoint must have, by name; None before the first was scored."""
        return self._ledger.pins

    @property
    def not_ready(self) -> Unavailable | GateClosed | None:
        """Why the guard is not ready; None if it is."""
        return self._ledger.outage or (None if self._evaluations is None else self._evaluations.gate)

    @property
    def store_works(self) -> bool:
        """Whether the store can be read and written, as far as is known."""
        return self._ledger.outage is None

    @property
    def following(self) -> Standing:
        """How it stands with what is followed."""
        return self._liveness.following

    @property
    def queue_length(self) -> int:
        """Checkpoints that wait for their evaluation, the one under way included."""
        return len(self._ledger.queue)

    @property
    def silent_for(self) -> float:
        """Seconds since the last new step, since the guard started, or since evaluations last waited.

        A trainer that has ended, or that waits for this guard by `max_lag`, is not what is slow: `stale` is.
        """
        return self._liveness.silent_for

    # -- what is reported ------------------------------------------------------------------------------------

    async def add_steps(self, reports: Sequence[StepReport]) -> Appended:
        """Store and fold steps; what is returned is on disk and in the verdict.

        Raises:
            Problem: 409 if one of them contradicts what is on disk, 503 if the store is unavailable. In both
                cases none of them was kept.
        """
        return await self._ingest.add_steps(reports)

    async def add_checkpoint(self, report: CheckpointReport) -> bool:
        """Queue a checkpoint for its evaluation; False if it is known already.

        Raises:
            Problem: 422 if the path is not a directory under the checkpoint root, or what is in it cannot be
                listed or can never be scored, 409 if the same step was announced with another path, 503 if
                the store is unavailable.
        """
        return await self._ingest.add_checkpoint(report)

    async def note_end(self, report: EndReport) -> None:
        """The trainer has finished. An attempt of whose steps none was fit to be reported may end too.

        Raises:
            Problem: 409 if no step was reported yet, or a later attempt has reported one; 503 if the store is
                unavailable.
        """
        await self._ingest.note_end(report)

    async def add_evaluation(self, report: EvaluationReport) -> tuple[bool, int | None]:
        """Take the outcomes of a checkpoint from whoever evaluated it; see `ReportedOutcomes.add`."""
        return await self._outcomes.add(report)

    def show(self, steps: Sequence[PostedStep]) -> None:
        """Take what of these steps is for people. It is no evidence: it is kept later, and may be lost."""
        figures = [
            FiguresReport(attempt=one.attempt, step=one.step, figures=one.figures)
            for one in steps
            if one.figures
        ]
        if figures:
            self._figures.value = kept_figures((*self._figures.value, *figures))
        for one in steps:
            if one.rollouts:
                report = RolloutsReport(attempt=one.attempt, step=one.step, rollouts=one.rollouts)
                self._rollouts.value = kept_rollouts((*self._rollouts.value, report), self.verdict)

    def run_state(self) -> RunState:
        """What another guard of this run would have to know.

        Raises:
            Problem: 503 while nothing is known.
        """
        state = self.compact_state()
        if state is None:
            raise self._ledger.unavailable()
        self._handed_over.set()
        return RunState.of(self._ledger.sequence, state, self.latches, self.pins)

    async def adopt(self, run: RunState) -> bool:
        """Begin with what the supervisor knows of this run; False if something is known already.

        A latch that is closed elsewhere is closed in any case.

        Raises:
            Problem: 422 if the state was made under another policy, 503 if the store is unavailable.
        """
        events = run.events(self.policy)
        if self.compact_state() is not None or not isinstance(self._resume, Adoption):
            for latch in events:
                if isinstance(latch, Latch):
                    await self._ledger.adopt_latch(latch)
            return False
        self._resume.told = events
        await self._try_again()
        if self.compact_state() is None:
            raise self._ledger.unavailable()
        return True

    async def hand_over(self, seconds: float) -> None:
        """Return once the supervisor has fetched the state of a run that ends, or after so many seconds."""
        if not isinstance(self._resume, Adoption) or self.compact_state() is None:
            return
        self._handed_over.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._handed_over.wait()

    def refusing(self, kind: Kind) -> AbstractContextManager[None]:
        """Count it if a report is refused here for what it says; a store that fails refuses nothing."""
        return self._ingest.refusing(kind)

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
        return side_by_side(self._rollouts.value, self.verdict)

    def figures(self) -> Points:
        """Further figures of the training, of as many steps as a plot has room for."""
        return self._figures.value

    async def evidence(self) -> dict[str, str]:
        """What stays of the run when this guard is gone, as files by name; no outcome of an item is in it.

        Raises:
            Problem: 503 if the store is unavailable.
        """
        best = self.verdict.best_evaluation
        rounds = await self._read(EventLog.kept_rounds, None if best is None else CheckpointKey.of(best))
        total, steps = await self._read(EventLog.some_steps, EXAMINED_STEPS)
        written = await asyncio.to_thread(written_steps, steps, self.figures(), total)
        return evidence_files(rounds, written, self.rollouts())

    async def _read(self, query: Callable[[EventLog, A], T], argument: A) -> T:
        async with self._ledger.for_request() as store:
            return await self._ledger.call(query, store, argument)
