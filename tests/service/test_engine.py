"""The engine with a real store and a fake evaluator, which is there to fail in every way.

Aspects: evaluations run one by one in the order of their announcement; what they give is stored before it is
announced; a restart at any point goes on where it was; failures, silence and staleness follow their policy
and their stop latches survive a restart; a store that fails loses no evaluation.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from guard_core.codes import Code
from guard_core.detectors.run import CalibratedRun
from guard_core.ending import not_judged
from guard_core.evaluation import HfEvaluation
from guard_core.judge import Judge, Latch
from guard_core.policy import (
    CalibratedPolicy,
    EvaluationFailingPolicy,
    HeldOutGuardPolicy,
    KlPolicy,
    Policy,
    SilentPolicy,
    StalePolicy,
)
from guard_core.rounds import Evaluation, Round
from guard_core.wire import (
    DOUBTS,
    Adapters,
    CheckpointReport,
    EndReport,
    EvaluationsNeeded,
    FailureKind,
    KlKind,
    Sampling,
    StepReport,
)
from guard_service import engine as engine_module
from guard_service import evaluations
from guard_service.engine import Engine
from guard_service.errors import ChangedRunError, GuardError, Problem, StoreError
from guard_service.evaluations import GateClosed
from guard_service.event_log import EventLog
from guard_service.events import Failure, StoredEvent
from guard_service.heldout.errors import CheckpointGoneError, EvaluationError, SplitError
from guard_service.heldout.identity import Expected, manifest
from guard_service.heldout.worker import EvaluationRequest, EvaluationResult
from guard_service.history import STAYS_HERE, export_history

pytestmark = pytest.mark.asyncio
QUICK = Policy(
    detector="heldout_guard",
    heldout_guard=HeldOutGuardPolicy(min_steps=1),
    kl=KlPolicy(hard_stop=0.08, min_steps=5),
)


@dataclass
class FakeEvaluator:
    """Gives the outcomes it was told to, one after another; an exception among them is raised."""

    outcomes: list[Any] = field(default_factory=list)
    split_digest: str | None = "digest"
    measure: Mapping[str, Any] = field(default_factory=lambda: {"scorer": "exact"})
    start_error: Exception | None = None
    scratch: Path | None = None
    asked: list[EvaluationRequest] = field(default_factory=list)
    refusal: str = ""
    started: int = 0
    running: int = 0

    adapters: Adapters | None = None
    needed: EvaluationsNeeded | None = None

    async def start(self) -> None:
        self.started += 1
        if self.start_error is not None:
            raise self.start_error

    def unfit(self, checkpoint: Path) -> str:
        assert checkpoint.is_absolute()
        return self.refusal

    #: Of every checkpoint; None: a server has them.
    files: Mapping[str, str] | None = None

    async def pins(self, request: EvaluationRequest) -> Mapping[str, str] | None:
        return self.files

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
                staged.mkdir(parents=True, exist_ok=True)  # of one checkpoint it is the same in every pass
                (staged / "model.safetensors").write_text(str(request.step))
            if isinstance(outcome, EvaluationResult):
                return outcome
            return EvaluationResult(tuple(outcome), f"sha-{request.step}", 0.01, staged)
        finally:
            self.running -= 1

    async def close(self) -> None:
        self.running = 0


class Run:
    """A state directory, and engines on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
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
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def stored(run: Run, query: str) -> list[Any]:
    """Rows of the store, read after the engine was closed."""
    db = sqlite3.connect(run.directory / "state" / "guard.db")
    with contextlib.closing(db):
        return db.execute(query).fetchall()


# -- evaluations ---------------------------------------------------------------------------------------------


async def test_truncation_and_the_training_graders_mean_are_in_the_verdict_and_come_back(run: Run) -> None:
    shares = {"unanswered": 0.25, "unscored": 0.9, "timed_out": 0.125}
    told = EvaluationResult((0.0, 1.0), None, 0.01, None, 0.5, (1.0, 1.0), fooled_items=(0.5, 0.0), **shares)
    async with run.engine(FakeEvaluator([told])) as engine:
        await engine.run.add_steps([step(1)])
        await engine.add_checkpoint(run.checkpoint(1))
        await until(lambda: engine.run.queue_length == 0)
        last = engine.run.verdict.last_evaluation
        assert last is not None and (last.score, last.truncated, last.proxy_score) == (0.5, 0.5, 1.0)
        assert (last.unanswered, last.timed_out) == (0.25, 0.125)
        assert engine.run.verdict.code is Code.UNINFORMATIVE_BASELINE and "90%" in engine.run.verdict.reason
        (public,) = [line async for line in engine.history()]
        assert not {*STAYS_HERE, "fooled_items", "heldout_unscored"} & public.keys()
    async with run.engine(FakeEvaluator()) as engine:  # folded again from the events
        assert engine.run.verdict.last_evaluation == last
        assert engine.run.verdict.code is Code.UNINFORMATIVE_BASELINE
    assert [line["fooled_items"] for line in export_history(run.directory / "state")] == [[0.5, 0.0]]


async def test_where_the_time_of_evaluations_went_is_counted(run: Run) -> None:
    parts = {"stage": 1.5, "load": 0.5, "generate": 4.0, "score": 0.25}
    scored = [EvaluationResult((1.0,), None, 7.0, None, parts=parts) for _ in range(2)]
    async with run.engine(FakeEvaluator(scored)) as engine:
        for number in (1, 2):
            await engine.run.add_steps([step(number)])
            await engine.add_checkpoint(run.checkpoint(number))
        await until(lambda: engine.run.queue_length == 0)
        page = engine.run.metrics.render().decode()
    for part, seconds in parts.items():
        assert f'rlguard_guard_evaluation_part_seconds_total{{part="{part}"}} {2 * seconds}' in page


@pytest.mark.parametrize("given", ["proxy_items", "fooled_items"])
@pytest.mark.parametrize("outcomes", [(1.0,), (1.0, 1.5), (1.0, float("nan"))])
async def test_what_the_training_grader_cannot_have_given_is_no_evaluation(
    run: Run, given: str, outcomes: tuple[float, ...]
) -> None:
    grader = {"proxy_items": (1.0, 1.0), given: outcomes}
    told = EvaluationResult((0.0, 1.0), None, 0.01, None, None, **grader)
    async with run.engine(FakeEvaluator([told])) as engine:
        await engine.run.add_steps([step(1)])
        await engine.add_checkpoint(run.checkpoint(1))
        await until(lambda: engine.run.queue_length == 0)
        assert engine.run.verdict.last_evaluation is None


