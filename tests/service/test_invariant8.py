"""Invariant 8: no per-item score, prompt or answer leaves the guard: not in answers, logs or metrics.

Canaries are everything that one held-out item is: its id, its prompt, its answer, its outcome. Per-item
outcomes are drawn at random with long decimal expansions, so that any of them would be recognised.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from guard_core.policy import EvaluationFailingPolicy, HeldOutGuardPolicy, Policy
from guard_service.app import create_app
from guard_service.auth import Tokens
from guard_service.engine import Engine
from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.worker import EvaluationRequest, EvaluationResult
from guard_service.scrape import metrics_app
from guard_service.store import export_history

ITEMS = 50
ROUNDS = 12


class LeakyEvaluator:
    """Scores at random; every third evaluation fails with a message that quotes an item."""

    split_digest: str | None = "digest"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.canaries: set[str] = set()

    async def start(self) -> None:
        """Nothing to do."""

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        if request.step % 3 == 2:
            prompt = f"canary-prompt-{self._rng.getrandbits(64):x}"
            self.canaries.add(prompt)
            raise RuntimeError(f"could not parse {prompt}")
        if request.step % 3 == 1:
            raise EvaluationError("the evaluation process was ended by SIGKILL (out of memory?)")
        items = tuple(self._rng.random() for _ in range(ITEMS))
        self.canaries |= {repr(item) for item in items}
        return EvaluationResult(items, "sha", 0.01, None)

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
            async with asyncio.timeout(10):
                while engine.queue_length:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
            for route in (
                "/v1/verdict",
                "/v1/history",
                "/v1/history?max_points=5",
                "/metrics",
                "/",
                "/readyz",
            ):
                await ask(client, "GET", route)
        scraped = httpx.ASGITransport(metrics_app(engine.metrics))
        async with httpx.AsyncClient(transport=scraped, base_url="http://pod") as prometheus:
            await ask(prometheus, "GET", "/metrics")
        assert engine.verdict.fire, "a fire's reason must be among what is said"
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
