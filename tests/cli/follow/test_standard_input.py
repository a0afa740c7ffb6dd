"""What is piped into a follower is read as its format says: a replay of the same log reads the same."""

import os

import pytest

from guard_follow.errors import InputError
from tests.cli.follow.followed import Followed, pieces, replayed
from tests.cli.logs.shapes import SHAPES, STEPS

#: (log, `--format`): each decoder, by a format of files or by the framework's own.
BY_PIPE = [
    *(("csv", "csv"), ("verl", "jsonl"), ("verl", "verl"), ("verl-console", "auto")),
    *(("roll", "roll"), ("openrlhf", "tensorboard")),
]


@pytest.fixture
def standard_input():
    """What is written here comes out of this process's standard input."""
    reading, writing = os.pipe()
    before = os.dup(0)
    os.dup2(reading, 0)
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as pipe:
        yield pipe
    os.dup2(before, 0)
    os.close(before)


@pytest.mark.parametrize(("name", "format_"), BY_PIPE)
def test_what_is_piped_in_pieces_is_what_is_replayed(tmp_path, standard_input, name, format_):
    _, file, write, _ = SHAPES[name]
    (tmp_path / file).write_bytes(data := write(0))
    followed = Followed(None, format_)
    for piece in pieces(data, 0):
        standard_input.write(piece)
        followed.poll()
    assert not followed.follower.ended
    standard_input.close()
    followed.poll()
    assert followed.follower.ended
    followed.finish()
    assert followed.rows() == replayed(tmp_path / file)
    assert followed.places() == [(0, s) for s in range(1, STEPS + 1)]


def test_a_line_without_an_end_counts_and_one_that_cannot_be_read_is_told(standard_input):
    followed = Followed(None, "jsonl")
    standard_input.write(b'{"step": 1, "reward": 0.5}\nloading weights\n{"step": 2, "reward": 0.5}')
    followed.poll()
    standard_input.close()
    followed.poll()
    followed.finish()
    assert [row[1] for row in followed.rows()] == [1, 2]
    assert "1 lines or records could not be read, and were left out" in followed.said


def test_bytes_that_are_no_event_file_are_refused(standard_input):
    followed = Followed(None, "tensorboard")
    standard_input.write(b"step:1 - critic/score/mean:0.5\n")
    with pytest.raises(InputError, match="standard input: not a TensorBoard event file"):
        followed.poll()
