"""What becomes of reports under faults: retries, refusals, the bounded queue, the connection."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

from rlguard.client.client import GuardClient
from rlguard.client.errors import GuardUnavailableError, ReportRefusedError
from rlguard.client.guard import Guard
from rlguard.client.reporter import Reporter
from rlguard.core.codes import Code, Level
from rlguard.core.wire import CheckpointReport, FailureKind, PostedStep
from tests.trainer.faulty_guard import FIRED, HEALTHY, FaultyGuard, eventually, problem, reply
from tests.trainer.real_guard import INGEST, LOOSE_KL, RealGuard


def steps_of(guard: FaultyGuard) -> list[int]:
    return [report.step for report in guard.steps]


def checkpoint(folder: Path, step: int) -> Path:
    """A checkpoint that is on disk."""
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    return path


def test_nothing_waits_for_a_guard_that_hangs_and_what_waited_goes_in_lists(
    guard: FaultyGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that hangs for long is sent again, and a real guard knows a repeated step."""
    monkeypatch.setattr("rlguard.client.guard.FLUSH_SECONDS", 600.0)
    release, sizes = threading.Event(), list[int]()

    def hang(_: Any, body: Any) -> bool:
        sizes.extend([len(body)] if isinstance(body, list) else [])
        return body is not None and release.wait(600) and False

    guard.fault = hang
    run = Guard(guard.url, max_lag=None).open()
    for step in range(1, 1201):
        run.step(step, reward=0.5)
    run.checkpoint(tmp_path, step=1200)
    assert guard.steps == [], "the first response has not come, and all steps are done"
    release.set()
    run.close()
    assert list(dict.fromkeys(steps_of(guard))) == list(range(1, 1201)) and guard.checkpoints
    assert max(sizes) <= 1000


@pytest.mark.parametrize("status", [404, 429, 500, 503])
def test_a_failing_guard_is_tried_again(guard: FaultyGuard, status: int) -> None:
    fails = itertools.count()
    guard.fault = lambda handler, body: next(fails) < 5 and problem(status, "later")(handler, body)
    with Guard(guard.url) as run:
        for step in (1, 2, 3):
            run.step(step, reward=0.5)
    assert steps_of(guard) == [1, 2, 3]


def test_a_guard_that_keeps_no_report_still_tells_of_a_fire(guard: FaultyGuard, monkeypatch: Any) -> None:
    """As one whose disk is full: what it has latched is in force."""
    monkeypatch.setattr("rlguard.client.guard.FLUSH_SECONDS", 0.1)
    full = problem(507, "full")
    guard.fault = lambda handler, body: handler.path == "/v1/steps" and full(handler, body)
    with Guard(guard.url) as run:
        run.step(1, reward=0.5)
        guard.verdict_after = lambda _: FIRED
        eventually(lambda: run.halted)
        assert run.halted.status.fire and steps_of(guard) == []


def test_a_bad_step_does_not_take_the_others_with_it(guard: FaultyGuard, caplog: Any) -> None:
    def refuse_3(handler: Any, body: Any) -> bool:
        bad = isinstance(body, list) and any(report["step"] == 3 for report in body)
        return bad and problem(409, "step 3 has other values")(handler, body)

    guard.fault = refuse_3
    with Guard(guard.url) as run:
        for step in range(1, 6):
            run.step(step, reward=0.5)
    assert steps_of(guard) == [1, 2, 4, 5]
    assert "4 steps and 0 checkpoints acknowledged" in caplog.text and "1 refused" in caplog.text


def test_what_the_guard_takes_of_one_kind_says_nothing_about_another(
    guard: FaultyGuard, tmp_path: Path
) -> None:
    """Three refusals of one kind in a row are no accident of one report."""
    guard.fault = lambda handler, body: (
        handler.path == "/v1/checkpoints" and problem(422, "out")(handler, body)
    )
    with Guard(guard.url) as run:
        for step in (1, 2, 3):
            run.checkpoint(checkpoint(tmp_path, step), step=step, wait=False)
            run.step(step, reward=0.5, wait=False)
        eventually(lambda: run.halted)
        assert "the guard refuses every checkpoint, 3 in a row: " in run.halted.reason
    assert steps_of(guard) == [1, 2, 3]


def test_checkpoints_that_were_rotated_away_are_not_sent_and_are_no_refusals(
    guard: FaultyGuard, tmp_path: Path, caplog: Any
) -> None:
    down = threading.Event()
    down.set()
    guard.fault = lambda handler, body: bool(body) and down.is_set() and reply(handler, 503, "starting")
    with Guard(guard.url) as run:
        for step in range(1, 6):
            run.checkpoint(checkpoint(tmp_path, step), step=step, wait=False)
        for step in range(1, 5):
            (tmp_path / f"checkpoint-{step}").rmdir()
        down.clear()
    assert [c.step for c in guard.checkpoints] == [5]
    assert [end.gone for end in guard.ends] == [4]
    assert caplog.text.count("was deleted before it could be sent") == 1


