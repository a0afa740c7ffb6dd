"""What cannot be shown ends nothing, and changes no exit code."""

import io
import os
import sys
from pathlib import Path

import pytest

from rlguard.cli.output import StandardStream
from rlguard.cli.run.progress import open_progress


def full_disk():
    return Path("/dev/full").open("w")


def closed_terminal():
    ours, its = os.openpty()
    os.close(ours)
    return os.fdopen(its, "w")


def reader_gone():
    ours, its = os.pipe()
    os.close(ours)
    return os.fdopen(its, "w")


def closed():
    stream = full_disk()
    stream.close()
    return stream


@pytest.mark.parametrize(
    ("opened", "why"),
    [
        (full_disk, "No space left on device"),
        (closed_terminal, "Input/output error"),
        (reader_gone, "Broken pipe"),
        (closed, "I/O operation on closed file."),
    ],
)
def test_a_stream_that_takes_no_more_is_told_of_once_and_left_alone(opened, why):
    lost = []
    stream = opened()
    output = StandardStream(stream, lost.append)
    output.write("one\n")
    output.write("two\n")
    assert lost == [why]
    assert not output.isatty()
    if not stream.closed:
        stream.close()  # what its buffer holds, as when Python ends


def test_what_the_encoding_does_not_have_is_a_question_mark(tmp_path):
    file = tmp_path / "shown"
    with file.open("w", encoding="ascii") as stream:
        StandardStream(stream).write("loss ↑ 3\n")
        assert file.read_bytes() == b"loss ? 3\n", "and it is shown at once"
    strange = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    StandardStream(strange).write("f\udcff ↑")  # a name of a file that is no text
    assert strange.buffer.getvalue().decode() == "f? ↑"


def test_a_live_line_goes_on_without_its_terminal(tmp_path, monkeypatch):
    """It is drawn in a thread, and once more at the end."""
    stream = closed_terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(StandardStream, "isatty", lambda _: True)
    (tmp_path / "trainer.log").write_text("loss 3\n")
    with open_progress(tmp_path, show_trainer=True) as progress:
        assert progress.live is not None
        progress.note("here")
        progress.update(None)
    assert (tmp_path / "guard.log").read_text() == (
        "rlguard run: standard error takes no more (Input/output error); the run goes on without it\n"
    )
