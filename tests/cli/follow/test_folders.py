"""A folder that is followed: event files, TRL's states, and what lay there before the run."""

import json
import os
import random

import pytest

from rlguard.cli.logs.readers import read_log
from rlguard.cli.replay.run import load_run
from rlguard.follow import preexisting, sources
from rlguard.follow.decoders import MAX_LINE
from rlguard.follow.errors import InputError
from rlguard.follow.preexisting import scan
from rlguard.follow.tensorboard import Events
from tests.cli.follow.followed import Followed, append, followed_to_the_end, replayed
from tests.cli.logs.shapes import SHAPES, STEPS, event, kl, record, reward


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch):
    monkeypatch.setattr(sources, "LOOK_SECONDS", 0.0)


def events(folder, number, attempt=0):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"events.out.tfevents.{number}.h.1.0").write_bytes(SHAPES["nemo-rl"][2](attempt))


class TestEventFiles:
    @pytest.mark.parametrize("tag", ["train/reward", "mine"])
    def test_what_add_hparams_writes_is_no_run(self, tmp_path, tag):
        from torch.utils.tensorboard import SummaryWriter

        followed = Followed(tmp_path, "nemo-rl", new_run=True, overrides={"reward": tag})
        with SummaryWriter(tmp_path / "exp_001" / "tensorboard") as writer:
            writer.add_hparams({"lr": 0.1, "seed": 1}, {})
            followed.poll()
            for step in range(1, STEPS + 1):
                writer.add_scalar(tag, reward(step), step)
        assert len({file.parent for file in tmp_path.rglob("events.out.*")}) == 2
        followed.poll()
        followed.finish()
        assert [row[1] for row in followed.rows()] == list(range(1, STEPS + 1))
        assert len(read_log(tmp_path, [tag]).rows) == STEPS

    def test_a_second_start_in_a_new_folder(self, tmp_path):
        followed = Followed(tmp_path, "nemo-rl")
        events(tmp_path / "exp_001" / "tensorboard", 1)
        followed.poll()
        events(tmp_path / "exp_002" / "tensorboard", 2, attempt=1)
        followed.poll()
        assert any("another start" in s and "exp_002" in s for s in followed.said)
        append(
            tmp_path / "exp_001" / "tensorboard" / "events.out.tfevents.1.h.1.0",
            event(99, "train/reward", 0.5),
        )  # which is read no more
        followed.poll()
        followed.finish()
        assert followed.places() == [(0, s) for s in range(1, 13)] + [(1, s) for s in range(9, 15)]

    def test_folders_of_several_runs_are_refused_and_those_of_an_earlier_one_left_out(self, tmp_path):
        for run in "ab":
            events(tmp_path / run, 1)
        for refuse in (Followed, read_log):
            with pytest.raises(InputError, match="`a`, `b`"):
                refuse(tmp_path)
        followed = Followed(tmp_path, new_run=True)
        events(tmp_path / "c", 3, attempt=1)
        followed.poll()
        followed.finish()
        assert [row[1] for row in followed.rows()] == list(range(9, 15))

    def test_files_that_begin_at_the_same_step_are_starts_of_one_trainer(self, tmp_path):
        for number in (0, 1):
            events(tmp_path, number, attempt=number)
        followed = followed_to_the_end(tmp_path)
        assert {row[0] for row in followed.rows()} == {0, 1} and followed.rows() == replayed(tmp_path)
        run = load_run(read_log(tmp_path), "", {})
        assert any("read as 2 attempts" in note for note in run.notes)

    @pytest.mark.parametrize("apart", [False, True])
    @pytest.mark.parametrize("late", [False, True])
    def test_processes_of_one_run_may_each_write_one(self, tmp_path, apart, late):
        """slime logs from several: into one folder, or each into one by the time of its start."""
        first, second = (tmp_path / "100000", tmp_path / "100412") if apart else (tmp_path, tmp_path)
        followed = None if late else Followed(tmp_path, "slime")
        for step in range(STEPS):
            for folder, name, tag in (
                (first, "events.out.tfevents.1000.h.1.0", "rollout/response_len/mean"),
                (second, "events.out.tfevents.1252.h.2.0", "rollout/raw_reward"),
            ):
                folder.mkdir(exist_ok=True)
                append(folder / name, event(step, tag, 0.5))
                if followed is not None:
                    followed.poll()
        followed = followed or Followed(tmp_path, "slime")
        followed.poll()
        followed.finish()
        assert followed.places() == [(0, step) for step in range(STEPS)]
        assert len(replayed(tmp_path)) == STEPS


