"""The reporter and its client under faults: order, retries, refusals, the bounded queue, the connection."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guard_client.client import GuardClient, VerdictView
from guard_client.errors import GuardConfigError, GuardUnavailableError, ReportRefusedError
from guard_client.reporter import Reporter
from guard_core.codes import Code, Level
from guard_core.wire import CheckpointReport, EndReport, FailureKind, KlKind, PostedStep, Verdict
from tests.trainer.faulty_guard import FIRED, HEALTHY, FaultyGuard, eventually, problem, reply


def sample(step: int) -> PostedStep:
    return PostedStep(attempt=0, step=step, reward=0.5, kl=0.01, kl_kind=KlKind.REF_TOKEN_MEAN)


pytestmark = pytest.mark.usefixtures("fast")


@pytest.fixture
def make(guard: FaultyGuard) -> Iterator[Any]:
    made: list[Reporter] = []

    def build(**options: Any) -> Reporter:
        settings = {"attempt": None, "unreachable_seconds": 60.0} | options
        made.append(Reporter(GuardClient(guard.url, "secret", timeout=2.0), **settings))
        return made[-1]

    yield build
    for reporter in made:
        reporter.close(0.0)


def saved(directory: Path, step: int) -> CheckpointReport:
    """A checkpoint that is on disk."""
    path = directory / f"checkpoint-{step}"
    path.mkdir()
    return CheckpointReport(attempt=0, step=step, path=str(path))


def steps_of(guard: FaultyGuard) -> list[int]:
    return [report.step for report in guard.steps]


def test_reports_arrive_in_order_with_the_checkpoint_between_its_steps(
    make: Any, guard: FaultyGuard, tmp_path: Path
) -> None:
    order: list[str] = []
    guard.fault = lambda handler, body: order.append(handler.path) if body else None
    reporter = make()
    for step in (1, 2):
        reporter.submit(sample(step))
    reporter.submit(saved(tmp_path, 2))
    reporter.submit(sample(3))
    reporter.connect(0.0)
    delivery = reporter.close(5.0)
    assert order == ["/v1/steps", "/v1/checkpoints", "/v1/steps"]
    assert steps_of(guard) == [1, 2, 3] and [c.step for c in guard.checkpoints] == [2]
    assert delivery.complete and (delivery.steps, delivery.checkpoints) == (3, 1)


def test_the_token_is_sent_and_one_connection_is_kept(make: Any, guard: FaultyGuard) -> None:
    reporter = make()
    reporter.connect(1.0)
    for step in range(1, 51):
        reporter.submit(sample(step))
        eventually(lambda step=step: len(guard.steps) >= step)
    assert guard.connections == 1
    assert {headers["Authorization"] for headers in guard.headers} == {"Bearer secret"}


def seen(verdict: Verdict) -> VerdictView:
    """What a trainer reads of a guard's verdict."""
    return VerdictView.model_validate_json(verdict.model_dump_json())


def test_a_connection_that_the_guard_closed_is_replaced_without_a_failure(guard: FaultyGuard) -> None:
    client = GuardClient(guard.url)

    def answer_and_hang_up(handler: Any, _: Any) -> bool:
        handler.close_connection = True  # without saying so in a header, as a server that times out
        return reply(handler, 200, HEALTHY.model_dump_json())

    guard.fault = answer_and_hang_up
    assert [client.verdict() for _ in range(3)] == [seen(HEALTHY)] * 3
    assert guard.connections == 3


@pytest.mark.parametrize("status", [429, 503, 507])
def test_a_guard_that_keeps_no_report_still_tells_of_a_fire(
    make: Any, guard: FaultyGuard, status: int
) -> None:
    """As one whose disk is full: what it has latched is in force."""
    full = problem(status, "full")
    guard.fault = lambda handler, body: handler.path == "/v1/steps" and full(handler, body)
    reporter = make()
    reporter.connect(0.0)
    reporter.submit(sample(1))
    eventually(lambda: reporter.state.failure)
    assert reporter.state.stop is None
    guard.verdict_after = lambda _: FIRED
    eventually(lambda: reporter.state.stop is not None)
    assert reporter.state.stop.fire and steps_of(guard) == []


@pytest.mark.parametrize("status", [500, 502, 503, 429, 404])
def test_a_failing_guard_is_tried_again(make: Any, guard: FaultyGuard, status: int) -> None:
    fails = itertools.count()
    guard.fault = lambda handler, body: (
        bool(body) and next(fails) < 3 and problem(status, "later")(handler, body)
    )
    reporter = make()
    reporter.connect(0.0)
    reporter.submit(sample(1))
    assert reporter.close(5.0).complete
    assert steps_of(guard) == [1]


