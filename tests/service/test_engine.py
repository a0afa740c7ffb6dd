"""The engine with a real store and a fake evaluator, which is there to fail in every way.

Aspects: evaluations run one by one in the order of their announcement; what they give is stored before it is
announced; a restart at any point goes on where it was; failures, silence and staleness follow their policy
and their stop latches survive a restart; a store that fails loses no evaluation.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from guard_core.detectors.calibrated import CalibratedDetector
from guard_core.detectors.run import CalibratedRun
from guard_core.policy import (
    CalibratedPolicy,
    EvaluationFailingPolicy,
    HeldOutGuardPolicy,
    Policy,
    SilentPolicy,
    StalePolicy,
)
from guard_core.wire import CheckpointReport, KlKind, StepReport
from guard_service import engine as engine_module
from guard_service.engine import Engine
from guard_service.errors import ChangedRunError, GuardError, Problem, StoreError
from guard_service.heldout.errors import EvaluationError, SplitError
from guard_service.heldout.worker import EvaluationRequest, EvaluationResult
from guard_service.store import Store, export_history

pytestmark = pytest.mark.asyncio
QUICK = Policy(heldout_guard=HeldOutGuardPolicy(min_steps=1))


@dataclass
class FakeEvaluator:
    """Gives the outcomes it was told to, one after another; an exception among them is raised."""

    outcomes: list[Any] = field(default_factory=list)
    split_digest: str | None = "digest"
    start_error: Exception | None = None
    scratch: Path | None = None
    asked: list[EvaluationRequest] = field(default_factory=list)
    started: int = 0
    running: int = 0

    async def start(self) -> None:
        self.started += 1
        if self.start_error is not None:
            raise self.start_error

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        assert self.running == 0, "one at a time"
        self.running += 1
        try:
            await asyncio.sleep(0)
            self.asked.append(request)
            while not self.outcomes:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            outcome = self.outcomes.pop(0)
            if isinstance(outcome, BaseException):
                raise outcome
            staged = None
            if self.scratch is not None:
                staged = self.scratch / f"stage-{request.step}"
                staged.mkdir(parents=True)
                (staged / "model.safetensors").write_text(str(request.step))
            return EvaluationResult(tuple(outcome), f"sha-{request.step}", 0.01, staged)
        finally:
            self.running -= 1

    async def close(self) -> None:
        self.running = 0


class Run:
    """A state directory, and engines on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = 1000.0
        (directory / "checkpoints").mkdir()

    @contextlib.asynccontextmanager
    async def engine(
        self, worker: FakeEvaluator | None = None, policy: Policy = QUICK, **options: Any
    ) -> AsyncIterator[Engine]:
        engine = Engine(
            state_dir=self.directory / "state",
            checkpoint_root=self.directory / "checkpoints",
            policy=policy,
            worker=worker,
            clock=lambda: self.now,
            **options,
        )
        await engine.start()
        try:
            yield engine
        finally:
            await engine.close()

    def checkpoint(self, number: int) -> CheckpointReport:
        path = self.directory / "checkpoints" / str(number)
        path.mkdir(exist_ok=True)
        return CheckpointReport(attempt=0, step=number, path=str(path))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(engine_module, "TICK_SECONDS", 0.02)
    return Run(tmp_path)


def step(number: int, reward: float = 0.5, kl: float | None = None) -> StepReport:
    kind = KlKind.ABSENT if kl is None else KlKind.REF_TOKEN_MEAN
    return StepReport(attempt=0, step=number, reward=reward, kl=kl, kl_kind=kind)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def stored(run: Run, query: str) -> list[Any]:
    """Rows of the store, read after the engine was closed."""
    db = sqlite3.connect(run.directory / "state" / "guard.db")
    with contextlib.closing(db):
        return db.execute(query).fetchall()


# -- evaluations ---------------------------------------------------------------------------------------------


