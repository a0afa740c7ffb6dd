"""What `--fail-on` looks at: the whole guard under the policy, or the one detector that is asked for.

What of a log nobody judged is never a pass.
"""

from __future__ import annotations

import json
import random
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


def log(
    path: Path, evaluations: int = 20, after: int = 0, gains: float = 0.0, held: tuple[int, ...] = ()
) -> Path:
    """A run in which nothing changes, or the reward gains so much and the held-out score a third of it.

    Five steps before each evaluation and `after` more at the end; `held`: evaluations whose items are null.
    """
    rng = random.Random(0)
    rows: list[dict[str, Any]] = [{"step": 0, "items": outcomes(rng, 0.4)} for _ in range(8)]
    for step in range(1, 5 * evaluations + after + 1):
        part = gains * min(step / (5 * evaluations), 1.0)
        rows.append({"step": step, "reward": 0.3 + part + rng.gauss(0, 0.01)})
        if step % 5 == 0 and step <= 5 * evaluations:
            rows[-1]["items"] = None if step // 5 in held else outcomes(rng, 0.4 + part / 3)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def outcomes(rng: random.Random, mean: float) -> list[int]:
    return [int(rng.random() < mean) for _ in range(256)]


def levels(printed: str) -> dict[str, str]:
    return {said["detector"]: said["level"] for said in json.loads(printed)["policies"][0]["detectors"]}


@pytest.mark.nightly
@pytest.mark.parametrize("level", ["fired", "warning", "unknown"])
def test_what_the_policy_holds_for_advice_fails_nothing(replay: Replay, tmp_path: Path, level: str) -> None:
    advised = log(tmp_path / "log.jsonl", gains=0.6)
    code, printed = replay(advised, "--json", "--fail-on", level)
    assert "heldout_guard" in fired(printed) and levels(printed)["guard"] == "healthy"
    assert code == 0
    assert replay(advised, "--fail-on", level)[0] == 0


@pytest.mark.parametrize(("level", "code"), [("fired", 0), ("warning", 1), ("unknown", 1)])
def test_what_was_not_judged_is_no_pass(replay: Replay, advised: Path, level: str, code: int) -> None:
    """As under `rlguard run`: this log has no items, and one without any reward nothing at all."""
    assert replay(advised, "--fail-on", level)[0] == code
    advised.write_text(
        "".join(json.dumps({"step": s, "reward": None, "heldout": 0.5}) + "\n" for s in range(1, 50))
    )
    assert replay(advised, "--fail-on", level)[0] == code


@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        ({"after": 900}, "steps 101 to 1000"),
        ({"held": tuple(range(9, 21))}, "steps 41 to 100"),
    ],
    ids=["no evaluation any more", "items that are null"],
)
def test_steps_after_the_last_evaluation_were_not_judged(
    replay: Replay, tmp_path: Path, shape: dict[str, Any], steps: str
) -> None:
    path = log(tmp_path / "log.jsonl", **shape)
    code, printed = replay(path, "--json", "--fail-on", "warning")
    guard = json.loads(printed)["policies"][0]["detectors"][0]
    said = f"held-out rules and tests: {steps} came after the last judged checkpoint"
    assert (code, guard["level"], guard["reason"], guard["cannot_judge"]) == (1, "unknown", said, [said])
    assert "healthy" not in levels(printed).values(), "no part has seen the end"
    assert "Not judged" in (text := replay(path)[1]) and steps in " ".join(text.split())
    assert replay(path, "--fail-on", "fired")[0] == 0


def test_as_many_steps_after_it_as_a_checkpoint_has_had_are_ordinary(replay: Replay, tmp_path: Path) -> None:
    code, printed = replay(log(tmp_path / "log.jsonl", after=5), "--json", "--fail-on", "warning")
    assert (code, levels(printed)["guard"]) == (0, "healthy")


def test_a_detector_alone_says_on_stderr_what_nobody_judged(
    replay: Replay, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = log(tmp_path / "log.jsonl", after=900)
    with pytest.raises(SystemExit):
        main(["replay", str(path), "--detector", "calibrated", "--json"])
    printed = capsys.readouterr()
    assert json.loads(printed.out)["level"] == "unknown"
    assert "not judged: held-out rules and tests: steps 101 to 1000" in printed.err


def test_a_run_that_fired_was_stopped_whatever_came_after(replay: Replay, advised: Path) -> None:
    rows = [{"step": s, "reward": s / 10} for s in range(50, 500)]
    advised.write_text(advised.read_text() + "".join(json.dumps(row) + "\n" for row in rows))
    found = json.loads(replay(advised, "--json")[1])["policies"][0]["detectors"][1]
    assert (found["detector"], found["level"]) == ("heldout_guard", "fired")
    assert not any("came after" in sentence for sentence in found["cannot_judge"])


COUNTS = {"announced": 22, "evaluated": 21, "failed": 1, "skipped": 0, "refused": 0, "waiting": 0}


@pytest.mark.parametrize("given", ["", "history.jsonl", "guard"])
def test_the_report_of_a_run_counts_what_failed(replay: Replay, tmp_path: Path, given: str) -> None:
    """The history has all evaluations that there were, and not the one that failed in the middle."""
    text = log(tmp_path / "history.jsonl").read_text()
    (tmp_path / "guard").mkdir()
    (tmp_path / "guard" / "history.jsonl").write_text(text)
    ended = {"exit_code": 5, "outcome": "NOT JUDGED: 1 failed", "checkpoints": COUNTS}
    (tmp_path / "run.json").write_text(json.dumps(ended))
    code, printed = replay(tmp_path / given, "--json", "--fail-on", "warning")
    [said] = json.loads(printed)["policies"][0]["detectors"][0]["cannot_judge"]
    assert (code, levels(printed)["guard"]) == (1, "unknown")
    assert said == "held-out rules and tests: 1 of 22 checkpoints were not evaluated (1 failed)"


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        pytest.param({"exit_code": 5, "outcome": "NOT JUDGED: 3 refused"}, 1, id="without counts"),
        pytest.param({"exit_code": 5, "checkpoints": {"evaluated": 1}, "outcome": ""}, 0, id="no sentence"),
        pytest.param(
            {"exit_code": 5, "outcome": "NOT JUDGED: a warning", "checkpoints": COUNTS | {"announced": 21}},
            0,
            id="all was evaluated: the replay has its own verdict",
        ),
        pytest.param({"exit_code": 1, "outcome": "the trainer failed"}, 0, id="the trainer's own failure"),
        pytest.param({"exit_code": 0, "outcome": "fine"}, 0, id="a pass"),
    ],
)
def test_how_the_run_ended_counts_where_it_says_what_nobody_judged(
    replay: Replay, tmp_path: Path, ended: dict[str, Any], code: int
) -> None:
    log(tmp_path / "history.jsonl")
    (tmp_path / "run.json").write_text(json.dumps(ended))
    assert replay(tmp_path, "--fail-on", "warning")[0] == code


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
