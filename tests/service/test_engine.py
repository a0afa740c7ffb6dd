"""The engine with a real store and a fake evaluator, which is there to fail in every way.

Aspects: evaluations run one by one in the order of their announcement; what they give is stored before it is
announced; a restart at any point goes on where it was; failures and silence follow their policy, and their
latches survive a restart; a store that fails loses no evaluation.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from guard_service import evaluations
from guard_service.engine import Engine
from guard_service.errors import GuardError, Problem, StoreError
from guard_service.evaluations import GateClosed
from guard_service.event_log import EventLog
from guard_service.events import Failure, StoredEvent
from guard_service.heldout.errors import CheckpointGoneError, EvaluationError
from guard_service.heldout.identity import Expected, manifest
from guard_service.heldout.scorable import MAX_NAMES
from guard_service.heldout.worker import EvaluationResult
from guard_service.history import STAYS_HERE, export_history
from rlguard.core.codes import Code
from rlguard.core.ending import not_judged
from rlguard.core.evaluation import HfEvaluation
from rlguard.core.judge import Latch
from rlguard.core.policy import (
    CalibratedPolicy,
    EvaluationFailingPolicy,
    Policy,
    SilentPolicy,
)
from rlguard.core.rounds import Evaluation, Round
from rlguard.core.wire import (
    DOUBTS,
    CheckpointReport,
    EndReport,
    EvaluationsNeeded,
    FailureKind,
    Sampling,
)
from tests.service.engines import FakeEvaluator, Run, calibrated, settled, step, until

pytestmark = pytest.mark.asyncio

FAILS_AT_ONCE = Policy(detector="heldout_guard", evaluation_failing=EvaluationFailingPolicy(after_failures=1))


# -- evaluations ---------------------------------------------------------------------------------------------


async def test_what_an_evaluation_found_is_in_the_verdict_and_comes_back(run: Run) -> None:
    found = EvaluationResult(
        (0.0, 1.0), None, 0.01, None, 0.5, (1.0, 1.0), fooled_items=(0.5, 0.0), unanswered=0.25,
        unscored=0.9, timed_out=0.125,
    )  # fmt: skip
    async with run.engine(FakeEvaluator([found])) as engine:
        await run.report(engine, 1)
        await settled(engine)
        last = engine.run.verdict.last_evaluation
        assert last is not None and (last.score, last.truncated, last.proxy_score) == (0.5, 0.5, 1.0)
        assert (last.unanswered, last.timed_out) == (0.25, 0.125)
        assert engine.run.verdict.code is Code.UNINFORMATIVE_BASELINE and "90%" in engine.run.verdict.reason
        (public,) = [line async for line in engine.history()]
        assert not {*STAYS_HERE, "fooled_items", "heldout_unscored"} & public.keys()
    async with run.engine(FakeEvaluator()) as engine:
        assert engine.run.verdict.last_evaluation == last
        assert engine.run.verdict.code is Code.UNINFORMATIVE_BASELINE
    assert [line["fooled_items"] for line in export_history(run.state)] == [[0.5, 0.0]]


async def test_checkpoints_are_scored_in_the_order_of_their_announcement_over_a_restart(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = FakeEvaluator([[0.0, 1.0]])
    async with run.engine(first) as engine:
        await run.report(engine, 3, 1, 2)
        await until(lambda: len(first.asked) == 2)
    second = FakeEvaluator([[1.0, 1.0], [0.0, 0.0]])
    async with run.engine(second) as engine:
        await settled(engine)
        verdict = engine.run.verdict
    assert (first.passes, second.passes) == ([(3, 0), (1, 0)], [(1, 0), (2, 0)])
    assert verdict.last_evaluation is not None and verdict.last_evaluation.score == 0.0
    assert verdict.best_evaluation is not None and verdict.best_evaluation.step == 1
    assert [(line["step"], line["items"]) for line in export_history(run.state)] == [
        (1, [1.0, 1.0]),
        (2, [0.0, 0.0]),
        (3, [0.0, 1.0]),
    ]
    assert "checkpoint 1 of attempt 0: held-out 1.0000, evaluated in" in caplog.text


@pytest.mark.parametrize(
    "outcome",
    [
        EvaluationError("CUDA out of memory"),
        RuntimeError("secret prompt"),
        [],
        [0.5, float("nan")],
        [-0.1],
        EvaluationResult((0.0, 1.0), None, 0.01, None, None, (1.0,)),
        EvaluationResult((0.0, 1.0), None, 0.01, None, None, (1.0, 1.0), fooled_items=(1.0, 1.5)),
    ],
    ids=["failed", "unforeseen", "none", "nan", "below 0", "too few of the grader", "above 1"],
)
async def test_a_failed_evaluation_is_a_failure_and_never_a_score(run: Run, outcome: Any) -> None:
    async with run.engine(FakeEvaluator([outcome]), FAILS_AT_ONCE) as engine:
        await run.report(engine, 1)
        await settled(engine)
        verdict = engine.run.verdict
    assert verdict.code == "evaluation_failing" and verdict.last_evaluation is None and verdict.failed == 1
    assert "secret" not in verdict.model_dump_json()


async def test_failures_in_a_row_stop_the_run_if_the_policy_says_so(run: Run) -> None:
    policy = Policy(evaluation_failing=EvaluationFailingPolicy(after_failures=2, action="stop"))
    worker = FakeEvaluator([EvaluationError("a"), EvaluationError("b"), [1.0]])
    async with run.engine(worker, policy) as engine:
        await run.report(engine, 1, 2)
        await settled(engine)
        assert engine.run.verdict.halt and not engine.run.verdict.fire
    async with run.engine(worker, policy) as engine:  # a stop is a latch too
        await run.report(engine, 3)
        await settled(engine)
        assert engine.run.verdict.halt and engine.run.verdict.code == "evaluation_failing"


@pytest.mark.parametrize("kind", sorted({*DOUBTS, FailureKind.TOKENIZER}))
async def test_a_trainer_is_told_of_what_kind_the_newest_failure_is_until_an_evaluation_succeeds(
    run: Run, kind: FailureKind
) -> None:
    async with run.engine(FakeEvaluator([EvaluationError("secret", kind)]), FAILS_AT_ONCE) as engine:
        await run.report(engine, 1)
        await settled(engine)
        verdict, told = engine.run.verdict, engine.run.trainer_json
        assert verdict.level == "unknown" and verdict.last_evaluation is None and verdict.failure is kind
        assert kind.words.encode() in told and b"secret" not in told
        doubtful = [c.message for c in verdict.conditions if c.code is Code.CHECKPOINT_DOUBTFUL]
        assert doubtful == (["secret"] if kind in DOUBTS else [])
    async with run.engine(FakeEvaluator([[1.0]]), FAILS_AT_ONCE) as engine:
        assert engine.run.verdict.failure is kind
        await run.report(engine, 2)
        await settled(engine)
        assert engine.run.verdict.failure is None
        assert Code.CHECKPOINT_DOUBTFUL not in [c.code for c in engine.run.verdict.conditions]


async def test_a_checkpoint_that_was_rotated_away_is_skipped_and_no_failure(run: Run) -> None:
    failing = EvaluationFailingPolicy(after_failures=1, action="stop")
    policy = Policy(detector="heldout_guard", evaluation_failing=failing)
    worker = FakeEvaluator([[1.0], CheckpointGoneError("rotated away"), [1.0]])
    async with run.engine(worker, policy) as engine:
        await run.report(engine, 1, 2, 3)
        await settled(engine)
        live = engine.run.verdict
    async with run.engine(FakeEvaluator(), policy) as engine:
        assert not engine.run.queue and engine.run.verdict == live
    assert (live.announced, live.evaluated, live.failed, live.skipped, live.waiting) == (3, 2, 0, 1, 0)
    assert not live.stop and "evaluation_failing" not in {c.code for c in live.conditions}


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
        await run.report(engine, *range(4))
        worker.outcomes += [[0.0, 1.0]] * (len(asked) - 1)
        await settled(engine)
        await run.report(engine, 4)
        worker.outcomes += [[0.0, 1.0]]
        await settled(engine)
        live = engine.run.verdict
        thinned = await engine.thinned_history(10)
    assert worker.passes == asked
    skipped = 2 if newest_only else 0
    assert (live.announced, live.evaluated, live.skipped, live.waiting) == (5, 5 - skipped, skipped, 0)
    told = not_judged(live, "wait longer")
    assert ("2 of 5 checkpoints were not evaluated (2 skipped)" in told) is newest_only
    assert [one["step"] for one in thinned["evaluations"]] == [step for step, index in asked if index == 0]
    lines = [line for line in export_history(run.state) if "items" in line]
    assert [(line["step"], line.get("pass_index", 0)) for line in lines] == asked
    async with run.engine(FakeEvaluator(), calibrated(2)) as engine:
        assert engine.run.verdict == live


@pytest.mark.parametrize(
    ("passes", "asked"),
    [
        ([[0.0, 1.0], [1.0, 1.0], CheckpointGoneError("rotated away")], [0, 1, 2]),
        (
            [
                EvaluationResult((1.0, 0.0), "one", 0.01, None),
                EvaluationResult((1.0, 1.0), "two", 0.01, None),
            ],
            [0, 1],
        ),
    ],
    ids=["gone", "other weights"],
)
async def test_a_wanted_pass_that_cannot_be_had_is_given_up(
    run: Run, passes: list[Any], asked: list[int]
) -> None:
    """The baseline goes on with the passes that it has, and no checkpoint is counted as skipped."""
    worker = FakeEvaluator([*passes, [1.0, 1.0]])
    async with run.engine(worker, calibrated(3)) as engine:
        await run.report(engine, 0, 1)
        await settled(engine)
        assert worker.passes == [*((0, index) for index in asked), (1, 0)]
        live = engine.run.verdict
        assert (live.announced, live.evaluated, live.skipped, live.failed) == (2, 2, 0, 0)
    async with run.engine(FakeEvaluator(), calibrated(3)) as engine:
        assert engine.run.verdict == live


async def test_a_worker_that_cannot_start_is_tried_again_and_costs_no_checkpoint(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without a checkpoint: on a cluster no trainer starts, and so none comes, before it has started."""
    monkeypatch.setattr(evaluations, "GATE_RETRY_SECONDS", 0.02)
    worker = FakeEvaluator([[1.0]] * 3, start_error=OSError("no memory"))
    async with run.engine(worker) as engine:
        await until(lambda: worker.started >= 3)
        assert engine.not_ready == GateClosed("internal error (OSError)")
        await run.report(engine, 1, 2, 3)
        await until(lambda: worker.started >= 6)
        assert (engine.run.verdict.failed, engine.run.verdict.waiting, len(engine.run.queue)) == (0, 3, 3)
        worker.start_error = None
        await until(lambda: engine.run.verdict.evaluated == 3)
        assert engine.run.verdict.failed == 0 and engine.not_ready is None


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"split_digest": "two"}, "split: was 'digest', now 'two'"),
        ({"measure": {"scorer": "numeric"}}, "scorer: was 'exact', now 'numeric'"),
    ],
)
async def test_another_split_or_scorer_is_another_run_and_ends_the_guard(
    run: Run, other: dict[str, Any], said: str
) -> None:
    async with run.engine(FakeEvaluator()) as engine:
        await until(lambda: engine.not_ready is None)
    failures: list[GuardError] = []
    worker = FakeEvaluator(**other)
    engine = run.make(worker)
    engine.on_fatal = failures.append
    await engine.start()
    await run.report(engine, 1)
    await until(lambda: bool(failures))
    await engine.close()
    assert said in str(failures[0]) and not worker.asked


