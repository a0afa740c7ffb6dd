"""Further figures of a step: which are sent, that no step waits or is refused for them."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from guard_client.client import GuardClient
from guard_client.guard import Guard
from guard_client.reporter import FIGURES_LIMIT, Reporter
from guard_client.samples import StepSample, fit_figures
from guard_core.wire import MAX_FIGURE_NAME, MAX_FIGURES, MAX_FIGURES_PER_POST
from tests.trainer.faulty_guard import FaultyGuard, eventually, problem

FIGURES = {"rewards/format/mean": 0.5, "completions/mean_length": 12.0}


pytestmark = pytest.mark.usefixtures("fast")


def reporter_of(guard: FaultyGuard, **options: Any) -> Reporter:
    return Reporter(GuardClient(guard.url, "t"), attempt=0, unreachable_seconds=60.0, **options)


def test_they_are_sent_by_themselves_after_the_steps_that_wait(guard: FaultyGuard) -> None:
    order: list[tuple[str, int]] = []
    guard.fault = lambda handler, body: order.append((handler.path, len(body))) if body else None
    reporter = reporter_of(guard)
    for step in range(1, 151):
        reporter.submit(StepSample(step, 0.5, figures=FIGURES))
    reporter.submit(StepSample(151, 0.5))
    reporter.start()
    assert reporter.close(30.0).complete
    rest = 150 - MAX_FIGURES_PER_POST
    assert order == [("/v1/steps", 151), ("/v1/figures", MAX_FIGURES_PER_POST), ("/v1/figures", rest)]
    assert [report.step for report in guard.figures] == list(range(1, 151))
    assert all(report.figures == FIGURES and report.attempt == 0 for report in guard.figures)


def test_too_many_drop_the_oldest_of_them_and_never_a_step(guard: FaultyGuard) -> None:
    reporter = reporter_of(guard)
    for step in range(FIGURES_LIMIT + 100):
        reporter.submit(StepSample(step, 0.5, figures={"a": 1.0}))
    reporter.start()
    assert reporter.close(30.0).complete
    assert len(guard.steps) == FIGURES_LIMIT + 100
    assert [report.step for report in guard.figures] == list(range(100, FIGURES_LIMIT + 100))


@pytest.mark.parametrize("status", [400, 404, 413, 422, 503])
def test_figures_that_are_not_taken_change_nothing_else(
    guard: FaultyGuard, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    no = problem(status, "no")
    guard.fault = lambda handler, body: handler.path == "/v1/figures" and no(handler, body)
    reporter = reporter_of(guard)
    reporter.start()
    for step in range(1, 4):
        reporter.submit(StepSample(step, 0.5, figures=FIGURES))
        eventually(lambda n=step: guard.requests.count(("POST", "/v1/figures")) == n, 30.0)  # type: ignore[misc]
    assert reporter.close(30.0).complete
    assert reporter.refusing is None and reporter.unreachable is None and reporter.last_failure is None
    assert caplog.text.count("are not shown") == 1


def test_a_loop_gives_them_with_its_step(guard: FaultyGuard) -> None:
    with Guard(guard.url, attempt=0) as watching:
        watching.step(1, reward=0.5, figures={**FIGURES, "unknown": None, "nan": math.nan})
        watching.step(2, reward=0.5)
        watching.step(3, reward=0.5, figures={})
    assert [step.step for step in guard.steps] == [1, 2, 3]
    assert [(report.step, report.figures) for report in guard.figures] == [(1, FIGURES)]


@pytest.mark.parametrize(
    ("figures", "fit", "said"),
    [
        ({"a": 1, "b": math.inf, "c": None}, {"a": 1.0}, None),
        ({"a": "1"}, {}, "'a' must be a number up to 1e100, got '1'"),
        ({"a": True}, {}, "'a' must be a number"),
        ({"a": 1e101, "b": 2.0}, {"b": 2.0}, "'a' must be a number up to 1e100"),
        ({7: 1.0}, {}, "a name must have 1 to 100 characters, got 7"),
        ({"": 1.0}, {}, "a name must have 1 to 100 characters, got ''"),
        ({"x" * (MAX_FIGURE_NAME + 1): 1.0}, {}, "a name must have 1 to 100 characters"),
        ({"broken \ud800": 1.0}, {"broken ?": 1.0}, None),
        (
            {f"n{i}": 1.0 for i in range(MAX_FIGURES + 1)},
            {f"n{i}": 1.0 for i in range(MAX_FIGURES)},
            "only 16 of a step are shown, so 'n16' is not",
        ),
    ],
)
def test_what_fits(figures: dict[Any, Any], fit: dict[str, float], said: str | None) -> None:
    found, wrong = fit_figures(figures)
    assert found == fit
    assert wrong is None if said is None else said in (wrong or "")


@pytest.mark.parametrize("figures", [7, ["a"], {"a": object()}])
def test_wrong_ones_are_said_once_and_cost_no_step(
    guard: FaultyGuard, caplog: pytest.LogCaptureFixture, figures: Any
) -> None:
    with Guard(guard.url, attempt=0) as watching:
        for step in range(1, 5):
            watching.step(step, reward=0.5, figures=figures)
        assert watching.halted is None
    assert len(guard.steps) == 4 and guard.figures == []
    assert caplog.text.count("cannot be shown") == 1
