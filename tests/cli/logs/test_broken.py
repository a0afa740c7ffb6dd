"""A log of which a part cannot be read is not judged: what stands where is said, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlguard.cli.errors import CliError
from rlguard.cli.logs.readers import read_log
from rlguard.cli.replay.run import load_run
from rlguard.follow.decoders import MAX_LINE
from tests.cli.logs.shapes import record, tensorboard


def refusal(path: Path, text: str | bytes) -> str:
    """Why this log is not replayed."""
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(CliError) as error:
        load_run(read_log(path), str(path), {})
    said = str(error.value)
    assert said.isprintable() and said.encode()
    return said


DEEP = "[" * 100_000
FIRST = '{"step":1,"reward":1}\n'


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("log.jsonl", '\n{"step":1,"reward":0.1}\n  \n{"step":2,"reward":"x"}\n', "line 4: `reward` is 'x'"),
        ("log.jsonl", f'{FIRST}{{"step":2,"x":{DEEP}', "line 2: "),
        ("log.jsonl", FIRST + '{"step":2,"a\\ud800":1}\n', "line 2: not JSON"),
        ("log.jsonl", FIRST.encode() + b"\xff\xfe\n", "line 2: not UTF-8"),
        ("log.jsonl", "x\n" * 12, "and 7 more"),
        ("log.jsonl", "", "not a single row"),
        ("log.jsonl", 'x: {"a\x1b]0;title\x07\n', "title"),
        ("log.csv", "step,reward\n1,0.1\n2\n", "line 3: 1 cells, but the header names 2"),
        ("log.csv", "step,reward\n1,0.1\n2,high\n", "line 3: `reward` is 'high'"),
        ("log.csv", "step,step,reward\n1,1,0.1\n", "`step` occurs twice"),
        ("log.csv", 'step,reward,note\n1,0.5,"open\n2,0.5,\n', "a cell in quotation marks has no end"),
        ("log.csv", "step,reward\n", "not a single row"),
        ("log.csv", f"step,reward,items\n1,1,[1]\n2,1,{DEEP}\n", "line 3: items must be a list"),
        ("log.json", '[{"step": 1, "reward": 0.5}, {"step": 2, "reward": "x"}]', "entry 2: `reward` is 'x'"),
        ("state.json", f'{{"log_history":{DEEP}', "line 1: "),
        *(("config.json", text, "log_history") for text in ('{"a": 1}', "[1, 2]", "[{}, 2]", "null")),
        ("run-1.wandb", "x", "scan_history"),
        ("log.txt", "x", "no line in it has metrics"),
        ("events.out.tfevents.1", (8).to_bytes(8, "little") + b"\0" * 24, "not a TensorBoard event file"),
        ("train.log", "{'loss': 0.1, 'reward': high, 'x': 1}\n", "line 1: `reward` is 'high'"),
        ("train.log", "{'loss': 0.5, 'epoch': 0.1}\n{'loss': 0.01, 'rew\n", "line 2: what its trainer"),
        ("driver.log", "loading\nstep:2 - critic/score/mean:high\n", "line 2: `critic/score/mean` is 'high'"),
    ],
    ids=range(25),
)  # fmt: skip
def test_it_is_said_what_stands_where(tmp_path: Path, name: str, text: str | bytes, message: str) -> None:
    assert message in refusal(tmp_path / name, text)


def test_every_bad_line_is_named(tmp_path: Path) -> None:
    text = '{"step":1,"reward":1}\n{"step":2,\n[3]\n{"step":4,"reward":1}\n{"step":5,"rew'
    said = refusal(tmp_path / "log.jsonl", text)
    assert "line 2: not JSON" in said and "line 3: a JSON list, not an object" in said
    assert "line 5: not JSON" in said and "cut short while it was written?" in said
    assert "line 4" not in said and said.endswith("Nothing was judged: repair or remove these lines.")


def metrics(step: int) -> bytes:
    """As ROLL prints them."""
    return b'[INFO] metrics_tag: {"step": %d, "metrics": {"critic/score/mean": 0.5}}\n' % step


class TestWhatATrainerPrinted:
    def test_every_broken_line_of_metrics_is_named(self, tmp_path: Path) -> None:
        broken = b'[INFO] metrics_tag: {"step": 2, "metr'
        said = refusal(
            tmp_path / "output.log", b"loading\n" + metrics(1) + broken + b"\n" + metrics(3) + broken
        )
        assert f"line 3: what follows `metrics_tag:` is not JSON: {broken.decode()}; line 5: " in said
        assert "line 2" not in said and "line 4" not in said

    @pytest.mark.parametrize("end", [b"", b"\n" + metrics(2)], ids=["at the end", "between"])
    def test_a_line_that_is_too_long_is_named(self, tmp_path: Path, end: bytes) -> None:
        said = refusal(tmp_path / "output.log", metrics(1) + b"8%|\r" * (MAX_LINE // 4) + b"x" + end)
        assert "line 2: longer than 4 MiB: 8%|" in said and len(said) < 400

    def test_other_lines_are_passed_over(self, tmp_path: Path) -> None:
        path = tmp_path / "output.log"
        path.write_bytes(b"{'loss': 0.1}\n{\n\xff\xfe\n" + metrics(1) + b"\n" + metrics(2).rstrip(b"\n"))
        assert [row.line for row in read_log(path).rows] == [4, 6]


def test_a_record_of_an_event_file_is_counted(tmp_path: Path) -> None:
    data = tensorboard(lambda step, attempt: {"reward": 0.5})(0)
    path = tmp_path / "events.out.tfevents.1"
    said = refusal(path, data + record(b"\xff\xff") + data)
    assert said.startswith(f"{path}: 1 records in it cannot be read. Nothing was judged")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a/history.jsonl", "b/history.jsonl"], "several runs: `a/history.jsonl`, `b/history.jsonl`"),
        ([], "holds no run"),
    ],
)
def test_a_folder_without_one_run(tmp_path: Path, files: list[str], message: str) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(FIRST)
    with pytest.raises(CliError, match=message):
        read_log(tmp_path)
    with pytest.raises(CliError, match="no such file"):
        read_log(tmp_path / "x.jsonl")
