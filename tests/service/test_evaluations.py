"""Outcomes that are reported from outside (`POST /v1/evaluations`), over a real guard process."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

EVALUATIONS = "evaluations-token-0123456789"
ITEMS = [f"item-{i}" for i in range(256)]


def outcomes(share: float, seed: int) -> dict[str, float]:
    """Outcomes of a policy that solves this share of the items."""
    drawn = random.Random(seed)
    return {name: float(drawn.random() < share) for name in ITEMS}


@pytest.fixture
def outside(new_guard: Callable[..., Any], tmp_path: Path) -> Any:
    """A guard at the default policy, whose checkpoints somebody else evaluates."""
    policy = tmp_path / "default.json"
    policy.write_text("{}")
    return new_guard(EVALUATIONS_TOKEN=EVALUATIONS, POLICY_FILE=str(policy)).start()


def report(guard: Any, **evaluation: Any) -> httpx.Response:
    with guard.client(EVALUATIONS) as client:
        return client.post("/v1/evaluations", json=evaluation)


def train(guard: Any, step: Callable[..., Any], first: int, rewards: list[float]) -> None:
    assert guard.post("/v1/steps", [step(first + i, reward=r) for i, r in enumerate(rewards)]).is_success


def test_a_policy_that_gets_worse_is_stopped_and_one_that_does_not_is_not(
    outside: Any, step: Callable[..., Any]
) -> None:
    for index in range(4):
        report(outside, step=0, pass_index=index, outcomes=outcomes(0.6, 100 + index))
    for n in range(4, 60, 4):
        train(outside, step, n - 3, [0.5, 0.51, 0.49, 0.5])
        good = report(outside, step=n, outcomes=outcomes(0.6, n))
        assert good.is_success, good.text
    assert not good.json()["verdict"]["stop"] and good.json()["verdict"]["level"] == "healthy"
    for n in range(60, 76, 4):
        train(outside, step, n - 3, [0.5] * 4)
        worse = report(outside, step=n, outcomes=outcomes(0.2, n)).json()["verdict"]
    assert worse["fire"] and worse["latch_step"] <= 68
    assert outside.get("/v1/verdict").json()["fire"]
    outside.end()
    assert outside.start().get("/v1/verdict").json()["fire"], "the fire is on disk"


def test_a_mean_with_its_standard_error_is_judged_too(outside: Any, step: Callable[..., Any]) -> None:
    for n, mean in enumerate([0.61, 0.60, 0.62, 0.59, 0.61, 0.30, 0.31]):
        train(outside, step, 4 * n + 1, [0.5] * 4)
        verdict = report(outside, step=4 * n, mean=mean, standard_error=0.03).json()["verdict"]
        assert verdict["last_evaluation"]["score"] == pytest.approx(mean)
    assert verdict["fire"]
    for wrong, field in (
        ({"mean": 0.3, "standard_error": 0.2}, "standard_error"),
        ({"outcomes": {"a": 1.0}}, "outcomes"),
    ):
        refused = report(outside, step=40, **wrong)
        assert refused.status_code == 422 and refused.json()["errors"][0]["field"] == field


def test_a_trainer_is_told_one_score_a_minute_and_others_all(outside: Any, step: Callable[..., Any]) -> None:
    for n, share in enumerate((0.6, 0.4, 0.5)):
        report(outside, step=4 * n, outcomes=outcomes(share, n))
        told = outside.post("/v1/steps", [step(4 * n + 1, reward=0.5)]).json()["verdict"]
        assert told["last_evaluation"]["step"] == 0 and told["evaluated"] == n + 1
    report(outside, step=12, outcomes=outcomes(0.3, 3))  # no reward since the one before: no round
    with outside.client() as trainer:
        assert trainer.get("/v1/verdict").json()["last_evaluation"]["step"] == 0
    seen = outside.get("/v1/verdict").json()
    assert seen["last_evaluation"]["step"] == 12 and seen["heldout_ema"] != told["heldout_ema"]


def test_a_repeat_is_not_folded_and_a_contradiction_is_refused(outside: Any) -> None:
    first = report(outside, step=0, outcomes=outcomes(0.6, 1))
    assert first.json()["accepted"] and first.json()["wanted_pass"] == 1
    again = report(outside, step=0, outcomes=outcomes(0.6, 1))
    assert again.is_success and not again.json()["accepted"]
    assert report(outside, step=0, outcomes=outcomes(0.6, 2)).status_code == 409
    assert again.json()["verdict"]["evaluated"] == 1


def test_further_passes_are_taken_where_they_are_wanted(outside: Any) -> None:
    for index in range(3):
        body = report(outside, step=0, pass_index=index, outcomes=outcomes(0.6, index)).json()
        assert body["accepted"] and body["wanted_pass"] == index + 1
    assert report(outside, step=4, outcomes=outcomes(0.6, 9)).json()["wanted_pass"] is None
    refused = report(outside, step=0, pass_index=3, outcomes=outcomes(0.6, 4))
    assert refused.status_code == 409 and refused.json()["errors"][0]["field"] == "pass_index"


def test_missing_items_are_unknown_and_not_0(outside: Any) -> None:
    report(outside, step=0, outcomes=outcomes(0.6, 1))
    short = outcomes(0.6, 2)
    del short["item-7"]
    refused = report(outside, step=4, outcomes=short | {"other": 1.0})
    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert "1 missing ('item-7')" in error["message"] and "1 unknown ('other')" in error["message"]
    assert outside.get("/v1/verdict").json()["evaluated"] == 1


def test_evaluations_come_in_the_order_of_their_checkpoints(outside: Any) -> None:
    for n in (0, 8):
        assert report(outside, step=n, outcomes=outcomes(0.6, n)).is_success
    late = report(outside, step=4, outcomes=outcomes(0.6, 4))
    assert late.status_code == 409 and late.json()["errors"][0]["field"] == "step"


def test_it_settles_the_checkpoint_that_the_trainer_announced(outside: Any, step: Any) -> None:
    folder = outside.directory / "checkpoints" / "checkpoint-4"
    folder.mkdir()
    train(outside, step, 1, [0.5] * 4)
    announced = outside.post("/v1/checkpoints", {"attempt": 0, "step": 4, "path": str(folder)})
    assert announced.json()["verdict"]["waiting"] == 1
    verdict = report(outside, step=4, outcomes=outcomes(0.6, 4)).json()["verdict"]
    assert (verdict["announced"], verdict["evaluated"], verdict["waiting"]) == (1, 1, 0)
    assert verdict["last_evaluation"]["path"] == str(folder)


def test_the_trainer_may_announce_after_its_checkpoint_was_evaluated(outside: Any, step: Any) -> None:
    folder = outside.directory / "checkpoints" / "checkpoint-4"
    folder.mkdir()
    train(outside, step, 1, [0.5] * 4)
    assert report(outside, step=4, outcomes=outcomes(0.6, 4)).is_success
    late = outside.post("/v1/checkpoints", {"attempt": 0, "step": 4, "path": str(folder)})
    assert late.is_success and not late.json()["queued"]
    assert late.json()["verdict"]["announced"] == 1


def test_a_grader_that_pays_what_is_wrong_disagrees(outside: Any, step: Callable[..., Any]) -> None:
    for n in range(0, 48, 4):
        train(outside, step, n + 1, [0.5] * 4)
        right = outcomes(0.6, n)
        paid = right if n < 24 else dict.fromkeys(ITEMS, 1.0)
        verdict = report(outside, step=n, outcomes=right, grader_outcomes=paid).json()["verdict"]
    assert verdict["fire"] and verdict["code"] == "graders_disagree"


@pytest.mark.parametrize(
    "body",
    [
        {"step": 0},
        {"step": 0, "mean": 0.5},
        {"step": 0, "mean": 0.5, "standard_error": 0.0},
        {"step": 0, "mean": 0.5, "standard_error": 0.03, "pass_index": 1},
        {"step": 0, "mean": 0.5, "standard_error": 0.03, "outcomes": {"a": 1.0}},
        {"step": 0, "outcomes": {}},
        {"step": 0, "outcomes": {"a": 1.5}},
        {"step": 0, "outcomes": {"a": None}},
        {"step": 0, "outcomes": {"a": 1.0}, "grader_outcomes": {"b": 1.0}},
        {"step": 0, "outcomes": {str(i): 1.0 for i in range(10_001)}},
        {"step": -1, "outcomes": {"a": 1.0}},
    ],
)
def test_what_is_no_evaluation_is_refused_and_nothing_is_kept(outside: Any, body: dict[str, Any]) -> None:
    refused = report(outside, **body)
    assert refused.status_code == 422, refused.text
    assert outside.get("/v1/verdict").json()["announced"] == 0


def test_no_trainer_and_no_reader_may_report_outcomes(outside: Any, guard: Any) -> None:
    body = json.dumps({"step": 0, "outcomes": {"a": 1.0}})
    headers = {"Content-Type": "application/json"}
    for token, status in (("ingest-token-0123456789", 403), ("read-token-0123456789", 403), (None, 401)):
        with outside.client(token) as client:
            assert client.post("/v1/evaluations", content=body, headers=headers).status_code == status
    with guard.client(EVALUATIONS) as client:
        assert client.post("/v1/evaluations", content=body, headers=headers).status_code == 403
