"""Invariant 8: no per-item score, prompt or answer leaves the guard: not in a response, a log or a file.

And a trainer, whose weights can be made to answer a question about a held-out prompt, is told the released
scores alone: no share of the completions, no statistic of the detectors, and no failure that names an item.

Canaries are everything that one held-out item is: its id, its prompt, its answer, its outcome. Per-item
outcomes are drawn at random with long decimal expansions, so that any of them would be recognised.
"""

from __future__ import annotations

import json
import logging
import random
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from guard_service.app import Tokens, create_app
from guard_service.engine import Engine
from guard_service.errors import StoreError
from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.worker import EvaluationRequest
from guard_service.history import export_history
from rlguard.core.codes import Code
from rlguard.core.policy import EvaluationFailingPolicy, HeldOutGuardPolicy, Policy
from rlguard.core.rounds import Evaluation
from rlguard.core.trainer_view import status_view
from rlguard.core.wire import FailureKind
from tests.service.engines import FakeEvaluator, Run, evaluated, settled, until

pytestmark = pytest.mark.asyncio
ITEMS = 50
ROUNDS = 12


def client(engine: Engine, token: str = "") -> httpx.AsyncClient:
    tokens = Tokens("trainer", "reader") if token else Tokens(None, None)
    transport = httpx.ASGITransport(create_app(engine, tokens))
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.AsyncClient(transport=transport, base_url="http://guard", headers=headers)


@dataclass
class LeakyEvaluator(FakeEvaluator):
    """Scores at random; every third evaluation fails with a message that quotes an item."""

    rng: random.Random = field(default_factory=random.Random)
    canaries: set[str] = field(default_factory=set)

    async def evaluate(self, request: EvaluationRequest) -> Evaluation:
        if request.step % 3 == 2:
            prompt = f"canary-prompt-{self.rng.getrandbits(64):x}"
            self.canaries.add(prompt)
            raise RuntimeError(f"could not parse {prompt}")
        if request.step % 3 == 1:
            raise EvaluationError("the evaluation process was ended by SIGKILL (out of memory?)")
        items, proxies, fooled = (tuple(self.rng.random() for _ in range(ITEMS)) for _ in range(3))
        self.canaries |= {repr(item) for item in items + proxies + fooled}
        found = {"items": items, "proxy_items": proxies, "fooled_items": fooled, "truncated": 0.25}
        return evaluated(request, found)


