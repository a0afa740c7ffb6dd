"""What of a step is for people: its further figures and a few rollouts. No step is refused for them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from guard_service.app import MAX_BODY_BYTES
from rlguard.client.guard import Guard
from rlguard.client.rollouts import BEST, Candidate, selected, shortened, shown_text
from rlguard.client.settings import ClientSettings
from rlguard.core.wire import MAX_FIGURE_NAME, MAX_FIGURES, MAX_ROLLOUT_TEXT, MAX_ROLLOUTS
from tests.trainer.faulty_guard import FaultyGuard

UNFIT = {"a": "1", "b": True, "c": 1e101, 7: 1.0, "": 1.0, "x" * (MAX_FIGURE_NAME + 1): 1.0}
FIGURES = {"rewards/format/mean": 0.5, "completions/mean_length": 12.0}


def rewards(*values: Any) -> list[Candidate]:
    return [Candidate("p", f"c{i}", value) for i, value in enumerate(values)]


class TestSelection:
    def test_the_best_rewarded_and_one_of_the_others(self) -> None:
        found = selected(rewards(0.1, 0.9, 0.3, 0.8, 0.2, 0.7), step=3)
        assert [one.reward for one in found[:BEST]] == [0.9, 0.8, 0.7]
        assert len(found) == MAX_ROLLOUTS and found[-1].reward in (0.1, 0.2, 0.3)

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


def test_they_travel_with_their_step(guard: FaultyGuard) -> None:
    with Guard(guard.url) as run:
        run.step(1, reward=0.5, figures=FIGURES | {"unknown": None, "nan": math.nan})
        run.step(2, reward=0.5, rollouts=[("p", f"c{i}", i / 10) for i in range(10)])
        run.step(3, reward=0.5, figures=UNFIT | {f"n{i}": i for i in range(MAX_FIGURES + 1)})
    fit = {f"n{i}": float(i) for i in range(MAX_FIGURES)}
    assert [step.figures for step in guard.steps] == [FIGURES, None, fit]
    (shown,) = guard.rollouts
    assert shown.step == 2 and [one.reward for one in shown.rollouts or ()][:BEST] == [0.9, 0.8, 0.7]


def test_a_request_is_never_larger_than_a_guard_takes(guard: FaultyGuard) -> None:
    sizes: list[int] = []
    guard.fault = lambda handler, _: bool(sizes.append(int(handler.headers.get("Content-Length", 0))))
    texts = [("\u1234" * 5_000, f"\u1234{i}" * 2_000, 1.0) for i in range(8)]
    names = {"\u1234" * 98 + f"{i:02}": 1.0 for i in range(MAX_FIGURES)}
    with Guard(guard.url) as run:
        for step in range(40):
            run.step(step, reward=0.5, figures=names, rollouts=texts)
    assert len(guard.steps) == len(guard.rollouts) == 40
    assert max(sizes) < MAX_BODY_BYTES


def test_one_setting_keeps_the_rollouts_in_the_trainer(guard: FaultyGuard) -> None:
    off = ClientSettings.from_env({"RLGUARD_URL": guard.url, "RLGUARD_ROLLOUTS": "0"})
    for run in (Guard(guard.url, rollouts=False), Guard.of(off)):
        with run:
            run.step(3, reward=0.5, rollouts=[("p", "c", 1.0)])
    assert len(guard.steps) == 2 and guard.rollouts == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"figures": 7},
        {"rollouts": [("p",)]},
    ],
)
def test_wrong_ones_are_one_warning_and_cost_no_step(
    guard: FaultyGuard, caplog: pytest.LogCaptureFixture, wrong: Any
) -> None:
    with Guard(guard.url) as run:
        for step in range(1, 5):
            run.step(step, reward=0.5, **wrong)
        assert run.halted is None
    assert len(guard.steps) == 4 and guard.rollouts == []
    assert caplog.text.count("cannot be shown") == 1
