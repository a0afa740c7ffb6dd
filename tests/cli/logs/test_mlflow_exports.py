"""What MLflow exports of a run: the CSV of its charts, the JSON of `metrics/get-history`.

The files in `tests/data/mlflow` were made by MLflow itself, see `tests/data/record_mlflow.py`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guard_cli.errors import CliError
from guard_cli.logs.readers import read_log
from guard_cli.replay.run import Run, load_run
from tests.cli.logs.recorded import LOGS, kl, reward, steps

MADE = LOGS.parent / "mlflow"
HEADER = "Run,Run ID,metric,step,timestamp,value\n"


def replayed(path: Path, **overrides: str) -> Run:
    return load_run(read_log(path, set(overrides.values())), str(path), overrides)


def refusal(path: Path) -> str:
    with pytest.raises(CliError) as error:
        load_run(read_log(path), str(path), {})
    return str(error.value)


def chart(path: Path, *rows: str, header: str = HEADER) -> Path:
    path.write_text(header + "".join(f"{row}\n" for row in rows))
    return path


def entry(step: Any, value: Any = 0.5, key: Any = "reward", **more: Any) -> dict[str, Any]:
    return {"key": key, "value": value, "timestamp": 1_000, "step": step, **more}


def history(path: Path, *entries: dict[str, Any], **more: Any) -> Path:
    path.write_text(json.dumps({"metrics": entries, **more}))
    return path


def is_the_recorded_run(path: Path) -> None:
    run = replayed(path, heldout="eval/score")
    expected = [(attempt, step) for attempt in (0, 1) for step in steps(attempt)]
    assert list(zip(run.attempt.tolist(), run.step.tolist(), strict=True)) == expected
    assert run.reward.tolist() == pytest.approx([reward(step, attempt) for attempt, step in expected])
    assert run.kl.tolist() == pytest.approx([kl(step, attempt) for attempt, step in expected])
    assert not any("twice" in note for note in run.notes)
    not_known = [step for attempt, step in expected if step == 3]
    assert np.isnan(run.entropy).sum() == len(not_known)
    assert [(e.attempt, e.step, e.score) for e in run.evaluations] == [
        (attempt, step, -step / 100) for attempt, step in expected if step % 4 == 0
    ]


class TestWhatMlflowMade:
    def test_charts_each_in_a_file(self) -> None:
        """Values below 0 have an apostrophe, and each metric is a file of its own."""
        assert '"\'-0.04"' in (MADE / "charts" / "eval-score.csv").read_text()
        is_the_recorded_run(MADE / "charts")

    def test_pages_of_the_rest_api(self) -> None:
        assert "next_page_token" in (MADE / "history" / "kl-0.json").read_text()
        is_the_recorded_run(MADE / "history")

    def test_pages_one_after_the_other_in_one_file(self, tmp_path: Path) -> None:
        """As `curl … >> history.json` leaves them."""
        pages = sorted((MADE / "history").iterdir())
        (file := tmp_path / "history.json").write_text("".join(page.read_text() for page in pages))
        is_the_recorded_run(file)

    def test_both_together_are_the_same_values(self, tmp_path: Path) -> None:
        for file in [*(MADE / "charts").iterdir(), *(MADE / "history").iterdir()]:
            shutil.copy(file, tmp_path)
        (tmp_path / "config.json").write_text("{}")  # of something else
        is_the_recorded_run(tmp_path)

    @pytest.mark.parametrize("lost", ["kl-1.json", "train-reward-1.json"])
    def test_a_last_page_that_is_missing(self, tmp_path: Path, lost: str) -> None:
        for file in (MADE / "history").iterdir():
            if file.name != lost:
                shutil.copy(file, tmp_path)
        said = refusal(tmp_path)
        assert "the last page is missing" in said and "Nothing was judged" in said
        assert f"`{'kl' if lost[0] == 'k' else 'train/reward'}`" in said

    def test_the_last_page_may_be_read_first(self, tmp_path: Path) -> None:
        for file in (MADE / "history").iterdir():
            name, _, page = file.stem.rpartition("-")
            shutil.copy(file, tmp_path / f"{name}-{9 - int(page)}.json")
        is_the_recorded_run(tmp_path)

    def test_a_page_that_is_cut_short(self, tmp_path: Path) -> None:
        shutil.copytree(MADE / "history", tmp_path, dirs_exist_ok=True)
        (page := tmp_path / "kl-0.json").write_text(page.read_text()[:-20])
        assert refusal(tmp_path).startswith(f"{page}: cannot be read, and stands beside exports")

    def test_a_run_with_its_last_values_alone(self) -> None:
        said = refusal(MADE / "run.json")
        assert "only the last values" in said and "`metrics/get-history`" in said


class TestSeveralRuns:
    def test_in_one_chart(self, tmp_path: Path) -> None:
        rows = [
            f"{name},{run},reward,{s},1,0.5" for name, run in (("a", "id1"), ("b", "id2")) for s in (1, 2)
        ]
        said = refusal(chart(tmp_path / "c.csv", *rows))
        assert "holds several runs: `a id1`, `b id2`. Export one of them" in said and "run ID" in said

    def test_in_two_files(self, tmp_path: Path) -> None:
        chart(tmp_path / "reward.csv", "a,id1,reward,1,1,0.5")
        chart(tmp_path / "kl.csv", "a,id2,kl,1,1,0.5")
        assert f"{tmp_path} holds several runs: `a id2`, `a id1`" in refusal(tmp_path)

    def test_in_answers_that_say_the_run(self, tmp_path: Path) -> None:
        said = refusal(history(tmp_path / "h.json", entry(1, run_id="id1"), entry(1, run_id="id2")))
        assert "holds several runs: `id1`, `id2`" in said

    def test_runs_without_an_id_are_told_by_name(self, tmp_path: Path) -> None:
        said = refusal(chart(tmp_path / "c.csv", "a,,reward,1,1,0.5", "b,,reward,1,1,0.5"))
        assert "holds several runs: `a a`, `b b`" in said

    def test_that_were_drawn_as_one_line(self, tmp_path: Path) -> None:
        path = chart(tmp_path / "c.csv", "g,,reward,1,1,0.5", header=HEADER.replace("Run,", "Group,", 1))
        assert "means of groups of runs" in refusal(path)


class TestOrder:
    @pytest.mark.parametrize("suffix", [".csv", ".json"])
    def test_the_time_says_to_which_start_a_value_belongs(self, tmp_path: Path, suffix: str) -> None:
        """MLflow says nothing of the order in which it gives the values."""
        lines = [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3)]  # time, step
        lines = [lines[i] for i in (4, 0, 2, 1, 3)]
        path = tmp_path / f"log{suffix}"
        if suffix == ".csv":
            chart(path, *(f"a,id,reward,{step},{time},0.{time}" for time, step in lines))
        else:
            history(path, *(entry(step, time / 10) | {"timestamp": time} for time, step in lines))
        run = replayed(path)
        assert list(zip(run.attempt.tolist(), run.step.tolist(), run.reward.tolist(), strict=True)) == [
            *((0, 1, 0.1), (0, 2, 0.2), (0, 3, 0.3)),
            *((1, 2, 0.4), (1, 3, 0.5)),
        ]

    def test_a_chart_that_is_a_sample_is_told(self, tmp_path: Path) -> None:
        def note(count: int) -> str:
            path = chart(tmp_path / "c.csv", *(f"a,id,reward,{s},{s},0.5" for s in range(1, 2 * count, 2)))
            return read_log(path).note or ""

        assert "of a longer run they are a sample" in note(320)
        assert note(319) == note(321) == ""


BAD_VALUES: Iterable[tuple[str, str, str]] = [
    ("step", "x", "which is not a whole number"),
    ("step", "1.5", "which is not a whole number"),
    ("step", "9" * 30, "which is not a whole number"),
    ("step", "9" * 5000, "which is not a whole number"),
    ("step", "", "which is not a whole number"),
    ("step", "-1", "not a whole number from 0 on"),
    ("timestamp", "NaN", "which is not a number"),
    ("timestamp", "yesterday", "which is not a number"),
    ("value", "high", "which is not a number"),
    ("value", "", "which is not a number"),
]


class TestHostile:
    @pytest.mark.parametrize("suffix", [".csv", ".json"])
    @pytest.mark.parametrize(("field", "bad", "why"), BAD_VALUES)
    def test_a_bad_value_is_named_with_its_place(
        self, tmp_path: Path, suffix: str, field: str, bad: str, why: str
    ) -> None:
        values = {"step": "2", "timestamp": "2", "value": "0.5"} | {field: bad}
        if suffix == ".csv":
            row = f"a,id,reward,{values['step']},{values['timestamp']},{values['value']}"
            said = refusal(chart(tmp_path / "c.csv", "a,id,reward,1,1,0.5", row))
        else:
            said = refusal(history(tmp_path / "h.json", entry(1), {"key": "reward", **values}))
        assert why in said and len(said) < 500
        if bad != "-1":
            assert "line 3: " in said or "entry 2 of `metrics`: " in said

    @pytest.mark.parametrize("value", [None, True, [1], {"a": 1}, 10**400, "1e"])
    def test_a_value_that_is_no_number(self, tmp_path: Path, value: Any) -> None:
        for field in ("value", "step", "timestamp"):
            said = refusal(history(tmp_path / "h.json", entry(1) | {field: value}))
            assert "which is not a" in said or "is missing" in said

    def test_a_step_in_json_may_be_a_fraction_that_is_whole(self, tmp_path: Path) -> None:
        assert replayed(history(tmp_path / "h.json", entry(2.0), entry("3"))).step.tolist() == [2, 3]
        assert "`step` is 2.5, which is not a whole" in refusal(history(tmp_path / "h.json", entry(2.5)))

    @pytest.mark.parametrize("field", ["step", "timestamp"])
    def test_a_field_that_is_missing(self, tmp_path: Path, field: str) -> None:
        one = entry(1)
        del one[field]
        assert f"entry 1 of `metrics`: `{field}` is missing" in refusal(history(tmp_path / "h.json", one))

    @pytest.mark.parametrize("name", ["step", "timestamp", "value"])
    def test_a_column_that_is_missing(self, tmp_path: Path, name: str) -> None:
        path = chart(tmp_path / "c.csv", header=HEADER.replace(name, "other"))
        assert f"the CSV of an MLflow chart without `{name}`" in refusal(path)

    def test_a_row_that_is_none(self, tmp_path: Path) -> None:
        path = chart(tmp_path / "c.csv", "a,id,reward,1,1,0.5", "a,id,reward,2")
        assert "line 3: 4 cells, but the header names 6" in refusal(path)
        (path := tmp_path / "d.csv").write_text(HEADER + 'a,id,reward,1,1,"' + "x" * 200_000 + '"\n')
        assert "line 2: not CSV: field larger" in refusal(path)
        (path := tmp_path / "e.csv").write_text("x" * 200_000 + ",step\n")
        assert "not CSV: field larger" in refusal(path)

    def test_a_blank_line_and_a_header_of_a_file_that_was_joined_on(self, tmp_path: Path) -> None:
        path = chart(tmp_path / "c.csv", "a,id,reward,1,1,0.5", "", HEADER.strip(), "a,id,reward,2,2,0.5")
        assert replayed(path).step.tolist() == [1, 2]

    @pytest.mark.parametrize("value", ["NaN", float("nan"), "Infinity", 1.7976931348623157e308, 1e999])
    def test_what_is_not_finite_is_not_known(self, tmp_path: Path, value: Any) -> None:
        """MLflow's data bases keep infinity as the largest number there is."""
        run = replayed(history(tmp_path / "h.json", entry(1), entry(2, value), entry(3)))
        assert run.step.tolist() == [1, 3]

    @pytest.mark.parametrize("key", [None, 5, ["reward"]])
    def test_a_metric_without_a_name(self, tmp_path: Path, key: Any) -> None:
        assert "the metric's name" in refusal(history(tmp_path / "h.json", entry(1), entry(1, key=key)))

    def test_an_answer_that_says_an_error(self, tmp_path: Path) -> None:
        (path := tmp_path / "h.json").write_text(json.dumps({"metrics": [entry(1)]}) + '{"error_code": "X"}')
        assert "an answer of MLflow that says an error?" in refusal(path)

    def test_of_a_metric_that_has_no_value_it_answers_nothing(self, tmp_path: Path) -> None:
        (path := tmp_path / "h.json").write_text(json.dumps({"metrics": [entry(1)]}) + "\n{}\n")
        assert replayed(path).step.tolist() == [1]

    def test_a_further_figure_that_is_no_number_is_not_known(self, tmp_path: Path) -> None:
        clipped = entry(2, "many", key="completions/clipped_ratio")
        assert replayed(history(tmp_path / "h.json", entry(1), clipped, entry(2))).step.tolist() == [1, 2]

    @pytest.mark.parametrize(
        "text",
        [
            '{"metrics": [',
            "[" * 100_000,
            '{"a": 1}{"b"',
            "\xff",
            "5 5",
            "[]",
            "{}",
            '{"metrics": [5]}',
            '"a"',
        ],
    )
    def test_json_that_is_something_else(self, tmp_path: Path, text: str) -> None:
        (path := tmp_path / "h.json").write_text(text, encoding="latin-1")
        assert "JSON" in refusal(path)

    def test_what_is_shown_of_a_value_steers_no_terminal(self, tmp_path: Path) -> None:
        said = refusal(history(tmp_path / "h.json", entry(1, "\x1b]0;title\x07")))
        assert said.isprintable() and "title" in said

    def test_a_folder_whose_csv_is_not_utf8(self, tmp_path: Path) -> None:
        (tmp_path / "c.csv").write_bytes(HEADER.encode() + b"a,id,reward,1,1,0.5\n" * 1_000 + b"\xff\n")
        assert "not a text file in UTF-8" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("runs.csv", "Start Time,Duration,Run ID,Name,reward\n2026,1s,id1,a,0.5\n"),
        ("chart.csv", "Run,Run ID,reward,lr\na,id1,0.5,1\n"),
        ("search_runs.csv", "run_id,experiment_id,status,metrics.reward\nid1,1,FINISHED,0.5\n"),
        (
            "get.json",
            '{"run": {"info": {}, "data": {"metrics": [{"key": "reward", "value": 0.5, "step": 9}]}}}',
        ),
    ],
)
def test_tables_of_last_values_are_refused_with_what_to_export(tmp_path: Path, name: str, text: str) -> None:
    (path := tmp_path / name).write_text(text)
    said = refusal(path)
    assert "only the last values" in said and "CSV of its chart" in said


def test_a_csv_with_steps_that_has_a_column_with_the_runs_id_is_read_as_before(tmp_path: Path) -> None:
    (path := tmp_path / "log.csv").write_text("Run ID,step,reward\nid1,1,0.5\nid1,2,0.5\n")
    assert replayed(path).step.tolist() == [1, 2]


def test_a_step_in_the_file_store_that_no_table_can_hold(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "meta.yaml").write_text("run_id: x\n")
    (tmp_path / "metrics" / "reward").write_text(f"1 0.5 {10**30}\n")
    assert "line 1: not `time value step`" in refusal(tmp_path)
