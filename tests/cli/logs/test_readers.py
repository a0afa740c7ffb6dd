"""Every file format, and what is wrong with files that cannot be read."""

import json
from pathlib import Path

import numpy as np
import pytest

from guard_cli.errors import CliError
from guard_cli.logs.readers import read_log
from guard_cli.replay.run import Run, load_run

ROWS = [{"step": i, "reward": i / 10, "kl": i / 1000} for i in range(1, 8)]


def replayed(path: Path, **overrides: str) -> Run:
    return load_run(read_log(path, set(overrides.values())), str(path), overrides)


def is_rows(run: Run) -> None:
    assert run.step.tolist() == [row["step"] for row in ROWS]
    assert run.reward.tolist() == pytest.approx([row["reward"] for row in ROWS])
    assert run.kl.tolist() == pytest.approx([row["kl"] for row in ROWS])


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class TestJsonLines:
    def test_plain(self, tmp_path: Path) -> None:
        is_rows(replayed(write_lines(tmp_path / "log.jsonl", ROWS)))

    def test_blank_lines_are_passed_over_and_lines_still_counted(self, tmp_path: Path) -> None:
        path = tmp_path / "log.jsonl"
        path.write_text('\n{"step":1,"reward":0.1}\n   \n{"step":2,"reward":"x"}\n')
        with pytest.raises(CliError, match=r"line 4: `reward` is 'x', which is not a number"):
            replayed(path)

    @pytest.mark.parametrize("word", ["NaN", '"NaN"', "null", "Infinity", '"Infinity"'])
    def test_words_for_no_number(self, tmp_path: Path, word: str) -> None:
        path = tmp_path / "log.jsonl"
        path.write_text(f'{{"step":1,"reward":0.1}}\n{{"step":2,"reward":{word}}}\n')
        assert replayed(path).step.tolist() == [1]

    def test_every_bad_line_is_named_and_nothing_is_judged(self, tmp_path: Path) -> None:
        path = tmp_path / "log.jsonl"
        path.write_text('{"step":1,"reward":1}\n{"step":2,\n[3]\n{"step":4,"reward":1}\n{"step":5,"rew')
        with pytest.raises(CliError) as error:
            replayed(path)
        message = str(error.value)
        assert "line 2: not JSON" in message and "line 3: a JSON list, not an object" in message
        assert "line 5: not JSON" in message and "cut short" in message
        assert "line 4" not in message and "Nothing was judged" in message

    @pytest.mark.parametrize("depth", [300, 100_000])
    def test_a_line_that_is_nested_too_deeply_is_named(self, tmp_path: Path, depth: int) -> None:
        path = tmp_path / "log.jsonl"
        path.write_text('{"step":1,"reward":1}\n{"step":2,"x":' + "[" * depth + "]" * depth + "}\n")
        with pytest.raises(CliError, match=r"line 2: .*(nested too deeply|recursion limit)"):
            replayed(path)
        whole = tmp_path / "trainer_state.json"
        whole.write_text('{"log_history":' + "[" * depth + "]" * depth + "}")
        with pytest.raises(CliError, match=r"line 1: .*(nested too deeply|recursion limit)"):
            replayed(whole)

    @pytest.mark.parametrize("line", ['{"step":2,"a\\ud800":1}', '{"step":2,"reward":"\\udc00"}'])
    def test_half_of_a_surrogate_pair_is_named(self, tmp_path: Path, line: str) -> None:
        path = tmp_path / "log.jsonl"
        path.write_text('{"step":1,"reward":1}\n' + line + "\n")
        with pytest.raises(CliError, match=r"line 2: not JSON .*hex escape") as error:
            replayed(path)
        assert str(error.value).encode()

    def test_a_cell_that_is_nested_too_deeply_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "log.csv"
        path.write_text("step,reward,items\n1,1,[1]\n2,1," + "[" * 100_000 + "\n")
        with pytest.raises(CliError, match="line 3: items must be a list of outcomes"):
            replayed(path)

    def test_many_bad_lines_are_counted(self, tmp_path: Path) -> None:
        path = tmp_path / "log.jsonl"
        path.write_text("x\n" * 12)
        with pytest.raises(CliError, match="and 7 more"):
            replayed(path)

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        path = tmp_path / "log.jsonl"
        path.write_bytes(b'{"step":1,"reward":1}\n\xff\xfe\n')
        with pytest.raises(CliError, match="line 2: not UTF-8"):
            replayed(path)

    def test_empty(self, tmp_path: Path) -> None:
        path = tmp_path / "log.jsonl"
        path.write_text("")
        with pytest.raises(CliError, match="not a single row"):
            replayed(path)


