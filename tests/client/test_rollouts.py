"""Which rollouts of a step are sent, how long they are, and that nothing waits or stops for them."""

from __future__ import annotations

import logging
import math
import threading
from typing import Any

import pytest

from guard_client.client import GuardClient
from guard_client.errors import GuardConfigError
from guard_client.guard import Guard
from guard_client.reporter import ROLLOUTS_LIMIT, Reporter
from guard_client.rollouts import BEST, Candidate, RolloutsSample, selected, shortened, shown_text
from guard_client.samples import StepSample
from guard_client.settings import ClientSettings
from guard_core.wire import MAX_ROLLOUT_TEXT, MAX_ROLLOUTS, Rollout
from tests.trainer.faulty_guard import FaultyGuard, eventually, problem, reply

pytestmark = pytest.mark.usefixtures("fast")


def rewards(*values: Any) -> list[Candidate]:
    return [Candidate("p", f"c{i}", value) for i, value in enumerate(values)]


class TestSelection:
    def test_the_best_rewarded_and_one_of_the_others(self) -> None:
        found = selected(rewards(0.1, 0.9, 0.3, 0.8, 0.2, 0.7), step=3)
        assert [one.reward for one in found[:BEST]] == [0.9, 0.8, 0.7]
        assert len(found) == MAX_ROLLOUTS and found[-1].reward in (0.1, 0.2, 0.3)

    def test_the_same_step_gives_the_same_ones_and_another_step_others(self) -> None:
        many = rewards(*range(100))
        assert selected(many, 7) == selected(many, 7)
        assert len({selected(many, step)[-1].reward for step in range(20)}) > 5

    def test_fewer_than_are_kept_are_all_sent(self) -> None:
        assert [one.reward for one in selected(rewards(1, 2), 1)] == [2, 1]
        assert selected([], 1) == ()

    def test_of_equal_rewards_those_on_different_prompts_come_first(self) -> None:
        group = [Candidate(f"p{i // 4}", f"c{i}", 1.0) for i in range(12)]
        found = selected([Candidate("p9", "best", 2.0), *group], 1)
        assert [one.completion for one in found[:BEST]] == ["best", "c0", "c4"]

    def test_what_has_no_finite_reward_is_left_out(self) -> None:
        found = selected(rewards(math.nan, math.inf, None, "1", True, 1e101, 0.5), 1)
        assert [one.completion for one in found] == ["c6"]

    def test_a_policy_that_always_writes_the_same_is_shown_once(self) -> None:
        same = [Candidate("p", "always this", 1.0)] * 50
        assert len(selected(same, 1)) == 1


class TestTexts:
    def test_a_long_one_keeps_both_ends_and_says_how_much_is_gone(self) -> None:
        short = shortened("a" * 5_000 + "b" * 5_000)
        assert MAX_ROLLOUT_TEXT - 60 < len(short) <= MAX_ROLLOUT_TEXT
        assert short.startswith("aaa") and short.endswith("bbb") and "8,060 characters left out" in short
        assert len(shortened("x" * 10**7)) <= MAX_ROLLOUT_TEXT
        assert shortened("x" * MAX_ROLLOUT_TEXT) == "x" * MAX_ROLLOUT_TEXT

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("plain", "plain"),
            ([{"role": "assistant", "content": "an answer"}], "an answer"),
            (
                [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "2+2?"}],
                "system: Be kind.\nuser: 2+2?",
            ),
            (
                [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}],
                "user: What?",
            ),
            ([{"role": "assistant", "content": None}], ""),
            ("broken \ud800", "broken ?"),
            (7, "7"),
        ],
    )
    def test_a_conversation_is_read_as_one(self, value: Any, text: str) -> None:
        assert shown_text(value) == text


def sample(step: int) -> RolloutsSample:
    return RolloutsSample(step, (Rollout(prompt="p", completion="c", reward=1.0),))


def reporter_of(guard: FaultyGuard, **options: Any) -> Reporter:
    return Reporter(GuardClient(guard.url, "t", timeout=2.0), attempt=0, unreachable_seconds=60.0, **options)