class TestDamagedEventFiles:
    LONG = record(b"\x2a" + b"\x81\x80\x80\x02" + b"\0" * (MAX_LINE + 1))

    @pytest.mark.parametrize("size", [1009, 64 << 20])
    def test_a_record_that_is_too_long_is_passed_over_however_it_is_cut(self, size):
        data, decoder, found = self.LONG + event(1, "reward", 0.5) + self.LONG, Events(), []
        for start in range(0, len(data), size):
            found += decoder.feed(data[start : start + size])
        assert found == [{"step": 1, "reward": 0.5}]
        assert decoder.too_long == decoder.bad == 2 and not decoder.in_mid_record

    def test_and_that_is_said(self, tmp_path):
        events(tmp_path, 1)
        append(tmp_path / "events.out.tfevents.1.h.1.0", self.LONG)
        followed = followed_to_the_end(tmp_path, "nemo-rl")
        assert followed.tells("1 lines or records could not be read")
        assert any("1 records of events.out" in n for n in load_run(read_log(tmp_path), "log", {}).notes)

    @pytest.mark.parametrize("time", [999, 1001], ids=["before", "after"])
    def test_one_that_is_none_beside_one_that_is(self, tmp_path, time):
        events(tmp_path, 1000)
        bad = tmp_path / f"events.out.tfevents.{time}.h.1.0"
        bad.write_bytes(random.Random(1).randbytes(4000))
        followed = Followed(tmp_path, "nemo-rl")
        followed.poll()
        append(bad, event(77, "train/reward", 0.5))
        followed.poll()  # what stands behind the damage is not looked for
        events(tmp_path, 1002, attempt=1)
        followed.poll()
        followed.finish()
        assert followed.places() == [(0, s) for s in range(1, 13)] + [(1, s) for s in range(9, 15)]
        assert followed.follower.bad == 1
        assert [s for s in followed.said if f"tfevents.{time}.h.1.0: not a TensorBoard" in s and "other" in s]

    def test_one_that_is_none_and_no_other(self, tmp_path):
        (tmp_path / "events.out.tfevents.1.h").write_bytes(random.Random(1).randbytes(4000))
        with pytest.raises(InputError, match="damaged"):
            Followed(tmp_path, "trl").poll()


