"""A run goes from one guard to the next by way of its supervisor (`/v1/state`), over real guard processes."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from rlguard.core.kept_steps import read_steps
from tests.service.conftest import INGEST, READ

EVALUATIONS, SUPERVISOR = "evaluations-token-0123456789", "supervisor-token-0123456789"

FIRE = {"fire": True, "code": "heldout_decline", "message": "it fell", "attempt": 0, "step": 7}


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
    guard.end(signal.SIGKILL)
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
        guard.end(signal.SIGKILL)
        assert guard.start().get("/v1/verdict").json()["fire"]


def test_a_past_that_is_lost_is_never_healthy(supervised: Any) -> None:
    guard = supervised("guard")
    adopt(guard, {"lost": "the pod ended without a word"})
    for n in range(0, 44, 4):
        train(guard, n + 1, n + 5)
        verdict = evaluate(guard, n, 0.6)
    assert verdict["level"] == "unknown"
    assert any("without a word" in one["message"] for one in verdict["conditions"])


def test_what_is_no_state_of_this_run_is_refused(supervised: Any) -> None:
    guard = supervised("guard")
    for body in (
        *({"state": wrong} for wrong in ({"policy": "another"}, {"policy": 1}, {})),
        *({"latches": [wrong]} for wrong in ({}, FIRE | {"attempt": -1}, FIRE | {"step": 2**53})),
        *({"sequence": -1}, {"more": 1}, []),
    ):
        assert adopt(guard, body).status_code == 422
    assert ask(guard, "GET", "/readyz").status_code == 503
    assert adopt(guard, {}).json() == {"adopted": True}


def test_the_supervisor_alone_reads_and_writes_it(supervised: Any, guard: Any) -> None:
    mine = supervised("mine")
    for token in (INGEST, READ, EVALUATIONS):
        assert ask(mine, "GET", "/v1/state", token).status_code == 403
        assert ask(mine, "PUT", "/v1/state", token, json={}).status_code == 403
    assert ask(guard, "GET", "/v1/state").status_code == 403, "a guard without a supervisor has no such route"


def test_the_supervisor_may_do_all_that_a_reader_may(supervised: Any) -> None:
    guard = supervised("guard")
    adopt(guard, {})
    train(guard, 1, 3)
    judged(guard)
    verdict = ask(guard, "GET", "/v1/verdict").json()
    assert verdict["detectors"] and verdict["latched_at"] is None and verdict["ended"] is False
    assert ask(guard, "GET", "/v1/verdict", INGEST).json()["detectors"] == []
    for path in ("verdict", "run", "history", "history?max_points=9", "rollouts", "figures"):
        mine, theirs = ask(guard, "GET", f"/v1/{path}"), guard.get(f"/v1/{path}")
        assert mine.status_code == 200 and mine.content == theirs.content
        assert mine.headers.get("etag") == theirs.headers.get("etag")
    assert ask(guard, "POST", "/v1/steps", json=[]).status_code == 403
    assert ask(guard, "POST", "/v1/evaluations", json={}).status_code == 403


def test_what_stays_of_a_run_is_told_the_supervisor_alone(supervised: Any) -> None:
    guard = supervised("guard")
    assert ask(guard, "GET", "/v1/evidence").status_code == 503, "nobody knows of a run yet"
    adopt(guard, {})
    assert ask(guard, "GET", "/v1/evidence").json() == {}
    rollout = {"prompt": "2+2=", "completion": "five\0" + "!" * 1_990 + "end", "reward": 1.0}
    step = {"attempt": 0, "step": 0, "reward": 0.5, "rollouts": [rollout]}
    assert guard.post("/v1/steps", step).is_success
    judged(guard)
    told = ask(guard, "GET", "/v1/evidence").json()
    assert told.keys() == {"history.jsonl", "steps.jsonl", "rollouts.json"}
    rounds = [json.loads(line) for line in told["history.jsonl"].splitlines()]
    assert [one["step"] for one in rounds] == [0, *range(4, 44, 4)]
    assert all(0.4 < one["heldout"] < 0.8 and one["reward"] > 0 for one in rounds)
    kept = read_steps(told["steps.jsonl"])
    assert kept is not None and kept.total == 41 and len(kept.steps) == 41
    (written,) = (one["completion"] for one in json.loads(told["rollouts.json"]))
    assert "\0" not in written and "[…]" in written and written.endswith("end") and len(written) <= 1_000
    for token in (INGEST, READ, EVALUATIONS):
        assert ask(guard, "GET", "/v1/evidence", token).status_code == 403


def test_a_latch_of_another_release_is_one_and_when_it_closed_is_known_after_a_restart(
    supervised: Any,
) -> None:
    guard = supervised("guard")
    adopt(guard, {"latches": [FIRE | {"code": "of_tomorrow"}]})
    assert guard.get("/v1/verdict").json()["fire"]
    told = datetime.fromisoformat(guard.get("/v1/verdict").json()["latched_at"])
    assert told.tzinfo is not None and abs((datetime.now(UTC) - told).total_seconds()) < 60
    guard.end(signal.SIGKILL)
    again = datetime.fromisoformat(guard.start().get("/v1/verdict").json()["latched_at"])
    assert abs((again - told).total_seconds()) < 1.0


def test_a_log_stays_whatever_older_state_is_told_but_a_latch_closes(supervised: Any) -> None:
    guard = supervised("guard")
    adopt(guard, {})
    before = judged(guard)
    old = {"sequence": 1, "state": None}
    assert adopt(guard, old).json() == {"adopted": False}
    assert guard.get("/v1/verdict").json() == before
    assert adopt(guard, old | {"latches": [FIRE]}).json() == {"adopted": False}
    after = guard.get("/v1/verdict").json()
    assert after["fire"] and after["evaluated"] == before["evaluated"]
    guard.end(signal.SIGKILL)
    assert guard.start().get("/v1/verdict").json()["fire"]


# -- the end of a guard ----------------------------------------------------------------------------------


def seconds_to_end(guard: Any) -> float:
    began = time.monotonic()
    assert guard.end() == 0 and "Traceback" not in guard.log
    return time.monotonic() - began


def test_a_guard_that_ends_waits_until_its_state_was_fetched(supervised: Any) -> None:
    guard = supervised("guard")
    adopt(guard, {})
    judged(guard)
    state_of(guard)  # before the signal: it does not count
    known = ask(guard, "GET", "/v1/verdict").headers["etag"]
    threading.Timer(1.0, os.kill, (guard.pid, signal.SIGTERM)).start()
    began = time.monotonic()
    ask(guard, "GET", f"/v1/verdict?since={known}&wait=30")
    assert 1 <= time.monotonic() - began < 20, "the signal wakes who waits"
    began = time.monotonic()
    assert ask(guard, "GET", "/v1/history?max_points=9").json()["evaluations"]
    assert state_of(guard)["sequence"] > 0
    assert guard.wait() == 0 and time.monotonic() - began < 60


def test_it_waits_no_longer_than_a_supervisor_may_be_away_and_without_one_not_at_all(
    supervised: Any, guard: Any
) -> None:
    mine = supervised("mine")
    adopt(mine, {})
    waits = seconds_to_end(mine)
    others = seconds_to_end(guard), seconds_to_end(supervised("waiting"))
    assert waits >= 5 and min(others) < waits
