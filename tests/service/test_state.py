"""A run goes from one guard to the next by way of its supervisor (`/v1/state`), over real guard processes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

EVALUATIONS, SUPERVISOR = "evaluations-token-0123456789", "supervisor-token-0123456789"


@pytest.fixture
def supervised(new_guard: Callable[..., Any]) -> Callable[[str], Any]:
    """Starts guards of one run, each with a store of its own, that wait for their supervisor."""

    def start(directory: str, policy: str = "{}") -> Any:
        guard = new_guard(directory)
        (guard.directory / "default.json").write_text(policy)
        (guard.directory / "message").touch()
        guard.settings |= {
            "EVALUATIONS_TOKEN": EVALUATIONS,
            "SUPERVISOR_TOKEN": SUPERVISOR,
            "POLICY_FILE": str(guard.directory / "default.json"),
            "TERMINATION_MESSAGE": str(guard.directory / "message"),
        }
        return guard.start()

    return start


def ask(guard: Any, method: str, path: str, token: str = SUPERVISOR, **content: Any) -> httpx.Response:
    with guard.client(token) as client:
        return client.request(method, path, **content)


def state_of(guard: Any) -> dict[str, Any]:
    response = ask(guard, "GET", "/v1/state")
    assert response.is_success, response.text
    return dict(response.json())


def adopt(guard: Any, state: dict[str, Any]) -> httpx.Response:
    return ask(guard, "PUT", "/v1/state", json=state)


def evaluate(guard: Any, step: int, share: float, pass_index: int = 0) -> dict[str, Any]:
    drawn = random.Random(100 * step + pass_index)
    outcomes = {str(i): float(drawn.random() < share) for i in range(256)}
    body = {"step": step, "pass_index": pass_index, "outcomes": outcomes}
    response = ask(guard, "POST", "/v1/evaluations", EVALUATIONS, json=body)
    assert response.is_success, response.text
    return dict(response.json()["verdict"])


def train(guard: Any, first: int, last: int) -> None:
    steps = [{"attempt": 0, "step": n, "reward": 0.5 + 0.01 * (n % 3)} for n in range(first, last)]
    assert guard.post("/v1/steps", steps).is_success


def judged(guard: Any) -> dict[str, Any]:
    """A run that is healthy after ten evaluations."""
    for index in range(4):
        evaluate(guard, 0, 0.6, index)
    for n in range(4, 44, 4):
        train(guard, n - 3, n + 1)
        verdict = evaluate(guard, n, 0.6)
    assert verdict["level"] == "healthy"
    return verdict


def test_an_empty_guard_takes_nothing_until_it_was_adopted(supervised: Any) -> None:
    guard = supervised("guard")
    assert ask(guard, "GET", "/readyz").status_code == 503
    assert guard.post("/v1/steps", {"attempt": 0, "step": 1, "reward": 0.5}).status_code == 503
    assert ask(guard, "GET", "/v1/state").status_code == 503
    assert guard.get("/v1/verdict").json()["level"] == "unknown"
    assert adopt(guard, {}).json() == {"adopted": True}
    assert ask(guard, "GET", "/readyz").is_success
    train(guard, 1, 3)
    assert adopt(guard, {}).json() == {"adopted": False}
    assert guard.get("/v1/verdict").json()["steps"] == 2
    guard.end()
    assert ask(guard.start(), "GET", "/readyz").is_success, "its log is not empty any more"


def test_the_next_guard_goes_on_with_the_baseline_and_sees_the_fall(supervised: Any) -> None:
    first = supervised("first")
    adopt(first, {})
    before = judged(first)
    state = state_of(first)
    second = supervised("second")
    assert adopt(second, state).json() == {"adopted": True}
    after = second.get("/v1/verdict").json()
    told = ("level", "evaluated", "announced", "steps", "last_evaluation", "best_evaluation", "heldout_ema")
    assert {name: after[name] for name in told} == {name: before[name] for name in told}
    for n in (44, 48, 52):
        train(second, n - 3, n + 1)
        verdict = evaluate(second, n, 0.2)
    assert verdict["fire"]
    assert state_of(second)["sequence"] > 0


def test_a_fire_outlives_its_guard(supervised: Any) -> None:
    first = supervised("first")
    adopt(first, {})
    judged(first)
    before = state_of(first)
    for n in (44, 48, 52):
        train(first, n - 3, n + 1)
        evaluate(first, n, 0.2)
    after = state_of(first)
    message = json.loads((first.directory / "message").read_bytes())
    assert message["fire"] and message["sequence"] > before["sequence"] and message["step"] is not None
    assert (first.directory / "message").stat().st_size <= 1024
    # Of a stale state the supervisor knows the fire from the message of the pod that ended.
    latch = after["latches"][0]
    for name, state in (("second", after), ("third", before | {"latches": [latch]})):
        guard = supervised(name)
        assert adopt(guard, state).json() == {"adopted": True}
        verdict = guard.get("/v1/verdict").json()
        assert verdict["fire"] and verdict["stop"] and verdict["code"] == latch["code"]
        guard.end()
        assert guard.start().get("/v1/verdict").json()["fire"]


def test_a_latch_of_another_release_is_one(supervised: Any) -> None:
    guard = supervised("guard")
    latch = {"fire": True, "code": "of_tomorrow", "message": "it fell", "attempt": 0, "step": 7}
    adopt(guard, {"latches": [latch]})
    assert guard.get("/v1/verdict").json()["fire"]


def test_a_past_that_is_lost_is_never_healthy(supervised: Any) -> None:
    guard = supervised("guard")
    adopt(guard, {"lost": "the pod ended without a word"})
    verdict = judged_or_unknown(guard)
    assert verdict["level"] == "unknown"
    assert any("without a word" in one["message"] for one in verdict["conditions"])


def judged_or_unknown(guard: Any) -> dict[str, Any]:
    for n in range(0, 44, 4):
        train(guard, n + 1, n + 5)
        verdict = evaluate(guard, n, 0.6)
    return verdict


@pytest.mark.parametrize(
    "body",
    [
        {"state": {"policy": "another"}},
        {"state": {"policy": 1}},
        {"state": {}},
        {"latches": [{}]},
        {"sequence": -1},
        {"more": 1},
        [],
    ],
)
def test_what_is_no_state_of_this_run_is_refused(supervised: Any, body: Any) -> None:
    guard = supervised("guard")
    assert adopt(guard, body).status_code == 422
    assert ask(guard, "GET", "/readyz").status_code == 503
    assert adopt(guard, {}).json() == {"adopted": True}


def test_the_supervisor_alone_reads_and_writes_it(supervised: Any, guard: Any) -> None:
    mine = supervised("mine")
    for token in ("ingest-token-0123456789", "read-token-0123456789", EVALUATIONS):
        assert ask(mine, "GET", "/v1/state", token).status_code == 403
        assert ask(mine, "PUT", "/v1/state", token, json={}).status_code == 403
    assert ask(guard, "GET", "/v1/state").status_code == 403, "a guard without a supervisor has no such route"
