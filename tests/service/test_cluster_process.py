"""The guard process with cluster settings, and the rounds that go with a fire."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import certifi

from guard_core.checkpoint_key import CheckpointKey
from guard_core.judge import Evaluation, Judge
from guard_core.policy import Policy
from guard_core.wire import StepReport
from guard_service.store import EventLog

CLUSTER = {"CLUSTER__NAMESPACE": "team", "CLUSTER__NAME": "run", "CLUSTER__UID": "uid-1"}


def test_outside_of_a_cluster_the_start_is_refused_in_one_sentence(new_guard: Callable[..., Any]) -> None:
    guard = new_guard(**CLUSTER)
    guard.before = "os.environ.pop('KUBERNETES_SERVICE_HOST', None)"
    guard.launch()
    assert guard.wait() == 2
    assert "CLUSTER__URL" in guard.log and "Traceback" not in guard.log


def test_a_guard_beside_rank_0_neither_asks_nor_reports(new_guard: Callable[..., Any]) -> None:
    """It works although no API server is there to ask."""
    guard = new_guard(**CLUSTER, CLUSTER__REPLICA_INDEX="3", CLUSTER__URL="https://127.0.0.1:1").start()
    assert guard.get("/v1/verdict").json()["code"] == "no_steps"
    assert guard.end() == 0
    assert "127.0.0.1:1 " not in guard.log


def test_a_guard_beside_another_rank_scores_nothing(new_guard: Callable[..., Any], tmp_path: Path) -> None:
    """Nobody reads its verdict, so it would be asked about the split for ever. It does not even read it."""
    guard = new_guard(
        **CLUSTER,
        CLUSTER__REPLICA_INDEX="3",
        CLUSTER__URL="https://127.0.0.1:1",
        HELDOUT__SPLIT=str(tmp_path / "not-there.jsonl"),
    ).start()
    (guard.directory / "checkpoints" / "checkpoint-5").mkdir()
    refused = guard.post("/v1/checkpoints", {"attempt": 0, "step": 5, "path": "checkpoint-5"})
    assert refused.status_code == 422
    assert "the pod of replica 3" in refused.text and "announce them on rank 0" in refused.text
    assert guard.get("/readyz").status_code == 200
    assert guard.end() == 0
    assert "the pod of replica 3" in guard.log and "no held-out evaluation is configured" not in guard.log


def test_without_the_api_server_it_is_healthy_as_a_process_and_not_ready(
    new_guard: Callable[..., Any], step: Callable[..., dict[str, Any]]
) -> None:
    settings = {**CLUSTER, "CLUSTER__URL": "https://127.0.0.1:1", "CLUSTER__CA_FILE": certifi.where()}
    guard = new_guard(**settings)
    guard.settings["CLUSTER__TOKEN_FILE"] = str(guard.directory / "token")
    (guard.directory / "token").write_text("token-that-is-never-told")
    guard.start()
    assert guard.get("/healthz").status_code == 200
    ready = guard.get("/readyz")
    assert ready.status_code == 503 and "cannot be read" in ready.json()["detail"]
    assert guard.post("/v1/steps", step(1)).status_code == 503
    assert guard.get("/v1/verdict").json()["level"] == "unknown"
    assert guard.end() == 0
    assert "token-that-is-never-told" not in guard.log and "Traceback" not in guard.log


def test_rounds_are_the_ones_that_the_judge_folded(tmp_path: Path) -> None:
    store = EventLog(tmp_path, Policy())
    kls: list[float | None] = [0.01, 0.03, None, 0.2, 0.02, 0.04]
    steps = [
        StepReport(attempt=0, step=n, reward=float(n), kl=kl, kl_kind="absent" if kl is None else kind)
        for n, (kl, kind) in enumerate(
            zip(kls, ["ref_token_mean"] * 3 + ["behaviour"] + ["ref_token_mean"] * 2, strict=True)
        )
    ]
    steps.append(StepReport(attempt=1, step=3, reward=7.0))
    store.append(steps)
    judge = Judge(Policy(detector="heldout_guard"))
    for step in steps:
        judge.fold_step(step)
    for attempt, step, index, items in (
        (0, 2, 0, (1.0, 0.0)),
        (0, 2, 1, (0.0, 0.0)),  # a further pass is no round
        (0, 5, 0, (1.0, 1.0)),
        (1, 2, 0, (0.0, 0.0)),  # no step before it: no round
        (1, 3, 0, (0.0, 1.0)),
    ):
        evaluation = Evaluation(attempt, step, "/c", items, None, index)
        judge.fold_evaluation(evaluation)
        store.append([evaluation], judge.newest_round)
    rounds = store.kept_rounds(None)
    assert rounds == [
        {"attempt": 0, "step": 2, "heldout": 0.5, "reward": 1.0, "kl": 0.02},
        {"attempt": 0, "step": 5, "heldout": 1.0, "reward": 4.0, "kl": 0.03},
        {"attempt": 1, "step": 3, "heldout": 0.5, "reward": 7.0},
    ]
    store.close()


def test_of_many_rounds_the_store_hands_out_the_start_the_best_and_the_newest(tmp_path: Path) -> None:
    store = EventLog(tmp_path, Policy())
    for step in range(1, 101):
        report = StepReport(attempt=0, step=step, reward=step / 100)
        store.append([report])
        judge = Judge(Policy(detector="heldout_guard"))  # a new one has nothing to stop for
        judge.fold_step(report)
        evaluation = Evaluation(0, step, "/c", (float(step == 40),), None, 0)
        judge.fold_evaluation(evaluation)
        store.append([evaluation], judge.newest_round)
    rounds = store.kept_rounds(CheckpointKey(0, 40))
    steps = [one["step"] for one in rounds]
    assert steps[0] == 1 and 40 in steps and steps[-25:] == [*range(76, 101)] and len(steps) <= 50
    assert [one["reward"] for one in rounds] == [step / 100 for step in steps]
    assert {one["step"] for one in rounds if one["heldout"] == 1.0} == {40}
    store.close()
