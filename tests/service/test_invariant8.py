"""Invariant 8: no per-item score, prompt or answer leaves the guard: not in answers, logs or metrics.

And a trainer, whose weights can be made to answer a question about a held-out prompt, is told the released
scores alone: no share of the completions, no statistic of the detectors, and no failure that names an item.

Canaries are everything that one held-out item is: its id, its prompt, its answer, its outcome. Per-item
outcomes are drawn at random with long decimal expansions, so that any of them would be recognised.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import pytest

from guard_core import trainer_view
from guard_core.codes import Code
from guard_core.policy import EvaluationFailingPolicy, HeldOutGuardPolicy, Policy
from guard_core.wire import Adapters, CheckpointReport, EvaluationsNeeded, FailureKind, StepReport
from guard_service.app import Tokens, create_app
from guard_service.engine import Engine
from guard_service.errors import StoreError
from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.worker import EvaluationRequest, EvaluationResult
from guard_service.history import export_history

ITEMS = 50
ROUNDS = 12


class LeakyEvaluator:
    """Scores at random; every third evaluation fails with a message that quotes an item."""

    split_digest: str | None = "digest"
    adapters: Adapters | None = None
    needed: EvaluationsNeeded | None = None
    measure: Mapping[str, Any] = MappingProxyType({"scorer": "exact"})

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.canaries: set[str] = set()

    async def start(self) -> None:
        """Nothing to do."""

    def unfit(self, checkpoint: Path) -> str:
        return ""

    async def pins(self, request: EvaluationRequest) -> None:
        return None

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        if request.step % 3 == 2:
            prompt = f"canary-prompt-{self._rng.getrandbits(64):x}"
            self.canaries.add(prompt)
            raise RuntimeError(f"could not parse {prompt}")
        if request.step % 3 == 1:
            raise EvaluationError("the evaluation process was ended by SIGKILL (out of memory?)")
        items = tuple(self._rng.random() for _ in range(ITEMS))
        proxies = tuple(self._rng.random() for _ in range(ITEMS))
        fooled = tuple(self._rng.random() for _ in range(ITEMS))
        self.canaries |= {repr(item) for item in items + proxies + fooled}
        return EvaluationResult(items, "sha", 0.01, None, 0.25, proxies, fooled_items=fooled)

    async def close(self) -> None:
        """Nothing to do."""


@pytest.mark.asyncio
async def test_nothing_of_an_item_leaves_the_guard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    worker = LeakyEvaluator(random.Random(seed))
    policy = Policy(
        detector="heldout_guard",
        heldout_guard=HeldOutGuardPolicy(min_steps=1),
        evaluation_failing=EvaluationFailingPolicy(after_failures=1),
    )
    root = tmp_path / "checkpoints"
    engine = Engine(
        state_dir=tmp_path / "state", checkpoint_root=root, policy=policy, worker=worker, keep_best=True
    )
    app = create_app(engine, Tokens(None, None))
    said: list[str] = []

    async def ask(client: httpx.AsyncClient, method: str, path: str, content: Any = None) -> None:
        response = await client.request(method, path, json=content)
        said.extend([response.text, str(response.headers)])

    await engine.start()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://guard") as client:
        for number in range(ROUNDS):
            (root / str(number)).mkdir(parents=True)
            await ask(client, "POST", "/v1/steps", {"attempt": 0, "step": number, "reward": number / 7})
            path = {"attempt": 0, "step": number, "path": str(root / str(number))}
            await ask(client, "POST", "/v1/checkpoints", path)
            async with asyncio.timeout(60):
                while engine.run.queue_length:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
            for route in (
                "/v1/verdict",
                "/v1/history",
                "/v1/history?max_points=5",
                "/v1/state",
                "/metrics",
                "/",
                "/readyz",
            ):
                await ask(client, "GET", route)
        assert engine.run.verdict.fire, "a fire's reason must be among what is said"
    await engine.close()
    assert len(worker.canaries) > ITEMS
    output = capfd.readouterr()
    everything = "\n".join([*said, caplog.text, output.out, output.err])
    assert "heldout" in everything and "canary" not in everything
    leaked = [canary for canary in worker.canaries if canary in everything]
    assert leaked == []
    # The canaries are real: the local export, which stays with the operator of the guard, has them.
    exported = json.dumps(list(export_history(tmp_path / "state")))
    assert sum(canary in exported for canary in worker.canaries) >= ITEMS


TRUNCATED = 0.421875
UNANSWERED = 0.390625
TIMED_OUT = 0.359375


class Questioned:
    """Its first evaluation is the baseline; a weak checkpoint follows, and at the end one that fails.

    `answered`: what a completion that never ends, a missing answer and the training grader make of it.
    """

    def __init__(self, answered: float = 0.0) -> None:
        self._answered = answered

    split_digest: str | None = "digest"
    adapters: Adapters | None = None
    needed: EvaluationsNeeded | None = None
    measure: Mapping[str, Any] = MappingProxyType({"scorer": "exact"})

    async def start(self) -> None:
        """Nothing to do."""

    def unfit(self, checkpoint: Path) -> str:
        """Nothing to refuse."""
        return ""

    async def pins(self, request: EvaluationRequest) -> None:
        return None

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        """The outcomes that the step asks for."""
        if request.step == 4:
            raise EvaluationError("scorer 'exact' raised KeyError on item 'canary-id': fix it, or the item")
        share = 8 if request.step < 2 else 3
        items = tuple(float(i % 10 < share) for i in range(200))
        proxies = tuple(float(i % 10 < 8) - self._answered * (i == 0) for i in range(200))
        return EvaluationResult(
            items,
            "sha",
            0.01 + self._answered,
            None,
            TRUNCATED + self._answered,
            proxies,
            unanswered=UNANSWERED + self._answered,
            timed_out=TIMED_OUT + self._answered,
            parts={"generate": 0.01 + self._answered},
        )

    async def close(self) -> None:
        """Nothing to do."""


@pytest.mark.asyncio
async def test_a_trainer_is_told_no_number_that_its_weights_could_make_an_answer(tmp_path: Path) -> None:
    policy = Policy.model_validate(
        {"calibrated": {"baseline_passes": 1}, "evaluation_failing": {"after_failures": 1}}
    )
    root = tmp_path / "checkpoints"
    engine = Engine(state_dir=tmp_path / "state", checkpoint_root=root, policy=policy, worker=Questioned())
    told: list[dict[str, Any]] = []
    full: list[dict[str, Any]] = []
    await engine.start()
    transport = httpx.ASGITransport(create_app(engine, Tokens("trainer", "reader")))
    async with httpx.AsyncClient(transport=transport, base_url="http://guard") as client:

        async def ask(token: str, method: str, path: str, content: Any = None) -> dict[str, Any]:
            headers = {"Authorization": f"Bearer {token}"}
            answer = (await client.request(method, path, json=content, headers=headers)).json()
            return answer.get("verdict", answer)

        for number in range(1, 5):
            (root / str(number)).mkdir(parents=True)
            step = {"attempt": 0, "step": number, "reward": number / 7}
            told.append(await ask("trainer", "POST", "/v1/steps", step))
            path = {"attempt": 0, "step": number, "path": str(root / str(number))}
            told.append(await ask("trainer", "POST", "/v1/checkpoints", path))
            async with asyncio.timeout(60):
                while engine.run.queue_length or engine.run.verdict.waiting:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
            told.append(await ask("trainer", "POST", "/v1/steps", step))
            told.append(await ask("trainer", "POST", "/v1/checkpoints", path))
            told.append(await ask("trainer", "GET", "/v1/verdict"))
            full.append(await ask("reader", "GET", "/v1/verdict"))
    engine.run.fail(StoreError("disk full"))
    told.append(json.loads(engine.run.unavailable().body("/v1/steps"))["verdict"])
    await engine.close()

    for verdict in told:
        assert verdict["detectors"] == []
        for evaluation in (verdict["last_evaluation"], verdict["best_evaluation"]):
            assert evaluation is None or all(
                evaluation[share] is None for share in ("truncated", "unanswered", "timed_out", "proxy_score")
            )
        for condition in verdict["conditions"]:
            if Code(condition["code"]) not in trainer_view._TOLD_IN_FULL:
                meaning = Code(condition["code"]).meaning
                newest = f" The newest: {FailureKind.UNDERWAY.words}."
                failing = condition["code"] == "evaluation_failing"
                assert condition["message"] == meaning + (newest if failing else "")
    said = json.dumps(told)
    assert "canary" not in said and "42%" not in said and str(TRUNCATED) not in said
    assert "39%" not in said and str(UNANSWERED) not in said and str(TIMED_OUT) not in said
    # It is all there for whoever reads, and what a trainer acts on is there for it.
    read = json.dumps(full)
    assert "canary-id" in read and "42%" in read and str(TRUNCATED) in read and full[-1]["detectors"]
    assert "39%" in read and str(UNANSWERED) in read and str(TIMED_OUT) in read
    newest = told[-2]
    rounded = {"heldout_ema", "proxy_real_gap"}
    kept = set(newest) - {"reason", "conditions", "detectors", "last_evaluation", "best_evaluation"} - rounded
    assert {name: newest[name] for name in kept} == {name: full[-1][name] for name in kept}
    assert all(newest[name] == round(full[-1][name], 2) for name in rounded), "to one percent"
    assert newest["failure"] == "underway" and told[0]["failure"] is None
    assert newest["fire"] and newest["last_evaluation"]["score"] == full[-1]["last_evaluation"]["score"]
    assert [c["code"] for c in newest["conditions"]] == [c["code"] for c in full[-1]["conditions"]]


class Failing(Questioned):
    """Every evaluation fails, with words that name an item."""

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        """No outcome."""
        raise EvaluationError(f"scorer 'exact' raised KeyError on item 'canary-{request.step}'")


@pytest.mark.parametrize("action", ["warn", "stop"])
@pytest.mark.asyncio
async def test_what_outlives_a_guard_names_no_item(tmp_path: Path, action: str) -> None:
    """The termination message is in the pod's status, and the state in a Secret."""
    failing = {"evaluation_failing": {"after_failures": 2, "action": action}}
    root, message = tmp_path / "checkpoints", tmp_path / "message"
    engine = Engine(
        state_dir=tmp_path / "state",
        checkpoint_root=root,
        policy=Policy.model_validate(failing),
        worker=Failing(),
        termination_message=message,
    )
    await engine.start()
    for number in (1, 2):
        (root / str(number)).mkdir(parents=True)
        await engine.run.add_steps([StepReport(attempt=0, step=number, reward=0.5)])
        await engine.add_checkpoint(CheckpointReport(attempt=0, step=number, path=str(root / str(number))))
    async with asyncio.timeout(60):
        while engine.run.verdict.code is not Code.EVALUATION_FAILING:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert "canary" in engine.run.verdict.reason, "the verdict of the read token has it"
    assert engine.run.verdict.halt is (action == "stop")
    shown = trainer_view.status_view(engine.run.verdict)
    assert Code.EVALUATION_FAILING.meaning in shown.reason
    for told in (engine.run_state().model_dump_json(), message.read_text(), shown.model_dump_json()):
        assert "evaluation_failing" in told or "underway" in told
        assert "canary" not in told
    await engine.close()