def test_they_are_sent_after_the_steps_that_wait(guard: FaultyGuard) -> None:
    order: list[str] = []
    guard.fault = lambda handler, body: order.append(handler.path) if body else None
    reporter = reporter_of(guard)
    reporter.submit_rollouts(sample(1))
    reporter.submit(StepSample(1, 0.5))
    reporter.start()
    assert reporter.close(5.0).complete
    assert order == ["/v1/steps", "/v1/rollouts"]
    assert [report.step for report in guard.rollouts] == [1]


def test_too_many_drop_the_oldest_of_them_and_never_a_step(guard: FaultyGuard) -> None:
    reporter = reporter_of(guard, queue_limit=4)
    for step in range(1, 5):
        reporter.submit(StepSample(step, 0.5))
    for step in range(1, 101):
        reporter.submit_rollouts(sample(step))
    reporter.start()
    delivery = reporter.close(5.0)
    assert delivery.complete and [report.step for report in guard.steps] == [1, 2, 3, 4]
    assert [report.step for report in guard.rollouts] == list(range(101 - ROLLOUTS_LIMIT, 101))


@pytest.mark.parametrize("status", [400, 401, 404, 422, 500, 503, 507])
def test_rollouts_that_are_not_taken_change_nothing_else(
    guard: FaultyGuard, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    no = problem(status, "no")
    guard.fault = lambda handler, body: handler.path == "/v1/rollouts" and no(handler, body)
    reporter = reporter_of(guard)
    for step in range(1, 6):
        reporter.submit_rollouts(sample(step))
    reporter.submit(StepSample(1, 0.5))
    reporter.start()
    assert reporter.close(5.0).complete
    assert reporter.refusing is None and reporter.unreachable is None and reporter.last_failure is None
    assert caplog.text.count("are not shown") == 1 and "trying again" not in caplog.text


def test_a_guard_that_hangs_over_them_holds_up_no_loop(guard: FaultyGuard) -> None:
    leave = threading.Event()

    def hang(handler: Any, body: Any) -> bool:
        return handler.path == "/v1/rollouts" and (leave.wait(10), reply(handler, 500, ""))[1]

    guard.fault = hang
    try:
        with Guard(guard.url, attempt=0) as watching:
            watching.rollouts(1, [("p", "c", 1.0)])
            eventually(lambda: ("POST", "/v1/rollouts") in guard.requests)
            for step in range(1, 50):
                watching.step(step, reward=0.5)
                watching.rollouts(step, [("p", "c", 1.0)])
            leave.set()
            eventually(lambda: len(guard.steps) == 49)
            assert watching.halted is None
    finally:
        leave.set()


def test_a_loop_gives_all_and_a_few_are_sent(guard: FaultyGuard) -> None:
    with Guard(guard.url, attempt=0) as watching:
        watching.rollouts(3, [("p", f"c{i}", i / 10) for i in range(10)])
    (report,) = guard.rollouts
    assert (report.attempt, report.step) == (0, 3)
    assert [one.reward for one in report.rollouts[:BEST]] == [0.9, 0.8, 0.7]


def test_one_setting_switches_them_off(guard: FaultyGuard) -> None:
    with Guard(guard.url, attempt=0, rollouts=False) as watching:
        watching.rollouts(3, [("p", "c", 1.0)])
    settings = ClientSettings.from_env({"RLGUARD_URL": guard.url, "RLGUARD_ROLLOUTS": "0"})
    with Guard.of(settings) as watching:
        watching.rollouts(3, [("p", "c", 1.0)])
    assert guard.rollouts == []
    with pytest.raises(GuardConfigError, match="RLGUARD_ROLLOUTS must be 1 or 0, got 'no'"):
        ClientSettings.from_env({"RLGUARD_URL": guard.url, "RLGUARD_ROLLOUTS": "no"})


@pytest.mark.parametrize(
    ("step", "wrong"), [(-1, [("p", "c", 1.0)]), ("1", [("p", "c", 1.0)]), (1, [("p",)]), (1, 7), (2**60, [])]
)
def test_a_wrong_call_is_said_once_and_stops_nothing(
    guard: FaultyGuard, caplog: pytest.LogCaptureFixture, step: Any, wrong: Any
) -> None:
    with Guard(guard.url, attempt=0) as watching:
        for _ in range(5):
            watching.rollouts(step, wrong)
        assert watching.halted is None
    assert guard.rollouts == []
    assert caplog.text.count("cannot be shown") == 1
