"""Starts of a trainer: what a follower says while the log is written is what a replay says of all of it."""

import json
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guard_cli.replay.attempts import attempts_of
from guard_client.samples import StepSample
from guard_follow.errors import InputError
from guard_follow.starts import Starts
from tests.cli.follow.test_follower import Followed, append, replayed
from tests.cli.logs.shapes import lines, record


def rows(steps, extra=0.0, **more):
    return [{"step": s, "reward": round(0.1 * s + extra, 6), "kl": 0.001 * s, **more} for s in steps]


def both(path, format_="auto"):
    """What is followed at once, and what is replayed."""
    followed = Followed(path, format_)
    followed.poll()
    followed.finish()
    return followed.rows(), replayed(path)


def numbered(found):
    return [row[:2] for row in found]


SPARSE = [{"step": s, "reward": r, "kl": k} for s, r, k in ((1, 0.0, 0.0), (2, 0.0, 0.001), (3, 0.1, 0.002))]
AGAIN = [{"step": s, "reward": r, "kl": k} for s, r, k in ((1, 0.0, 0.0), (2, 0.1, 0.001), (3, 0.3, 0.002))]
LOGS = {
    "the first step of both starts is equal": (
        [*SPARSE, *AGAIN],
        [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3)],
    ),
    "four crashes": (
        [row for k in range(4) for row in rows((1, 2, 3), k / 100)],
        [(k, s) for k in range(4) for s in (1, 2, 3)],
    ),
    "equal values, then others": (
        [*rows(range(1, 9)), *rows(range(5, 11)), *rows(range(9, 16), 0.03)],
        [(0, s) for s in range(1, 11)] + [(1, s) for s in range(9, 16)],
    ),
    "a step twice in a row": (
        [*rows([1, 2]), *rows([2], 0.05), *rows([3])],
        [(0, 1), (0, 2), (0, 3)],
    ),
    "a line that is a step, twice": (
        [
            {"step": s, "data": {"critic/score/mean": r, "actor/entropy": 1.0}}
            for s, r in ((1, 0.1), (2, 0.2), (2, 0.25), (3, 0.3))
        ],
        [(0, 1), (0, 2), (0, 3)],
    ),
    "a value after the next step began": (
        [{"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.2}, {"step": 1, "kl": 0.01}, *rows([3])],
        [(0, 1), (0, 2), (0, 3)],
    ),
    "steps of another phase": (
        [*rows(range(5, 51, 5)), *rows(range(33, 80, 5), 1.0)],
        sorted((0, s) for s in (*range(5, 51, 5), *range(33, 80, 5))),
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_log_is_followed_as_it_is_replayed(tmp_path, name):
    written, expected = LOGS[name]
    (path := tmp_path / "run.jsonl").write_bytes(lines(written))
    followed, found = both(path)
    assert numbered(followed) == expected
    assert followed == found


def test_what_a_replay_leaves_out_since_it_came_late_is_told(tmp_path):
    from guard_cli.logs.readers import read_log
    from guard_cli.replay.run import load_run

    written, _ = LOGS["a value after the next step began"]
    (path := tmp_path / "run.jsonl").write_bytes(lines(written))
    run = load_run(read_log(path), "log", {})
    assert [note for note in run.notes if note.startswith("1 steps have values") and "step 1)" in note]


#: Starts of a trainer: how far each goes back, how many steps it logs, and which of two values each has.
STARTS = st.lists(
    st.tuples(st.integers(0, 6), st.lists(st.integers(0, 1), min_size=1, max_size=8)), min_size=1, max_size=4
)
#: What happens after a line: nothing, a look, a follower that is killed, a rotation, a file written anew.
EVENTS = st.lists(st.integers(0, 4), min_size=1, max_size=40)
FEW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def steps_of(starts, least):
    """(start, step, value) in the order of the log."""
    last = 0
    for number, (back, values) in enumerate(starts):
        first = max(1, last + 1 - max(back, least))
        first = last + 1 if first + least > last + 1 else first
        for step, value in enumerate(values, start=first):
            yield number, step, value
        last = first + len(values) - 1


@FEW
@given(starts=STARTS, events=EVENTS)
def test_a_log_that_is_appended_to_is_one_log_whatever_its_values(tmp_path_factory, starts, events):
    """Values that are equal by chance do not make a difference between the two."""
    path = tmp_path_factory.mktemp("log") / "run.jsonl"
    followed = Followed(path)
    for at, (_, step, value) in enumerate(steps_of(starts, 0)):
        append(path, lines([{"step": step, "reward": value / 10, "kl": 0.0}]))
        if (event := events[at % len(events)]) == 2:
            followed.restart()
        elif event:
            followed.poll()
    followed.finish()
    assert followed.rows() == replayed(path)


@FEW
@given(starts=STARTS, events=EVENTS)
def test_a_log_that_is_rotated_and_written_anew_is_one_log(tmp_path_factory, starts, events):
    """Each start has values of its own; what is cut away was read."""
    folder = tmp_path_factory.mktemp("log")
    path, whole = folder / "run.jsonl", folder / "whole.jsonl"
    path.touch()
    followed = Followed(path, "verl")
    for at, (start, step, _) in enumerate(steps_of(starts, 2)):
        data = {"critic/score/mean": step / 10 + start / 1000, "actor/entropy": 1.0}
        line = lines([{"step": step, "data": data}])
        for file in (path, whole):
            append(file, line)
        event = events[at % len(events)]
        if event == 2:
            followed.restart()
        elif event == 3:
            followed.poll()
            path.rename(folder / f"run.{at}")
        elif event == 4:
            (anew := folder / "anew").write_bytes(path.read_bytes())
            anew.rename(path)
            followed.poll()
        elif event:
            followed.poll()
    followed.finish()
    assert followed.rows() == replayed(whole)
    again = Followed(path, "verl")
    again.guard = followed.guard
    again.restart()
    again.finish()  # a follower that starts again brings nothing twice: the guard refuses it
    assert again.follower.accepted == 0


class TestALogThatIsReadAgain:
    def test_lines_that_are_written_anew_by_another_name(self, tmp_path):
        path, written = tmp_path / "run.jsonl", rows(range(1, 9))
        path.write_bytes(lines(written))
        followed = Followed(path)
        followed.poll()
        for step in range(5, 9):
            written += rows([step], 0.05)
            (tmp_path / "new").write_bytes(lines(written))
            (tmp_path / "new").replace(path)
            followed.poll()
        followed.finish()
        assert numbered(followed.rows()) == [(0, s) for s in range(1, 9)] + [(1, s) for s in range(5, 9)]
        assert followed.rows() == replayed(path)

    def test_a_trainer_state_after_a_resume(self, tmp_path):
        """It holds the log from its beginning, without what the start before wrote after the checkpoint."""
        followed = Followed(tmp_path, "trl")

        def save(number, history):
            (folder := tmp_path / f"checkpoint-{number}").mkdir(exist_ok=True)
            (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
            followed.poll()

        save(6, rows(range(1, 7)))
        save(9, rows(range(1, 10)))
        resumed = [*rows(range(1, 7)), *rows(range(7, 13), 0.05)]
        save(9, resumed[:9])
        save(12, resumed)
        followed.finish()
        expected = [(0, s) for s in range(1, 10)] + [(1, s) for s in range(7, 13)]
        assert numbered(followed.rows()) == expected
        followed.restart()
        followed.poll()
        followed.finish()
        assert numbered(followed.rows()) == expected
        assert [row[1:] for row in replayed(tmp_path)] == [
            row[1:] for row in followed.rows() if row[0] or row[1] < 7
        ]

    def test_a_start_that_logs_more_rarely(self, tmp_path):
        """Its first step is not that of the one before it, until a step contradicts it."""
        path = tmp_path / "run.jsonl"
        path.write_bytes(lines([*rows((10, 20, 30)), *rows((15, 20, 25), 0.3)]))
        followed = Followed(path)
        followed.poll()
        followed.finish()
        assert followed.rows() == replayed(path)
        followed.restart()
        followed.finish()
        assert followed.follower.accepted == 0 and followed.rows() == replayed(path)


def events(folder, time, steps, extra=0.0):
    data = record(b"\x1a\x0dbrain.Event:2")  # what every writer begins with
    for step in steps:
        for tag, value in (("reward", 0.1 * step + extra), ("kl", 0.001 * step)):
            packed = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)
            summary = b"\x0a" + bytes([len(packed)]) + packed
            data += record(b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary)
    (folder / f"events.out.tfevents.{time}.h").write_bytes(data)


class TestEventFiles:
    FILES = ((range(1, 12), 0.0), (range(11, 14), 0.02), (range(11, 20), 0.04))

    def test_two_starts_may_go_on_from_one_checkpoint(self, tmp_path):
        followed = Followed(tmp_path, "trl")
        for number, (steps, extra) in enumerate(self.FILES):
            events(tmp_path, 1000 + number, steps, extra)
            followed.poll()
        followed.finish()
        assert numbered(followed.rows()) == [
            (number, step) for number, (steps, _) in enumerate(self.FILES) for step in steps
        ]
        assert followed.rows() == replayed(tmp_path)
        followed.restart()
        followed.finish()
        assert followed.follower.accepted == 0

    def test_a_start_that_has_logged_nothing_yet_when_the_follower_starts_again(self, tmp_path):
        followed = Followed(tmp_path, "trl")
        for time, steps, extra in ((1000, range(1, 7), 0.0), (1001, range(4, 9), 0.02), (1002, (), 0.0)):
            events(tmp_path, time, steps, extra)
            followed.poll()
        followed.restart()
        followed.poll()
        events(tmp_path, 1002, range(8, 11), 0.04)
        followed.finish()
        assert numbered(followed.rows())[-3:] == [(2, 8), (2, 9), (2, 10)]
        assert followed.rows() == replayed(tmp_path)

    def test_another_file_whose_steps_have_another_phase_is_another_start(self, tmp_path):
        events(tmp_path, 1000, range(5, 51, 5))
        events(tmp_path, 1001, range(33, 80, 5), 1.0)
        followed, found = both(tmp_path, "trl")
        assert {row[0] for row in followed} == {0, 1} and followed == found

    def test_of_a_tag_that_is_there_twice_the_first_value_counts(self, tmp_path):
        events(tmp_path, 1000, (1,))
        file = next(tmp_path.iterdir())
        first = file.read_bytes()
        events(tmp_path, 1000, (1, 2), 0.5)
        file.write_bytes(first + file.read_bytes())
        followed, found = both(tmp_path, "trl")
        assert followed == found and [row[2] for row in found] == pytest.approx([0.1, 0.7])

    def test_two_that_begin_at_the_start_are_two_runs(self, tmp_path):
        events(tmp_path, 1000, range(1, 9))
        events(tmp_path, 1001, range(1, 9), 0.5)
        events(tmp_path, 1002, range(5, 9), 0.7)
        for refuse in (Followed, replayed):
            with pytest.raises(InputError, match=r"tfevents\.1000\.h and .*tfevents\.1001\.h both begin"):
                refuse(tmp_path)


def test_a_row_that_is_a_step_by_itself_gets_nothing_of_the_next_one():
    nan = np.full(4, np.nan)
    values = {
        "reward": np.ones(4),
        "kl": np.array([nan[0], nan[0], 0.1, 0.1]),
        "entropy": nan,
        "reward_std": nan,
    }
    for whole_rows, counts in ((True, [True, True, False, True]), (False, [True] * 4)):
        _, found = attempts_of(np.array([1, 2, 2, 3]), None, values, (), whole_rows, np.ones(4, dtype=bool))
        assert found.tolist() == counts


@given(starts=STARTS)
def test_no_step_of_one_start_is_placed_twice(starts):
    placed = Starts({})
    found = [
        (attempt, step)
        for _, step, value in steps_of(starts, 0)
        if (attempt := placed.place(StepSample(step, value / 10))) is not None
    ]
    assert len(found) == len({*found})
    assert {step for _, step in found} == {step for _, step, _ in steps_of(starts, 0)}
