"""What `--fail-on` looks at: the whole guard under the policy, or the one detector that is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guard_cli.main import main

Replay = Callable[..., tuple[int, str]]


@pytest.fixture
def replay(capsys: pytest.CaptureFixture[str]) -> Replay:
    """`rlguard replay` in this process: its exit code and what it printed."""

    def invoke(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["replay", *map(str, arguments)])
        return int(ended.value.code or 0), capsys.readouterr().out

    return invoke


@pytest.fixture
def advised(tmp_path: Path) -> Path:
    """A log in which HeldOutGuard's rules alone find something; by default the policy has them for advice."""
    rows: list[dict[str, Any]] = [
        {"step": s, "reward": s / 10, "heldout": 3.0 - s / 10} for s in range(1, 50)
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def fired(printed: str) -> set[str]:
    outcomes = json.loads(printed)["policies"][0]["detectors"]
    return {outcome["detector"] for outcome in outcomes if outcome["fired"]}


@pytest.mark.parametrize("level", ["fired", "warning"])
def test_what_the_policy_holds_for_advice_fails_nothing(replay: Replay, advised: Path, level: str) -> None:
    code, printed = replay(advised, "--json", "--fail-on", level)
    assert fired(printed) == {"heldout_guard", "both"}  # `both` has no items, and so the same rules
    assert code == 0
    assert replay(advised, "--fail-on", level)[0] == 0


def test_a_detector_that_is_asked_for_counts(replay: Replay, advised: Path) -> None:
    assert replay(advised, "--detector", "heldout_guard", "--fail-on", "fired")[0] == 1
    assert replay(advised, "--detector", "guard", "--fail-on", "fired")[0] == 0
    assert replay(advised, "--detector", "heldout_guard")[0] == 0


def test_what_the_policy_stops_for_counts(replay: Replay, advised: Path) -> None:
    policy = advised.with_name("policy.yaml")
    policy.write_text("detector: heldout_guard\n")
    code, printed = replay(advised, "--policy", policy, "--json", "--fail-on", "fired")
    assert "guard" in fired(printed) and code == 1


def test_a_policy_that_is_only_tried_counts_as_little(replay: Replay, advised: Path) -> None:
    what_if = ("--what-if", "detector=heldout_guard")
    assert replay(advised, *what_if, "--fail-on", "fired")[0] == 0