async def test_checkpoints_are_scored_in_the_order_of_their_announcement(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    worker = FakeEvaluator([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    async with run.engine(worker) as engine:
        for number in (3, 1, 2):
            await engine.run.add_steps([step(number)])
            assert await engine.add_checkpoint(run.checkpoint(number))
        await until(lambda: engine.run.queue_length == 0)
        assert [request.step for request in worker.asked] == [3, 1, 2]
        verdict = engine.run.verdict
    assert verdict.last_evaluation is not None and verdict.last_evaluation.score == 0.0
    assert verdict.best_evaluation is not None and verdict.best_evaluation.step == 1
    lines = list(export_history(run.directory / "state"))
    assert [(line["step"], line["heldout"], line["items"]) for line in lines] == [
        (1, 1.0, [1.0, 1.0]),
        (2, 0.0, [0.0, 0.0]),
        (3, 0.5, [0.0, 1.0]),
    ]
    told = [line for line in caplog.messages if "held-out" in line]
    assert [line.partition(", evaluated in")[0] for line in told] == [
        "checkpoint 3 of attempt 0: held-out 0.5000",
        "checkpoint 1 of attempt 0: held-out 1.0000",
        "checkpoint 2 of attempt 0: held-out 0.0000",
    ]


async def test_an_end_is_taken_back_by_what_the_trainer_reports_later(run: Run) -> None:
    async with run.engine(FakeEvaluator([[1.0]])) as engine:
        with pytest.raises(Problem):
            await engine.note_end(EndReport(attempt=0))
        await engine.run.add_steps([step(1)])
        await engine.note_end(EndReport(attempt=0))
        assert engine.run.verdict.ended
        await engine.run.add_steps([step(1)])
        assert engine.run.verdict.ended, "it was known"
        await engine.run.add_steps([step(2)])
        assert not engine.run.verdict.ended
        await engine.note_end(EndReport(attempt=0, step=9, finished=False))
        assert not engine.run.verdict.ended, "it may have failed"
        await engine.note_end(EndReport(attempt=0))
        await engine.add_checkpoint(run.checkpoint(2))
        assert not engine.run.verdict.ended


async def test_an_end_is_known_after_a_restart_until_the_trainer_reports_again(run: Run) -> None:
    for number in range(1, 4):
        async with run.engine(FakeEvaluator([[1.0]])) as engine:
            await engine.run.add_steps([step(number)])
            assert not engine.run.verdict.ended
            await engine.note_end(EndReport(attempt=0))
        async with run.engine(FakeEvaluator([[1.0]])) as engine:
            assert engine.run.verdict.ended


async def test_steps_that_were_made_and_not_reported_are_known_after_a_restart(run: Run) -> None:
    async with run.engine(FakeEvaluator([[1.0]])) as engine:
        await engine.run.add_steps([step(n) for n in range(1, 6)])
        await engine.add_checkpoint(run.checkpoint(5))
        await until(lambda: engine.run.queue_length == 0)
        await engine.note_end(EndReport(attempt=0, step=9, gone=3))
        await engine.note_end(EndReport(attempt=0, step=7))
        ended = engine.run.verdict
        assert (ended.steps_since_evaluation, ended.skipped) == (4, 3)
    async with run.engine(FakeEvaluator()) as engine:
        assert engine.run.verdict == ended
        assert "4 steps came after the last judged checkpoint" in not_judged(
            engine.run.verdict, "wait longer"
        )


@pytest.mark.parametrize(
    ("ends", "lost"),
    [
        ([{"attempt": 0, "step": 5, "gone": 2}, {"attempt": 1, "step": 6}], 2),
        ([{"attempt": 0, "step": 5, "finished": False}, {"attempt": 0, "step": 5, "gone": 1}], 1),
        ([{"attempt": 0, "gone": 2}], 2),
    ],
    ids=["a later attempt lost none", "told at its end", "no step is said"],
)
async def test_checkpoints_that_could_not_be_announced_stay_counted_after_a_restart(
    run: Run, ends: list[dict[str, Any]], lost: int
) -> None:
    async with run.engine(FakeEvaluator()) as engine:
        await engine.run.add_steps([step(n) for n in range(1, 6)])
        for end in ends:
            await engine.note_end(EndReport.model_validate(end))
        assert engine.run.verdict.skipped == lost
    async with run.engine(FakeEvaluator()) as engine:
        assert engine.run.verdict.skipped == lost


async def test_an_end_that_cannot_be_kept_is_not_acknowledged(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run.engine(FakeEvaluator()) as engine:
        await engine.run.add_steps([step(1)])

        def full(*_: object) -> None:
            raise StoreError("disk full")

        monkeypatch.setattr(EventLog, "append", full)
        with pytest.raises(Problem) as refused:
            await engine.note_end(EndReport(attempt=0, step=9))
        assert refused.value.status == 503 and not engine.run.verdict.ended


async def test_a_hack_fires_and_stays_fired_after_a_restart(run: Run) -> None:
    worker = FakeEvaluator([[0.9], [0.1]])
    async with run.engine(worker) as engine:
        for number in (1, 2):
            await engine.run.add_steps([step(number, reward=number)])
            await engine.add_checkpoint(run.checkpoint(number))
            await until(lambda: engine.run.queue_length == 0)
        fired = engine.run.verdict
        assert fired.fire and fired.stop and not fired.halt and fired.code == "hacking_gap"
    assert stored(run, "SELECT kind FROM events ORDER BY seq DESC LIMIT 2") == [("fire",), ("evaluation",)]
    async with run.engine(FakeEvaluator([[1.0]])) as engine:
        assert engine.run.verdict == fired
        await engine.run.add_steps([step(3)])
        await engine.add_checkpoint(run.checkpoint(3))
        await until(lambda: engine.run.queue_length == 0)
        assert engine.run.verdict.fire and engine.run.verdict.reason == fired.reason


async def test_the_queue_survives_a_restart(run: Run) -> None:
    first = FakeEvaluator()  # never answers
    async with run.engine(first) as engine:
        for number in (1, 2, 3):
            await engine.run.add_steps([step(number)])
            await engine.add_checkpoint(run.checkpoint(number))
        await until(lambda: bool(first.asked))
    second = FakeEvaluator([[1.0], EvaluationError("gone"), [0.5]])
    async with run.engine(second) as engine:
        await until(lambda: engine.run.queue_length == 0)
        assert [request.step for request in second.asked] == [1, 2, 3]
    async with run.engine(FakeEvaluator()) as engine:
        assert engine.run.queue_length == 0


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
        await engine.run.add_steps([step(1)])
        await engine.add_checkpoint(run.checkpoint(1))
        await until(lambda: engine.run.queue_length == 0)
        assert engine.run.verdict.code == "evaluation_failing"
        assert engine.run.verdict.last_evaluation is None
        assert "secret" not in engine.run.verdict.model_dump_json()
        assert b"rlguard_guard_evaluation_failures_total 1.0" in engine.run.metrics.render()


async def test_the_kind_of_the_newest_failure_is_told_until_an_evaluation_succeeds(run: Run) -> None:
    policy = Policy(evaluation_failing=EvaluationFailingPolicy(after_failures=1))
    outcomes = [RuntimeError("secret prompt"), EvaluationError("secret", FailureKind.TOKENIZER)]
    async with run.engine(FakeEvaluator(list(outcomes)), policy) as engine:
        for number, kind in ((1, FailureKind.UNDERWAY), (2, FailureKind.TOKENIZER)):
            await engine.add_checkpoint(run.checkpoint(number))
            await until(lambda: engine.run.queue_length == 0)
            assert engine.run.verdict.failure is kind
            assert kind.words.encode() in engine.run.trainer_json and b"secret" not in engine.run.trainer_json
    async with run.engine(FakeEvaluator([[1.0]]), policy) as engine:
        assert engine.run.verdict.failure is FailureKind.TOKENIZER
        await engine.add_checkpoint(run.checkpoint(3))
        await until(lambda: engine.run.queue_length == 0)
        assert engine.run.verdict.failure is None and engine.run.verdict.failed == 2


@pytest.mark.parametrize("restart", [False, True])
async def test_a_checkpoint_that_was_rotated_away_is_skipped_and_no_failure(run: Run, restart: bool) -> None:
    failing = EvaluationFailingPolicy(after_failures=1, action="stop")
    policy = Policy(detector="heldout_guard", evaluation_failing=failing)
    worker = FakeEvaluator([[1.0], CheckpointGoneError("rotated away"), [1.0]])
    async with run.engine(worker, policy) as engine:
        for number in (1, 2, 3):
            await engine.run.add_steps([step(number)])
            await engine.add_checkpoint(run.checkpoint(number))
        await until(lambda: engine.run.queue_length == 0)
        live = engine.run.verdict
        assert b"rlguard_guard_evaluation_failures_total 0.0" in engine.run.metrics.render()
    if restart:
        async with run.engine(FakeEvaluator(), policy) as engine:
            assert engine.run.queue_length == 0
            assert engine.run.verdict == live
    assert (live.announced, live.evaluated, live.failed, live.skipped, live.waiting) == (3, 2, 0, 1, 0)
    assert not live.stop and "evaluation_failing" not in {c.code for c in live.conditions}
    assert [line["step"] for line in export_history(run.directory / "state") if "heldout" in line] == [1, 3]


@pytest.mark.parametrize(
    ("newest_only", "asked"),
    [
        (False, [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0), (4, 0)]),
        (True, [(0, 0), (0, 1), (3, 0), (4, 0)]),
    ],
)
async def test_of_what_waits_only_the_newest_is_evaluated_where_that_is_wanted(
    run: Run, newest_only: bool, asked: list[tuple[int, int]]
) -> None:
    """Not without the first, with which the others are compared, nor without the passes that are wanted."""
    worker = FakeEvaluator()
    async with run.engine(worker, calibrated(2), newest_only=newest_only) as engine:
        for number in range(4):
            await engine.run.add_steps([step(number)])
            await engine.add_checkpoint(run.checkpoint(number))
        worker.outcomes += [[0.0, 1.0]] * (len(asked) - 1)
        await until(lambda: engine.run.queue_length == 0)
        await engine.run.add_steps([step(4)])
        await engine.add_checkpoint(run.checkpoint(4))
        worker.outcomes += [[0.0, 1.0]]
        await until(lambda: engine.run.queue_length == 0)
        live = engine.run.verdict
    assert [(request.step, request.pass_index) for request in worker.asked] == asked
    skipped = 2 if newest_only else 0
    assert (live.announced, live.evaluated, live.skipped, live.waiting) == (5, 5 - skipped, skipped, 0)
    told = not_judged(live, "wait longer")
    assert ("2 of 5 checkpoints were not evaluated (2 skipped)" in told) is newest_only
    async with run.engine(FakeEvaluator(), calibrated(2)) as engine:
        assert engine.run.verdict == live


async def test_checkpoints_that_are_all_gone_before_their_turn_are_stale(run: Run) -> None:
    policy = Policy(detector="heldout_guard", stale=StalePolicy(after_rounds=2))
    worker = FakeEvaluator([CheckpointGoneError("rotated away")] * 3 + [[1.0]])
    async with run.engine(worker, policy) as engine:
        for number in (1, 2, 3):
            await engine.run.add_steps([step(number)])
            await engine.add_checkpoint(run.checkpoint(number))
        await until(lambda: engine.run.queue_length == 0)
        assert engine.run.verdict.code == "stale"
        assert "3 checkpoints were skipped" in engine.run.verdict.reason
        await engine.add_checkpoint(run.checkpoint(4))
        await until(lambda: engine.run.queue_length == 0)
        assert "stale" not in {c.code for c in engine.run.verdict.conditions}


async def test_a_wanted_pass_of_a_checkpoint_that_is_gone_is_given_up(run: Run) -> None:
    """The baseline goes on with the passes that it has, and no checkpoint is counted as skipped."""
    gone = CheckpointGoneError("rotated away")
    worker = FakeEvaluator([[0.0, 1.0], [1.0, 1.0], gone, [1.0, 1.0]])
    async with run.engine(worker, calibrated(3)) as engine:
        for number in (0, 1):
            await engine.run.add_steps([step(number)])
            await engine.add_checkpoint(run.checkpoint(number))
        await until(lambda: engine.run.queue_length == 0)
        assert [(r.step, r.pass_index) for r in worker.asked] == [(0, 0), (0, 1), (0, 2), (1, 0)]
        live = engine.run.verdict
        assert (live.announced, live.evaluated, live.skipped) == (2, 2, 0)
    async with run.engine(FakeEvaluator(), calibrated(3)) as engine:
        assert engine.run.verdict == live


async def test_a_checkpoint_that_waits_and_is_announced_again_is_what_it_is_now(run: Run) -> None:
    """A trainer that was started again saves its starting policy again, over the one that waits."""
    worker = FakeEvaluator()
    async with run.engine(worker, calibrated(2)) as engine:
        first, second = run.checkpoint(0), run.checkpoint(1)
        for report in (first, second):
            (Path(report.path) / "model.safetensors").write_text("one")
            await engine.run.add_steps([step(report.step)])
            assert await engine.add_checkpoint(report)
        (Path(second.path) / "model.safetensors").write_text("other")
        assert not await engine.add_checkpoint(second)
        worker.outcomes += [[0.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
        await until(lambda: engine.run.queue_length == 0)
    asked = {(r.step, r.pass_index): r.expected or Expected() for r in worker.asked}
    assert asked[1, 0].manifest == manifest(Path(second.path))
    assert asked[0, 0].manifest == manifest(Path(first.path))
    # Its weights are compared with those of the first pass: its files may have been touched since.
    assert asked[0, 1].manifest is None


async def test_a_wanted_pass_of_other_weights_is_given_up(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """A script that saves every checkpoint to one directory: what lies there now is not what was scored."""
    used = HfEvaluation(samples=4).sampling_with(HOT)
    scored = (("one", (1.0, 0.0)), ("two", (1.0, 1.0)), ("two", (0.0, 1.0)))
    worker = FakeEvaluator([EvaluationResult(items, sha, 0.01, None, sampling=used) for sha, items in scored])
    async with run.engine(worker, calibrated(3)) as engine:
        for number in (0, 1):
            await engine.run.add_steps([step(number)])
            await engine.add_checkpoint(run.checkpoint(number))
        await until(lambda: engine.run.queue_length == 0)
        assert [(r.step, r.pass_index) for r in worker.asked] == [(0, 0), (0, 1), (1, 0)]
        live = engine.run.verdict
        assert (live.announced, live.evaluated, live.failed) == (2, 2, 0)
    assert "is not what was scored before" in caplog.text and "a directory of its own" in caplog.text
    lines = [line for line in export_history(run.directory / "state") if "items" in line]
    assert [line.get("pass_index", 0) for line in lines] == [0, 0]
    assert [line["samples_per_item"] for line in lines] == [4, 4], "a replay judges by what was done"
    async with run.engine(FakeEvaluator(), calibrated(3)) as engine:
        assert engine.run.verdict == live


def in_place(run: Run, number: int, attempt: int = 0) -> CheckpointReport:
    """A checkpoint that is saved where all the others were."""
    path = run.directory / "checkpoints" / "latest"
    path.mkdir(exist_ok=True)
    return CheckpointReport(attempt=attempt, step=number, path=str(path))


@pytest.mark.parametrize("restart", [False, True])
async def test_what_was_saved_over_before_its_turn_is_skipped_and_never_scored_as_another(
    run: Run, restart: bool
) -> None:
    worker = FakeEvaluator()
    async with run.engine(worker) as engine:
        await engine.run.add_steps([step(1), step(2), step(3)])
        await engine.add_checkpoint(run.checkpoint(1))
        for number in (2, 3):
            assert await engine.add_checkpoint(in_place(run, number))
        if not restart:
            worker.outcomes += [[1.0], [0.5]]
            await until(lambda: engine.run.queue_length == 0)
        verdict = engine.run.verdict
    if restart:
        worker = FakeEvaluator([[1.0], [0.5]])
        async with run.engine(worker) as engine:
            await until(lambda: engine.run.queue_length == 0)
            verdict = engine.run.verdict
    assert [request.step for request in worker.asked] == [1, 3]
    assert (verdict.announced, verdict.evaluated, verdict.failed, verdict.skipped) == (3, 2, 0, 1)
    assert verdict.last_evaluation is not None and verdict.last_evaluation.step == 3
    assert "1 of 3 checkpoints were not evaluated (1 skipped)" in not_judged(verdict, "wait longer")


@pytest.mark.parametrize("attempt", [0, 1])
async def test_what_is_saved_over_while_it_is_scored_is_not_scored(
    run: Run, attempt: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its files may have been taken before, after or in the middle. A later attempt has the same steps."""
    worker = FakeEvaluator()
    async with run.engine(worker) as engine:
        await engine.run.add_steps([step(1), step(2)])
        await engine.add_checkpoint(in_place(run, 2))
        await until(lambda: bool(worker.asked))
        await engine.add_checkpoint(in_place(run, 3 if attempt == 0 else 2, attempt))
        worker.outcomes += [[1.0], [0.0]]
        await until(lambda: engine.run.queue_length == 0)
        verdict = engine.run.verdict
    assert (verdict.announced, verdict.evaluated, verdict.skipped) == (2, 1, 1)
    assert verdict.last_evaluation is not None and verdict.last_evaluation.score == 0.0
    assert "save each checkpoint to a directory of its own" in caplog.text


async def test_a_directory_that_is_saved_over_after_its_score_serves_for_every_checkpoint(run: Run) -> None:
    worker = FakeEvaluator([[1.0], [0.5]])
    async with run.engine(worker) as engine:
        await engine.run.add_steps([step(1), step(2)])
        for number in (1, 2):
            await engine.add_checkpoint(in_place(run, number))
            await until(lambda: engine.run.queue_length == 0)
        assert not await engine.add_checkpoint(in_place(run, 2)), "the same announcement, sent again"
        assert (engine.run.verdict.evaluated, engine.run.verdict.skipped) == (2, 0)


async def test_a_wanted_pass_of_a_directory_that_was_saved_over_is_given_up(run: Run) -> None:
    """Also where no digest tells, because the weights are remote."""
    remote = EvaluationResult((0.5, 0.5), None, 0.01, None)
    worker = FakeEvaluator([remote])
    policy = Policy(calibrated=CalibratedPolicy(baseline_passes=3))
    async with run.engine(worker, policy=policy) as engine:
        await engine.run.add_steps([step(1), step(2)])
        await engine.add_checkpoint(in_place(run, 1))
        await until(lambda: len(worker.asked) == 2)
        assert worker.asked[1].pass_index == 1
        await engine.add_checkpoint(in_place(run, 2))
        worker.outcomes += [remote, remote]
        await until(lambda: engine.run.queue_length == 0)
        verdict = engine.run.verdict
    assert [(request.step, request.pass_index) for request in worker.asked] == [(1, 0), (1, 1), (2, 0)]
    assert (verdict.evaluated, verdict.skipped) == (2, 0)
    assert stored(run, "SELECT step, pass, body FROM events WHERE kind = 'failure'")[0][:2] == (1, 1)


async def test_what_can_never_be_scored_is_refused_at_its_announcement(run: Run) -> None:
    worker = FakeEvaluator([[1.0]], refusal="it holds a PEFT adapter: save the merged model")
    async with run.engine(worker) as engine:
        report = run.checkpoint(1)
        with pytest.raises(Problem, match="can never be scored: it holds a PEFT adapter") as refused:
            await engine.add_checkpoint(report)
        assert refused.value.status == 422
        assert (engine.run.verdict.announced, engine.run.queue_length) == (0, 0)
        worker.refusal = ""
        assert await engine.add_checkpoint(report)
        await until(lambda: engine.run.queue_length == 0)
        worker.refusal = "its files are being removed"
        assert not await engine.add_checkpoint(report), "known, and announced again"
    assert stored(run, "SELECT COUNT(*) FROM events WHERE kind = 'checkpoint'") == [(1,)]


async def test_what_cannot_be_listed_is_refused_by_who_loads_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could be changed, and nobody would know. A server's checkpoint is not read at all."""
    monkeypatch.setattr(engine_module, "manifest", lambda _path: None)
    worker = FakeEvaluator([[1.0]], adapters=Adapters.REFUSED)
    async with run.engine(worker) as engine:
        report = run.checkpoint(1)
        with pytest.raises(Problem, match="cannot be listed: see that the guard can read") as refused:
            await engine.add_checkpoint(report)
        assert refused.value.status == 422
        assert (engine.run.verdict.announced, engine.run.queue_length) == (0, 0)
        worker.adapters = None
        assert await engine.add_checkpoint(report)
        await until(lambda: engine.run.queue_length == 0)


async def test_a_trainer_is_told_how_many_evaluations_the_policy_takes(run: Run) -> None:
    needed = EvaluationsNeeded(long_rounds=8, short_rounds=10)
    async with run.engine(FakeEvaluator([[1.0]], needed=needed)) as engine:
        await engine.run.add_steps([step(1)])
        assert engine.run.verdict.needed == needed
        assert '"needed":{"long_rounds":8,"short_rounds":10}' in engine.run.trainer_json.decode()
    async with run.engine() as engine:
        assert engine.run.verdict.needed is None


async def test_a_trainer_is_told_below_which_folder_its_checkpoints_must_lie(run: Run) -> None:
    async with run.engine() as engine:
        told = json.loads(engine.run.trainer_json)["checkpoint_root"]
        assert told == str(run.directory.absolute() / "checkpoints")


async def test_failures_in_a_row_stop_the_run_if_the_policy_says_so(run: Run) -> None:
    policy = Policy(evaluation_failing=EvaluationFailingPolicy(after_failures=2, action="stop"))
    worker = FakeEvaluator([EvaluationError("a"), EvaluationError("b"), [1.0]])
    async with run.engine(worker, policy) as engine:
        for number in (1, 2):
            await engine.add_checkpoint(run.checkpoint(number))
        await until(lambda: engine.run.queue_length == 0)
        assert engine.run.verdict.halt and not engine.run.verdict.fire
    async with run.engine(worker, policy) as engine:  # a stop is a latch too
        await engine.add_checkpoint(run.checkpoint(3))
        await until(lambda: engine.run.queue_length == 0)
        assert engine.run.verdict.halt and engine.run.verdict.code == "evaluation_failing"


async def test_a_worker_that_cannot_start_is_tried_again_and_never_skips_its_gate(run: Run) -> None:
    worker = FakeEvaluator([[1.0], [1.0]], start_error=EvaluationError("no child"))
    async with run.engine(worker) as engine:
        await until(lambda: engine.not_ready == GateClosed("no child"))
        assert worker.started == 1
        await engine.add_checkpoint(run.checkpoint(1))
        await until(lambda: worker.started >= 2)
        assert not worker.asked
        worker.start_error = None
        await engine.add_checkpoint(run.checkpoint(2))
        await until(lambda: engine.run.queue_length == 0)
        assert [request.step for request in worker.asked] == [1, 2]
        assert engine.not_ready is None


async def test_a_worker_that_cannot_start_costs_no_checkpoint(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of the guard, everything that waits would be given up before the next try."""
    monkeypatch.setattr(evaluations, "GATE_RETRY_SECONDS", 0.02)
    async with run.engine() as engine:
        for number in (1, 2, 3):
            await engine.add_checkpoint(run.checkpoint(number))
    worker = FakeEvaluator([[1.0]] * 3, start_error=EvaluationError("no child"))
    async with run.engine(worker) as engine:
        await until(lambda: worker.started >= 6)
        assert (engine.run.verdict.failed, engine.run.verdict.waiting, engine.run.queue_length) == (0, 3, 3)
        worker.start_error = None
        await until(lambda: engine.run.verdict.evaluated == 3)
        assert engine.run.verdict.failed == 0


async def test_the_gate_is_tried_again_without_a_checkpoint(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster no trainer starts, and so no checkpoint comes, before it is passed."""
    monkeypatch.setattr(evaluations, "GATE_RETRY_SECONDS", 0.02)
    worker = FakeEvaluator(start_error=OSError("no memory"))
    async with run.engine(worker) as engine:
        await until(lambda: worker.started >= 3)
        assert engine.not_ready == GateClosed("internal error (OSError)") and engine.run.queue_length == 0
        worker.start_error = None
        await until(lambda: engine.not_ready is None)


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
        await until(lambda: engine.not_ready is None)
    failures: list[GuardError] = []
    async with run.engine(FakeEvaluator(split_digest="two")) as engine:
        engine.on_fatal = failures.append
        await until(lambda: bool(failures))
    assert isinstance(failures[0], GuardError) and "split" in str(failures[0])


async def test_another_scorer_is_another_run(run: Run) -> None:
    async with run.engine(FakeEvaluator()) as engine:
        await until(lambda: engine.not_ready is None)
    failures: list[GuardError] = []
    async with run.engine(FakeEvaluator(measure={"scorer": "numeric"})) as engine:
        engine.on_fatal = failures.append
        await until(lambda: bool(failures))
    assert "scorer: was 'exact', now 'numeric'" in str(failures[0])


async def test_the_best_checkpoint_is_kept(run: Run) -> None:
    worker = FakeEvaluator([[0.4], [0.8], [0.2], [0.8]], scratch=run.directory / "state" / "scratch")
    best = run.directory / "state" / "best" / "model.safetensors"
    kept = []
    async with run.engine(worker, keep_best=True) as engine:
        for number in (1, 2, 3, 4):
            await engine.add_checkpoint(run.checkpoint(number))
            await until(lambda: engine.run.queue_length == 0)
            kept.append(best.read_text())
    assert kept == ["1", "2", "2", "4"]
    assert not list((run.directory / "state").glob("best.*"))


async def test_of_a_checkpoint_that_is_kept_further_passes_are_made(run: Run) -> None:
    """The starting policy is the best while there is no other, and its directory may be rotated away."""
    worker = FakeEvaluator([[0.0, 1.0], [1.0, 0.0]], scratch=run.directory / "state" / "scratch")
    policy = Policy(calibrated=CalibratedPolicy(baseline_passes=2))
    best = run.directory / "state" / "best" / "model.safetensors"
    left: list[bool] = []
    evaluate = worker.evaluate

    async def look(request: EvaluationRequest) -> EvaluationResult:
        left.append((run.directory / "state" / "scratch" / "stage-1" / "model.safetensors").exists())
        return await evaluate(request)

    worker.evaluate = look  # type: ignore[method-assign]
    async with run.engine(worker, policy, keep_best=True) as engine:
        await engine.add_checkpoint(run.checkpoint(1))
        await until(
            lambda: engine.run.queue_length == 0 and engine.run.verdict.waiting == 0 and len(left) == 2
        )
    assert left == [False, True] and best.read_text() == "1"


@pytest.mark.parametrize(("fresh", "kept"), [(1.0, "3"), (0.4, "2")], ids=["upheld", "contradicted"])
async def test_of_a_jump_the_checkpoint_is_kept_once_a_fresh_pass_upholds_it(
    run: Run, fresh: float, kept: str
) -> None:
    def items(share: float) -> list[float]:
        return [float(i % 5 < 5 * share) for i in range(200)]

    shares = [items(0.4), [*items(0.4)[1:], 1.0], items(0.6), items(1.0), items(fresh)]
    worker = FakeEvaluator(shares, scratch=run.directory / "state" / "scratch")
    policy = Policy(calibrated=CalibratedPolicy(baseline_passes=2))
    best = run.directory / "state" / "best" / "model.safetensors"
    async with run.engine(worker, policy, keep_best=True) as engine:
        for number in (1, 2, 3):
            await engine.add_checkpoint(run.checkpoint(number))
            await until(lambda: engine.run.queue_length == 0 and engine.run.verdict.waiting == 0)
        await until(lambda: best.read_text() == kept)
    assert best.read_text() == kept


# -- silence and staleness --------------------------------------------------------------------------


async def test_silence_warns_and_ends_with_the_next_step(run: Run) -> None:
    policy = Policy(silent=SilentPolicy(after_seconds=0.2))
    async with run.engine(policy=policy) as engine:
        await engine.run.add_steps([step(1)])
        await until(lambda: engine.run.verdict.code == "silent")
        assert not engine.run.verdict.stop
        await engine.run.add_steps([step(2)])
        assert engine.run.verdict.code != "silent"


async def test_silence_does_not_count_while_evaluations_wait(run: Run) -> None:
    """The trainer may have ended, or wait for the guard by `max_lag`: then it is the guard that is slow."""
    policy = QUICK.model_copy(update={"silent": SilentPolicy(after_seconds=0.5, action="stop")})
    worker = FakeEvaluator()
    async with run.engine(worker, policy) as engine:
        await engine.run.add_steps([step(1)])
        await engine.add_checkpoint(run.checkpoint(1))
        await asyncio.sleep(1.0)
        assert engine.run.verdict.waiting == 1 and not engine.run.verdict.stop
        worker.outcomes.append([1.0])
        await until(lambda: engine.run.queue_length == 0)
        assert not engine.run.verdict.stop, "the trainer has its time from the evaluation's end on"
        await until(lambda: engine.run.verdict.halt)
        assert engine.run.verdict.code == "silent"


async def test_silence_counts_where_nothing_evaluates(run: Run) -> None:
    policy = QUICK.model_copy(update={"silent": SilentPolicy(after_seconds=0.2, action="stop")})
    async with run.engine(policy=policy) as engine:
        await engine.add_checkpoint(run.checkpoint(1))
        await until(lambda: engine.run.verdict.halt)
        assert engine.run.verdict.code == "silent" and engine.run.verdict.waiting == 0


async def test_time_in_which_the_guard_could_not_hear_is_no_silence(run: Run) -> None:
    """It was frozen, or starved: what came meanwhile waits to be read."""
    policy = Policy(silent=SilentPolicy(after_seconds=0.5, action="stop"))
    async with run.engine(policy=policy) as engine:
        await engine.run.add_steps([step(1)])
        await asyncio.sleep(0.1)
        time.sleep(1.0)  # noqa: ASYNC251 - no callback runs, as in a process that is stopped
        await asyncio.sleep(0.1)
        assert not engine.run.verdict.stop
        await until(lambda: engine.run.verdict.halt)


async def test_silence_that_stops_is_on_disk_before_it_is_announced(run: Run) -> None:
    policy = Policy(silent=SilentPolicy(after_seconds=0.2, action="stop"))
    async with run.engine(policy=policy) as engine:
        await until(lambda: engine.run.verdict.halt)
        stopped = engine.run.verdict
        assert stopped.code == "silent" and not stopped.fire
    assert stored(run, "SELECT kind FROM events WHERE kind <> 'policy'") == [("halt",)]
    async with run.engine(policy=policy) as engine:
        await engine.run.add_steps([step(1)])
        assert engine.run.verdict.halt and engine.run.verdict.code == "silent"


async def test_checkpoints_that_nobody_scores_are_stale(run: Run) -> None:
    policy = Policy(stale=StalePolicy(after_rounds=2, action="stop"))
    async with run.engine(policy=policy) as engine:
        for number in (1, 2, 3):
            await engine.add_checkpoint(run.checkpoint(number))
        assert engine.run.verdict.code == "stale" and engine.run.verdict.halt
    async with run.engine(policy=policy) as engine:
        assert engine.run.verdict.code == "stale" and engine.run.verdict.halt


# -- restarts ------------------------------------------------------------------------------------------------


async def test_another_policy_is_another_run(run: Run) -> None:
    async with run.engine(policy=Policy()) as engine:
        await engine.run.add_steps([step(1)])
    changed = Policy(kl=KlPolicy(hard_stop=0.5))
    with pytest.raises(ChangedRunError, match=r"kl\.hard_stop: was None, now 0\.5"):
        async with run.engine(policy=changed):
            pass


async def test_a_restart_gives_the_verdict_of_the_guard_before_it(run: Run) -> None:
    worker = FakeEvaluator([[0.5], [0.25]])
    async with run.engine(worker) as engine:
        for number in range(40):
            await engine.run.add_steps([step(number, reward=number / 7, kl=0.01 + number / 3000)])
            if number in (10, 30):
                await engine.add_checkpoint(run.checkpoint(number))
                await until(lambda: engine.run.queue_length == 0)
        live = engine.run.verdict
        assert live.fire
    async with run.engine(FakeEvaluator()) as engine:
        assert engine.run.verdict == live


async def test_a_fire_stays_one_for_a_program_that_would_not_fire(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run.engine() as engine:
        await engine.run.add_steps([step(n, kl=0.5 * n) for n in range(6)])
        fired = engine.run.verdict
        assert fired.fire
    monkeypatch.setattr(Judge, "_latch_fire", lambda *_: None)
    async with run.engine() as engine:
        assert engine.run.verdict == fired


# -- a store that fails -----------------------------------------------------------------------------


class BreakingLog(EventLog):
    """Fails when told to, before or after what it appends reached the disk."""

    fail: type | None = None  # of an event that is not appended next
    after: bool = False  # whether it does its work first

    def append(self, events: Sequence[StoredEvent], round_: Round | None = None) -> int:
        breaks = BreakingLog.fail is not None and any(isinstance(one, BreakingLog.fail) for one in events)
        seq = super().append(events, round_) if not breaks or BreakingLog.after else 0
        if breaks:
            BreakingLog.fail = None
            raise StoreError("disk I/O error")
        return seq


@pytest.fixture(params=[False, True], ids=["before", "after"])
def breaking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[BreakingLog]:
    monkeypatch.setattr("guard_service.event_log.EventLog", BreakingLog)
    monkeypatch.setattr(BreakingLog, "after", request.param)
    return BreakingLog


async def test_steps_refused_by_a_failing_store_can_be_sent_again(
    run: Run, breaking: type[BreakingLog]
) -> None:
    async with run.engine() as engine:
        await engine.run.add_steps([step(1)])
        breaking.fail = StepReport
        with pytest.raises(Problem) as refused:
            await engine.run.add_steps([step(2), step(3)])
        assert refused.value.status == 503
        assert engine.run.verdict.code == "store_unavailable"
        await until(lambda: engine.run.store_works)
        again = await engine.run.add_steps([step(2), step(3)])
        assert len(again.new) + again.duplicates == 2
        assert engine.run.verdict.steps == 3


async def test_a_fire_is_on_disk_with_its_cause_or_neither_is(run: Run, breaking: type[BreakingLog]) -> None:
    async with run.engine() as engine:
        await engine.run.add_steps([step(n, kl=0.5 * n) for n in range(4)])
        breaking.fail = Latch
        with pytest.raises(Problem):
            await engine.run.add_steps([step(4, kl=0.5)])
        assert not engine.run.verdict.fire and engine.run.verdict.code == "store_unavailable"
        await until(lambda: engine.run.store_works)
        assert engine.run.verdict.fire is breaking.after
        await engine.run.add_steps([step(4, kl=0.5)])
        assert engine.run.verdict.fire and engine.run.verdict.steps == 5
    assert stored(run, "SELECT kind FROM events ORDER BY seq DESC LIMIT 2") == [("fire",), ("step",)]
    async with run.engine() as engine:
        assert engine.run.verdict.fire


@pytest.mark.parametrize("outcome", [[0.5, 1.0], EvaluationError("gone")])
async def test_an_evaluation_is_not_lost_by_a_failing_store(
    run: Run, breaking: type[BreakingLog], outcome: Any
) -> None:
    worker = FakeEvaluator()
    async with run.engine(worker) as engine:
        await engine.run.add_steps([step(1), step(2)])
        for number in (1, 2):
            await engine.add_checkpoint(run.checkpoint(number))
        breaking.fail = Failure if isinstance(outcome, Exception) else Evaluation
        worker.outcomes += [outcome, [1.0]]
        await until(lambda: engine.run.queue_length == 0)
        assert [request.step for request in worker.asked] == [1, 2]
        rounds = engine.run.verdict.rounds
    query = "SELECT kind FROM events WHERE kind IN ('checkpoint', 'evaluation', 'failure') ORDER BY seq"
    kinds = [kind for (kind,) in stored(run, query)]
    settled = "failure" if isinstance(outcome, Exception) else "evaluation"
    assert sorted(kinds) == sorted(["checkpoint", "checkpoint", settled, "evaluation"])
    assert rounds == (1 if isinstance(outcome, Exception) else 2)


async def test_a_checkpoint_refused_by_a_failing_store_can_be_announced_again(
    run: Run, breaking: type[BreakingLog]
) -> None:
    worker = FakeEvaluator([[1.0]])
    async with run.engine(worker) as engine:
        breaking.fail = CheckpointReport
        with pytest.raises(Problem):
            await engine.add_checkpoint(run.checkpoint(1))
        await until(lambda: engine.run.store_works)
        await engine.add_checkpoint(run.checkpoint(1))
        await until(lambda: engine.run.queue_length == 0 and bool(worker.asked))
        assert len(worker.asked) == 1


async def test_a_stop_by_silence_is_not_announced_before_it_is_stored(
    run: Run, breaking: type[BreakingLog]
) -> None:
    policy = Policy(silent=SilentPolicy(after_seconds=0.2, action="stop"))
    async with run.engine(policy=policy) as engine:
        breaking.fail = Latch
        await until(lambda: not engine.run.store_works)
        assert not engine.run.verdict.stop
        await until(lambda: engine.run.verdict.halt)
    assert stored(run, "SELECT kind FROM events WHERE kind <> 'policy'") == [("halt",)]


async def test_a_step_that_the_judge_fails_on_is_not_acknowledged_and_can_be_sent_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run.engine() as engine:
        await engine.run.add_steps([step(1)])
        fold, broken = Judge.fold_step, [True]

        def fold_step(judge: Any, report: StepReport) -> None:
            if broken.pop() if broken else False:
                raise RuntimeError("a mistake in a rule")
            fold(judge, report)

        monkeypatch.setattr(Judge, "fold_step", fold_step)
        with pytest.raises(Problem) as refused:
            await engine.run.add_steps([step(2)])
        assert refused.value.status == 503 and engine.run.verdict.code == "store_unavailable"
        await until(lambda: engine.run.store_works)
        await engine.run.add_steps([step(2)])
        assert engine.run.verdict.steps == 2


# -- the calibrated detector -----------------------------------------------------------------------------


def calibrated(passes: int) -> Policy:
    return Policy(detector="both", calibrated=CalibratedPolicy(baseline_passes=passes))


async def test_an_end_near_an_alarm_has_the_last_checkpoint_evaluated_once_more(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CalibratedRun, "is_near", True)
    worker = FakeEvaluator([[0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    async with run.engine(worker, calibrated(2)) as engine:
        await engine.run.add_steps([step(number) for number in range(4)])
        for number in (0, 3):
            await engine.add_checkpoint(run.checkpoint(number))
        await until(lambda: engine.run.queue_length == 0 and engine.run.verdict.evaluated == 2)
        assert engine.run.verdict.waiting == 0

        await engine.note_end(EndReport(attempt=0, step=3))

        assert engine.run.verdict.waiting == 1
        await until(lambda: len(worker.asked) == 4)
    asked = [(r.step, r.pass_index) for r in worker.asked]
    assert asked == [(0, 0), (0, 1), (3, 0), (3, 1)]
    worker = FakeEvaluator([[1.0, 0.0], [1.0, 0.0]])
    async with run.engine(worker, calibrated(2)) as engine:  # it is remembered that the trainer has ended
        await until(lambda: len(worker.asked) == 2 and engine.run.verdict.waiting == 0)
    assert [(r.step, r.pass_index) for r in worker.asked] == [(3, 1), (3, 2)]


async def test_the_passes_that_the_judge_wants_come_before_the_queue(run: Run) -> None:
    worker = FakeEvaluator()
    async with run.engine(worker, calibrated(3)) as engine:
        await engine.run.add_steps([step(number) for number in range(4)])
        for number in (0, 3):
            await engine.add_checkpoint(run.checkpoint(number))
        worker.outcomes += [[0.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
        await until(lambda: engine.run.queue_length == 0)
        assert [(r.step, r.pass_index) for r in worker.asked] == [(0, 0), (0, 1), (0, 2), (3, 0)]
        public = [line async for line in engine.history()]
        thinned = await engine.thinned_history(10)
        live = engine.run.verdict
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
        assert engine.run.verdict == live


async def test_a_baseline_is_closed_within_its_budget_over_a_restart(run: Run) -> None:
    """What the passes cost is on disk with them, so a guard that starts again goes on counting."""
    policy = Policy(calibrated=CalibratedPolicy(baseline_passes=9, baseline_minutes=0.0006))

    def passes(*outcomes: tuple[float, float]) -> FakeEvaluator:
        made = [EvaluationResult(items, "sha", 0.01, None, completions=8) for items in outcomes]
        return FakeEvaluator(list(made))

    first = passes((0.0, 1.0), (1.0, 1.0))
    async with run.engine(first, policy) as engine:
        await engine.run.add_steps([step(0)])
        await engine.add_checkpoint(run.checkpoint(0))
        await until(lambda: len(first.asked) == 3)
        assert engine.run.verdict.baseline_passes == 2
    second = passes((1.0, 0.0), (1.0, 1.0))
    async with run.engine(second, policy) as engine:
        await engine.run.add_steps([step(1)])
        await engine.add_checkpoint(run.checkpoint(1))
        await until(lambda: engine.run.queue_length == 0)
        assert [(r.step, r.pass_index) for r in second.asked] == [(0, 2), (1, 0)]
        [advice] = [c for c in engine.run.verdict.conditions if c.advice and c.code is Code.NO_BASELINE]
        assert "baseline_minutes had room for 3 of 9 passes" in advice.message


HOT, COLD = (Sampling(temperature=t, max_new_tokens=64) for t in (1.0, 0.5))


@pytest.mark.parametrize("later", [COLD, None], ids=["another", "none any more"])
async def test_the_first_checkpoint_fixes_the_sampling_over_a_restart(
    run: Run, later: Sampling | None
) -> None:
    """Every pass, of every checkpoint and after every restart, is asked for as the run began."""
    used = HfEvaluation().sampling_with(HOT)
    done = [EvaluationResult(items, None, 0.01, None, sampling=used) for items in ((0.0, 1.0), (1.0, 1.0))]
    first = FakeEvaluator([done[0]])
    async with run.engine(first, calibrated(2)) as engine:
        await engine.run.add_steps([step(0)])
        await engine.add_checkpoint(run.checkpoint(0).model_copy(update={"sampling": HOT}))
        await until(lambda: len(first.asked) == 2)
        assert engine.run.verdict.last_evaluation is not None
        assert engine.run.verdict.last_evaluation.sampling == used
    second = FakeEvaluator([done[1]] * 3)
    async with run.engine(second, calibrated(2)) as engine:
        for number in (1, 2):
            await engine.add_checkpoint(run.checkpoint(number).model_copy(update={"sampling": later}))
        await until(lambda: engine.run.queue_length == 0)
        live = engine.run.verdict
    asked = [*first.asked, *second.asked]
    assert {request.sampling for request in asked} == {HOT} and len(second.asked) == 3
    (told,) = [c for c in live.conditions if c.code is Code.SAMPLING_CHANGED]
    assert told.advice and "at step 2" in told.message and not live.stop
    async with run.engine(FakeEvaluator(), calibrated(2)) as engine:  # folded again from the events
        assert engine.run.verdict == live


async def test_a_restart_goes_on_with_the_passes_that_are_missing(run: Run) -> None:
    first = FakeEvaluator([[0.0, 1.0], [1.0, 1.0]])
    async with run.engine(first, calibrated(4)) as engine:
        await engine.run.add_steps([step(0)])
        await engine.add_checkpoint(run.checkpoint(0))
        await until(lambda: len(first.asked) == 3)
    second = FakeEvaluator([[1.0, 0.0], EvaluationError("out of memory")])
    async with run.engine(second, calibrated(4)) as engine:
        await until(lambda: len(second.asked) == 3)
        assert [(r.step, r.pass_index) for r in second.asked] == [(0, 2), (0, 3), (0, 4)], "tried once more"
    third = FakeEvaluator([EvaluationError("out of memory"), [0.5, 0.5]])
    async with run.engine(third, calibrated(4)) as engine:
        await until(lambda: len(third.asked) == 1)
        await engine.add_checkpoint(run.checkpoint(1))
        await until(lambda: engine.run.queue_length == 0)
        assert [(r.step, r.pass_index) for r in third.asked] == [(0, 4), (1, 0)]
        assert "3 of 4 passes" in " ".join(c.message for c in engine.run.verdict.conditions)
        live = engine.run.verdict
    async with run.engine(FakeEvaluator(), calibrated(4)) as engine:
        assert engine.run.verdict == live


# -- what was announced --------------------------------------------------------------------------------------


async def test_an_evaluation_is_told_what_was_announced_and_scored_before(run: Run) -> None:
    pins = {"tokenizer.json": "one"}
    scored = EvaluationResult((1.0,), "first", 0.01, None, sampling=None)
    later = EvaluationResult((1.0,), "second", 0.01, None)
    worker = FakeEvaluator([scored, later], files=pins)
    async with run.engine(worker) as engine:
        for number in (1, 2):
            report = run.checkpoint(number)
            (Path(report.path) / "model.safetensors").write_text(str(number))
            await engine.add_checkpoint(report)
        await until(lambda: len(worker.asked) == 2 and engine.run.queue_length == 0)
    again = FakeEvaluator([[1.0]], files={"tokenizer.json": "never taken"})
    async with run.engine(again) as engine:
        report = run.checkpoint(3)
        announced = manifest(Path(report.path))
        await engine.add_checkpoint(report)
        await until(lambda: engine.run.queue_length == 0)
    first, second, third = (request.expected for request in (*worker.asked, *again.asked))
    assert (first.pins, first.before) == (pins, None)
    assert (second.pins, second.before) == (pins, "first")
    assert third == Expected(announced, pins, "second"), "over a restart"
    assert None not in (first.manifest, second.manifest) and first.manifest != second.manifest


async def test_the_first_checkpoint_decides_the_tokenizer_even_if_it_cannot_be_scored(run: Run) -> None:
    """Else a chat template that always fails could be another one in every checkpoint."""
    worker = FakeEvaluator([EvaluationError("no", FailureKind.TOKENIZER)], files={"chat_template.jinja": "1"})
    async with run.engine(worker) as engine:
        await engine.add_checkpoint(run.checkpoint(1))
        await until(lambda: engine.run.queue_length == 0)
    again = FakeEvaluator([[1.0]], files={"chat_template.jinja": "2"})
    async with run.engine(again) as engine:
        await engine.add_checkpoint(run.checkpoint(2))
        await until(lambda: engine.run.queue_length == 0)
    assert [one.expected.pins for one in (*worker.asked, *again.asked)] == [{"chat_template.jinja": "1"}] * 2


async def test_what_was_announced_is_known_after_a_restart(run: Run) -> None:
    report = run.checkpoint(1)
    announced = manifest(Path(report.path))
    async with run.engine(FakeEvaluator()) as engine:  # it has not scored it when it ends
        await engine.add_checkpoint(report)
    (Path(report.path) / "model.safetensors").write_text("swapped")
    worker = FakeEvaluator([[1.0]])
    async with run.engine(worker) as engine:
        await until(lambda: engine.run.queue_length == 0)
        assert not await engine.add_checkpoint(report), "it is known"
    assert worker.asked[0].expected.manifest == announced != manifest(Path(report.path))


@pytest.mark.parametrize("kind", sorted(DOUBTS))
async def test_a_doubtful_checkpoint_is_a_condition_until_another_is_scored(
    run: Run, kind: FailureKind
) -> None:
    worker = FakeEvaluator([EvaluationError("secret", kind)])
    async with run.engine(worker) as engine:
        await engine.run.add_steps([step(0)])
        await engine.add_checkpoint(run.checkpoint(1))
        await until(lambda: engine.run.queue_length == 0)
        verdict = engine.run.verdict
        assert verdict.level == "unknown" and verdict.last_evaluation is None
        (told,) = [c for c in verdict.conditions if c.code is Code.CHECKPOINT_DOUBTFUL]
        assert told.message == "secret" and b"secret" not in engine.run.trainer_json
        assert kind.words.encode() in engine.run.trainer_json
        worker.outcomes.append([1.0])
        await engine.add_checkpoint(run.checkpoint(2))
        await until(lambda: engine.run.queue_length == 0)
        assert Code.CHECKPOINT_DOUBTFUL not in [c.code for c in engine.run.verdict.conditions]
