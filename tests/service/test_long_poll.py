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
HEADERS = {"Authorization": f"Bearer {READ}"}


def revision(guard: Any) -> str:
    return guard.get("/v1/verdict").headers["etag"]


async def wait(guard: Any, since: str, seconds: float, token: str = READ) -> tuple[dict[str, Any], float]:
    """The verdict that comes, and after how long."""
    async with httpx.AsyncClient(base_url=guard.url, timeout=60, trust_env=False) as client:
        began = time.monotonic()
        response = await client.get(
            "/v1/verdict",
            params={"since": since, "wait": seconds},
            headers={"Authorization": f"Bearer {token}"},
        )
    assert response.status_code == 200
    return response.json(), time.monotonic() - began


def drift(guard: Any, step: Step) -> None:
    """Steps by which the guard fires."""
    reports = [step(n, kl=9.0 if n > 1 else 0.01, kl_kind="ref_token_mean") for n in range(1, 12)]
    assert guard.post("/v1/steps", reports).json()["verdict"]["fire"]


@pytest.mark.parametrize("since", ["", "another"])
@pytest.mark.asyncio
async def test_who_knows_another_verdict_is_answered_at_once(guard: Any, since: str) -> None:
    _, seconds = await wait(guard, since, 30)
    assert seconds < 20


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
async def test_a_fire_wakes_who_waits(guard: Any, step: Step, token: str) -> None:
    guard.post("/v1/steps", step(0))
    known = revision(guard)
    waiting = [asyncio.create_task(wait(guard, known, 50, token)) for _ in range(20)]
    await asyncio.sleep(0.5)
    await asyncio.to_thread(drift, guard, step)
    for verdict, seconds in await asyncio.gather(*waiting):
        assert verdict["fire"] and seconds < 40


@pytest.mark.asyncio
async def test_the_end_of_a_trainer_wakes_who_waits(guard: Any, step: Step) -> None:
    guard.post("/v1/steps", step(1))
    waiting = asyncio.create_task(wait(guard, revision(guard), 50))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(guard.post, "/v1/end", {"attempt": 0, "step": 1})
    verdict, seconds = await waiting
    assert verdict["ended"] and seconds < 40


@pytest.mark.asyncio
async def test_who_waits_is_answered_before_the_guard_ends(guard: Any) -> None:
    waiting = asyncio.create_task(wait(guard, revision(guard), 50))
    await asyncio.sleep(0.5)
    os.kill(guard.pid, signal.SIGTERM)
    _, seconds = await waiting
    assert seconds < 40
    assert await asyncio.to_thread(guard.wait) == 0 and "Traceback" not in guard.log


@pytest.mark.parametrize("query", ["wait=-1", "wait=61", "wait=nan", "wait=x", "since=" + "x" * 65])
def test_other_values_are_refused(guard: Any, query: str) -> None:
    refused = guard.get(f"/v1/verdict?{query}")
    assert refused.status_code == 422 and refused.headers["content-type"] == "application/problem+json"
