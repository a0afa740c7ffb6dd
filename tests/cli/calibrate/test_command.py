"""`rlguard calibrate` as a user meets it."""

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from guard_cli.calibrate import propose
from guard_core.detectors import Baseline
from guard_core.policy import CalibratedPolicy, Policy

Invoke = Callable[..., subprocess.CompletedProcess[str]]


def outcomes(rng: random.Random, n: int, p: float = 0.5) -> list[int]:
    return [int(rng.random() < p) for _ in range(n)]


def write(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def passes(path: Path, n: int = 64, count: int = 16, **more: object) -> Path:
    rng = random.Random(1)
    return write(path, [{"items": outcomes(rng, n), **more} for _ in range(count)])


def good_run(path: Path, seed: int, kl: bool = True) -> Path:
    rng = random.Random(seed)
    rows = []
    for step in range(1, 41):
        row: dict = {"step": step, "reward": 0.5 + step / 400 + rng.gauss(0, 0.02)}
        row |= {"kl": 0.001 * step + rng.random() * 0.01} if kl else {}
        row |= {"items": outcomes(rng, 64, 0.5 + step / 400)} if step % 2 == 0 else {}
        rows.append(row)
    return write(path, rows)


class TestBaseline:
    def test_what_is_printed_and_written(self, calibrate: Invoke, tmp_path: Path) -> None:
        out = tmp_path / "policy.yaml"
        result = calibrate(
            passes(tmp_path / "b.jsonl"), "--horizon", "40", "--out", out, "--plot", tmp_path / "p.png"
        )
        assert result.returncode == 0, result.stderr
        assert "16 passes of 64 items" in result.stdout
        for column in ("2 points", "5 points", "10 points"):
            assert column in result.stdout
        assert "A fall of 2 points is accepted: calibrated.max_decline is 0.03." in result.stdout
        assert "With 64 items you will not see 5 points in time (10 evaluations): take " in result.stdout
        assert "kl.hard_stop is left out" in result.stdout
        policy = Policy.model_validate(yaml.safe_load(out.read_text()))
        assert policy.detector == "calibrated"
        assert policy.calibrated.alpha == 0.05 and policy.calibrated.horizon == 40
        assert policy.heldout_guard != Policy().heldout_guard
        assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"

    @pytest.mark.usefixtures("calibrate")
    def test_the_picture_shows_the_numbers_of_the_text(self) -> None:
        """Each number of items is simulated once, for both: in time from the advised number on."""
        from matplotlib.figure import Figure

        from guard_cli.calibrate import plot
        from guard_cli.calibrate.simulate import World

        rng = random.Random(1)
        baseline = Baseline.from_passes([outcomes(rng, 64) for _ in range(4)], 1)
        policy = Policy(detector="calibrated", calibrated=CalibratedPolicy(horizon=40, baseline_passes=4))
        world = World.of(baseline, None, 0)
        found = propose.costs(world, baseline, policy, 0.05)
        sizes = propose.Sizes(world, baseline, policy, found)
        needed = [propose.items_needed(world, sizes, found, policy, i) for i in range(len(found.drops))]
        axis = Figure().add_subplot()
        plot._draw_items(axis, found, sizes, needed)
        curves = [line for line in axis.lines if line.get_marker() == "."]
        assert any(64 < (items or 0) <= propose.MOST_SIMULATED for items in needed), "nothing was simulated"
        for items, drop, curve in zip(needed, found.drops, curves, strict=True):
            told = f"{100 * drop:g} points" + ("" if items is None else f": take {items}")
            assert curve.get_label() == told
            for count, delay in zip(*curve.get_data(), strict=True):
                if count <= propose.MOST_SIMULATED and count >= found.items:
                    assert (delay <= sizes.in_time) == (items is None or count >= items)

    def test_json(self, calibrate: Invoke, tmp_path: Path) -> None:
        result = calibrate(passes(tmp_path / "b.jsonl"), "--json", "--horizon", "10", "--detector", "both")
        answer = json.loads(result.stdout)
        assert [d["drop"] for d in answer["delays"]] == [0.02, 0.05, 0.1]
        assert answer["policy"]["detector"] == "both" and answer["items"] == 64
        assert answer["from_runs"] is None
        for delay in answer["delays"]:
            assert delay["calibrated"] is None or delay["calibrated"] >= 1

    @pytest.mark.parametrize("more", [{}, {"step": 0}, {"step": 0, "reward": None}])
    def test_forms_of_a_baseline(self, calibrate: Invoke, tmp_path: Path, more: dict) -> None:
        path = passes(tmp_path / "b.jsonl", n=32, count=2, **more)
        result = calibrate(path, "--horizon", "10", "--json")
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["policy"]["calibrated"]["baseline_passes"] == 2

    def test_a_history_gives_its_baseline_and_its_reward_noise(
        self, calibrate: Invoke, tmp_path: Path
    ) -> None:
        rng = random.Random(3)
        rows: list[dict] = [{"step": 0, "items": outcomes(rng, 32)} for _ in range(4)]
        for step in range(1, 61):
            row: dict = {"step": step, "reward": rng.gauss(0.5, 0.2)}
            rows.append(row | ({"items": outcomes(rng, 32)} if step % 2 == 0 else {}))
        result = calibrate(write(tmp_path / "history.jsonl", rows), "--horizon", "10")
        assert result.returncode == 0, result.stderr
        assert "4 passes of 32 items" in result.stdout and "4 of the recommended 16" in result.stdout
        noise = float(result.stdout.split("standard error of ")[1].split()[0].rstrip("."))
        assert 0.09 < noise < 0.2  # 0.2 over the root of two steps a round

    def test_greedy_passes_count_as_one(self, calibrate: Invoke, tmp_path: Path) -> None:
        path = write(tmp_path / "b.jsonl", [{"items": [0, 1] * 16}] * 4)
        assert "count as one" in calibrate(path, "--horizon", "6").stdout


class TestGoodRuns:
    def test_thresholds_and_what_they_support(self, calibrate: Invoke, tmp_path: Path) -> None:
        for seed in range(5):
            good_run(tmp_path / "runs" / f"{seed}.jsonl", seed)
        (tmp_path / "runs" / "manifest.json").write_text("{}")
        out = tmp_path / "policy.yaml"
        result = calibrate("--from-runs", tmp_path / "runs", "--out", out)
        assert result.returncode == 0, result.stderr
        assert "From 5 good runs" in result.stdout
        assert "with probability at most 0.5" in result.stdout  # 3 rules of 1/6 each
        assert "it would take 59 runs" in result.stdout
        assert "skipped" in result.stdout and "manifest.json" in result.stdout
        limit = Policy.model_validate(yaml.safe_load(out.read_text())).kl.hard_stop
        assert limit is not None and 0.02 < limit < 0.06
        assert "hard_stop: " in out.read_text() and "# of the good runs" in out.read_text()
        assert "so rise_eps and max_proxy_real_gap stop nothing" in result.stdout
        assert "heldout_guard:  # advice only, under this detector" in out.read_text()
        both = calibrate("--from-runs", tmp_path / "runs", "--detector", "both").stdout
        assert "stop nothing" not in both and "advice only" not in both

    def test_the_runs_themselves_stay_quiet_under_it(self, calibrate: Invoke, tmp_path: Path) -> None:
        from guard_cli.logs.readers import read_log
        from guard_cli.replay.outcomes import outcome
        from guard_cli.replay.run import load_run

        paths = [good_run(tmp_path / "runs" / f"{seed}.jsonl", seed) for seed in range(6)]
        out = tmp_path / "policy.yaml"
        calibrate("--from-runs", tmp_path / "runs", "--out", out, "--detector", "heldout_guard")
        policy = Policy.model_validate(yaml.safe_load(out.read_text()))
        for path in paths:
            run = load_run(read_log(path), str(path), {})
            assert not outcome(run, policy, "guard").fired
            assert outcome(run, policy, "guard").level != "unknown"

    def test_without_a_kl(self, calibrate: Invoke, tmp_path: Path) -> None:
        for seed in range(3):
            good_run(tmp_path / "runs" / f"{seed}.jsonl", seed, kl=False)
        result = calibrate("--from-runs", tmp_path / "runs")
        assert "No run has a KL to the reference" in result.stdout
        assert "hard_stop: null  # not calibrated" in result.stdout

    def test_beside_a_baseline_noise_is_the_floor(self, calibrate: Invoke, tmp_path: Path) -> None:
        good_run(tmp_path / "runs" / "0.jsonl", 0)
        base = passes(tmp_path / "b.jsonl", n=32)
        alone = json.loads(calibrate(base, "--horizon", "20", "--json").stdout)["policy"]
        both = json.loads(
            calibrate(base, "--horizon", "20", "--json", "--from-runs", tmp_path / "runs").stdout
        )["policy"]
        gaps = [policy["heldout_guard"]["max_proxy_real_gap"] for policy in (both, alone)]
        assert gaps[0] >= gaps[1]
        assert both["kl"]["hard_stop"] != alone["kl"]["hard_stop"]


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "give a BASELINE, or --from-runs"),
            (["{base}", "--false-stops", "0"], "between 0 and 0.5"),
            (["{base}", "--horizon", "5"], "at least 6"),
            (["{base}", "--horizon", "1001"], "at most 1000"),
            (["{base}", "--samples", "0"], "at least 1"),
            (["{base}", "--seed", "-1"], "0 or more"),
            (["{base}", "--reward-noise", "-1"], "0 or more"),
            (["{base}", "--reward-noise", "nan"], "0 or more"),
            (["--from-runs", "{empty}", "--reward-noise", "0.1"], "takes a BASELINE"),
            (["--from-runs", "{empty}", "--horizon", "5000"], "at most 1000"),
            (["{base}", "--plot", "x.gif"], "ends in .png"),
            (["{base}", "--out", "{base}"], "exists already"),
            (["{base}x"], "no such file"),
            (["{rewards}"], "no per-item outcomes"),
            (["{run}"], "a history without a baseline"),
            (["--from-runs", "{base}x"], "no such folder"),
            (["--from-runs", "{empty}"], "no run in it can be read"),
        ],
    )
    def test_one_line_and_exit_code_2(
        self, calibrate: Invoke, tmp_path: Path, arguments: list[str], message: str
    ) -> None:
        (tmp_path / "empty").mkdir()
        places = {
            "base": passes(tmp_path / "b.jsonl", n=8, count=2),
            "rewards": write(tmp_path / "r.jsonl", [{"step": 1, "reward": 0.5}]),
            "run": good_run(tmp_path / "g.jsonl", 0),
            "empty": tmp_path / "empty",
        }
        result = calibrate(*(a.format(**places) for a in arguments))
        assert result.returncode == 2
        assert result.stderr.startswith("rlguard calibrate: ") and message in result.stderr
        assert result.stdout == "" and result.stderr.count("\n") == 1