def test_a_bad_step_does_not_take_the_others_with_it(make: Any, guard: FaultyGuard) -> None:
    def refuse_3(handler: Any, body: Any) -> bool:
        bad = isinstance(body, list) and any(report["step"] == 3 for report in body)
        return bad and problem(409, "step 3 has other values")(handler, body)

    guard.fault = refuse_3
    reporter = make()
    for step in range(1, 6):
        reporter.submit(sample(step))
    reporter.connect(0.0)
    delivery = reporter.close(5.0)
    assert steps_of(guard) == [1, 2, 4, 5]
    assert (delivery.steps, delivery.refused, delivery.complete) == (4, 1, False)


def test_a_full_queue_drops_the_oldest_and_counts_them(make: Any, guard: FaultyGuard, caplog: Any) -> None:
    reporter = make(queue_limit=3)
    for step in range(1, 9):
        reporter.submit(sample(step))
    assert "1 reports dropped" in caplog.text and "4 reports dropped" in caplog.text
    reporter.connect(0.0)
    delivery = reporter.close(5.0)
    assert steps_of(guard) == [6, 7, 8]
    assert delivery.dropped == 5 and not delivery.complete


def test_what_the_guard_takes_of_one_kind_says_nothing_about_another(
    make: Any, guard: FaultyGuard, tmp_path: Path
) -> None:
    guard.fault = lambda handler, body: isinstance(body, dict) and problem(422, "outside")(handler, body)
    reporter = make()
    for step in (1, 2, 3):
        reporter.submit(saved(tmp_path, step))
        reporter.submit(sample(step))
    reporter.connect(0.0)
    eventually(lambda: steps_of(guard) == [1, 2, 3])
    eventually(lambda: reporter.state.queued == 0)
    assert reporter.state.lost is not None and "every checkpoint, 3 in a row: " in reporter.state.lost
    guard.fault = None
    reporter.submit(saved(tmp_path, 4))
    eventually(lambda: reporter.state.lost is None)


def test_checkpoints_that_were_rotated_away_are_not_sent_and_are_no_refusals(
    make: Any, guard: FaultyGuard, tmp_path: Path, caplog: Any
) -> None:
    reporter = make()
    for step in range(1, 5):
        path = str(tmp_path / f"checkpoint-{step}")
        reporter.submit(CheckpointReport(attempt=0, step=step, path=path))
    reporter.submit(saved(tmp_path, 5))
    reporter.submit(EndReport(attempt=0, step=5, began=0))
    reporter.connect(0.0)
    delivery = reporter.close(5.0)
    assert [c.step for c in guard.checkpoints] == [5]
    assert (delivery.gone, delivery.refused, delivery.complete, reporter.state.unscored) == (4, 0, False, 0)
    assert reporter.state.lost is None
    assert caplog.text.count("was deleted before it could be sent") == 1
    assert [end.gone for end in guard.ends] == [4]


def test_a_checkpoint_that_the_full_queue_dropped_is_missed_at_the_end(
    make: Any, guard: FaultyGuard, tmp_path: Path
) -> None:
    reporter = make(queue_limit=1)
    reporter.submit(saved(tmp_path, 1))
    reporter.submit(sample(1))
    reporter.connect(0.0)
    reporter.close(5.0)
    assert steps_of(guard) == [1] and guard.checkpoints == []
    assert reporter.state.lost is not None and "1 checkpoints never reached" in reporter.state.lost


def test_a_long_queue_goes_in_lists_of_a_thousand(make: Any, guard: FaultyGuard) -> None:
    sizes: list[int] = []
    guard.fault = lambda _, body: sizes.append(len(body)) if body else None
    reporter = make()
    for step in range(2500):
        reporter.submit(sample(step))
    reporter.connect(0.0)
    reporter.close(10.0)
    assert sizes == [1000, 1000, 500] and steps_of(guard) == list(range(2500))


def test_an_unreachable_guard_is_said_so_after_the_limit_and_taken_back(
    make: Any, guard: FaultyGuard
) -> None:
    down = threading.Event()
    down.set()
    guard.fault = lambda handler, _: down.is_set() and reply(handler, 503, "starting")
    reporter = make(unreachable_seconds=0.1)
    reporter.connect(0.0)
    reporter.submit(sample(1))
    assert reporter.state.lost is None
    eventually(lambda: reporter.state.lost is not None)
    assert "503: starting" in reporter.state.lost
    down.clear()
    eventually(lambda: reporter.state.lost is None)
    eventually(lambda: steps_of(guard) == [1])


