"""A run in MLflow's file store: the starts of its trainer, which write into the same files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from guard_cli.logs.readers import read_log
from guard_cli.replay.run import Run, load_run

HELDOUT = "eval/score"
CUT_OFF = "completions/clipped_ratio"
#: What two starts logged, in this order: step to values. The second goes on after step 6.
ROWS: Sequence[tuple[int, dict[str, float]]] = [
    *((s, {"reward": s / 10, "kl": s / 1000} | ({HELDOUT: 0.5} if s == 4 else {})) for s in range(1, 11)),
    *(
        (s, {"reward": s / 10 + 0.01, "kl": s / 1000 + 0.0001} | ({HELDOUT: 0.25} if s == 12 else {}))
        for s in range(7, 15)
    ),
]


def write(folder: Path, *metrics: tuple[str, Sequence[str]]) -> Path:
    for name, lines in metrics:
        file = folder / "metrics" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines))
    (folder / "meta.yaml").write_text("run_id: x\n")
    return folder


def logged(folder: Path, rows: Sequence[tuple[int, dict[str, float]]]) -> Path:
    """As `mlflow.log_metrics(values, step)` writes each row, all of its values at one time."""
    names = {name for _, values in rows for name in values}
    lines = {
        name: [f"{1000 * t} {v[name]!r} {s}" for t, (s, v) in enumerate(rows) if name in v] for name in names
    }
    return write(folder, *lines.items())


def replayed(path: Path) -> Run:
    return load_run(read_log(path, {HELDOUT}), str(path), {"heldout": HELDOUT})


def seen(run: Run) -> list[object]:
    steps = zip(*(part.tolist() for part in (run.attempt, run.step, run.reward, run.kl)), strict=True)
    return [*steps, *((e.attempt, e.step, e.items) for e in run.evaluations), *run.notes]


def test_a_trainer_that_started_again_is_two_attempts_as_in_a_log_of_lines(tmp_path: Path) -> None:
    """A metric that is logged seldom does not go back, and still belongs to the start that wrote it."""
    (lines := tmp_path / "log.jsonl").write_text(
        "".join(json.dumps({"step": step, **values}) + "\n" for step, values in ROWS)
    )
    run = replayed(logged(tmp_path / "run", ROWS))
    assert seen(run) == seen(replayed(lines))
    assert run.attempts == 2 and [(e.attempt, e.step) for e in run.evaluations] == [(0, 4), (1, 12)]
    assert any("read as 2 attempts" in note for note in run.notes)


def test_an_evaluation_of_a_step_that_comes_again_counts_in_both(tmp_path: Path) -> None:
    rows = [(s, v | ({HELDOUT: v["reward"] / 4} if s == 10 else {})) for s, v in ROWS]
    run = replayed(logged(tmp_path, rows))
    assert [(e.attempt, e.step, e.score) for e in run.evaluations if e.step == 10] == [
        (0, 10, 0.25),
        (1, 10, pytest.approx(0.2525)),
    ]


@pytest.mark.parametrize("times", [[5, 6, 7, 1, 2], [1, 1, 1, 1, 1]], ids=["run backwards", "stand still"])
def test_where_times_do_not_tell_the_later_value_counts_and_a_note_says_so(
    tmp_path: Path, times: list[int]
) -> None:
    steps = [1, 2, 3, 2, 3]
    reward = [f"{t} {i / 10} {s}" for i, (t, s) in enumerate(zip(times, steps, strict=True))]
    kl = [f"{t} {i / 100} {s}" for i, (t, s) in enumerate(zip(times, steps, strict=True))]
    run = replayed(write(tmp_path, ("reward", reward), ("kl", kl), (HELDOUT, ["9 0.5 3"])))
    assert run.attempts == 1 and run.reward.tolist() == [0.0, 0.3, 0.4] and run.kl.tolist() == [0, 0.03, 0.04]
    assert any(
        note.startswith("2 steps were written twice (the first: step 2)") and "cannot be told apart" in note
        for note in run.notes
    )


def test_a_value_that_one_start_wrote_twice_is_told(tmp_path: Path) -> None:
    run = replayed(write(tmp_path, ("reward", ["1 0.1 1", "2 0.2 2", "3 0.3 2"]), (HELDOUT, ["4 0.5 2"])))
    assert run.attempts == 1 and run.reward.tolist() == [0.1, 0.3]
    assert [n for n in run.notes if "twice" in n] == [
        "1 steps were written twice (the first: step 2); the later value counts."
    ]


def test_nothing_is_told_of_a_log_without_a_second_start(tmp_path: Path) -> None:
    run = replayed(logged(tmp_path, ROWS[:10]))
    assert run.attempts == 1 and not any("twice" in note for note in run.notes)


def test_a_further_figure_decides_nothing(tmp_path: Path) -> None:
    """Nor where an attempt begins: its times may say what they like."""
    folder = logged(tmp_path, ROWS)
    write(folder, (CUT_OFF, ["9000 0.5 9", "1000 0.25 1", "2000 0.25 1"]))
    run = replayed(folder)
    assert run.attempts == 2 and not any("twice" in note for note in run.notes)
