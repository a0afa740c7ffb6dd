"""Metrics: Prometheus reads them, names follow its conventions, and what is not known is absent."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from guard_core.codes import Code, Level

Step = Callable[..., dict[str, Any]]


def families(guard: Any) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(guard.get("/metrics").text)}


def value(guard: Any, name: str) -> float:
    (sample,) = (
        sample
        for family in families(guard).values()
        for sample in family.samples
        if sample.name == f"rlguard_guard_{name}"
    )
    return sample.value


def test_what_is_not_known_is_absent_and_never_0(guard: Any, step: Step) -> None:
    unknown = {
        f"rlguard_guard_{name}"
        for name in (
            "heldout_score",
            "truncated_completions",
            "unanswered_completions",
            "timed_out_completions",
            "proxy_score",
            "best_heldout_score",
            "heldout_ema",
            "in_loop_reward_ema",
            "hacking_gap",
            "kl_ema_nats_per_token",
            "step",
            "attempt",
        )
    }
    assert not unknown & families(guard).keys()
    guard.post("/v1/steps", [step(i, kl=0.02, kl_kind="ref_token_mean") for i in range(1, 7)])
    known = families(guard).keys()
    assert {"rlguard_guard_kl_ema_nats_per_token", "rlguard_guard_step"} <= known
    assert not {"rlguard_guard_heldout_score", "rlguard_guard_hacking_gap"} & known


def test_counts_and_states(guard: Any, step: Step) -> None:
    guard.post("/v1/steps", [step(1), step(2)])
    guard.post("/v1/steps", step(2))
    guard.post("/v1/steps", step(2, reward=9))
    assert value(guard, "steps_total") == 2
    assert value(guard, "duplicate_steps_total") == 1
    assert value(guard, "conflicting_requests_total") == 1
    assert value(guard, "fired") == 0 and value(guard, "halted") == 0 and value(guard, "store_up") == 1
    levels = families(guard)["rlguard_guard_verdict_level"].samples
    assert {s.labels["level"]: s.value for s in levels} == {
        level.value: float(level is Level.UNKNOWN) for level in Level
    }
    codes = families(guard)["rlguard_guard_condition"].samples
    assert {s.labels["code"] for s in codes} == {code.value for code in Code}
    for number in range(3, 9):
        guard.post("/v1/steps", step(number, kl=0.3 * (number - 3), kl_kind="ref_token_mean"))
    assert value(guard, "fired") == 1 and value(guard, "halted") == 0


def test_the_step_count_does_not_fall_back_on_a_restart(guard: Any, step: Step) -> None:
    guard.post("/v1/steps", [step(1), step(2)])
    guard.end()
    guard.start()
    assert value(guard, "steps_total") == 2


def test_names_follow_the_conventions(guard: Any) -> None:
    for family in families(guard).values():
        assert re.fullmatch(r"rlguard_guard_[a-z0-9_]+", family.name)
        assert family.documentation.endswith(".")
        assert not re.search(r"_(ms|milliseconds|percent|kb)(_|$)", family.name)
        if family.type == "counter":
            assert all(s.name.endswith(("_total", "_created")) for s in family.samples)
        if "silence" in family.name or family.type == "histogram":
            assert "_seconds" in family.name