async def test_the_best_checkpoint_is_kept_and_further_passes_are_made_of_it(run: Run) -> None:
    """The starting policy is the best while there is no other."""
    worker = FakeEvaluator([[0.4], [0.4]], scratch=run.state / "scratch")
    best, kept = run.state / "best" / "model.safetensors", []
    async with run.engine(worker, calibrated(2), keep_best=True) as engine:
        for number, outcome in enumerate([0.4, 0.8, 0.2, 0.8]):
            worker.outcomes += [[outcome]] if number else []
            await run.report(engine, number)
            await settled(engine)
            kept.append(best.read_text())
        assert (run.state / "scratch" / "stage-0" / "model.safetensors").exists()
    assert kept == ["0", "1", "1", "3"] and worker.passes[:2] == [(0, 0), (0, 1)]
    assert not list(run.state.glob("best.*"))


@pytest.mark.parametrize(("fresh", "kept"), [(1.0, "3"), (0.4, "2")], ids=["upheld", "contradicted"])
async def test_of_a_jump_the_checkpoint_is_kept_once_a_fresh_pass_upholds_it(
    run: Run, fresh: float, kept: str
) -> None:
    def items(share: float) -> list[float]:
        return [float(i % 5 < 5 * share) for i in range(200)]

    shares = [items(0.4), [*items(0.4)[1:], 1.0], items(0.6), items(1.0), items(fresh)]
    worker = FakeEvaluator(shares, scratch=run.state / "scratch")
    policy = Policy(calibrated=CalibratedPolicy(baseline_passes=2))
    best = run.state / "best" / "model.safetensors"
    async with run.engine(worker, policy, keep_best=True) as engine:
        for number in (1, 2, 3):
            await engine.add_checkpoint(run.checkpoint(number))
            await settled(engine)
        await until(lambda: best.read_text() == kept)