def test_an_idle_reporter_hears_of_a_fire(make: Any, guard: FaultyGuard) -> None:
    reporter = make()
    reporter.connect(0.0)
    eventually(lambda: reporter.state.verdict is not None)
    assert reporter.state.stop is None
    guard.verdict_after = lambda _: FIRED
    eventually(lambda: reporter.state.stop is not None)
    guard.verdict_after = lambda _: HEALTHY
    eventually(lambda: reporter.state.verdict == seen(HEALTHY))
    assert reporter.state.stop == seen(FIRED), "a latch never opens"


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (FailureKind.TOKENIZER, "the tokenizer was refused"),
        (None, "the guard's log says why"),
    ],
)
def test_a_failed_evaluation_is_in_the_log_once_with_its_kind(
    make: Any, guard: FaultyGuard, caplog: Any, failure: FailureKind | None, words: str
) -> None:
    guard.verdict_after = lambda _: HEALTHY.model_copy(update={"failed": 2, "failure": failure})
    reporter = make()
    reporter.connect(0.0)
    reporter.submit(sample(1))
    eventually(lambda: steps_of(guard) == [1])
    reporter.submit(sample(2))
    reporter.close(5.0)
    told = [r.getMessage() for r in caplog.records if "could not score" in r.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("the guard could not score a checkpoint (2 so far): " + words)


def test_close_gives_up_in_time(make: Any, guard: FaultyGuard) -> None:
    guard.fault = lambda handler, _: reply(handler, 503, "")
    reporter = make()
    reporter.connect(0.0)
    for step in range(3):
        reporter.submit(sample(step))
    assert reporter.close(0.2).undelivered == 3


def test_a_bug_in_the_reporter_does_not_leave_the_run_unguarded(make: Any, monkeypatch: Any) -> None:
    reporter = make()
    monkeypatch.setattr(reporter, "_exchange", lambda: 1 / 0)
    reporter.connect(0.0)
    eventually(lambda: reporter.state.lost is not None)
    assert "ZeroDivisionError" in reporter.state.lost


def test_connect_waits_for_a_guard_that_is_starting(make: Any, guard: FaultyGuard) -> None:
    fails = itertools.count()
    guard.fault = lambda handler, _: next(fails) < 3 and reply(handler, 503, "")
    reporter = make()
    reporter.connect(5.0)
    assert (
        reporter.state.verdict == seen(HEALTHY) and reporter.attempt == 0 and reporter.state.failure is None
    )


def test_the_attempt_is_not_guessed_while_the_guard_has_no_store(make: Any, guard: FaultyGuard) -> None:
    blind = HEALTHY.model_copy(update={"level": Level.UNKNOWN, "code": Code.STORE_UNAVAILABLE})
    known = HEALTHY.model_copy(update={"attempt": 3, "step": 9})
    asked = itertools.count()
    guard.verdict_after = lambda _: blind if next(asked) < 2 else known
    reporter = make()
    reporter.connect(5.0)
    assert reporter.attempt == 4


# -- the client ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_a_refusal_says_which_field(guard: FaultyGuard, status: int) -> None:
    body = (
        f'{{"type":"about:blank","title":"Unprocessable","status":{status},"detail":"wrong report",'
        '"errors":[{"field":"kl","message":"must be >= 0"}]}'
    )
    guard.fault = lambda handler, _: reply(handler, status, body)
    with pytest.raises(ReportRefusedError, match=rf"{status}: wrong report \(kl: must be >= 0\)"):
        GuardClient(guard.url).verdict()


@pytest.mark.parametrize("body", ["", "<html>", "{}", '{"level":"healthy"}', "[]", "null"])
def test_an_answer_that_is_no_verdict_is_a_failure_and_not_healthy(guard: FaultyGuard, body: str) -> None:
    guard.fault = lambda handler, _: reply(handler, 200, body)
    with pytest.raises(GuardUnavailableError, match="not a guard that this trainer understands"):
        GuardClient(guard.url).verdict()


def test_a_newer_guard_that_says_more_is_still_understood(guard: FaultyGuard) -> None:
    body = (
        '{"level":"fired","code":"a_rule_of_tomorrow","reason":"r","fire":true,"halt":false,"stop":true,'
        '"novelty":{"a":1}}'
    )
    guard.fault = lambda handler, _: reply(handler, 200, body)
    verdict = GuardClient(guard.url).verdict()
    assert (verdict.fire, verdict.stop, verdict.code) == (True, True, "a_rule_of_tomorrow")


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_token_is_told_apart(guard: FaultyGuard, status: int) -> None:
    guard.fault = problem(status, "wrong token")
    with pytest.raises(GuardUnavailableError, match="RLGUARD_TOKEN") as error:
        GuardClient(guard.url).verdict()
    assert error.value.unauthorised


def test_a_path_in_the_url_is_kept(guard: FaultyGuard) -> None:
    GuardClient(guard.url + "/run-7/").verdict()
    assert guard.requests == [("GET", "/run-7/v1/verdict")]


@pytest.mark.parametrize("url", ["", "localhost:8470", "ftp://host", "http://", "http://host:port"])
def test_a_wrong_url_is_an_error_at_once(url: str) -> None:
    with pytest.raises(GuardConfigError, match="RLGUARD_URL"):
        GuardClient(url)
