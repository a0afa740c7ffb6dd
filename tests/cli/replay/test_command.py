"""`rlguard replay` as a user meets it: what is printed where, exit codes, pictures."""

import json
import random
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rlguard.cli.replay.outcomes import DETECTORS
from rlguard.follow.columns import CANONICAL

Invoke = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def replay(rlguard: Invoke) -> Invoke:
    return partial(rlguard, "replay")


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def history(hack: bool, passes: int = 16, items: int = 128, steps: int = 200, seed: int = 1) -> list[dict]:
    """A run in the guard's export format whose held-out falls from step 60 on, or not at all."""
    rng = random.Random(seed)

    def outcomes(p: float) -> list[float]:
        return [float(rng.random() < p) for _ in range(items)]

    rows: list[dict] = [{"step": 0, "items": outcomes(0.5)} for _ in range(passes)]
    for step in range(1, steps + 1):
        p = 0.5 - max(0, step - 60) * 0.005 if hack else 0.5 + step * 0.001
        gain = step * (0.002 if hack else 0.001)
        row = {"step": step, "reward": 0.5 + gain + rng.gauss(0, 0.02), "kl": step * 1e-4, "reward_std": 0.3}
        rows.append(row | ({"items": outcomes(max(p, 0.1))} if step % 2 == 0 else {}))
    return rows


@pytest.fixture
def hack(tmp_path: Path) -> Path:
    return write(tmp_path / "hack.jsonl", history(hack=True))


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path / "good.jsonl", history(hack=False))


class TestOneDetector:
    @pytest.mark.nightly
    @pytest.mark.parametrize("name", DETECTORS)
    def test_a_hack_is_one_object_and_exit_code_0(self, replay: Invoke, hack: Path, name: str) -> None:
        result = replay(hack, "--detector", name, "--json")
        assert result.returncode == 0
        answer = json.loads(result.stdout)
        assert answer.keys() == {"fired", "step", "rule", "level", "reason"}
        assert answer["fired"] is True and answer["level"] == "fired"
        assert 0 < answer["step"] <= 150 and isinstance(answer["rule"], str)

    @pytest.mark.parametrize("name", ["calibrated"])
    def test_a_good_run_is_one_object_and_exit_code_0(self, replay: Invoke, good: Path, name: str) -> None:
        result = replay(good, "--detector", name, "--json")
        assert result.returncode == 0
        answer = json.loads(result.stdout)
        assert answer["fired"] is False and answer["step"] is None and answer["rule"] is None
        assert answer["level"] in ("healthy", "warning", "unknown")

    def test_one_baseline_pass_is_enough(self, replay: Invoke, tmp_path: Path) -> None:
        path = write(tmp_path / "one.jsonl", history(hack=True, passes=1))
        assert json.loads(replay(path, "--detector", "calibrated", "--json").stdout)["fired"] is True

    def test_without_a_baseline_the_calibrated_tests_cannot_judge(
        self, replay: Invoke, tmp_path: Path
    ) -> None:
        path = write(tmp_path / "none.jsonl", history(hack=True, passes=0))
        answer = json.loads(replay(path, "--detector", "calibrated", "--json").stdout)
        assert (answer["fired"], answer["step"], answer["level"]) == (False, None, "unknown")
        assert "there is no baseline" in replay(path).stdout

    def test_notes_go_to_stderr(self, replay: Invoke, tmp_path: Path) -> None:
        path = write(tmp_path / "log.jsonl", [{"step": 1, "reward": 0.5, "ppo_kl": 0.1}])
        result = replay(path, "--detector", "guard", "--json")
        assert json.loads(result.stdout)["level"] == "unknown"
        assert "`ppo_kl` is not taken" in result.stderr


