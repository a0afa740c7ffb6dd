"""A log of which a part cannot be read is not judged: what stands where is said, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from guard_cli.errors import CliError
from guard_cli.logs.readers import read_log
from guard_follow.decoders import MAX_LINE
from tests.cli.logs.shapes import record, tensorboard


def metrics(step: int) -> bytes:
    """As ROLL prints them."""
    return b'[INFO] metrics_tag: {"step": %d, "metrics": {"critic/score/mean": 0.5}}\n' % step


def refusal(path: Path, *lines: bytes) -> str:
    """Why a log of these lines is not read."""
    path.write_bytes(b"".join(lines))
    with pytest.raises(CliError) as error:
        read_log(path)
    return str(error.value)


class TestWhatATrainerPrinted:
    def test_every_broken_line_of_metrics_is_named(self, tmp_path: Path) -> None:
        broken = b'[INFO] metrics_tag: {"step": 2, "metr'
        said = refusal(tmp_path / "output.log", b"loading\n", metrics(1), broken + b"\n", metrics(3), broken)
        shown = '[INFO] metrics_tag: {"step": 2, "metr'
        assert f"line 3: what follows `metrics_tag:` is not JSON: {shown}; line 5: " in said
        assert "cut short while it was written?" in said.partition("line 5: ")[2]
        assert "line 2" not in said and "line 4" not in said
        assert said.endswith("Nothing was judged: repair or remove these lines.")

    def test_many_are_counted(self, tmp_path: Path) -> None:
        said = refusal(tmp_path / "output.log", metrics(1), b'metrics_tag: {"a"\n' * 12)
        assert "; and 7 more. Nothing was judged" in said

    @pytest.mark.parametrize("end", [b"", b"\n", b"\n" + metrics(2)], ids=["at the end", "whole", "between"])
    def test_a_line_that_is_too_long_is_named(self, tmp_path: Path, end: bytes) -> None:
        said = refusal(tmp_path / "output.log", metrics(1), b"8%|\r" * (MAX_LINE // 4) + b"x", end)
        assert "line 2: longer than 4 MiB: 8%|" in said and len(said) < 400

    def test_other_lines_are_passed_over(self, tmp_path: Path) -> None:
        path = tmp_path / "output.log"
        path.write_bytes(b"{'loss': 0.1}\n{\n\xff\xfe\n" + metrics(1) + b"\n" + metrics(2).rstrip(b"\n"))
        assert [row.line for row in read_log(path).rows] == [4, 6]

    def test_a_value_is_told_by_its_line_in_the_file(self, tmp_path: Path) -> None:
        lines = b"loading\n", b"step:1 - critic/score/mean:0.5\n", b"step:2 - critic/score/mean:high\n"
        said = refusal(tmp_path / "driver.log", *lines)
        assert "line 3: `critic/score/mean` is 'high'" in said


@pytest.mark.parametrize("name", ["log.jsonl", "output.log"])
def test_what_is_shown_of_a_line_steers_no_terminal(tmp_path: Path, name: str) -> None:
    said = refusal(tmp_path / name, metrics(1), b'metrics_tag: {"a\x1b]0;title\x07\x9b2J\n')
    assert said.isprintable() and "title" in said


def test_a_record_of_an_event_file_is_counted(tmp_path: Path) -> None:
    data = tensorboard(lambda step, attempt: {"reward": 0.5})(0)
    path = tmp_path / "events.out.tfevents.1"
    said = refusal(path, data, record(b"\xff\xff"), data)
    assert said.startswith(f"{path}: 1 records in it cannot be read. Nothing was judged")
    path.write_bytes(data)
    assert read_log(path).rows