def test_a_full_queue_drops_the_oldest_and_a_checkpoint_among_them_is_missed(
    guard: FaultyGuard, tmp_path: Path, caplog: Any
) -> None:
    reporter = Reporter(GuardClient(guard.url), unreachable_seconds=60.0, queue_limit=3)
    reporter.submit(CheckpointReport(attempt=0, step=1, path=str(tmp_path)))
    for step in range(1, 9):
        reporter.submit(PostedStep(attempt=0, step=step, reward=0.5))
    reporter.connect(0.0)
    delivery = reporter.close(60.0)
    assert "1 reports dropped" in caplog.text and "4 reports dropped" in caplog.text
    assert steps_of(guard) == [6, 7, 8] and guard.checkpoints == []
    assert delivery.dropped == 6 and not delivery.complete
    assert reporter.state.lost is not None and "1 checkpoints never reached" in reporter.state.lost


@pytest.mark.parametrize(
    ("failure", "words"),
    [(FailureKind.TOKENIZER, "the tokenizer was refused"), (None, "the guard's log says why")],
)
def test_a_failed_evaluation_is_in_the_log_once_with_its_kind(
    guard: FaultyGuard, caplog: Any, failure: FailureKind | None, words: str
) -> None:
    guard.verdict_after = lambda _: HEALTHY.model_copy(update={"failed": 2, "failure": failure})
    with Guard(guard.url) as run:
        run.step(1, reward=0.5)
    assert caplog.text.count("could not score a checkpoint") == 1
    assert f"could not score a checkpoint (2 so far): {words}" in caplog.text


def test_the_attempt_is_not_guessed_while_the_guard_has_no_store(guard: FaultyGuard) -> None:
    blind = HEALTHY.model_copy(update={"level": Level.UNKNOWN, "code": Code.STORE_UNAVAILABLE})
    known = HEALTHY.model_copy(update={"attempt": 3, "step": 9})
    asked = itertools.count()
    guard.verdict_after = lambda _: blind if next(asked) < 2 else known
    with Guard(guard.url) as run:
        run.step(10, reward=0.5)
    assert [report.attempt for report in guard.steps] == [4]


def test_a_killed_guard_loses_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlguard.client.guard.FLUSH_SECONDS", 600.0)
    real = RealGuard(tmp_path / "guard", tmp_path / "out", LOOSE_KL)
    try:
        with Guard(real.url, INGEST) as run:
            for step in range(1, 301):
                run.step(step, reward=0.5, kl=0.01, kl_kind="ref_token_mean")
                if step == 150:
                    eventually(lambda: real.verdict()["steps"] > 0)
                    real.kill()
            real.start()
        assert [line["step"] for line in real.history() if "reward" in line] == list(range(1, 301))
    finally:
        real.close()


# -- one exchange ------------------------------------------------------------------------------------------


def test_a_connection_that_the_guard_closed_is_replaced_without_a_failure(guard: FaultyGuard) -> None:
    client = GuardClient(guard.url)

    def answer_and_hang_up(handler: Any, _: Any) -> bool:
        handler.close_connection = True  # without saying so in a header, as a server that times out
        return reply(handler, 200, HEALTHY.model_dump_json())

    guard.fault = answer_and_hang_up
    assert [client.verdict().code for _ in range(3)] == ["ok"] * 3
    assert guard.connections == 3


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_a_refusal_says_which_field(guard: FaultyGuard, status: int) -> None:
    body = (
        f'{{"type":"about:blank","title":"Unprocessable","status":{status},"detail":"wrong report",'
        '"errors":[{"field":"kl","message":"must be >= 0"}]}'
    )
    guard.fault = lambda handler, _: reply(handler, status, body)
    with pytest.raises(ReportRefusedError, match=rf"{status}: wrong report \(kl: must be >= 0\)"):
        GuardClient(guard.url).verdict()


@pytest.mark.parametrize("body", ["", "<html>", "{}", '{"level":"healthy"}', "[]", " " * (2 << 20)])
def test_an_answer_that_is_no_verdict_is_a_failure_and_not_healthy(guard: FaultyGuard, body: str) -> None:
    guard.fault = lambda handler, _: reply(handler, 200, body)
    with pytest.raises(
        GuardUnavailableError, match=r"not a guard that this trainer understands|over \d+ bytes"
    ):
        GuardClient(guard.url).verdict()


def test_a_newer_guard_that_says_more_is_still_understood(guard: FaultyGuard) -> None:
    body = (
        '{"level":"fired","code":"a_rule_of_tomorrow","reason":"r","fire":true,"halt":false,"stop":true,'
        '"novelty":{"a":1}}'
    )
    guard.fault = lambda handler, _: reply(handler, 200, body)
    verdict = GuardClient(guard.url + "/run-7/").verdict()
    assert (verdict.fire, verdict.stop, verdict.code) == (True, True, "a_rule_of_tomorrow")
    assert guard.requests == [("GET", "/run-7/v1/verdict")], "a path in the URL is kept"