def test_a_fall_by_more_than_the_score_has_no_delay(calibrate: Invoke, tmp_path: Path) -> None:
    rows = [{"items": [int(i == k) for i in range(200)]} for k in range(3)]
    low, picture = write(tmp_path / "low.jsonl", rows), tmp_path / "low.png"
    result = calibrate(low, "--plot", str(picture), "--horizon", "20")
    assert result.returncode == 0, result.stderr
    assert "A score of 0.005 cannot fall by 2 or 5 or 10 points" in result.stdout
    assert "Median delay" not in result.stdout and picture.read_bytes()[:4] == b"\x89PNG"
    assert json.loads(calibrate(low, "--json", "--horizon", "20").stdout)["delays"] == []


def test_the_falls_that_a_score_can_have_are_shown(calibrate: Invoke, tmp_path: Path) -> None:
    rows = [{"items": [int(i % 16 == k) for i in range(64)]} for k in range(3)]
    base = write(tmp_path / "some.jsonl", rows)
    said = calibrate(base, "--plot", str(tmp_path / "some.png"), "--horizon", "20").stdout
    assert "A score of 0.0625 cannot fall by 10 points" in said and "5 points" in said
    delays = json.loads(calibrate(base, "--json", "--horizon", "20").stdout)["delays"]
    assert [delay["drop"] for delay in delays] == [0.02, 0.05]