class TestTheStateOfACheckpoint:
    """TRL's trainer_state.json has the log from its beginning, of the start that it went on from, too."""

    def save(self, folder, rows, last):
        (folder / f"checkpoint-{last}").mkdir(parents=True)
        state = folder / f"checkpoint-{last}" / "trainer_state.json"
        state.write_text(json.dumps({"log_history": rows}, indent=2))
        os.utime(state, (last, last))

    def rows(self, first, last, factor=0.1):
        return [{"step": s, "reward": factor * s, "kl": kl(s)} for s in range(first, last + 1)]

    def test_each_new_one_brings_its_new_steps(self, tmp_path):
        followed = Followed(tmp_path, "trl", new_run=True)
        for last in (5, 10):
            self.save(tmp_path, self.rows(1, last), last)
            followed.poll()
            followed.restart()
        followed.finish()
        assert [row[1] for row in followed.rows()] == list(range(1, 11))

    @pytest.mark.parametrize("from_step", [5, 10])
    def test_of_a_run_that_goes_on_the_new_steps_are_reported(self, tmp_path, from_step):
        for last in (5, 10):
            self.save(tmp_path, self.rows(1, last), last)
        followed = Followed(tmp_path, "trl", new_run=True)
        followed.poll()
        assert followed.rows() == [], "those that lay there are of another run"
        self.save(tmp_path, self.rows(1, from_step) + self.rows(from_step + 1, 15, 0.2), 15)
        followed.poll()
        (tmp_path / "checkpoint-10" / "trainer_state.json").unlink()  # it was rotated away
        followed.restart()
        followed.finish()
        assert [row[:3] for row in followed.rows()] == [(0, s, 0.2 * s) for s in range(from_step + 1, 16)]

    def test_a_run_beside_an_old_one_has_all_of_its_steps(self, tmp_path):
        self.save(tmp_path, self.rows(1, 10), 10)
        followed = Followed(tmp_path, "trl", new_run=True)
        self.save(tmp_path, self.rows(1, 15, 0.2), 15)
        followed.finish()
        assert [row[1] for row in followed.rows()] == list(range(1, 16))

    def test_of_old_states_no_more_is_read_than_a_trainer_can_wait_for(self, tmp_path, monkeypatch):
        for last in (5, 10):
            self.save(tmp_path, self.rows(1, last, 0.1 * last), last)
        newest = tmp_path / "checkpoint-10" / "trainer_state.json"
        monkeypatch.setattr(preexisting, "MOST_BYTES", newest.stat().st_size)
        assert len(scan(tmp_path, None, "trl").rows) == 10

    def events(self, folder, last, number=1):
        folder.mkdir(parents=True, exist_ok=True)
        data = b"".join(event(s, "train/reward", 0.5) for s in range(1, last + 1))
        (folder / f"events.out.tfevents.{number}.h.1.0").write_bytes(data)

    def test_beside_event_files_those_are_read_and_it_is_told(self, tmp_path):
        self.save(tmp_path, self.rows(1, 10), 10)
        self.events(tmp_path / "runs" / "a", 15)
        followed = followed_to_the_end(tmp_path, "trl")
        run = load_run(read_log(tmp_path), str(tmp_path), {})
        assert [row[1] for row in followed.rows()] == run.step.tolist() == list(range(1, 16))
        for told in (" ".join(run.notes), " ".join(followed.said)):
            assert "rainer_state.json, which ends at its checkpoint, is not read" in told

    def test_beside_event_files_of_several_starts_it_is_replayed_and_they_are_told(self, tmp_path):
        self.save(tmp_path, self.rows(1, 10), 10)
        for number in (1, 2):
            self.events(tmp_path / "runs" / str(number), 15, number)
        run = load_run(read_log(tmp_path), "", {})
        assert run.step.tolist() == list(range(1, 11))
        assert any("The event files, which lie in several folders, are not read" in n for n in run.notes)

    def test_a_follower_that_starts_again_reads_the_event_files_on(self, tmp_path):
        """A state has the same steps with more digits: they would be another start of the trainer."""
        followed = Followed(tmp_path, "trl", new_run=True)
        for number, last in enumerate((10, 15), start=1):
            self.events(tmp_path / "runs" / str(number), last, number)
            self.save(tmp_path, [{**row, "reward": 0.5000001} for row in self.rows(1, last)], last)
            followed.poll()
            followed.restart()
        followed.finish()
        assert {row[:3] for row in followed.rows()} == {(0, s, 0.5) for s in range(1, 16)}


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("new_run", [True, False])
def test_what_the_log_of_a_folder_is_is_seen_when_it_comes(tmp_path, there, new_run):
    folder = tmp_path / "out"
    if there:
        folder.mkdir()
    followed = Followed(folder, "prime-rl", new_run=new_run)
    followed.poll()
    folder.mkdir(exist_ok=True)
    followed.poll()
    append(folder / "metrics.jsonl", SHAPES["prime-rl"][2](0))
    followed.poll()
    followed.finish()
    assert len(followed.rows()) == STEPS