async def test_checkpoints_are_scored_in_the_order_of_their_announcement(run: Run) -> None:
    worker = FakeEvaluator([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    async with run.engine(worker) as engine:
        for number in (3, 1, 2):
            await engine.add_steps([step(number)])
            assert await engine.add_checkpoint(run.checkpoint(number))
        await until(lambda: engine.queue_length == 0)
        assert [request.step for request in worker.asked] == [3, 1, 2]
        verdict = engine.verdict
    assert verdict.last_evaluation is not None and verdict.last_evaluation.score == 0.0
    assert verdict.best_evaluation is not None and verdict.best_evaluation.step == 1
    lines = list(export_history(run.directory / "state"))
    assert [(line["step"], line["heldout"], line["items"]) for line in lines] == [
        (1, 1.0, [1.0, 1.0]),
        (2, 0.0, [0.0, 0.0]),
        (3, 0.5, [0.0, 1.0]),
    ]


async def test_a_hack_fires_and_stays_fired_after_a_restart(run: Run) -> None:
    worker = FakeEvaluator([[0.9], [0.1]])
    async with run.engine(worker) as engine:
        for number in (1, 2):
            await engine.add_steps([step(number, reward=number)])
            await engine.add_checkpoint(run.checkpoint(number))
            await until(lambda: engine.queue_length == 0)
        fired = engine.verdict
        assert fired.fire and fired.halt and fired.code == "hacking_gap"
    assert stored(run, "SELECT kind FROM events ORDER BY seq DESC LIMIT 2") == [("fire",), ("evaluation",)]
    async with run.engine(FakeEvaluator([[1.0]])) as engine:
        assert engine.verdict == fired
        await engine.add_steps([step(3)])
        await engine.add_checkpoint(run.checkpoint(3))
        await until(lambda: engine.queue_length == 0)
        assert engine.verdict.fire and engine.verdict.reason == fired.reason


async def test_the_queue_survives_a_restart(run: Run) -> None:
    first = FakeEvaluator()  # never answers
    async with run.engine(first) as engine:
        for number in (1, 2, 3):
            await engine.add_steps([step(number)])
            await engine.add_checkpoint(run.checkpoint(number))
        await until(lambda: bool(first.asked))
    second = FakeEvaluator([[1.0], EvaluationError("gone"), [0.5]])
    async with run.engine(second) as engine:
        await until(lambda: engine.queue_length == 0)
        assert [request.step for request in second.asked] == [1, 2, 3]
    async with run.engine(FakeEvaluator()) as engine:
        assert engine.queue_length == 0


@pytest.mark.parametrize(
    "outcome",
    [
        EvaluationError("CUDA out of memory"),
        RuntimeError("secret prompt"),
        [],
        [0.5, float("nan")],
        [0.5, 1.5],
        [-0.1],
    ],
)
async def test_a_failed_evaluation_is_a_failure_and_never_a_score(run: Run, outcome: Any) -> None:
    policy = Policy(evaluation_failing=EvaluationFailingPolicy(after_failures=1))
    async with run.engine(FakeEvaluator([outcome]), policy) as engine:
        await engine.add_steps([step(1)])
        await engine.add_checkpoint(run.checkpoint(1))
        await until(lambda: engine.queue_length == 0)
        assert engine.verdict.code == "evaluation_failing"
        assert engine.verdict.last_evaluation is None
        assert "secret" not in engine.verdict_json.decode()
        assert b"rlguard_guard_evaluation_failures_total 1.0" in engine.metrics.render()


async def test_failures_in_a_row_stop_the_run_if_the_policy_says_so(run: Run) -> None:
    policy = Policy(evaluation_failing=EvaluationFailingPolicy(after_failures=2, policy="stop"))
    worker = FakeEvaluator([EvaluationError("a"), EvaluationError("b"), [1.0]])
    async with run.engine(worker, policy) as engine:
        for number in (1, 2):
            await engine.add_checkpoint(run.checkpoint(number))
        await until(lambda: engine.queue_length == 0)
        assert engine.verdict.halt and not engine.verdict.fire
    async with run.engine(worker, policy) as engine:  # a stop is a latch too
        await engine.add_checkpoint(run.checkpoint(3))
        await until(lambda: engine.queue_length == 0)
        assert engine.verdict.halt and engine.verdict.code == "evaluation_failing"


async def test_a_worker_that_cannot_start_is_tried_again_and_never_skips_its_gate(run: Run) -> None:
    worker = FakeEvaluator([[1.0]], start_error=EvaluationError("no child"))
    async with run.engine(worker) as engine:
        await until(lambda: engine.not_ready == "no child")
        assert worker.started == 1
        await engine.add_checkpoint(run.checkpoint(1))
        await until(lambda: engine.queue_length == 0)
        assert worker.started >= 2 and not worker.asked
        worker.start_error = None
        await engine.add_checkpoint(run.checkpoint(2))
        await until(lambda: engine.queue_length == 0)
        assert [request.step for request in worker.asked] == [2]
        assert engine.not_ready == ""


async def test_the_gate_is_tried_again_without_a_checkpoint(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster no trainer starts, and so no checkpoint comes, before it is passed."""
    monkeypatch.setattr(engine_module, "GATE_RETRY_SECONDS", 0.02)
    worker = FakeEvaluator(start_error=OSError("no memory"))
    async with run.engine(worker) as engine:
        await until(lambda: worker.started >= 3)
        assert engine.not_ready == "internal error (OSError)" and engine.queue_length == 0
        worker.start_error = None
        await until(lambda: engine.not_ready == "")


async def test_a_split_that_is_not_disjoint_ends_the_guard(run: Run) -> None:
    worker = FakeEvaluator(start_error=SplitError("not disjoint: train-7 = heldout-3"))
    failures: list[GuardError] = []
    async with run.engine(worker) as engine:
        engine.on_fatal = failures.append
        await engine.add_checkpoint(run.checkpoint(1))
        await until(lambda: bool(failures))
        assert "heldout-3" in str(failures[0])
        assert engine.not_ready and not worker.asked


async def test_another_split_is_another_run(run: Run) -> None:
    async with run.engine(FakeEvaluator(split_digest="one")) as engine:
        await until(lambda: engine.not_ready == "")
    failures: list[GuardError] = []
    async with run.engine(FakeEvaluator(split_digest="two")) as engine:
        engine.on_fatal = failures.append
        await until(lambda: bool(failures))
    assert isinstance(failures[0], GuardError) and "split" in str(failures[0])


async def test_the_best_checkpoint_is_kept(run: Run) -> None:
    worker = FakeEvaluator([[0.4], [0.8], [0.2], [0.8]], scratch=run.directory / "state" / "scratch")
    best = run.directory / "state" / "best" / "model.safetensors"
    kept = []
    async with run.engine(worker, keep_best=True) as engine:
        for number in (1, 2, 3, 4):
            await engine.add_checkpoint(run.checkpoint(number))
            await until(lambda: engine.queue_length == 0)
            kept.append(best.read_text())
    assert kept == ["1", "2", "2", "4"]
    assert not list((run.directory / "state").glob("best.*"))


# -- silence and staleness --------------------------------------------------------------------------


async def test_silence_warns_and_ends_with_the_next_step(run: Run) -> None:
    policy = Policy(silent=SilentPolicy(after_seconds=60))
    async with run.engine(policy=policy) as engine:
        await engine.add_steps([step(1)])
        run.now += 61
        await until(lambda: engine.verdict.code == "silent")
        assert not engine.verdict.halt
        await engine.add_steps([step(2)])
        assert engine.verdict.code != "silent"


async def test_silence_that_stops_is_on_disk_before_it_is_announced(run: Run) -> None:
    policy = Policy(silent=SilentPolicy(after_seconds=60, policy="stop"))
    async with run.engine(policy=policy) as engine:
        run.now += 61
        await until(lambda: engine.verdict.halt)
        stopped = engine.verdict
        assert stopped.code == "silent" and not stopped.fire
    assert stored(run, "SELECT kind FROM events") == [("stop",)]
    async with run.engine(policy=policy) as engine:
        await engine.add_steps([step(1)])
        assert engine.verdict.halt and engine.verdict.code == "silent"


async def test_checkpoints_that_nobody_scores_are_stale(run: Run) -> None:
    policy = Policy(stale=StalePolicy(after_rounds=2, policy="stop"))
    async with run.engine(policy=policy) as engine:
        for number in (1, 2, 3):
            await engine.add_checkpoint(run.checkpoint(number))
        assert engine.verdict.code == "stale" and engine.verdict.halt
    async with run.engine(policy=policy) as engine:
        assert engine.verdict.code == "stale" and engine.verdict.halt


# -- restarts ------------------------------------------------------------------------------------------------


async def test_another_policy_is_another_run(run: Run) -> None:
    async with run.engine(policy=Policy()) as engine:
        await engine.add_steps([step(1)])
    changed = Policy(heldout_guard=HeldOutGuardPolicy(kl_hard_stop=0.5))
    with pytest.raises(ChangedRunError, match=r"heldout_guard\.kl_hard_stop: was 0\.08, now 0\.5"):
        async with run.engine(policy=changed):
            pass


async def test_a_restart_from_a_snapshot_equals_one_from_the_first_event(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "SNAPSHOT_EVERY", 7)
    worker = FakeEvaluator([[0.5], [0.25]])
    async with run.engine(worker) as engine:
        for number in range(40):
            await engine.add_steps([step(number, reward=number / 7, kl=0.01 + number / 3000)])
            if number in (10, 30):
                await engine.add_checkpoint(run.checkpoint(number))
                await until(lambda: engine.queue_length == 0)
        live = engine.verdict
    assert stored(run, "SELECT seq FROM snapshot") == [(45,)]  # with the fire
    async with run.engine(FakeEvaluator()) as engine:
        assert engine.verdict == live
    db = sqlite3.connect(run.directory / "state" / "guard.db")
    db.execute("UPDATE snapshot SET state = ?", (json.dumps({"version": -1}),))
    db.commit()
    db.close()
    async with run.engine(FakeEvaluator()) as engine:
        assert engine.verdict == live


# -- a store that fails -----------------------------------------------------------------------------


class BreakingStore(Store):
    """Fails when told to, before or after what it does reached the disk."""

    fail: str = ""  # name of the method that fails next
    after: bool = False  # whether it does its work first

    def _break(self, name: str, *args: Any) -> Any:
        if BreakingStore.fail != name:
            return getattr(Store, name)(self, *args)
        BreakingStore.fail = ""
        if BreakingStore.after:
            getattr(Store, name)(self, *args)
        raise StoreError("disk I/O error")

    def append_steps(self, *args: Any) -> Any:
        return self._break("append_steps", *args)

    def append_checkpoint(self, *args: Any) -> Any:
        return self._break("append_checkpoint", *args)

    def append_evaluation(self, *args: Any) -> Any:
        return self._break("append_evaluation", *args)

    def append_failure(self, *args: Any) -> Any:
        return self._break("append_failure", *args)

    def append_latches(self, *args: Any) -> Any:
        return self._break("append_latches", *args)

    def save_snapshot(self, *args: Any) -> Any:
        return self._break("save_snapshot", *args)


@pytest.fixture(params=[False, True], ids=["before", "after"])
def breaking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[BreakingStore]:
    monkeypatch.setattr(engine_module, "Store", BreakingStore)
    monkeypatch.setattr(BreakingStore, "after", request.param)
    return BreakingStore


async def test_steps_refused_by_a_failing_store_can_be_sent_again(
    run: Run, breaking: type[BreakingStore]
) -> None:
    async with run.engine() as engine:
        await engine.add_steps([step(1)])
        breaking.fail = "append_steps"
        with pytest.raises(Problem) as refused:
            await engine.add_steps([step(2), step(3)])
        assert refused.value.status == 503
        assert engine.verdict.code == "store_unavailable"
        await until(lambda: engine.store_works)
        again = await engine.add_steps([step(2), step(3)])
        assert len(again.new) + again.duplicates == 2
        assert engine.verdict.steps == 3


async def test_a_fire_whose_latch_cannot_be_stored_is_announced_and_kept(
    run: Run, breaking: type[BreakingStore]
) -> None:
    """The steps that imply the fire are on disk, so no restart can lose it."""
    async with run.engine() as engine:
        await engine.add_steps([step(n, kl=0.5) for n in range(4)])
        breaking.fail = "append_latches"
        with pytest.raises(Problem):
            await engine.add_steps([step(4, kl=0.5)])
        assert engine.verdict.fire and engine.verdict.halt and engine.verdict.level == "fired"
        await until(lambda: engine.store_works)
        assert engine.verdict.fire
    assert stored(run, "SELECT COUNT(*) FROM events WHERE kind = 'fire'") == [(1,)]
    async with run.engine() as engine:
        assert engine.verdict.fire


@pytest.mark.parametrize("outcome", [[0.5, 1.0], EvaluationError("gone")])
async def test_an_evaluation_is_not_lost_by_a_failing_store(
    run: Run, breaking: type[BreakingStore], outcome: Any
) -> None:
    worker = FakeEvaluator()
    async with run.engine(worker) as engine:
        await engine.add_steps([step(1), step(2)])
        for number in (1, 2):
            await engine.add_checkpoint(run.checkpoint(number))
        breaking.fail = "append_failure" if isinstance(outcome, Exception) else "append_evaluation"
        worker.outcomes += [outcome, [1.0]]
        await until(lambda: engine.queue_length == 0)
        assert [request.step for request in worker.asked] == [1, 2]
        rounds = engine.verdict.rounds
    kinds = [kind for (kind,) in stored(run, "SELECT kind FROM events WHERE kind <> 'step' ORDER BY seq")]
    settled = "failure" if isinstance(outcome, Exception) else "evaluation"
    assert sorted(kinds) == sorted(["checkpoint", "checkpoint", settled, "evaluation"])
    assert rounds == (1 if isinstance(outcome, Exception) else 2)


async def test_a_checkpoint_refused_by_a_failing_store_can_be_announced_again(
    run: Run, breaking: type[BreakingStore]
) -> None:
    worker = FakeEvaluator([[1.0]])
    async with run.engine(worker) as engine:
        breaking.fail = "append_checkpoint"
        with pytest.raises(Problem):
            await engine.add_checkpoint(run.checkpoint(1))
        await until(lambda: engine.store_works)
        await engine.add_checkpoint(run.checkpoint(1))
        await until(lambda: engine.queue_length == 0 and bool(worker.asked))
        assert len(worker.asked) == 1


async def test_a_stop_by_silence_is_not_announced_before_it_is_stored(
    run: Run, breaking: type[BreakingStore]
) -> None:
    policy = Policy(silent=SilentPolicy(after_seconds=60, policy="stop"))
    async with run.engine(policy=policy) as engine:
        breaking.fail = "append_latches"
        run.now += 61
        await until(lambda: not engine.store_works)
        assert not engine.verdict.halt
        await until(lambda: engine.verdict.halt)
    assert stored(run, "SELECT kind FROM events") == [("stop",)]


async def test_a_failing_snapshot_costs_nothing(
    run: Run, breaking: type[BreakingStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "SNAPSHOT_EVERY", 2)
    async with run.engine() as engine:
        breaking.fail = "save_snapshot"
        await engine.add_steps([step(1), step(2)])
        await until(lambda: not engine.store_works)
        await until(lambda: engine.store_works)
        await engine.add_steps([step(3)])
        assert engine.verdict.steps == 3


async def test_a_judge_that_fails_on_a_step_is_rebuilt_from_the_store(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run.engine() as engine:
        await engine.add_steps([step(1)])
        fold, broken = engine_module.Judge.fold_step, [True]

        def fold_step(judge: Any, report: StepReport) -> None:
            if broken.pop() if broken else False:
                raise RuntimeError("a mistake in a rule")
            fold(judge, report)

        monkeypatch.setattr(engine_module.Judge, "fold_step", fold_step)
        with pytest.raises(Problem) as refused:
            await engine.add_steps([step(2)])
        assert refused.value.status == 503 and engine.verdict.code == "store_unavailable"
        await until(lambda: engine.store_works)
        assert engine.verdict.steps == 2


# -- the calibrated detector -----------------------------------------------------------------------------


def calibrated(passes: int) -> Policy:
    return Policy(detector="both", calibrated=CalibratedPolicy(baseline_passes=passes))


async def test_the_passes_that_the_judge_wants_come_before_the_queue(run: Run) -> None:
    worker = FakeEvaluator()
    async with run.engine(worker, calibrated(3)) as engine:
        await engine.add_steps([step(number) for number in range(4)])
        for number in (0, 3):
            await engine.add_checkpoint(run.checkpoint(number))
        worker.outcomes += [[0.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
        await until(lambda: engine.queue_length == 0)
        assert [(r.step, r.pass_index) for r in worker.asked] == [(0, 0), (0, 1), (0, 2), (3, 0)]
        public = [line async for line in engine.history()]
        thinned = await engine.thinned_history(10)
        live = engine.verdict
    assert [(line["step"], line.get("heldout")) for line in public] == [
        (0, 0.5),
        (1, None),
        (2, None),
        (3, 1.0),
    ]
    assert [evaluation["step"] for evaluation in thinned["evaluations"]] == [0, 3]
    lines = [line for line in export_history(run.directory / "state") if "items" in line]
    assert [(line["step"], line.get("pass_index", 0), line["items"]) for line in lines] == [
        (0, 0, [0.0, 1.0]),
        (0, 1, [1.0, 1.0]),
        (0, 2, [1.0, 0.0]),
        (3, 0, [1.0, 1.0]),
    ]
    async with run.engine(FakeEvaluator(), calibrated(3)) as engine:
        assert engine.verdict == live


async def test_steps_are_answered_while_the_baseline_is_closed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, go_on = threading.Event(), threading.Event()
    close = CalibratedRun._close_baseline

    def close_slowly(calibrated_run: CalibratedRun) -> CalibratedDetector:
        closing.set()
        assert go_on.wait(20)
        return close(calibrated_run)

    monkeypatch.setattr(CalibratedRun, "_close_baseline", close_slowly)
    worker = FakeEvaluator([[0.0, 1.0], [1.0, 1.0]])
    async with run.engine(worker, calibrated(2)) as engine:
        await engine.add_steps([step(0)])
        await engine.add_checkpoint(run.checkpoint(0))
        await until(closing.is_set)
        async with asyncio.timeout(10):
            await engine.add_steps([step(1)])
            await engine.add_checkpoint(run.checkpoint(1))
        assert engine.verdict.steps == 2
        go_on.set()
        worker.outcomes.append([1.0, 1.0])
        await until(lambda: engine.queue_length == 0)
        assert engine.verdict.detectors
        live = engine.verdict
    async with run.engine(FakeEvaluator(), calibrated(2)) as engine:
        assert engine.verdict == live


async def test_a_restart_goes_on_with_the_passes_that_are_missing(run: Run) -> None:
    first = FakeEvaluator([[0.0, 1.0], [1.0, 1.0]])
    async with run.engine(first, calibrated(4)) as engine:
        await engine.add_steps([step(0)])
        await engine.add_checkpoint(run.checkpoint(0))
        await until(lambda: len(first.asked) == 3)
    second = FakeEvaluator([[1.0, 0.0], EvaluationError("gone"), [0.5, 0.5]])
    async with run.engine(second, calibrated(4)) as engine:
        await until(lambda: len(second.asked) == 2)
        await engine.add_checkpoint(run.checkpoint(1))
        await until(lambda: engine.queue_length == 0)
        assert [(r.step, r.pass_index) for r in second.asked] == [(0, 2), (0, 3), (1, 0)]
        live = engine.verdict
    async with run.engine(FakeEvaluator(), calibrated(4)) as engine:
        assert engine.verdict == live
