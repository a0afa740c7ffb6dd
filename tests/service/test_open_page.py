"""The metrics page that needs no token says nothing that weights could make an answer about a prompt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from guard_core.codes import Code, Level
from guard_core.trainer_view import for_trainer
from guard_core.wire import EvaluationSummary, Verdict
from guard_service.metrics import WITHHELD, GuardMetrics

SHARES: dict[str, Any] = {
    "truncated": 0.25,
    "unanswered": 0.25,
    "timed_out": 0.25,
    "proxy_score": 0.25,
}


def pages(seconds: float = 1.0, kept: int = 1, **shares: float) -> tuple[dict[str, str], dict[str, str]]:
    """Without a token and with one: the samples of each metric, after one evaluation of these shares."""
    last = EvaluationSummary(attempt=0, step=7, score=0.5, items=64, path="/ckpt/7", **(SHARES | shares))
    verdict = Verdict(
        level=Level.HEALTHY,
        code=Code.OK,
        reason="fine",
        fire=False,
        halt=False,
        stop=False,
        attempt=0,
        step=7,
        steps=7,
        rounds=1,
        announced=1,
        evaluated=1,
        last_evaluation=last,
        best_evaluation=last,
    )
    metrics = GuardMetrics()
    following = SimpleNamespace(trouble="", bad=0)
    engine = SimpleNamespace(
        verdict=verdict,
        store_works=True,
        store_bytes=kept,
        store_full=False,
        queue_length=0,
        silent_for=0.0,
        following=following,
    )
    metrics.observe(engine)
    metrics.evaluation_seconds.observe(seconds)
    metrics.evaluation_part_seconds.labels("generate").inc(seconds)
    return samples(metrics.render_open()), samples(metrics.render())


def samples(page: bytes) -> dict[str, str]:
    """By metric, without when a counter began."""
    return {
        family.name: str(family.samples)
        for family in text_string_to_metric_families(page.decode())
        if not family.name.endswith("_created")
    }


@pytest.mark.parametrize("other", [{name: 0.5} for name in (*SHARES, "seconds")] + [{"kept": 4096}], ids=str)
def test_it_is_the_same_whatever_the_completions_were(other: dict[str, Any]) -> None:
    (usual, whole), (questioned, answered) = pages(), pages(**other)
    assert usual == questioned and whole != answered


def test_all_else_is_on_it() -> None:
    usual, whole = pages()
    assert usual == {name: said for name, said in whole.items() if name not in WITHHELD}
    assert whole.keys() - usual.keys() == WITHHELD
    assert {"rlguard_guard_step", "rlguard_guard_heldout_score", "rlguard_guard_store_full"} <= usual.keys()


def test_what_the_verdict_keeps_from_a_trainer_is_withheld_here_too() -> None:
    given = EvaluationSummary(attempt=0, step=7, score=0.5, items=64, path="/ckpt/7", **SHARES)
    verdict = Verdict(
        level=Level.HEALTHY,
        code=Code.OK,
        reason="",
        fire=False,
        halt=False,
        stop=False,
        last_evaluation=given,
    )
    told = for_trainer(verdict).last_evaluation
    assert told is not None
    kept = {name for name, value in given.model_dump().items() if getattr(told, name) != value}
    assert kept == set(SHARES), "a further one must be compared above, too"
