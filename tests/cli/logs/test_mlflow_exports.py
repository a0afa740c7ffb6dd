"""What MLflow exports of a run: the CSV of its charts, the JSON of `metrics/get-history`.

The files in `tests/data/mlflow` were made by MLflow itself, see `tests/data/README.md`.
"""

from __future__ import annotations

import json
import shutil
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
        replayed(path)
    return str(error.value)


def chart(path: Path, *rows: str) -> Path:
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows))
    return path


def entry(step: Any, value: Any = 0.5, key: Any = "reward", **more: Any) -> dict[str, Any]:
    return {"key": key, "value": value, "timestamp": 1_000, "step": step, **more}


def history(path: Path, *entries: dict[str, Any], **more: Any) -> Path:
    path.write_text(json.dumps({"metrics": entries, **more}))
    return path


@pytest.mark.parametrize("of", [("charts",), ("history",), ("charts", "history")], ids="+".join)
def test_what_mlflow_made_is_the_recorded_run(tmp_path: Path, of: tuple[str, ...]) -> None:
    """Each metric is a file of its own, or several pages; the trainer started twice."""
    for file in (file for name in of for file in (MADE / name).iterdir()):
        shutil.copy(file, tmp_path)
    (tmp_path / "config.json").write_text("{}")  # of something else
    run = replayed(tmp_path, heldout="eval/score")
    expected = [(attempt, step) for attempt in (0, 1) for step in steps(attempt)]
    assert list(zip(run.attempt.tolist(), run.step.tolist(), strict=True)) == expected
    assert run.reward.tolist() == pytest.approx([reward(step, attempt) for attempt, step in expected])
    assert run.kl.tolist() == pytest.approx([kl(step, attempt) for attempt, step in expected])
    assert np.isnan(run.entropy).sum() == len([step for _, step in expected if step == 3])
    assert [(e.attempt, e.step, e.score) for e in run.evaluations] == [
        (attempt, step, -step / 100) for attempt, step in expected if step % 4 == 0
    ]


@pytest.mark.parametrize("lost", ["kl-1.json", "train-reward-1.json"])
def test_a_last_page_that_is_missing_is_told(tmp_path: Path, lost: str) -> None:
    shutil.copytree(MADE / "history", tmp_path, dirs_exist_ok=True)
    (tmp_path / lost).unlink()
    said = refusal(tmp_path)
    assert f"the last page of `{'kl' if lost[0] == 'k' else 'train/reward'}` is missing" in said


def test_a_page_that_is_cut_short_is_told(tmp_path: Path) -> None:
    shutil.copytree(MADE / "history", tmp_path, dirs_exist_ok=True)
    (page := tmp_path / "kl-0.json").write_text(page.read_text()[:-20])
    assert refusal(tmp_path).startswith(f"{page}: cannot be read, and lies beside exports")


def test_several_runs_are_refused(tmp_path: Path) -> None:
    rows = [f"{name},{run},reward,{s},1,0.5" for name, run in (("a", "id1"), ("b", "id2")) for s in (1, 2)]
    assert "holds several runs: `id1`, `id2`" in refusal(chart(tmp_path / "c.csv", *rows))
    answer = history(tmp_path / "h.json", entry(1, run_id="id1"), entry(1, run_id="id2"))
    assert "holds several runs: `id1`, `id2`" in refusal(answer)


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_the_time_says_to_which_start_a_value_belongs(tmp_path: Path, suffix: str) -> None:
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


@pytest.mark.parametrize("suffix", [".csv", ".json"])
@pytest.mark.parametrize(
    ("field", "bad"),
    [("step", "x"), ("step", "1.5"), ("step", ""), ("timestamp", "NaN"), ("value", "high"), ("value", "")],
)
def test_a_bad_value_is_named_with_its_place(tmp_path: Path, suffix: str, field: str, bad: str) -> None:
    values = {"step": "2", "timestamp": "2", "value": "0.5"} | {field: bad}
    if suffix == ".csv":
        row = f"a,id,reward,{values['step']},{values['timestamp']},{values['value']}"
        said = refusal(chart(tmp_path / "c.csv", "a,id,reward,1,1,0.5", row))
        assert "line 3: no value of a metric" in said
    else:
        said = refusal(history(tmp_path / "h.json", entry(1), {"key": "reward", **values}))
        assert "entry 2 of `metrics`: no value of a metric" in said
    assert "Nothing was judged" in said


@pytest.mark.parametrize("value", [None, True, [1], {"a": 1}, 10**400, "1e"])
def test_a_value_that_is_no_number_is_refused(tmp_path: Path, value: Any) -> None:
    assert "no value of a metric" in refusal(history(tmp_path / "h.json", entry(1, value)))


def test_a_row_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = chart(tmp_path / "c.csv", "a,id,reward,1,1,0.5", "a,id,reward,2")
    assert "line 3: no value of a metric" in refusal(path)


@pytest.mark.parametrize("value", ["NaN", float("nan"), "Infinity", 1.7976931348623157e308])
def test_what_is_not_finite_is_not_known(tmp_path: Path, value: Any) -> None:
    """MLflow's databases keep infinity as the largest number there is."""
    run = replayed(history(tmp_path / "h.json", entry(1), entry(2, value), entry(3)))
    assert run.step.tolist() == [1, 3]


def test_what_is_shown_of_a_value_steers_no_terminal(tmp_path: Path) -> None:
    said = refusal(history(tmp_path / "h.json", entry(1, "\x1b]0;title\x07")))
    assert said.isprintable() and "title" in said
