"""A log in which a trainer starts from scratch: each detector judges it as the live guard would."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rlguard.cli.logs.readers import read_log
from rlguard.cli.replay.outcomes import outcome
from rlguard.cli.replay.run import Run, load_run
from rlguard.core.policy import CalibratedPolicy, HeldOutGuardPolicy, Policy

ITEMS, START, REACHED = 256, 0.35, 0.75
POLICY = Policy(
    calibrated=CalibratedPolicy(),
    heldout_guard=HeldOutGuardPolicy(min_steps=4, ema_alpha=0.97, max_proxy_real_gap=0.6, rise_eps=0.005),
)


def logged(directory: Path, *begins: int, before: int = 16, means: bool = False) -> Run:
    """Rounds that learn, `before` of the first attempt and 16 of each other. The others are back at the
    start, and their first steps are numbered so.
    """
    rng = np.random.default_rng(7)

    def items(score: float) -> list[float]:
        return (rng.random(ITEMS) < score).astype(float).tolist()

    lines: list[dict[str, object]] = [] if means else [{"step": 0, "items": items(START)} for _ in range(4)]
    for attempt, first in enumerate((1, *begins)):
        for n, score in enumerate(np.linspace(START, REACHED, 16)[: None if attempt else before]):
            reward = float(score + 0.01 * rng.standard_normal())
            scored = {"heldout": float(score)} if means else {"items": items(score)}
            lines.append({"attempt": attempt, "step": first + n, "reward": reward} | scored)
    log = directory / "history.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return load_run(read_log(log), str(log), {})


@pytest.mark.parametrize("name", ["guard", "calibrated"])
@pytest.mark.parametrize(
    ("begins", "before", "fires"),
    [
        ([1], 16, False),  # from scratch
        ([17], 16, True),  # it went on, and fell
        ([5], 16, True),  # its first four steps have no reward: it may have gone on from the fourth
        ([1, 1, 1], 1, False),  # the first begins right after the baseline, so it is none of the three
        ([1, 1, 1, 1], 1, True),
    ],
)
def test_a_start_from_scratch_stops_nothing_and_a_fall_does(
    tmp_path: Path, name: str, begins: list[int], before: int, fires: bool
) -> None:
    found = outcome(logged(tmp_path, *begins, before=before), POLICY, name)
    assert found.fired == fires, found.reason
    if name == "guard" and before == 16 and not fires:
        assert [a for a in found.advice if "attempt 1 started from scratch" in a.condition.message]


def test_of_means_alone_the_whole_guard_says_what_its_rule_says(tmp_path: Path) -> None:
    policy = POLICY.model_copy(update={"detector": "heldout_guard"})
    run = logged(tmp_path, 1, means=True)
    whole, rule = (outcome(run, policy, name) for name in ("guard", "heldout_guard"))
    assert not whole.fired and not rule.fired
    assert [a for a in whole.advice if "started from scratch" in a.condition.message]


@pytest.mark.parametrize("first", [0, 1])
def test_attempts_may_be_numbered_from_any_number(tmp_path: Path, first: int) -> None:
    """Rewards are logged less often than the policy is scored, so evaluations come before the first."""
    rng, log = np.random.default_rng(7), tmp_path / "history.jsonl"
    lines: list[dict[str, object]] = []
    for step in range(0, 61, 10):
        items = (rng.random(ITEMS) < START).astype(float).tolist()
        lines += [{"step": 0, "items": items}] * 4 if step == 0 else []
        line = {"attempt": first, "step": step, "items": items}
        lines.append(line | ({"reward": START} if step > 40 else {}))
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = outcome(load_run(read_log(log), str(log), {}), POLICY, "guard")
    assert not [a for a in found.advice if "started from scratch" in a.condition.message]