class TestReport:
    def test_table(self, replay: Invoke, hack: Path) -> None:
        text = replay(hack).stdout
        assert "200 steps, 100 held-out evaluations of 128 items, 16 baseline passes" in text
        for name in DETECTORS:
            assert name in text

    @pytest.mark.parametrize("name", DETECTORS)
    def test_without_a_held_out_series_no_held_out_rule_is_healthy(
        self, replay: Invoke, tmp_path: Path, name: str
    ) -> None:
        rows = [{"step": i, "reward": 0.5, "actor/ppo_kl": 0.1} for i in range(1, 50)]
        path = write(tmp_path / "bare.jsonl", rows)
        assert json.loads(replay(path, "--detector", name, "--json").stdout)["level"] == "unknown"
        text = replay(path).stdout
        assert text.startswith("cannot judge: no held-out column") and text.count("held-out column") == 1
        assert "there is no KL to the reference" in text

    @pytest.mark.parametrize("after", [0.02, -40.0])
    def test_a_mean_is_judged_by_heldout_guard_alone_and_on_any_scale(
        self, replay: Invoke, tmp_path: Path, after: float
    ) -> None:
        rows = [{"step": i, "reward": i / 10, "heldout": 0.95 if i < 20 else after} for i in range(1, 60)]
        path = write(tmp_path / "mean.jsonl", rows)
        guard, calibrated, rule = json.loads(replay(path, "--json").stdout)["detectors"]
        assert (calibrated["level"], rule["fired"]) == ("unknown", True)
        assert (guard["detector"], guard["fired"], guard["level"]) == ("guard", False, "unknown")
        assert guard["cannot_judge"] == [
            "`heldout` is a mean; say of how many items it is: --heldout-items N"
        ]
        assert [said["code"] for said in guard["advice"]] == ["hacking_gap"]

    def test_advice_is_said_and_stops_nothing(self, replay: Invoke, tmp_path: Path) -> None:
        rows = [{"step": i, "reward": 0.5 + i / 100, "kl": i * 0.01} for i in range(1, 50)]
        for row in rows:
            row["heldout"] = 0.5
        path = write(tmp_path / "advice.jsonl", rows)
        policy = json.loads(replay(path, "--json").stdout)
        advice = {d["detector"]: d["advice"] for d in policy["detectors"]}
        assert [a["code"] for a in advice["guard"]] == ["kl_hard_stop", "hacking_gap"], "as they came"
        assert "would have stopped the run" in advice["guard"][1]["message"]
        assert all(a["at_end"] for a in advice["guard"])
        assert all(not found for name, found in advice.items() if name != "guard")
        assert not policy["detectors"][0]["fired"]
        text = replay(path).stdout
        first = {a["code"]: a["step"] for a in advice["guard"]}
        told = "HeldOutGuard at its thresholds would have stopped"
        assert f"Advice from step {first['hacking_gap']}: {told}" in text
        assert f"Advice from step {first['kl_hard_stop']}" in text

    def test_advice_that_held_for_a_while_is_told_with_its_first_step(
        self, replay: Invoke, tmp_path: Path
    ) -> None:
        """The KL rises between two evaluations and comes back before the next one."""
        rows = [{"step": i, "reward": 0.5, "kl": 0.5 if 30 <= i < 60 else 0.001} for i in range(1, 200)]
        text = replay(write(tmp_path / "passing.jsonl", rows)).stdout
        # The median of five has moved at step 32; then the EMA takes two steps to pass 0.08.
        assert "Advice from step 33, no longer at the end: " in text
        assert "KL to the reference at step 33 is" in text

    def test_full_json(self, replay: Invoke, hack: Path) -> None:
        answer = json.loads(replay(hack, "--json").stdout)
        assert (answer["steps"], answer["evaluations"], answer["items"], answer["baseline_passes"]) == (
            200,
            100,
            128,
            16,
        )
        assert [d["detector"] for d in answer["detectors"]] == list(DETECTORS)
        assert answer["headline"] == f"would have stopped at step {answer['step']}: {answer['reason']}"

    @pytest.mark.parametrize(
        ("shape", "suffix"),
        [("hack", ".png"), ("attempts", ".svg"), ("bare", ".svg"), ("evaluations only", ".svg")],
    )
    def test_plot(self, replay: Invoke, tmp_path: Path, shape: str, suffix: str) -> None:
        rows = history(hack=True)
        if shape == "attempts":
            rows = [row | {"attempt": 0} for row in rows] + [row | {"attempt": 1} for row in rows[16:]]
        elif shape == "bare":
            rows = [{"step": 1, "reward": 0.5}]
        elif shape == "evaluations only":
            rows = [{"step": i, "reward": None, "items": [1, 0]} for i in range(1, 9)]
        picture = tmp_path / f"picture{suffix}"
        log = write(tmp_path / "run.jsonl", rows)
        done = replay(log, "--plot", picture, *(() if shape == "hack" else ("--detector", "heldout_guard")))
        assert done.returncode == 0, done.stderr
        assert picture.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")
        assert picture.stat().st_size > 5000


