"""Event files of which a part cannot be read: what can be is, and the rest is said and counted."""

import random
import struct

import pytest

from guard_cli.logs.readers import read_log
from guard_cli.replay.run import load_run
from guard_follow.decoders import MAX_LINE
from guard_follow.errors import InputError
from guard_follow.tensorboard import Events
from tests.cli.follow.test_follower import Followed, append, replayed
from tests.cli.logs.shapes import record

LONG = record(b"\x2a" + b"\x81\x80\x80\x02" + b"\0" * (MAX_LINE + 1))


def events(folder, time, steps, extra=0.0):
    data = record(b"\x1a\x0dbrain.Event:2")  # what every writer begins with
    for step in steps:
        for tag, value in (("reward", 0.1 * step + extra), ("kl", 0.001 * step)):
            packed = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)
            summary = b"\x0a" + bytes([len(packed)]) + packed
            data += record(b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary)
    (folder / f"events.out.tfevents.{time}.h").write_bytes(data)


def test_a_record_that_is_too_long_is_passed_over(tmp_path):
    events(tmp_path, 1000, (4, 5))
    (file,) = tmp_path.iterdir()
    late = file.read_bytes()
    events(tmp_path, 1000, (1, 2, 3))
    followed = Followed(tmp_path, "trl")
    for part in (LONG[:100], LONG[100:5000], LONG[5000:], late):
        append(file, part)
        followed.poll()
    followed.finish()
    assert [row[1] for row in followed.rows()] == [1, 2, 3, 4, 5]
    assert followed.follower.bad == 1
    assert any("1 lines or records could not be read" in said for said in followed.said)
    assert followed.rows() == replayed(tmp_path)
    assert any("1 records of events.out" in note for note in load_run(read_log(tmp_path), "log", {}).notes)


@pytest.mark.parametrize("size", [1009, 999_983, 64 << 20])
def test_however_it_is_cut(size):
    decoder, data, found = Events(), LONG + record(b"\x10\x01") + LONG, []
    for start in range(0, len(data), size):
        found += decoder.feed(data[start : start + size])
    assert found == [] and decoder.too_long == decoder.bad == 2 and not decoder.in_mid_record


@pytest.mark.parametrize("time", [999, 1001], ids=["before", "after"])
def test_a_file_that_is_none_beside_one_that_is(tmp_path, time):
    events(tmp_path, 1000, (1, 2, 3))
    (tmp_path / f"events.out.tfevents.{time}.h").write_bytes(random.Random(1).randbytes(4000))
    followed = Followed(tmp_path, "trl")
    followed.poll()
    events(tmp_path, 1, (7, 8))
    append(tmp_path / f"events.out.tfevents.{time}.h", (tmp_path / "events.out.tfevents.1.h").read_bytes())
    (tmp_path / "events.out.tfevents.1.h").unlink()
    followed.poll()  # what stands behind the damage is not looked for
    events(tmp_path, 1002, (3, 4), 0.5)
    followed.poll()
    followed.finish()
    assert [row[:2] for row in followed.rows()] == [(0, 1), (0, 2), (0, 3), (1, 3), (1, 4)]
    assert followed.follower.bad == 1
    assert [s for s in followed.said if f"tfevents.{time}.h: not a TensorBoard" in s and "other" in s]


def test_a_file_that_is_none_and_no_other(tmp_path):
    (tmp_path / "events.out.tfevents.1.h").write_bytes(random.Random(1).randbytes(4000))
    with pytest.raises(InputError, match="damaged"):
        Followed(tmp_path, "trl").poll()
