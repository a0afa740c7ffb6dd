"""The section *Symptoms* of a replay: which columns it reads, and that nothing else depends on it."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from guard_cli.logs.readers import read_log
from guard_cli.main import main
from guard_cli.replay.run import Run, load_run
from guard_cli.replay.symptoms import column_for, symptoms_of
from guard_core.frameworks import FIGURES, bare, figure_of
from guard_core.symptoms import TITLES, Examined, Unseen
from guard_follow.columns import MOST_FIGURES
from tests.cli.logs.recorded import LOGS, RECORDED

STEPS = 100
Replay = Callable[..., tuple[int, str]]
OF_PRIME_RL = {"is_truncated/mean": "clipped", "num_output_tokens/mean": "length"}
OF_PRIME_RL |= {"num_output_tokens/max": "longest"}
OF_NEMO_RL = {"truncation_rate": "clipped", "mean_gen_tokens_per_sample": "length"}
OF_NEMO_RL |= {"gen_tokens_per_sample/max": "longest", "max_gen_tokens_per_sample": "longest"}
#: Of the recorded logs.
SEEN_IN = {
    "prime-rl": ["agg/all/agent/is_truncated/mean", "agg/all/agent/num_output_tokens/mean"],
    "nemo-rl": ["truncation_rate", "mean_gen_tokens_per_sample", "gen_tokens_per_sample/max"],
    "skyrl": ["generate/avg_num_tokens"],
}
#: Every symptom: each of them begins at step 51, and what is paid parts.
SICK = "completions/clipped_ratio", "frac_reward_zero_std"


@pytest.fixture
def replay(capsys: pytest.CaptureFixture[str]) -> Replay:
    """`rlguard replay` in this process: its exit code and what it printed."""

    def invoke(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["replay", *map(str, arguments)])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return int(ended.value.code or 0), printed.out + printed.err

    return invoke


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
        for s in range(1, STEPS + 1)
    ]


def sick() -> list[dict[str, Any]]:
    """The same run, with figures that have every symptom."""
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


def examined(path: Path, **overrides: str) -> Examined:
    run = load_run(read_log(path, set(overrides.values())), str(path), overrides)
    return symptoms_of(run)


def names(seen: Examined) -> list[str]:
    return [one.name for one in seen.symptoms]


class TestWhatIsSaid:
    def test_each_symptom_is_a_line_with_its_numbers_and_steps(self, replay: Replay, tmp_path: Path) -> None:
        code, text = replay(write(tmp_path / "log.jsonl", sick()))
        assert code == 0
        lines = text.splitlines()
        first = next(place for place, line in enumerate(lines) if line.startswith("Advice, "))
        for title, line in zip(TITLES.values(), lines[first : first + 6], strict=True):
            assert line.startswith(f"Advice, {title}: ")
        assert "60% of the completions were cut off at the length limit in steps 51 to 100" in text

    def test_json(self, replay: Replay, tmp_path: Path) -> None:
        code, text = replay(write(tmp_path / "log.jsonl", sick()), "--json")
        answer = json.loads(text)
        assert code == 0 and [one["name"] for one in answer["symptoms"]] == list(TITLES)
        length = answer["symptoms"][1]
        assert (length["first_step"], length["last_step"]) == (51, 100) and "60%" in length["message"]
        assert length["numbers"] == {"lowest_clipped": 0.6, "highest_clipped": 0.6}
        assert answer["symptoms_not_looked_for"] == []
        _, text = replay(write(tmp_path / "bare.jsonl", [{"step": 1, "reward": 0.5}]), "--json")
        unseen = json.loads(text)["symptoms_not_looked_for"]
        assert [one["name"] for one in unseen] == list(TITLES) and "--map kl=COLUMN" in unseen[-1]["needs"]

    def test_a_kl_that_is_another_is_named(self, tmp_path: Path) -> None:
        rows = [{"step": s, "reward": 0.5, "kl": 0.1, "kl_kind": "behaviour"} for s in range(1, 50)]
        seen = examined(write(tmp_path / "log.jsonl", rows))
        assert {one.why for one in seen.unseen if one.needs == "kl"} == {"the KL is behaviour"}


class TestNothingDependsOnIt:
    def test_no_exit_code_and_no_verdict(self, replay: Replay, tmp_path: Path) -> None:
        well, ill = write(tmp_path / "plain.jsonl", plain()), write(tmp_path / "sick.jsonl", sick())
        assert replay(well)[0] == replay(ill)[0] == 0
        told = [json.loads(replay(path, "--json")[1]) for path in (well, ill)]
        assert told[0]["detectors"] == told[1]["detectors"] and told[0]["notes"] == told[1]["notes"]
        assert told[0]["symptoms"] != told[1]["symptoms"]
        assert replay(well, "--detector", "guard", "--json") == replay(ill, "--detector", "guard", "--json")

    @pytest.mark.parametrize("odd", ["n/a", "", [1, 2], {"a": 1}, 10**400, True, "1e999", None])
    def test_what_is_no_number_in_a_figure_ends_nothing(
        self, replay: Replay, tmp_path: Path, odd: Any
    ) -> None:
        rows = sick()
        for row in rows[::3]:
            row.update(dict.fromkeys(SICK, odd))
        code, text = replay(write(tmp_path / "log.jsonl", rows))
        assert code == 0 and "length at its cap: " in text and "groups without spread: " in text

    @pytest.mark.parametrize("odd", [[1, 2], "high"])
    def test_in_the_reward_it_is_an_error_with_its_line(
        self, replay: Replay, tmp_path: Path, odd: Any
    ) -> None:
        rows = [{"step": s, "reward": odd} for s in range(1, 9)]
        code, text = replay(write(tmp_path / "log.jsonl", rows))
        assert code == 2 and "line 1: `reward` is" in text
        rows = [row | {"rewards/a/mean": odd} for row in plain()]
        code, text = replay(write(tmp_path / "log.jsonl", rows), "--map", "reward=rewards/a/mean")
        assert code == 2 and "line 1: `rewards/a/mean` is" in text

    def test_two_rows_of_a_step_with_other_figures_contradict_nothing(self, tmp_path: Path) -> None:
        rows = [
            {"step": s, "reward": 0.5, "frac_reward_zero_std": x}
            for s in range(1, 41)
            for x in (None, 0.9, 0.1)
        ]
        path = write(tmp_path / "log.jsonl", rows)
        run = load_run(read_log(path), "log", {})
        assert run.attempts == 1 and not [note for note in run.notes if "different values" in note]
        assert names(symptoms_of(run)) == ["groups_without_spread"]  # the first that is there

    def test_a_step_with_figures_alone_is_no_row(self, tmp_path: Path) -> None:
        events = tmp_path / "events.out.tfevents.1.host.1.0"
        values = [
            (s, tag, 0.5) for s in range(1, 31) for tag in ("reward", *SICK) if s <= 20 or tag != "reward"
        ]
        events.write_bytes(b"".join(event(*value) for value in values))
        mlflow = tmp_path / "mlflow.json"
        entries = [{"key": tag, "value": v, "step": s, "timestamp": s} for s, tag, v in values]
        mlflow.write_text(json.dumps({"metrics": entries}))
        for path in (events, mlflow):
            run = load_run(read_log(path), "log", {})
            assert len(run.step) == 20 and not [note for note in run.notes if "no reward" in note]
            assert names(symptoms_of(run)) == ["length_at_cap"]

    def test_a_flood_of_columns_fills_no_memory_and_is_not_looked_at(
        self, replay: Replay, tmp_path: Path
    ) -> None:
        rows = [row | {f"rewards/{row['step']}/mean": 1.0} for row in sick()]
        path = write(tmp_path / "log.jsonl", rows)
        assert len({name for row in read_log(path).rows for name in row.cells}) <= MOST_FIGURES + 6
        code, text = replay(path)
        assert code == 0 and "reward components that part" not in text and "length at its cap" not in text
        assert "Note: 104 columns look like figures for symptoms, and none is read of more than 32." in text
        assert "length_at_cap" not in names(examined(table(tmp_path, MOST_FIGURES)))
        assert "length_at_cap" in names(examined(table(tmp_path, MOST_FIGURES - 1)))

    def test_a_name_of_a_column_steers_no_terminal(self, replay: Replay, tmp_path: Path) -> None:
        rows = [
            {("rewards/[red]\x1b[2J/mean" if "form" in key else key): value for key, value in row.items()}
            for row in sick()
        ]
        code, text = replay(write(tmp_path / "log.jsonl", rows))
        assert code == 0 and "\x1b[2J" not in text and "`rewards/[red]" in text


class TestColumns:
    @pytest.mark.parametrize(
        ("column", "figure"),
        [
            ("completions/clipped_ratio", "clipped"),
            ("train/completions/clipped_ratio", "clipped"),
            ("my-run - train/completions / clipped_ratio", "clipped"),
            ("response_length/clip_ratio", "clipped"),
            ("env/all/by_group/frac_mixed", "mixed"),
            *((f"train/agg/all/agent/{name}", figure) for name, figure in OF_PRIME_RL.items()),
            *((f"train/{name}", figure) for name, figure in OF_NEMO_RL.items()),
            ("generate/avg_num_tokens", "length"),
            ("generate/max_num_tokens", "longest"),
            ("is_truncated/all/mean", "clipped"),
            *((f"train/gsm8k/all/agent/{name}", "") for name in OF_PRIME_RL),
            *((f"train/agg/{what}/is_truncated/mean", "") for what in ("effective/a", "all", "all/a/b")),
            ("rewards/form/mean", "components"),
            ("rewards / form", "components"),
            ("reward/format", "components"),
            *((name, "") for name in ("reward", "rewards", "rewards/form/std", "reward/std", "reward/mean")),
            *(
                (name, "")
                for name in ("rewards/chosen", "rewards/margins", "prompt_length/clip_ratio", "clip_ratio")
            ),
        ],
    )
    def test_which_figure_a_column_is(self, column: str, figure: str) -> None:
        assert figure_of(column) == figure

    @pytest.mark.parametrize("name", ["prime-rl", "nemo-rl", "skyrl"])
    def test_the_recorded_log_has_the_figures_that_length_at_its_cap_takes(self, name: str) -> None:
        log = next(file for file in (LOGS / name / "0").rglob("*") if RECORDED[name].log == file.name)
        columns = load_run(read_log(log), name, {}).columns
        assert {bare(column) for column in columns.figures.values()} >= set(SEEN_IN[name])
        assert bool(columns.figures.get("clipped")) == (name != "skyrl")

    def test_of_several_agents_none_is_taken_for_the_one_whose_reward_it_is(self, tmp_path: Path) -> None:
        def row(step: int, *agents: str) -> dict[str, Any]:
            shares = {f"train/agg/all/{agent}/is_truncated/mean": 0.9 for agent in agents}
            return {"step": step, "train/agg/all/solver/reward/mean": 0.5, **shares}

        alone = write(tmp_path / "one.jsonl", [row(s, "solver") for s in range(1, 101)])
        assert names(examined(alone)) == ["length_at_cap"]
        both = write(tmp_path / "two.jsonl", [row(s, "proposer", "solver") for s in range(1, 101)])
        assert names(examined(both)) == []

    def test_components_beside_overall_are_those_of_easyr1(self, tmp_path: Path) -> None:
        rows = [
            {
                "step": row["step"],
                "reward/format": row["rewards/form/mean"],
                "reward/accuracy": 1 - row["step"] / 200,
            }
            for row in sick()
        ]
        easyr1 = [row | {"reward/overall": 0.5} for row in rows]
        assert names(examined(write(tmp_path / "easyr1.jsonl", easyr1))) == ["components_part"]
        other = [row | {"reward": 0.5} for row in rows]
        assert names(examined(write(tmp_path / "other.jsonl", other))) == []

    def test_one_can_be_mapped_and_then_counts(self, tmp_path: Path) -> None:
        rows = [row | {"cut": 0.5, "completions/clipped_ratio": 0.0} for row in plain()]
        path = write(tmp_path / "log.jsonl", rows)
        assert "length_at_cap" not in names(examined(path))
        assert "length_at_cap" in names(examined(path, clipped="cut"))

    def test_of_two_names_of_a_figure_one_counts_in_whatever_order_they_stand(self, tmp_path: Path) -> None:
        first, second = "completions/clipped_ratio", "train/completions/clipped_ratio"
        for header in (f"step,reward,{first},{second}", f"step,reward,{second},{first}"):
            shares = "0.9,0.0" if header.endswith(f",{first}") else "0.0,0.9"
            path = tmp_path / "log.csv"
            path.write_text("\n".join([header, *(f"{s},0.5,{shares}" for s in range(1, 41))]))
            assert names(examined(path)) == []

    @pytest.mark.parametrize("needs", [*FIGURES, "components", "kl", "entropy"])
    def test_every_figure_has_a_column_to_name(self, needs: str) -> None:
        assert column_for(Unseen("x", "why", needs))
        assert column_for(Unseen("x", "why")) == ""


class TestAttempts:
    def of(self, tmp_path: Path, rows: list[dict[str, Any]]) -> Run:
        return load_run(read_log(write(tmp_path / "log.jsonl", rows)), "log", {})

    def test_what_a_restart_took_back_is_not_looked_at(self, tmp_path: Path) -> None:
        def row(step: int, attempt: int, share: float) -> dict[str, Any]:
            return {"step": step, "attempt": attempt, "reward": 0.5, "frac_reward_zero_std": share}

        first = [row(s, 0, 0.1 if s <= 50 else 0.95) for s in range(1, 101)]
        again = [row(s, 1, 0.1) for s in range(51, 101)]
        assert names(symptoms_of(self.of(tmp_path, first))) == ["groups_without_spread"]
        assert names(symptoms_of(self.of(tmp_path, first + again))) == []

    def test_a_guards_own_history_is_looked_at_in_the_order_of_its_steps(self, tmp_path: Path) -> None:
        rows = [{"step": s, "reward": 0.5, "kl": 0.2, "step_event": 100 + s} for s in range(2, 40)]
        late = {"step": 1, "reward": 0.5, "step_event": 200}
        (seen,) = symptoms_of(self.of(tmp_path, [*rows, late | {"kl": 0.3}])).symptoms
        assert (seen.first_step, dict(seen.numbers)["highest"]) == (1, 0.3)
        assert names(symptoms_of(self.of(tmp_path, [*rows, late | {"kl": 0.0}]))) == []

    def test_what_came_before_the_restart_is(self, tmp_path: Path) -> None:
        first = [{"step": s, "attempt": 0, "reward": 0.5, "entropy": 0.5} for s in range(1, 51)]
        again = [{"step": s, "attempt": 1, "reward": 0.5, "entropy": 0.001} for s in range(51, 101)]
        (seen,) = symptoms_of(self.of(tmp_path, [*again, *first])).symptoms
        assert (seen.first_step, seen.last_step) == (51, 100)


def test_a_run_without_a_step(tmp_path: Path) -> None:
    rows = [{"step": 0, "items": [1, 0], "reward": math.nan}]
    assert names(examined(write(tmp_path / "log.jsonl", rows))) == []


def table(folder: Path, components: int) -> Path:
    """A CSV whose completions are cut off, with so many components of the reward."""
    header = [
        "step",
        "reward",
        "completions/clipped_ratio",
        *(f"rewards/{i}/mean" for i in range(components)),
    ]
    rows = [[str(s), "0.5", "0.5", *["1"] * components] for s in range(1, 41)]
    path = folder / "log.csv"
    path.write_text("\n".join(map(",".join, [header, *rows])))
    return path


def event(step: int, tag: str, value: float) -> bytes:
    """One scalar as an event file frames it."""
    name = tag.encode()
    scalar = b"\x0a" + bytes([len(name)]) + name + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(scalar)]) + scalar
    message = b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary
    length = struct.pack("<Q", len(message))
    check = struct.pack("<I", masked_crc32c(length)), struct.pack("<I", masked_crc32c(message))
    return length + check[0] + message + check[1]