# -- what was announced --------------------------------------------------------------------------------------


async def test_what_was_saved_over_before_its_turn_is_skipped_and_never_scored_as_another(run: Run) -> None:
    worker = FakeEvaluator()
    async with run.engine(worker) as engine:
        await run.report(engine, 1)
        for number in (2, 3):
            assert await engine.add_checkpoint(run.checkpoint(number, "latest"))
    worker = FakeEvaluator([[1.0], [0.5]])
    async with run.engine(worker) as engine:
        await settled(engine)
        verdict = engine.run.verdict
    assert worker.passes == [(1, 0), (3, 0)]
    assert (verdict.announced, verdict.evaluated, verdict.failed, verdict.skipped) == (3, 2, 0, 1)
    assert "1 of 3 checkpoints were not evaluated (1 skipped)" in not_judged(verdict, "wait longer")


@pytest.mark.parametrize("attempt", [0, 1])
async def test_what_is_saved_over_while_it_is_scored_is_not_scored_and_what_lies_there_then_is(
    run: Run, attempt: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its files may have been taken before, after or in the middle. A later attempt has the same steps."""
    worker = FakeEvaluator()
    async with run.engine(worker) as engine:
        await engine.run.add_steps([step(2), step(3)])
        await engine.add_checkpoint(run.checkpoint(2, "latest"))
        await until(lambda: bool(worker.asked))
        over = run.checkpoint(3 if attempt == 0 else 2, "latest", attempt)
        await engine.add_checkpoint(over)
        worker.outcomes += [[1.0], [0.0]]
        await settled(engine)
        verdict = engine.run.verdict
        assert not await engine.add_checkpoint(over), "the same announcement, sent again"
    assert (verdict.announced, verdict.evaluated, verdict.skipped) == (2, 1, 1)
    assert verdict.last_evaluation is not None and verdict.last_evaluation.score == 0.0
    assert "save each checkpoint to a directory of its own" in caplog.text


async def test_what_can_never_be_scored_is_refused_at_its_announcement(run: Run) -> None:
    worker = FakeEvaluator([[1.0]], refusal="it holds half an adapter")
    async with run.engine(worker) as engine:
        report = run.checkpoint(1)
        with pytest.raises(Problem, match="can never be scored: it holds half an adapter") as refused:
            await engine.add_checkpoint(report)
        assert refused.value.status == 422
        worker.refusal = ""
        for number in range(MAX_NAMES + 1):  # whatever is changed in it would not be noticed
            (Path(report.path) / str(number)).touch()
        with pytest.raises(Problem, match="cannot be listed: see that the guard can read"):
            await engine.add_checkpoint(report)
        assert (engine.run.verdict.announced, len(engine.run.queue)) == (0, 0)
        (Path(report.path) / "0").unlink()
        assert await engine.add_checkpoint(report)
        await settled(engine)
        worker.refusal = "its files are being removed"
        assert not await engine.add_checkpoint(report), "known, and announced again"
    assert run.stored("SELECT COUNT(*) FROM events WHERE kind = 'checkpoint'") == [(1,)]


async def test_an_evaluation_is_told_what_was_announced_and_scored_before_over_a_restart(run: Run) -> None:
    pins = {"tokenizer.json": "one"}
    # The first checkpoint decides, even if it cannot be scored: else a template that always fails could be
    # another one in every checkpoint.
    failed = EvaluationError("no", FailureKind.TOKENIZER)
    worker = FakeEvaluator([failed, EvaluationResult((1.0,), "second", 0.01, None)], files=pins)
    announced: dict[int, str | None] = {}

    async def announce(engine: Any, number: int) -> None:
        report = run.checkpoint(number)
        (Path(report.path) / "model.safetensors").write_text(str(number))
        await engine.add_checkpoint(report)
        announced[number] = manifest(Path(report.path))

    async with run.engine(worker) as engine:
        for number in (1, 2):
            await announce(engine, number)
        await settled(engine)
        worker.outcomes.append(asyncio.CancelledError())
        await announce(engine, 3)
    (run.directory / "checkpoints" / "3" / "model.safetensors").write_text("swapped")
    again = FakeEvaluator([[1.0]], files={"tokenizer.json": "never taken"})
    async with run.engine(again) as engine:
        await settled(engine)
        assert not await engine.add_checkpoint(run.checkpoint(3)), "it is known"
    told = {request.step: request.expected for request in (*worker.asked, *again.asked)}
    before = {1: None, 2: None, 3: "second"}
    assert told == {number: Expected(announced[number], pins, before[number]) for number in (1, 2, 3)}


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
        await settled(engine)
    asked = {(r.step, r.pass_index): r.expected or Expected() for r in worker.asked}
    assert asked[1, 0].manifest == manifest(Path(second.path))
    assert asked[0, 0].manifest == manifest(Path(first.path))
    # Its weights are compared with those of the first pass: its files may have been touched since.
    assert asked[0, 1].manifest is None


async def test_a_trainer_is_told_where_checkpoints_lie_and_how_many_evaluations_the_policy_takes(
    run: Run,
) -> None:
    needed = EvaluationsNeeded(long_rounds=8, short_rounds=10)
    for worker, expected in ((FakeEvaluator(needed=needed), needed.model_dump()), (None, None)):
        async with run.engine(worker) as engine:
            told = json.loads(engine.run.trainer_json)
        assert told["needed"] == expected
        assert told["checkpoint_root"] == str(run.directory.absolute() / "checkpoints")


# -- the end of the trainer ----------------------------------------------------------------------------------


async def test_an_end_is_known_after_a_restart_and_taken_back_by_what_comes_later(run: Run) -> None:
    async with run.engine(FakeEvaluator([[1.0]])) as engine:
        await engine.run.add_steps([step(1)])
        await engine.note_end(EndReport(attempt=0))
        assert engine.run.verdict.ended
    async with run.engine(FakeEvaluator([[1.0]])) as engine:
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


@pytest.mark.parametrize(
    ("ends", "since", "lost"),
    [
        ([{"step": 9, "gone": 3}, {"step": 7}], 4, 3),
        ([{"step": 5, "gone": 2}, {"attempt": 1, "step": 6}], None, 2),
        ([{"step": 5, "finished": False}, {"step": 5, "gone": 1}], 0, 1),
        ([{"gone": 2}], 0, 2),
    ],
    ids=["steps not reported", "a later attempt lost none", "told at its end", "no step is said"],
)
async def test_what_was_made_and_not_reported_is_known_after_a_restart(
    run: Run, ends: list[dict[str, Any]], since: int | None, lost: int
) -> None:
    async with run.engine(FakeEvaluator([[1.0]])) as engine:
        await engine.run.add_steps([step(n) for n in range(1, 6)])
        await engine.add_checkpoint(run.checkpoint(5))
        await settled(engine)
        for end in ends:
            await engine.note_end(EndReport.model_validate({"attempt": 0} | end))
        ended = engine.run.verdict
        assert ended.skipped == lost and since in (None, ended.steps_since_evaluation)
    async with run.engine(FakeEvaluator()) as engine:
        assert engine.run.verdict == ended


# -- silence -------------------------------------------------------------------------------------------------


async def test_silence_that_stops_is_on_disk_and_counts_not_while_evaluations_wait(run: Run) -> None:
    """The trainer may have ended, or wait for the guard by `max_lag`: then it is the guard that is slow."""
    policy = Policy(detector="heldout_guard", silent=SilentPolicy(after_seconds=0.5, action="stop"))
    worker = FakeEvaluator()
    async with run.engine(worker, policy) as engine:
        await run.report(engine, 1)
        await asyncio.sleep(1.0)
        assert engine.run.verdict.waiting == 1 and not engine.run.verdict.stop
        worker.outcomes.append([1.0])
        await until(lambda: engine.run.verdict.halt)
        assert engine.run.verdict.evaluated == 1 and engine.run.verdict.code == "silent"
    async with run.engine(FakeEvaluator(), policy) as engine:
        await engine.run.add_steps([step(2)])
        assert engine.run.verdict.halt and engine.run.verdict.code == "silent"


async def test_silence_warns_where_nothing_evaluates_and_ends_with_the_next_step(run: Run) -> None:
    async with run.engine(policy=Policy(silent=SilentPolicy(after_seconds=0.2))) as engine:
        await run.report(engine, 1)
        await until(lambda: engine.run.verdict.code == "silent")
        assert not engine.run.verdict.stop and engine.run.verdict.waiting == 0
        await engine.run.add_steps([step(2)])
        assert engine.run.verdict.code != "silent"


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


# -- restarts ------------------------------------------------------------------------------------------------


async def test_a_fire_and_all_of_the_verdict_come_back_after_a_restart(run: Run) -> None:
    async with run.engine(FakeEvaluator([[0.9], [0.1]])) as engine:
        for number in range(40):
            await engine.run.add_steps([step(number, reward=number / 7, kl=0.01 + number / 3000)])
            if number in (10, 30):
                await engine.add_checkpoint(run.checkpoint(number))
                await settled(engine)
        fired = engine.run.verdict
        assert fired.fire and fired.stop and not fired.halt and fired.code == "hacking_gap"
    assert run.stored("SELECT kind FROM events WHERE kind = 'fire'") == [("fire",)]
    async with run.engine(FakeEvaluator([[1.0]])) as engine:
        assert engine.run.verdict == fired
        await run.report(engine, 41)
        await settled(engine)
        assert engine.run.verdict.fire and engine.run.verdict.reason == fired.reason


async def test_a_restart_goes_on_with_the_passes_that_are_missing(run: Run) -> None:
    first = FakeEvaluator([[0.0, 1.0], [1.0, 1.0]])
    async with run.engine(first, calibrated(4)) as engine:
        await run.report(engine, 0)
        await until(lambda: len(first.asked) == 3)
    second = FakeEvaluator([[1.0, 0.0], EvaluationError("out of memory")])
    async with run.engine(second, calibrated(4)):
        await until(lambda: second.passes == [(0, 2), (0, 3), (0, 4)])  # tried once more
    third = FakeEvaluator([EvaluationError("out of memory"), [0.5, 0.5]])
    async with run.engine(third, calibrated(4)) as engine:
        await run.report(engine, 1)
        await until(lambda: third.passes == [(0, 4), (1, 0)])
        await settled(engine)
        live = engine.run.verdict
        assert "3 of 4 passes" in " ".join(c.message for c in live.conditions)
    async with run.engine(FakeEvaluator(), calibrated(4)) as engine:
        assert engine.run.verdict == live


async def test_a_baseline_is_closed_within_its_budget_over_a_restart(run: Run) -> None:
    """What the passes cost is on disk with them, so a guard that starts again goes on counting."""
    policy = Policy(calibrated=CalibratedPolicy(baseline_passes=9, baseline_minutes=0.0006))

    def passes(*outcomes: tuple[float, float]) -> FakeEvaluator:
        return FakeEvaluator(
            [EvaluationResult(items, "sha", 0.01, None, completions=8) for items in outcomes]
        )

    first = passes((0.0, 1.0), (1.0, 1.0))
    async with run.engine(first, policy) as engine:
        await run.report(engine, 0)
        await until(lambda: len(first.asked) == 3)
    second = passes((1.0, 0.0), (1.0, 1.0))
    async with run.engine(second, policy) as engine:
        await run.report(engine, 1)
        await settled(engine)
        assert second.passes == [(0, 2), (1, 0)]
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
        await settled(engine)
        live = engine.run.verdict
    asked = [*first.asked, *second.asked]
    assert {request.sampling for request in asked} == {HOT} and len(second.asked) == 3
    (told,) = [c for c in live.conditions if c.code is Code.SAMPLING_CHANGED]
    assert told.advice and "at step 2" in told.message and not live.stop
    async with run.engine(FakeEvaluator(), calibrated(2)) as engine:
        assert engine.run.verdict == live


# -- a store that fails --------------------------------------------------------------------------------------


class BreakingLog(EventLog):
    """Fails when told to, before or after what it appends reached the disk, as a flush may."""

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


async def test_a_step_and_its_latch_are_on_disk_together_or_neither_is(
    run: Run, breaking: type[BreakingLog]
) -> None:
    async with run.engine() as engine:
        await engine.run.add_steps([step(n, kl=0.5 * n) for n in range(4)])
        breaking.fail = Latch
        with pytest.raises(Problem) as refused:
            await engine.run.add_steps([step(4, kl=0.5)])
        assert refused.value.status == 503
        assert not engine.run.verdict.fire and engine.run.verdict.code == "store_unavailable"
        await until(lambda: engine.run.store_works)
        assert engine.run.verdict.fire is breaking.after
        await engine.run.add_steps([step(4, kl=0.5)])
        assert engine.run.verdict.fire and engine.run.verdict.steps == 5
    assert run.stored("SELECT kind FROM events ORDER BY seq DESC LIMIT 2") == [("fire",), ("step",)]
    async with run.engine() as engine:
        assert engine.run.verdict.fire


@pytest.mark.parametrize("outcome", [[0.5, 1.0], EvaluationError("gone")])
async def test_an_evaluation_is_not_lost_by_a_failing_store(
    run: Run, breaking: type[BreakingLog], outcome: Any
) -> None:
    worker = FakeEvaluator()
    async with run.engine(worker) as engine:
        await run.report(engine, 1, 2)
        breaking.fail = Failure if isinstance(outcome, Exception) else Evaluation
        worker.outcomes += [outcome, [1.0]]
        await settled(engine)
        assert worker.passes == [(1, 0), (2, 0)]
        rounds = engine.run.verdict.rounds
    kinds = run.stored("SELECT kind FROM events WHERE kind IN ('evaluation', 'failure') ORDER BY seq")
    settled_by = "failure" if isinstance(outcome, Exception) else "evaluation"
    assert [kind for (kind,) in kinds] == [settled_by, "evaluation"]
    assert rounds == (1 if isinstance(outcome, Exception) else 2)


@pytest.mark.parametrize("event", [CheckpointReport, EndReport, Latch])
async def test_nothing_is_acknowledged_or_announced_before_it_is_stored(
    run: Run, breaking: type[BreakingLog], event: type
) -> None:
    """An announcement, the end of the trainer, and a stop by silence."""

    async def say(engine: Engine) -> None:
        if event is EndReport:
            await engine.note_end(EndReport(attempt=0))
        else:
            await engine.add_checkpoint(run.checkpoint(1))

    policy = Policy(silent=SilentPolicy(after_seconds=0.2 if event is Latch else 900, action="stop"))
    async with run.engine(FakeEvaluator([[1.0]]), policy) as engine:
        await engine.run.add_steps([step(1)])
        breaking.fail = event
        if event is Latch:
            await until(lambda: not engine.run.store_works)
            assert not engine.run.verdict.stop
            await until(lambda: engine.run.verdict.halt)
        else:
            with pytest.raises(Problem) as refused:
                await say(engine)
            assert refused.value.status == 503
            await until(lambda: engine.run.store_works)
            await say(engine)
    kind = {CheckpointReport: "checkpoint", EndReport: "end", Latch: "halt"}[event]
    assert run.stored(f"SELECT COUNT(*) FROM events WHERE kind = '{kind}'") == [(1,)]
