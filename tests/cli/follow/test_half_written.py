"""A line that is being written is no line yet, whatever it looks like."""

import json

import pytest

from tests.cli.follow.test_follower import Followed, append, replayed
from tests.cli.logs.shapes import lines

VERL = "step:{0} - critic/score/mean:0.{0} - actor/reward_kl_penalty:{0}.1e-05 - actor/entropy:1.0\n"
#: Name of the log, its format, a whole line of a step, and half of it that could be another.
LINES = {
    "csv": ("run.csv", "auto", "{0},0.{0},{0}.1e-05\n", 8),
    "verl": ("driver.log", "verl", VERL, 64),
    "jsonl": ("run.jsonl", "auto", '{{"step": {0}, "reward": 0.{0}, "kl": {0}.1e-05}}\n', 40),
}


def begun(tmp_path, name):
    """A log of three steps, of which half of the last stands there; and the other half."""
    file, format_, line, cut = LINES[name]
    (tmp_path / "run.json").write_text(json.dumps({"actor": {"kl_penalty": "low_var_kl"}}))
    path = tmp_path / file
    path.write_text("step,reward,kl\n" if name == "csv" else "")
    append(path, "".join(map(line.format, (1, 2))).encode() + line.format(3)[:cut].encode())
    followed = Followed(path, format_, run_config=tmp_path / "run.json")
    followed.poll()
    return path, followed, line.format(3)[cut:].encode() + line.format(4).encode()


@pytest.mark.parametrize("name", LINES)
def test_a_follower_that_is_ended_leaves_it_to_the_next_one(tmp_path, name):
    path, followed, rest = begun(tmp_path, name)
    followed.follower.finish(trainer_ended=False)
    assert [row[1] for row in followed.rows()] == [1, 2]
    append(path, rest)
    followed.restart()
    followed.finish()
    assert [row[:2] for row in followed.rows()] == [(0, s) for s in (1, 2, 3, 4)]
    assert followed.rows() == replayed(path, {"kl_penalty": "low_var_kl"})


@pytest.mark.parametrize("name", LINES)
def test_in_a_file_that_begins_anew_it_is_counted_and_not_read(tmp_path, name):
    path, followed, _ = begun(tmp_path, name)
    _, _, line, _ = LINES[name]
    path.write_text(("step,reward,kl\n" if name == "csv" else "") + "".join(map(line.format, (3, 4))))
    followed.poll()
    followed.finish()
    assert [row[:2] for row in followed.rows()] == [(0, s) for s in (1, 2, 3, 4)]
    assert followed.rows()[2][3] == 3.1e-05
    assert followed.follower.bad == 1


def test_what_a_trainer_prints_beside_its_metrics_is_no_fault_when_it_is_cut_off(tmp_path):
    path, followed, _ = begun(tmp_path, "verl")
    path.write_text("8%|")
    followed.poll()
    path.write_text(LINES["verl"][2].format(5))
    followed.finish()
    assert followed.follower.bad == 1


def test_the_last_line_of_a_log_that_has_ended_needs_no_end(tmp_path):
    (path := tmp_path / "run.jsonl").write_bytes(lines({"step": s, "reward": 0.5} for s in (1, 2))[:-1])
    followed = Followed(path)
    followed.finish()
    assert [row[1] for row in followed.rows()] == [1, 2]
