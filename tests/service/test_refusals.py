"""Refused reports: a guard that refuses everything says so, by the newest refusal, and stops if told to.

Aspects: each kind counts for itself and is cleared by an accepted report of that kind; the policy acts from
`after` refusals on; a stop is a latch and survives a restart; what strangers send does not count; a refusal
is bounded, printable, and of it only the checkpoint's attempt and step are stored.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from guard_service.app import Tokens, create_app
from guard_service.engine import Engine
from guard_service.errors import Problem
from guard_service.verdicts import MAX_SHOWN, beside
from rlguard.core.codes import Code, Level
from rlguard.core.judge import MAX_REFUSED
from rlguard.core.policy import Policy, RefusedPolicy
from rlguard.core.wire import CheckpointReport, Condition, Verdict
from tests.service.engines import Run, step, until

pytestmark = pytest.mark.asyncio


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


async def test_each_kind_is_in_the_verdict_until_one_of_it_is_accepted(run: Run) -> None:
    async with run.engine(policy=Policy()) as engine:
        await engine.run.add_steps([step(1), step(2)])
        assert held(engine) is None
        for number in (1, 2, 3, 4):
            await refuse_checkpoint(engine, number, f"/elsewhere/{number}")
        verdict = engine.run.verdict
        assert (verdict.level, verdict.code) == (Level.UNKNOWN, Code.REPORTS_REFUSED)
        assert verdict.reason.startswith(
            "4 reports in a row of checkpoints refused, the newest: '/elsewhere/4' is not below"
        )
        await engine.run.add_steps([step(3)])
        assert engine.run.verdict.code is Code.REPORTS_REFUSED, "a step does not make a checkpoint good"
        await engine.add_checkpoint(run.checkpoint(5))
        assert held(engine) is None
        for _ in range(3):
            await refuse_step(engine, 1)
        condition = held(engine)
        assert condition is not None and condition.action == "warn"
        assert "3 reports in a row of steps refused" in condition.message
        assert "A restarted trainer needs a new attempt" in condition.message
        await engine.run.add_steps([step(2)])  # known already, and so acknowledged
        assert held(engine) is None


async def test_a_refused_checkpoint_stays_counted_until_it_is_taken_itself_over_a_restart(run: Run) -> None:
    async with run.engine(policy=Policy()) as engine:
        await engine.run.add_steps([step(1)])
        for number in (1, 1, 2, 3):
            await refuse_checkpoint(engine, number, f"/elsewhere/{number}")
        assert engine.run.verdict.refused == 3, "the same one twice is one"
        for number, left in ((4, 3), (2, 2)):
            await engine.add_checkpoint(run.checkpoint(number))
            assert engine.run.verdict.refused == left
        with pytest.raises(
            Problem
        ) as caught:  # taken, and now announced with another path: nobody judges that
            await engine.add_checkpoint(run.checkpoint(2, "other"))
        assert caught.value.status == 409
        before = engine.run.verdict
        assert (before.refused, before.announced) == (3, 2)
    async with run.engine(policy=Policy()) as engine:
        assert (engine.run.verdict.refused, engine.run.verdict.announced) == (3, 2)


async def test_a_stop_comes_from_the_number_of_refusals_that_the_policy_asks_for(run: Run) -> None:
    policy = Policy(refused=RefusedPolicy(after=2, action="stop"))
    async with run.engine(policy=policy) as engine:
        await engine.run.add_steps([step(1)])
        await refuse_checkpoint(engine, 1)
        condition = held(engine)
        assert condition is not None and condition.action is None and not engine.run.verdict.stop
        await refuse_checkpoint(engine, 2)
        await until(lambda: engine.run.verdict.halt)
        assert not engine.run.verdict.fire and engine.run.verdict.code is Code.REPORTS_REFUSED
        assert [c.code for c in engine.run.verdict.conditions].count(Code.REPORTS_REFUSED) == 1
    async with run.engine(policy=policy) as engine:
        assert engine.run.verdict.halt
        assert [latch.code for latch in engine.run.latches] == ["reports_refused"]
        assert "'/elsewhere' is not below" in engine.run.latches[0].message


async def test_refusals_without_end_take_no_room_and_are_one_printable_line(run: Run) -> None:
    async with run.engine(policy=Policy()) as engine:
        for number in range(MAX_REFUSED + 20):
            await refuse_checkpoint(engine, number, f"/{'x' * 3000}\x1b[31m\n\u202e{number}")
        assert engine.run.verdict.refused == MAX_REFUSED
        condition = held(engine)
        assert condition is not None and len(condition.message) < MAX_SHOWN + 100
        assert condition.message.isprintable()
    query = "SELECT COUNT(*), COUNT(DISTINCT step), MAX(LENGTH(body)) FROM events WHERE kind = 'refused'"
    assert run.stored(query) == [(MAX_REFUSED, MAX_REFUSED, len("{}"))]


async def test_only_what_a_trainer_says_counts(run: Run) -> None:
    """Not a stranger's token; but a body that no release of the guard understands."""
    async with run.engine(policy=Policy()) as engine:
        await engine.run.add_steps([step(1)])
        transport = httpx.ASGITransport(create_app(engine, Tokens("i" * 20, "r" * 20)))
        async with httpx.AsyncClient(transport=transport, base_url="http://guard") as client:

            async def post(path: str, content: Any, token: str = "i" * 20) -> int:
                headers = {"Authorization": f"Bearer {token}"}
                return (await client.post(path, json=content, headers=headers)).status_code

            assert await post("/v1/steps", {"what": 1}, "stranger" * 3) == 401
            assert await post("/v1/checkpoints", {"what": 1}, "r" * 20) == 403
            assert held(engine) is None
            report = {"attempt": 0, "step": 9, "reward": 0.5}
            assert await post("/v1/steps", report | {"of_the_future": 1}) == 422
            condition = held(engine)
            assert condition is not None and "of_the_future" in condition.message
            assert await post("/v1/steps", report) == 200
            assert held(engine) is None
            assert await post("/v1/checkpoints", {"attempt": 0, "step": 9}) == 422
            assert held(engine) is not None


@pytest.mark.parametrize(
    ("level", "code", "speaks"),
    [("healthy", "ok", True), ("unknown", "no_baseline", True), ("warning", "fell_below_start", False)],
)
async def test_a_condition_speaks_for_the_verdict_unless_something_is_worse(
    level: str, code: str, speaks: bool
) -> None:
    known = Condition(code=Code(code), level=Level(level), message="m")
    advice = Condition(code=Code.HACKING_GAP, level=Level.WARNING, message="a", advice=True)
    verdict = Verdict(
        level=Level(level), code=Code(code), reason="m", fire=False, halt=False, stop=False,
        conditions=(known, advice),
    )  # fmt: skip
    told = beside(verdict, Condition.of(Code.REPORTS_REFUSED, "3 reports"))
    assert (told.code is Code.REPORTS_REFUSED) is speaks
    assert {c.code for c in told.conditions} == {Code(code), Code.HACKING_GAP, Code.REPORTS_REFUSED}
    assert told.conditions[-1] == advice