async def test_nothing_of_an_item_leaves_the_guard(
    run: Run, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    worker = LeakyEvaluator(rng=random.Random(seed))
    policy = Policy(
        detector="heldout_guard",
        heldout_guard=HeldOutGuardPolicy(min_steps=1),
        evaluation_failing=EvaluationFailingPolicy(after_failures=1),
    )
    said: list[str] = []
    routes = ("verdict", "history", "history?max_points=5", "state", "rollouts", "figures")
    async with run.engine(worker, policy, keep_best=True) as engine, client(engine) as http:

        async def ask(method: str, path: str, content: Any = None) -> None:
            response = await http.request(method, path, json=content)
            said.extend([response.text, str(response.headers)])

        for number in range(ROUNDS):
            await ask("POST", "/v1/steps", {"attempt": 0, "step": number, "reward": number / 7})
            await ask("POST", "/v1/checkpoints", run.checkpoint(number).model_dump(exclude_none=True))
            await settled(engine)
            for route in (*(f"/v1/{route}" for route in routes), "/", "/readyz"):
                await ask("GET", route)
            said.append(json.dumps(await engine.evidence()))
        assert engine.run.verdict.fire, "a fire's reason must be among what is said"
    assert len(worker.canaries) > ITEMS
    output = capfd.readouterr()
    everything = "\n".join([*said, caplog.text, output.out, output.err])
    assert "heldout" in everything and "canary" not in everything
    assert [canary for canary in worker.canaries if canary in everything] == []
    # The canaries are real: the local export, which stays with the operator of the guard, has them.
    exported = json.dumps(list(export_history(run.state)))
    assert sum(canary in exported for canary in worker.canaries) >= ITEMS


TRUNCATED, UNANSWERED, TIMED_OUT = 0.421875, 0.390625, 0.359375


class Questioned(FakeEvaluator):
    """Its first evaluation is the baseline; a weak checkpoint follows, and at the end one that fails."""

    async def evaluate(self, request: EvaluationRequest) -> Evaluation:
        if request.step == 4:
            raise EvaluationError("scorer 'exact' raised KeyError on item 'canary-id': fix it, or the item")
        share = 8 if request.step < 2 else 3
        found = {
            "items": tuple(float(i % 10 < share) for i in range(200)),
            "truncated": TRUNCATED,
            "proxy_items": tuple(float(i % 10 < 8) for i in range(200)),
            "unanswered": UNANSWERED,
            "timed_out": TIMED_OUT,
            "parts": {"generate": 0.01},
        }
        return evaluated(request, found)


async def test_a_trainer_is_told_no_number_that_its_weights_could_make_an_answer(run: Run) -> None:
    policy = Policy.model_validate(
        {"calibrated": {"baseline_passes": 1}, "evaluation_failing": {"after_failures": 1}}
    )
    told: list[dict[str, Any]] = []
    full: list[dict[str, Any]] = []
    async with (
        run.engine(Questioned(), policy) as engine,
        client(engine, "trainer") as trainer,
        client(engine, "reader") as reader,
    ):
        for number in range(1, 5):
            step = {"attempt": 0, "step": number, "reward": number / 7}
            path = run.checkpoint(number).model_dump(exclude_none=True)
            for settle in (False, True):
                for route, content in (("steps", step), ("checkpoints", path)):
                    answer = await trainer.post(f"/v1/{route}", json=content)
                    told.append(answer.json()["verdict"])
                if settle:
                    break
                await settled(engine)
            told.append((await trainer.get("/v1/verdict")).json())
            full.append((await reader.get("/v1/verdict")).json())
        engine.run.fail(StoreError("disk full"))
        told.append((await trainer.post("/v1/steps", json=step)).json()["verdict"])

    shares = ("truncated", "unanswered", "timed_out", "proxy_score")
    for verdict in told:
        assert verdict["detectors"] == []
        for evaluation in (verdict["last_evaluation"], verdict["best_evaluation"]):
            assert evaluation is None or all(evaluation[share] is None for share in shares)
    numbers = ["canary", "42%", "39%", *map(str, (TRUNCATED, UNANSWERED, TIMED_OUT))]
    assert [one for one in numbers if one in json.dumps(told)] == []
    # It is all there for whoever reads, and what a trainer acts on is there for it.
    assert [one for one in numbers if one not in json.dumps(full)] == [] and full[-1]["detectors"]
    newest = told[-2]
    failing = [c["message"] for c in newest["conditions"] if c["code"] == "evaluation_failing"]
    assert failing == [
        f"{Code.EVALUATION_FAILING.meaning} The newest: {FailureKind.UNDERWAY.words}."
    ] and "canary-id" in json.dumps(full[-1]["conditions"])
    rounded = {"heldout_ema", "proxy_real_gap"}
    kept = set(newest) - {"reason", "conditions", "detectors", "last_evaluation", "best_evaluation"} - rounded
    assert {name: newest[name] for name in kept} == {name: full[-1][name] for name in kept}
    assert all(newest[name] == round(full[-1][name], 2) for name in rounded), "to one percent"
    assert newest["failure"] == "underway" and told[0]["failure"] is None
    assert newest["fire"] and newest["last_evaluation"]["score"] == full[-1]["last_evaluation"]["score"]
    assert [c["code"] for c in newest["conditions"]] == [c["code"] for c in full[-1]["conditions"]]


@pytest.mark.parametrize("action", ["warn", "stop"])
async def test_what_outlives_a_guard_names_no_item(run: Run, action: str) -> None:
    """The termination message is in the pod's status, and the state in a Secret."""
    policy = Policy.model_validate({"evaluation_failing": {"after_failures": 2, "action": action}})
    message = run.directory / "message"
    failing = [EvaluationError(f"scorer 'exact' raised KeyError on item 'canary-{n}'") for n in (1, 2)]
    async with run.engine(FakeEvaluator(failing), policy, of_run={"termination_message": message}) as engine:
        await run.report(engine, 1, 2)
        await until(lambda: engine.run.verdict.code is Code.EVALUATION_FAILING)
        assert "canary" in engine.run.verdict.reason, "the verdict of the read token has it"
        assert engine.run.verdict.halt is (action == "stop")
        shown = status_view(engine.run.verdict)
        assert Code.EVALUATION_FAILING.meaning in shown.reason
        for told in (engine.run_state().model_dump_json(), message.read_text(), shown.model_dump_json()):
            assert "evaluation_failing" in told or "underway" in told
            assert "canary" not in told
