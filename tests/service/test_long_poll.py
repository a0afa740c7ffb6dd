"""`GET /v1/verdict?since=&wait=`: whoever waits is told of a change at once, and of steps not at all."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.service.conftest import INGEST, READ

Step = Callable[..., dict[str, Any]]


def revision(guard: Any) -> str:
    return guard.get("/v1/verdict").headers["etag"]


async def wait(guard: Any, since: str, seconds: float, token: str = READ) -> tuple[dict[str, Any], float]:
    """The verdict that comes, and after how long."""
    async with httpx.AsyncClient(base_url=guard.url, timeout=100, trust_env=False) as client:
        began = time.monotonic()
        response = await client.get(
            "/v1/verdict",
            params={"since": since, "wait": seconds},
            headers={"Authorization": f"Bearer {token}"},
        )
    assert response.status_code == 200
    return response.json(), time.monotonic() - began


@pytest.mark.asyncio
async def test_steps_wake_nobody_and_the_wait_ends(guard: Any, step: Step) -> None:
    guard.post("/v1/steps", step(1))
    known = revision(guard)
    waiting = asyncio.create_task(wait(guard, known, 2.0))
    await asyncio.sleep(0.2)
    await asyncio.to_thread(guard.post, "/v1/steps", [step(n, reward=n / 10) for n in range(2, 9)])
    verdict, seconds = await waiting
    assert seconds >= 2.0 and verdict["steps"] == 8, "what is told then is new all the same"
    assert revision(guard) == known
    guard.end()
    assert revision(guard.start()) == known, "nor does a restart"


@pytest.mark.parametrize("token", [INGEST, READ])
@pytest.mark.asyncio
async def test_another_verdict_the_end_of_a_trainer_and_a_fire_wake_who_waits(
    guard: Any, step: Step, token: str
) -> None:
    guard.post("/v1/steps", step(0))
    for since in ("", "another"):
        assert (await wait(guard, since, 50, token))[1] < 40
    drift = [step(n, kl=9.0 if n > 1 else 0.01, kl_kind="ref_token_mean") for n in range(1, 12)]
    for path, content, changed in (("/v1/end", {"attempt": 0}, "ended"), ("/v1/steps", drift, "fire")):
        known = revision(guard)
        waiting = [asyncio.create_task(wait(guard, known, 50, token)) for _ in range(20)]
        await asyncio.sleep(0.5)
        await asyncio.to_thread(guard.post, path, content)
        for verdict, seconds in await asyncio.gather(*waiting):
            assert verdict[changed] and seconds < 40


@pytest.mark.asyncio
async def test_who_waits_is_answered_before_the_guard_ends(guard: Any) -> None:
    waiting = asyncio.create_task(wait(guard, revision(guard), 50))
    await asyncio.sleep(0.5)
    os.kill(guard.pid, signal.SIGTERM)
    _, seconds = await waiting
    assert seconds < 40
    assert await asyncio.to_thread(guard.wait) == 0 and "Traceback" not in guard.log


def test_other_values_are_refused(guard: Any) -> None:
    for query in ("wait=-1", "wait=61", "wait=nan", "wait=x", "since=" + "x" * 65):
        refused = guard.get(f"/v1/verdict?{query}")
        assert refused.status_code == 422 and refused.headers["content-type"] == "application/problem+json"