class TestCsv:
    def test_wandb_table_export_with_empty_cells(self, tmp_path: Path) -> None:
        path = tmp_path / "wandb.csv"
        lines = ["_step,train/global_step,train/reward,train/kl,_runtime"]
        lines += [f"{i},{row['step']},{row['reward']},{row['kl']}," for i, row in enumerate(ROWS)]
        path.write_text("\n".join([*lines, "99,8,,,12.5", ""]))
        run = replayed(path)
        is_rows(run)
        assert any("1 of 8 steps have no reward" in note for note in run.notes)

    def test_quotes_and_a_byte_order_mark(self, tmp_path: Path) -> None:
        path = tmp_path / "chart.csv"
        path.write_text('\ufeff"Step","run - train/reward"\n"1","0.5"\n')
        assert replayed(path).reward.tolist() == [0.5]

    def test_a_cell_with_line_ends_in_it(self, tmp_path: Path) -> None:
        path = tmp_path / "samples.csv"
        path.write_text('step,reward,completion\n1,0.5,"first\n\nsecond"\n2,0.25,third\n')
        assert replayed(path).reward.tolist() == [0.5, 0.25]

    def test_items_as_a_json_cell(self, tmp_path: Path) -> None:
        path = tmp_path / "own.csv"
        path.write_text('step,reward,items\n1,0.5,"[1, 0]"\n')
        assert replayed(path).evaluations[0].items == (1.0, 0.0)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("step,reward\n1,0.1\n2\n", "line 3: 1 cells, but the header names 2"),
            ("step,reward\n1,0.1\n2,high\n", "line 3: `reward` is 'high'"),
            ("step,step,reward\n1,1,0.1\n", "`step` occurs twice"),
            ("", "not a single row"),
            ('step,reward,note\n1,0.5,"open\n2,0.5,\n', "a cell in quotation marks has no end"),
            ("step,reward\n", "not a single row"),
            ('step,reward,items\n1,0.5,"[1,"\n', "line 2: items must be a list of outcomes"),
        ],
    )
    def test_errors(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "log.csv"
        path.write_text(text)
        with pytest.raises(CliError, match=message.replace("[", r"\[")):
            replayed(path)


class TestTrainerState:
    def state(self, folder: Path, rows: list[dict]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "trainer_state.json"
        summary = {"step": 7, "train_runtime": 3.2, "train_loss": 0.1}
        path.write_text(json.dumps({"global_step": 7, "log_history": [*rows, summary]}))
        return path

    def test_plain(self, tmp_path: Path) -> None:
        run = replayed(self.state(tmp_path, ROWS))
        is_rows(run)
        assert run.columns.framework == "TRL"

    def test_a_folder_means_its_newest_checkpoint(self, tmp_path: Path) -> None:
        self.state(tmp_path / "checkpoint-2", ROWS[:2])
        self.state(tmp_path / "checkpoint-10", ROWS)
        is_rows(replayed(tmp_path))

    def test_an_evaluation_in_a_row_of_its_own(self, tmp_path: Path) -> None:
        rows = [*ROWS, {"step": 4, "eval_reward": 0.25}]
        run = replayed(self.state(tmp_path, rows), heldout="eval_reward")
        assert [(e.step, e.score) for e in run.evaluations] == [(4, 0.25)]

    def test_its_log_history_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "history.json"
        path.write_text(json.dumps(ROWS))
        run = replayed(path)
        is_rows(run)
        assert run.format == "JSON"

    def test_rows_in_which_the_metrics_are_one_object(self, tmp_path: Path) -> None:
        path = tmp_path / "history.json"
        path.write_text(json.dumps([{"step": 3, "train": {"reward": 0.5}}]))
        assert replayed(path).reward.tolist() == [0.5]

    def test_an_entry_of_a_list_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "history.json"
        path.write_text('[{"step": 1, "reward": 0.5}, {"step": 2, "reward": "x"}]')
        with pytest.raises(CliError, match="json: entry 2: `reward` is 'x', which is not a number"):
            replayed(path)

    @pytest.mark.parametrize(
        "text",
        [
            '{"a": 1}',
            "[1, 2]",
            '[{"step": 1, "reward": 1}, 2]',
            "null",
        ],
    )
    def test_another_json_file(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "config.json"
        path.write_text(text)
        with pytest.raises(CliError, match="log_history"):
            replayed(path)


class TestTensorBoard:
    def write(self, folder: Path, rows: list[dict]) -> Path:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        writer = EventFileWriter(str(folder))
        for row in rows:
            for name in ("reward", "kl", "loss"):
                if name in row:
                    value = summary_pb2.Summary.Value(tag=f"train/{name}", simple_value=row[name])
                    summary = summary_pb2.Summary(value=[value])
                    writer.add_event(event_pb2.Event(wall_time=1.0, step=row["step"], summary=summary))
        writer.close()
        return next(folder.glob("events.out.tfevents.*"))

    def test_old_encoding(self, tmp_path: Path) -> None:
        self.write(tmp_path / "runs" / "a", [{**row, "loss": 0.1} for row in ROWS])
        is_rows(replayed(tmp_path))

    def test_new_encoding(self, tmp_path: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        from tensorboard.util.tensor_util import make_tensor_proto

        writer = EventFileWriter(str(tmp_path))
        for row in ROWS:
            for name, number in (("reward", np.float32(row["reward"])), ("kl", row["kl"])):
                value = summary_pb2.Summary.Value(tag=name, tensor=make_tensor_proto(number))
                event = event_pb2.Event(
                    wall_time=1.0, step=row["step"], summary=summary_pb2.Summary(value=[value])
                )
                writer.add_event(event)
        writer.close()
        is_rows(replayed(tmp_path))

    @pytest.mark.torch
    def test_written_by_torch(self, tmp_path: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(tmp_path)) as writer:
            for row in ROWS:
                writer.add_scalar("train/reward", row["reward"], row["step"])
                writer.add_scalar("train/kl", row["kl"], row["step"])
                writer.add_text("note", "x", row["step"])
        is_rows(replayed(tmp_path))

    def test_a_file_cut_short_is_replayed_up_to_there_and_says_so(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, ROWS)
        path.write_bytes(path.read_bytes()[:-7])
        run = replayed(path)
        assert run.step.tolist() == [row["step"] for row in ROWS]
        assert run.kl.tolist()[-1] != run.kl.tolist()[-1]  # the last record was the last KL
        assert any("ends in mid-record" in note for note in run.notes)

    def test_no_event_file(self, tmp_path: Path) -> None:
        path = tmp_path / "events.out.tfevents.1"
        path.write_bytes((8).to_bytes(8, "little") + b"\0" * 4 + b"\xff" * 8 + b"\0" * 4)
        with pytest.raises(CliError, match="not a TensorBoard event file"):
            replayed(path)


class TestFolders:
    def test_a_report_of_rlguard_run(self, tmp_path: Path) -> None:
        write_lines(tmp_path / "history.jsonl", ROWS)
        (tmp_path / "verdict.json").write_text("{}")
        is_rows(replayed(tmp_path))

    def test_a_wandb_run_folder(self, tmp_path: Path) -> None:
        (tmp_path / "files").mkdir()
        write_lines(
            tmp_path / "files" / "wandb-history.jsonl", [{**row, "_step": row["step"]} for row in ROWS]
        )
        is_rows(replayed(tmp_path))

    def test_several_runs(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            write_lines(tmp_path / name / "history.jsonl", ROWS)
        with pytest.raises(CliError, match=r"several runs: `a/history.jsonl`, `b/history.jsonl`"):
            replayed(tmp_path)

    def test_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(CliError, match="holds no run"):
            replayed(tmp_path)

    def test_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(CliError, match="no such file"):
            replayed(tmp_path / "x.jsonl")

    @pytest.mark.parametrize(
        ("name", "message"), [("run-1.wandb", "scan_history"), ("log.txt", "no line in it has metrics")]
    )
    def test_unknown_kind(self, tmp_path: Path, name: str, message: str) -> None:
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(CliError, match=message):
            replayed(tmp_path / name)


@pytest.mark.parametrize("name", ["log.jsonl", "output.log"])
def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path, name: str) -> None:
    path = write_lines(tmp_path / name, ROWS)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    is_rows(replayed(path))
