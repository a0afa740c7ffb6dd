"""Refused reports: a guard that refuses everything says so, by the newest refusal, and stops if told to.

Aspects: each kind counts for itself and is cleared by an accepted report of that kind; the policy acts from
`after` refusals on; a stop is a latch and survives a restart; what strangers send and what a store refuses
does not count; a refusal is bounded, printable, and of it only the checkpoint's attempt and step are stored.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from guard_core.checkpoint_key import CheckpointKey
from guard_core.codes import Code, Level
from guard_core.judge import MAX_REFUSED, Judge
from guard_core.policy import Policy, RefusedPolicy
from guard_core.wire import CheckpointReport, Condition, StepReport, Verdict
from guard_service import engine as engine_module
from guard_service.app import Tokens, create_app
from guard_service.engine import Engine
from guard_service.errors import FieldError, Problem, StoreError, invalid
from guard_service.event_log import EventLog
from guard_service.run import Kind, Refusals
from guard_service.verdicts import MAX_SHOWN, beside

STOP = Policy(refused=RefusedPolicy(after=2, action="stop"))


@pytest.fixture
def engine_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """Makes engines on one state directory; without a held-out evaluation."""
    monkeypatch.setattr(engine_module, "TICK_SECONDS", 0.02)
    (tmp_path / "checkpoints").mkdir()
    return lambda policy=Policy(): Engine(  # noqa: B008
        state_dir=tmp_path / "state", checkpoint_root=tmp_path / "checkpoints", policy=policy
    )


def step(number: int, reward: float = 0.5) -> StepReport:
    return StepReport(attempt=0, step=number, reward=reward)


async def refuse_checkpoint(engine: Engine, number: int, path: str = "/elsewhere") -> None:
    with pytest.raises(Problem) as caught:
        await engine.add_checkpoint(CheckpointReport(attempt=0, step=number, path=path))
    assert caught.value.status == 422


async def refuse_step(engine: Engine, number: int) -> None:
    """The same step with another reward, as a resumed trainer with its old attempt number sends it."""
    with pytest.raises(Problem) as caught:
        await engine.run.add_steps([step(number, reward=0.9)])
    assert caught.value.status == 409


def held(engine: Engine) -> Condition | None:
    return next((c for c in engine.run.verdict.conditions if c.code is Code.REPORTS_REFUSED), None)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.asyncio
async def test_a_refused_checkpoint_is_in_the_verdict_until_one_is_accepted(
    engine_on: Callable[..., Engine], tmp_path: Path
) -> None:
    engine = engine_on()
    await engine.start()
    await engine.run.add_steps([step(1)])
    assert held(engine) is None
    for number in (1, 2, 3, 4):
        await refuse_checkpoint(engine, number, f"/elsewhere/{number}")
    assert (engine.run.verdict.level, engine.run.verdict.code) == (Level.UNKNOWN, Code.REPORTS_REFUSED)
    assert engine.run.verdict.reason.startswith(
        "4 reports in a row of checkpoints refused, the newest: '/elsewhere/4'"
    )
    assert "is not below the checkpoint root" in engine.run.verdict.reason
    await engine.run.add_steps([step(2)])
    assert engine.run.verdict.code is Code.REPORTS_REFUSED, "a step does not make a checkpoint good"
    (tmp_path / "checkpoints" / "5").mkdir()
    await engine.add_checkpoint(CheckpointReport(attempt=0, step=5, path="5"))
    assert held(engine) is None
    assert b"reports_refused" not in engine.run.trainer_json
    await engine.close()


@pytest.mark.asyncio
async def test_a_refused_checkpoint_stays_counted_until_it_is_taken_itself(
    engine_on: Callable[..., Engine], tmp_path: Path
) -> None:
    engine = engine_on()
    await engine.start()
    for number in (1, 1, 2, 3):
        await refuse_checkpoint(engine, number, f"/elsewhere/{number}")
    assert engine.run.verdict.refused == 3, "the same one twice is one"
    for number, left in ((4, 3), (2, 2)):
        (tmp_path / "checkpoints" / str(number)).mkdir()
        await engine.add_checkpoint(CheckpointReport(attempt=0, step=number, path=str(number)))
        assert engine.run.verdict.refused == left
    assert engine.run.verdict.announced == 2
    await engine.close()


@pytest.mark.asyncio
async def test_a_restarted_guard_still_counts_what_was_refused(
    engine_on: Callable[..., Engine], tmp_path: Path
) -> None:
    engine = engine_on()
    await engine.start()
    await engine.run.add_steps([step(1)])
    for number in (1, 2):
        (tmp_path / "checkpoints" / str(number)).mkdir()
        await refuse_checkpoint(engine, number)
    await engine.add_checkpoint(CheckpointReport(attempt=0, step=1, path="1"))
    await refuse_checkpoint(engine, 3)
    with pytest.raises(Problem) as caught:  # taken, and now announced with another path: nobody judges that
        await engine.add_checkpoint(CheckpointReport(attempt=0, step=1, path="2"))
    assert caught.value.status == 409
    before = engine.run.verdict
    assert (before.refused, before.announced) == (3, 1)
    await engine.close()
    again = engine_on()
    await again.start()
    assert (again.run.verdict.refused, again.run.verdict.announced) == (3, 1)
    await again.close()


@pytest.mark.asyncio
async def test_a_refusal_that_cannot_be_stored_is_not_acknowledged(
    engine_on: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_on()
    await engine.start()

    def full(*_: object) -> None:
        raise StoreError("disk full")

    monkeypatch.setattr(EventLog, "append", full)
    with pytest.raises(Problem) as caught:
        await engine.add_checkpoint(CheckpointReport(attempt=0, step=1, path="/elsewhere"))
    assert caught.value.status == 503, "so that the trainer sends it again"
    assert engine.run.verdict.refused == 0
    monkeypatch.undo()
    await engine.close()


def test_no_trainer_makes_the_guard_remember_without_end() -> None:
    judge = Judge(Policy())
    for number in range(MAX_REFUSED + 5):
        judge.fold_refused(CheckpointKey(0, number))
    assert judge.verdict().refused == MAX_REFUSED
    assert not judge.counts_as_refused(CheckpointKey(0, MAX_REFUSED + 9)), "nor store"


@pytest.mark.asyncio
async def test_refused_steps_count_for_themselves(engine_on: Callable[..., Engine]) -> None:
    engine = engine_on()
    await engine.start()
    await engine.run.add_steps([step(1), step(2)])
    for _ in range(3):
        await refuse_step(engine, 1)
    condition = held(engine)
    assert condition is not None and condition.action == "warn"
    assert "3 reports in a row of steps refused" in condition.message
    assert "A restarted trainer needs a new attempt" in condition.message
    await engine.run.add_steps([step(2)])  # known already, and so acknowledged
    assert held(engine) is None
    await engine.close()


@pytest.mark.asyncio
async def test_a_stop_comes_from_the_number_of_refusals_that_the_policy_asks_for(
    engine_on: Callable[..., Engine], tmp_path: Path
) -> None:
    engine = engine_on(STOP)
    await engine.start()
    await engine.run.add_steps([step(1)])
    await refuse_checkpoint(engine, 1)
    condition = held(engine)
    assert condition is not None and condition.action is None
    assert not engine.run.verdict.stop
    await refuse_checkpoint(engine, 2)
    await until(lambda: engine.run.verdict.halt)
    assert not engine.run.verdict.fire
    assert engine.run.verdict.code is Code.REPORTS_REFUSED
    assert [latch.code for latch in engine.run.latches] == ["reports_refused"]
    assert [c.code for c in engine.run.verdict.conditions].count(Code.REPORTS_REFUSED) == 1
    await engine.close()
    again = engine_on(STOP)
    await again.start()
    assert again.run.verdict.halt and "'/elsewhere' is not below" in again.run.latches[0].message
    await again.close()


@pytest.mark.asyncio
async def test_refusals_without_end_take_no_room(engine_on: Callable[..., Engine], tmp_path: Path) -> None:
    engine = engine_on()
    await engine.start()
    for number in range(300):
        await refuse_checkpoint(engine, number % 3, f"/{'x' * 3000}\x1b[31m\n{number}")
    condition = held(engine)
    assert condition is not None and len(condition.message) < MAX_SHOWN + 100
    assert condition.message.isprintable()
    await engine.close()
    with closing(sqlite3.connect(tmp_path / "state" / "guard.db")) as db:
        rows = db.execute("SELECT step, kind, body FROM events WHERE kind <> 'policy'").fetchall()
    assert rows == [(number, "refused", "{}") for number in range(3)]


@pytest.mark.asyncio
async def test_only_what_a_trainer_says_counts(engine_on: Callable[..., Engine]) -> None:
    """Not a stranger's token; but a body that no release of the guard understands."""
    engine = engine_on()
    await engine.start()
    await engine.run.add_steps([step(1)])
    transport = httpx.ASGITransport(create_app(engine, Tokens("i" * 20, "r" * 20)))
    async with httpx.AsyncClient(transport=transport, base_url="http://guard") as client:

        async def post(path: str, content: Any, token: str = "i" * 20) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            return (await client.post(path, json=content, headers=headers)).status_code

        for _ in range(5):
            assert await post("/v1/steps", {"what": 1}, "stranger" * 3) == 401
            assert await post("/v1/checkpoints", {"what": 1}, "r" * 20) == 403
        assert held(engine) is None
        assert await post("/v1/steps", {"attempt": 0, "step": 9, "reward": 0.5, "of_the_future": 1}) == 422
        condition = held(engine)
        assert condition is not None and "of_the_future" in condition.message
        assert await post("/v1/steps", {"attempt": 0, "step": 9, "reward": 0.5}) == 200
        assert held(engine) is None
        assert await post("/v1/checkpoints", {"attempt": 0, "step": 9}) == 422
        assert held(engine) is not None
    await engine.close()


