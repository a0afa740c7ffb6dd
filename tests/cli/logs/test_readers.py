"""Every file format that a replay reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlguard.cli.logs.readers import read_log
from rlguard.cli.replay.run import Run, load_run
from tests.cli.logs.recorded import LOGS, kl, reward, steps

ROWS = [{"step": i, "reward": i / 10, "kl": i / 1000} for i in range(1, 8)]


def replayed(path: Path, **overrides: str) -> Run:
    return load_run(read_log(path, set(overrides.values())), str(path), overrides)


def is_rows(run: Run) -> None:
    assert run.step.tolist() == [row["step"] for row in ROWS]
    assert run.reward.tolist() == pytest.approx([row["reward"] for row in ROWS])
    assert run.kl.tolist() == pytest.approx([row["kl"] for row in ROWS])


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class TestLines:
    @pytest.mark.parametrize("name", ["log.jsonl", "output.log"])
    @pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n  \n"])
    def test_of_json(self, tmp_path: Path, name: str, before: bytes) -> None:
        path = write_lines(tmp_path / name, ROWS)
        path.write_bytes(before + path.read_bytes())
        is_rows(replayed(path))

    @pytest.mark.parametrize("word", ["NaN", '"NaN"', "null", "Infinity", '"Infinity"'])
    def test_words_for_no_number(self, tmp_path: Path, word: str) -> None:
        path = tmp_path / "log.jsonl"
        path.write_text(f'{{"step":1,"reward":0.1}}\n{{"step":2,"reward":{word}}}\n')
        assert replayed(path).step.tolist() == [1]

    def test_of_a_csv_that_wandb_exports_with_empty_cells(self, tmp_path: Path) -> None:
        path = tmp_path / "wandb.csv"
        lines = ["_step,train/global_step,train/reward,train/kl,_runtime"]
        lines += [f"{i},{row['step']},{row['reward']},{row['kl']}," for i, row in enumerate(ROWS)]
        path.write_text("\n".join([*lines, "99,8,,,12.5", ""]))
        run = replayed(path)
        is_rows(run)
        assert any("1 of 8 steps have no reward" in note for note in run.notes)

    @pytest.mark.parametrize(
        "text",
        [
            '\ufeff"Step","run - train/reward"\n"1","0.5"\n"2","0.25"\n',
            'step,reward,completion\n1,0.5,"first\n\nsecond"\n2,0.25,third\n',
        ],
    )
    def test_of_a_csv_with_quotes(self, tmp_path: Path, text: str) -> None:
        (path := tmp_path / "chart.csv").write_text(text)
        assert replayed(path).reward.tolist() == [0.5, 0.25]

    def test_of_a_csv_with_items(self, tmp_path: Path) -> None:
        (path := tmp_path / "own.csv").write_text('step,reward,items\n1,0.5,"[1, 0]"\n')
        assert replayed(path).evaluations[0].items == (1.0, 0.0)


#: As transformers 4 prints it, in the line of its progress bar, and as transformers 5 does.
OLD = (
    "  1%| | {n}/9 [00:0{n}<00:09]\r{{'loss': 0.1, 'lr': 1e-06, 'reward': {n}.5, 'kl': {n}e-05, 'epoch': 1}}"
)
NEW = "{{'loss': '0.1', 'lr': '1e-06', 'reward': '{n}.5', 'kl': '{n}e-05', 'epoch': '0.1'}}"


class TestWhatHuggingFacesTrainerPrints:
    """It is read where nothing else in the output has a reward."""

    def log(self, tmp_path: Path, *lines: str) -> Run:
        path = tmp_path / "train.log"
        summary = "{'train_runtime': 9.5, 'train_loss': 0.01, 'reward': 7.5}"  # repeats the last reward
        path.write_text("\n".join(("loading the model", *lines, summary)) + "\n", newline="")
        return replayed(path)

    @pytest.mark.parametrize("shape", [OLD, NEW], ids=["transformers 4", "transformers 5"])
    def test_what_it_logged_is_counted_for_want_of_a_step(self, tmp_path: Path, shape: str) -> None:
        two = shape.format(n=1) + "\r" + shape.format(n=2)
        run = self.log(tmp_path, '{"peft_type": "LORA", "r": 16, "step": 7}', two, shape.format(n=3))
        assert (run.columns.framework, run.format) == ("TRL", "console")
        assert run.step.tolist() == [1, 2, 3] and run.reward.tolist() == [1.5, 2.5, 3.5]
        assert run.kl.tolist() == pytest.approx([1e-5, 2e-5, 3e-5])
        [note] = run.notes
        assert "counted from 1 to 3" in note and "trainer_state.json" in note

    def test_a_log_with_a_reward_of_another_form_is_read_as_that(self, tmp_path: Path) -> None:
        run = self.log(tmp_path, OLD.format(n=1), "step:4 - critic/score/mean:0.25")
        assert (run.step.tolist(), run.reward.tolist(), run.notes) == ([4], [0.25], ())

    def test_nothing_is_evaluated(self, tmp_path: Path) -> None:
        made = tmp_path / "made"
        code = f"__import__('pathlib').Path('{made}').touch()"
        run = self.log(tmp_path, OLD.format(n=1), OLD.format(n=2).replace("2.5", code))
        assert run.step.tolist() == [1] and not made.exists()


class TestJson:
    def state(self, folder: Path, rows: list[dict[str, Any]]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "trainer_state.json"
        summary = {"step": 7, "train_runtime": 3.2, "train_loss": 0.1}
        path.write_text(json.dumps({"global_step": 7, "log_history": [*rows, summary]}))
        return path

    def test_a_trainer_state_and_a_folder_means_its_newest_checkpoint(self, tmp_path: Path) -> None:
        self.state(tmp_path / "checkpoint-2", ROWS[:2])
        path = self.state(tmp_path / "checkpoint-10", [*ROWS, {"step": 4, "eval_reward": 0.25}])
        for log in (path, tmp_path):
            run = replayed(log)
            is_rows(run)
            assert run.columns.framework == "TRL"
            assert [(e.step, e.score) for e in run.evaluations] == [(4, 0.25)]

    def test_rows_in_a_list(self, tmp_path: Path) -> None:
        path = tmp_path / "history.json"
        path.write_text(json.dumps(ROWS))
        is_rows(replayed(path))
        path.write_text(json.dumps([{"step": 3, "train": {"reward": 0.5}}]))
        assert replayed(path).reward.tolist() == [0.5]


class TestTensorBoard:
    @pytest.mark.parametrize("tensor", [False, True])
    def test_of_both_encodings_and_one_that_is_cut_short(self, tmp_path: Path, tensor: bool) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        from tensorboard.util.tensor_util import make_tensor_proto

        writer = EventFileWriter(str(tmp_path / "runs" / "a"))
        for row in ROWS:
            for name, number in (("loss", 0.1), ("reward", np.float32(row["reward"])), ("kl", row["kl"])):
                how = {"tensor": make_tensor_proto(number)} if tensor else {"simple_value": number}
                summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=f"train/{name}", **how)])
                writer.add_event(event_pb2.Event(wall_time=1.0, step=row["step"], summary=summary))
        writer.close()
        is_rows(replayed(tmp_path))
        [path] = tmp_path.rglob("events.out.tfevents.*")
        path.write_bytes(path.read_bytes()[:-7])
        run = replayed(path)
        assert run.step.tolist() == [row["step"] for row in ROWS] and np.isnan(run.kl[-1])
        assert any("ends in mid-record" in note for note in run.notes)

    @pytest.mark.torch
    def test_written_by_torch(self, tmp_path: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(tmp_path)) as writer:
            for row in ROWS:
                writer.add_scalar("train/reward", row["reward"], row["step"])
                writer.add_scalar("train/kl", row["kl"], row["step"])
                writer.add_text("note", "x", row["step"])
        is_rows(replayed(tmp_path))


@pytest.mark.parametrize("where", ["history.jsonl", "files/wandb-history.jsonl", "logging.jsonl"])
def test_a_folder_with_one_log(tmp_path: Path, where: str) -> None:
    write_lines(tmp_path / where, [{**row, "_step": row["step"]} for row in ROWS])
    is_rows(replayed(tmp_path))


class TestMlflow:
    """The files in `tests/data/mlflow` were made by MLflow itself, see `tests/data/record_mlflow.py`."""

    MADE = LOGS.parent / "mlflow"

    @pytest.mark.parametrize("of", [("charts",), ("history",), ("charts", "history")], ids="+".join)
    def test_what_it_exports_is_the_recorded_run(self, tmp_path: Path, of: tuple[str, ...]) -> None:
        """Each metric is a file of its own, or several pages; the trainer started twice."""
        for file in (file for name in of for file in (self.MADE / name).iterdir()):
            shutil.copy(file, tmp_path)
        (tmp_path / "config.json").write_text("{}")  # of something else
        run = replayed(tmp_path, heldout="eval/score")
        expected = [(attempt, step) for attempt in (0, 1) for step in steps(attempt)]
        assert list(zip(run.attempt.tolist(), run.step.tolist(), strict=True)) == expected
        assert run.reward.tolist() == pytest.approx([reward(step, attempt) for attempt, step in expected])
        assert run.kl.tolist() == pytest.approx([kl(step, attempt) for attempt, step in expected])
        assert [(e.attempt, e.step, e.score) for e in run.evaluations] == [
            (attempt, step, -step / 100) for attempt, step in expected if step % 4 == 0
        ]
