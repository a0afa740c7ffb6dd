"""The section *Symptoms* of a replay: which columns it reads, and that nothing else depends on it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlguard.cli.logs.readers import read_log
from rlguard.cli.replay.run import Run, load_run
from rlguard.cli.replay.symptoms import symptoms_of
from rlguard.core.frameworks import bare
from rlguard.core.symptoms import TITLES
from rlguard.follow.columns import MOST_FIGURES
from tests.cli.logs.recorded import LOGS, RECORDED

Invoke = Callable[..., subprocess.CompletedProcess[str]]
SICK = "completions/clipped_ratio", "frac_reward_zero_std"


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def plain() -> list[dict[str, Any]]:
    """What a run is judged by; it begins far from its reference and then leaves it for good."""
    return [
        {
            "step": s,
            "reward": 0.5 + s / 400,
            "kl": 0.2 + max(0.0, s - 60) ** 2 / 100,
            "heldout": 0.5 - s / 500,
        }
        for s in range(1, 101)
    ]


def sick() -> list[dict[str, Any]]:
    """The same run, with figures that have every symptom: each begins at step 51."""
    return [
        row
        | {
            "entropy": 0.8 if row["step"] <= 50 else 0.02,
            "completions/clipped_ratio": 0.0 if row["step"] <= 50 else 0.6,
            "frac_reward_zero_std": 0.1 if row["step"] <= 50 else 0.95,
            "rewards/form/mean": row["step"] / 100,
            "rewards/right/mean": 1.0 - row["step"] / 200,
        }
        for row in plain()
    ]


def run_of(path: Path, **overrides: str) -> Run:
    return load_run(read_log(path, set(overrides.values())), str(path), overrides)


def names(path: Path, **overrides: str) -> list[str]:
    return [one.name for one in symptoms_of(run_of(path, **overrides)).symptoms]


def test_each_symptom_is_advice_with_its_numbers_and_steps(rlguard: Invoke, tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", sick())
    lines = [line for line in rlguard("replay", path).stdout.splitlines() if line.startswith("Advice, ")]
    assert [line.split(":")[0] for line in lines] == [f"Advice, {title}" for title in TITLES.values()]
    answer = json.loads(rlguard("replay", path, "--json").stdout)
    assert [one["name"] for one in answer["symptoms"]] == list(TITLES)
    length = answer["symptoms"][1]
    assert (length["first_step"], length["last_step"]) == (51, 100) and "60%" in length["message"]
    assert answer["symptoms_not_looked_for"] == []
    bare_log = write(tmp_path / "bare.jsonl", [{"step": 1, "reward": 0.5}])
    unseen = json.loads(rlguard("replay", bare_log, "--json").stdout)["symptoms_not_looked_for"]
    assert [one["name"] for one in unseen] == list(TITLES) and "--map kl=COLUMN" in unseen[-1]["needs"]


class TestNothingDependsOnIt:
    def test_no_exit_code_and_no_verdict(self, rlguard: Invoke, tmp_path: Path) -> None:
        well, ill = write(tmp_path / "plain.jsonl", plain()), write(tmp_path / "sick.jsonl", sick())
        done = [rlguard("replay", path, "--json") for path in (well, ill)]
        assert [one.returncode for one in done] == [0, 0]
        told = [json.loads(one.stdout) for one in done]
        assert told[0]["detectors"] == told[1]["detectors"] and told[0]["notes"] == told[1]["notes"]
        assert told[0]["symptoms"] != told[1]["symptoms"]

    @pytest.mark.parametrize("odd", ["n/a", [1, 2], {"a": 1}, 10**400, True, "1e999", None])
    def test_what_is_no_number_in_a_figure_ends_nothing(self, tmp_path: Path, odd: Any) -> None:
        rows = sick()
        for row in rows[::3]:
            row.update(dict.fromkeys(SICK, odd))
        assert {"length_at_cap", "groups_without_spread"} <= {*names(write(tmp_path / "log.jsonl", rows))}

    def test_a_flood_of_columns_fills_no_memory_and_is_not_looked_at(self, tmp_path: Path) -> None:
        rows = [row | {f"rewards/{row['step']}/mean": 1.0} for row in sick()]
        path = write(tmp_path / "log.jsonl", rows)
        assert len({name for row in read_log(path).rows for name in row.cells}) <= MOST_FIGURES + 6
        assert "length_at_cap" not in names(path)
        assert any("104 columns look like figures for symptoms" in note for note in run_of(path).notes)

    def test_a_name_of_a_column_steers_no_terminal(self, rlguard: Invoke, tmp_path: Path) -> None:
        rows = [
            {("rewards/[red]\x1b[2J/mean" if "form" in key else key): value for key, value in row.items()}
            for row in sick()
        ]
        text = rlguard("replay", write(tmp_path / "log.jsonl", rows)).stdout
        assert "\x1b[2J" not in text and "`rewards/[red]" in text


class TestColumns:
    @pytest.mark.parametrize(
        ("name", "figures"),
        [
            ("prime-rl", ["agg/all/agent/is_truncated/mean"]),
            ("nemo-rl", ["truncation_rate"]),
        ],
    )
    def test_a_recorded_log_has_the_figures_that_are_looked_for(self, name: str, figures: list[str]) -> None:
        log = next(file for file in (LOGS / name / "0").rglob("*") if RECORDED[name].log == file.name)
        assert {bare(column) for column in run_of(log).columns.figures.values()} >= set(figures)

    def test_one_can_be_mapped_and_then_counts(self, tmp_path: Path) -> None:
        rows = [row | {"cut": 0.5, "completions/clipped_ratio": 0.0} for row in plain()]
        path = write(tmp_path / "log.jsonl", rows)
        assert "length_at_cap" not in names(path) and "length_at_cap" in names(path, clipped="cut")