def refusals(**counts: int) -> Refusals:
    made = Refusals(RefusedPolicy(after=3, action="stop"))
    for kind, count in counts.items():
        for _ in range(count):
            made.refused(Kind(kind), invalid(f"wrong {kind}", [FieldError(field="path", message="why")]))
    return made


def test_what_a_trainer_sent_is_one_printable_line() -> None:
    made = Refusals(RefusedPolicy())
    made.refused(Kind.STEPS, invalid("\x1b[2J\nfired\u202e", []))
    condition = made.condition()
    assert condition is not None and condition.message.endswith("the newest:  [2J fired ")


def test_the_longer_row_speaks() -> None:
    assert refusals().condition() is None
    one = refusals(checkpoints=1).condition()
    assert one is not None and (one.level, one.action) == (Level.UNKNOWN, None)
    assert one.message == "1 report of checkpoints refused, the newest: wrong checkpoints (path: why)"
    both = refusals(steps=2, checkpoints=3).condition()
    assert both is not None and both.action == "stop" and "wrong checkpoints" in both.message


@pytest.mark.parametrize(
    ("level", "code", "speaks"),
    [("healthy", "ok", True), ("unknown", "no_baseline", True), ("warning", "fell_below_start", False)],
)
def test_a_refusal_speaks_for_the_verdict_unless_something_is_worse(
    level: str, code: str, speaks: bool
) -> None:
    known = Condition(code=Code(code), level=Level(level), message="m")
    advice = Condition(code=Code.HACKING_GAP, level=Level.WARNING, message="a", advice=True)
    verdict = Verdict(
        level=Level(level),
        code=Code(code),
        reason="m",
        fire=False,
        halt=False,
        stop=False,
        conditions=(known, advice),
    )
    refused = refusals(steps=3).condition()
    assert refused is not None
    told = beside(verdict, refused)
    assert (told.code is Code.REPORTS_REFUSED) is speaks
    assert {c.code for c in told.conditions} == {Code(code), Code.HACKING_GAP, Code.REPORTS_REFUSED}
    assert told.conditions[-1] == advice