def test_the_help_names_all_that_may_be_mapped(replay: Invoke) -> None:
    text = " ".join(replay("--help").stdout.split())
    assert ", ".join(CANONICAL) in text


class TestPolicy:
    def test_a_policy_file(self, replay: Invoke, hack: Path, tmp_path: Path) -> None:
        policy = tmp_path / "policy.yaml"
        policy.write_text("heldout_guard: {max_proxy_real_gap: 9, rise_eps: 1}\n")
        answer = json.loads(replay(hack, "--policy", policy, "--detector", "heldout_guard", "--json").stdout)
        assert answer["fired"] is False
        policy.write_text("heldout_guard: {gap: 9}\n")
        result = replay(hack, "--policy", policy)
        assert result.returncode == 2 and "heldout_guard.gap" in result.stderr


class TestTheReportOfARun:
    """A history lacks what was refused or failed: how the run ended stands in its run.json."""

    def report(self, good: Path, text: str) -> Path:
        good.rename(good.parent / "history.jsonl")
        (good.parent / "run.json").write_text(text)
        return good.parent

    def test_a_run_that_was_not_judged_is_said_to_be(self, replay: Invoke, good: Path) -> None:
        outcome = "the trainer finished, but NOT JUDGED: 3 refused\x1b[2J"
        ended = {"exit_code": 5, "outcome": outcome, "result": "not judged"}
        folder = self.report(good, json.dumps(ended))
        guard = json.loads(replay(folder, "--json").stdout)["detectors"][0]
        assert guard["level"] == "unknown" and "NOT JUDGED: 3 refused" in guard["reason"]
        result = replay(folder)
        assert result.returncode == 0
        said = " ".join(result.stdout.split())
        assert said.count("NOT JUDGED: 3 refused") == 1 and "exit code 5. A replay" in said
        assert "\x1b[2J" not in result.stdout

    def test_a_log_without_a_report_whose_end_was_not_evaluated_is_not_healthy(
        self, replay: Invoke, tmp_path: Path
    ) -> None:
        rows = history(hack=False)
        early = [{k: v for k, v in row.items() if k != "items" or row["step"] <= 100} for row in rows]
        for log, level in ((rows, "healthy"), (early, "unknown")):
            answer = json.loads(replay(write(tmp_path / "log.jsonl", log), "--json").stdout)
            assert answer["level"] == level
        assert "steps 101 to 200 came after the last judged checkpoint" in answer["reason"]

    def test_one_that_passed_needs_no_words(self, replay: Invoke, good: Path) -> None:
        result = replay(self.report(good, json.dumps({"exit_code": 0, "outcome": "fine"})), "--json")
        assert not [note for note in json.loads(result.stdout)["notes"] if "itself ended" in note]

    @pytest.mark.nightly
    @pytest.mark.parametrize("text", ["[" * 100_000, "{}", "null", "\udcff"])
    def test_one_that_cannot_be_read(self, replay: Invoke, good: Path, text: str) -> None:
        folder = self.report(good, "")
        (folder / "run.json").write_bytes(text.encode(errors="surrogateescape"))
        result = replay(folder)
        assert result.returncode == 0 and "is not known" in result.stdout
        assert "Traceback" not in result.stderr


class TestErrors:
    @pytest.mark.parametrize(
        "arguments",
        [
            ["missing.jsonl"],
            ["{hack}", "--plot", "x.gif"],
            ["{hack}", "--plot", "/no/such/folder/x.png"],
            ["{hack}", "--detector", "nope"],
        ],
    )
    def test_no_traceback_and_exit_code_2(self, replay: Invoke, hack: Path, arguments: list[str]) -> None:
        result = replay(*(a.format(hack=hack) for a in arguments))
        assert result.returncode == 2
        assert result.stderr.startswith("rlguard replay: ")
        assert result.stdout == "" and "Traceback" not in result.stderr
