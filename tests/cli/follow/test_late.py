"""What the log itself says of its steps, and what comes late: folders, columns, starts, nothing at all."""

import json
import math
import os

import pytest

from guard_cli.logs.readers import read_log
from guard_cli.replay.run import load_run
from guard_core.wire import KlKind
from guard_follow import follower as follower_module
from guard_follow import preexisting as before_module
from guard_follow import sources as source_module
from guard_follow.errors import InputError
from guard_follow.preexisting import scan
from guard_follow.run_config import find_settings
from tests.cli.follow.test_checkpoints import save
from tests.cli.follow.test_follower import Followed, append, replayed
from tests.cli.logs.shapes import SHAPES, STEPS, event, kl, lines, reward, tensorboard


def events(folder, number, attempt=0, when=None):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"events.out.tfevents.{number}.h.1.0"
    file.write_bytes(SHAPES["nemo-rl"][2](attempt))
    if when is not None:
        os.utime(file, (when, when))


class TestFoldersOfEventFiles:
    @pytest.fixture(autouse=True)
    def look_at_once(self, monkeypatch):
        monkeypatch.setattr(source_module, "LOOK_SECONDS", 0.0)

    @pytest.mark.parametrize("depth", ["exp_001/tensorboard", "tensorboard"])
    @pytest.mark.parametrize("metrics", [{}, {"hparam/accuracy": 1.0}])
    @pytest.mark.parametrize("tag", ["train/reward", "mine"])
    def test_what_add_hparams_writes_is_no_run(self, tmp_path, depth, metrics, tag):
        from torch.utils.tensorboard import SummaryWriter

        followed = Followed(tmp_path, "nemo-rl", new_run=True, overrides={"reward": tag})
        with SummaryWriter(tmp_path / depth) as writer:
            writer.add_hparams({"lr": 0.1, "seed": 1}, metrics)
            followed.poll()
            for step in range(1, STEPS + 1):
                writer.add_scalar(tag, reward(step), step)
        assert len({file.parent for file in tmp_path.rglob("events.out.*")}) == 2
        followed.poll()
        followed.finish()
        assert [row[1] for row in followed.rows()] == list(range(1, STEPS + 1))
        assert len(read_log(tmp_path, [tag]).rows) == STEPS

    def test_a_folder_without_a_scalar_is_no_run(self, tmp_path):
        data = b"".join(event(step, "mine", 0.5) for step in range(STEPS))
        for run, content in (("run", data), ("hparams", data[:20])):
            (tmp_path / run).mkdir()
            (tmp_path / run / "events.out.tfevents.1.h.1.0").write_bytes(content)
        followed = Followed(tmp_path, "nemo-rl", overrides={"reward": "mine"})
        followed.finish()
        assert len(followed.rows()) == STEPS == len(read_log(tmp_path, ["mine"]).rows)

    def test_a_second_start_in_a_new_folder(self, tmp_path):
        followed = Followed(tmp_path, "nemo-rl")
        events(tmp_path / "exp_001" / "tensorboard", 1, when=1000)
        followed.poll()
        events(tmp_path / "exp_002" / "tensorboard", 2, attempt=1, when=1100)
        followed.poll()
        assert any("another start" in s and "exp_002" in s for s in followed.said)
        followed.restart()
        followed.poll()
        followed.finish()
        assert [row[:2] for row in followed.rows()] == [(0, s) for s in range(1, 13)] + [
            (1, s) for s in range(9, 15)
        ]

    def test_a_folder_is_read_no_more_once_another_one_is(self, tmp_path):
        followed = Followed(tmp_path, "nemo-rl")
        events(tmp_path / "a", 1)
        followed.poll()
        events(tmp_path / "b", 2, attempt=1)
        followed.poll()
        append(tmp_path / "a" / "events.out.tfevents.1.h.1.0", event(99, "train/reward", 0.5))
        followed.poll()
        followed.finish()
        assert max(row[1] for row in followed.rows()) == 14

    def test_a_second_start_is_read_at_the_end(self, tmp_path):
        followed = Followed(tmp_path, "nemo-rl")
        events(tmp_path / "a", 1, when=2000)
        followed.poll()
        events(tmp_path / "b", 2, attempt=1, when=2010)
        followed.finish()
        assert {row[0] for row in followed.rows()} == {0, 1}


@pytest.mark.parametrize("name", ["verl", "verl-console", "easyr1", "roll", "tinker", "ms-swift", "prime-rl"])
def test_a_step_whose_row_is_whole_is_reported_before_the_next_one(tmp_path, name):
    """Held in memory it would be lost with a follower that is killed, once the log is rotated."""
    format_, file, write, _ = SHAPES[name]
    path = tmp_path / file
    followed = Followed(path, format_)
    data = write(0).splitlines(keepends=True)
    last = max(
        number for number, line in enumerate(data) if b"eval" not in line and b"log_history" not in line
    )
    append(path, b"".join(data[: last + 1]))
    followed.poll()
    path.rename(tmp_path / "rotated")
    followed.restart()  # it was killed
    followed.finish()
    assert [row[1] for row in followed.rows()] == list(range(1, STEPS + 1))


class TestProcessesOfOneRun:
    """slime logs from several, each with its own writer: into one folder, or into one by the time of each."""

    SAMPLES = ("rollout/response_len/mean", 100.0)

    @pytest.fixture(autouse=True)
    def look_at_once(self, monkeypatch):
        monkeypatch.setattr(source_module, "LOOK_SECONDS", 0.0)

    def files(self, root, apart):
        first, second = (root / "20260801_100000", root / "20260801_100412") if apart else (root, root)
        first.mkdir(exist_ok=True)
        return first / "events.out.tfevents.1000.h.1.0", second / "events.out.tfevents.1252.h.2.0"

    def write(self, files, followed=None):
        for step in range(STEPS):
            append(files[0], event(step, *self.SAMPLES))
            if followed is not None:
                followed.poll()
            files[1].parent.mkdir(exist_ok=True)
            append(files[1], event(step, "rollout/raw_reward", 0.5))
            if followed is not None:
                followed.poll()

    @pytest.mark.parametrize("apart", [False, True])
    @pytest.mark.parametrize("new_run", [False, True])
    def test_the_reward_is_found_while_they_write(self, tmp_path, apart, new_run):
        followed = Followed(tmp_path, "slime", new_run=new_run)
        self.write(self.files(tmp_path, apart), followed)
        assert [row[:2] for row in followed.rows()] == [(0, step) for step in range(STEPS - 1)]
        followed.finish()
        assert len(followed.rows()) == STEPS == len(replayed(tmp_path))

    @pytest.mark.parametrize("apart", [False, True])
    def test_and_by_a_follower_that_comes_later(self, tmp_path, apart):
        self.write(self.files(tmp_path, apart))
        followed = Followed(tmp_path, "slime")
        followed.poll()
        followed.restart()
        followed.finish()
        assert [row[:2] for row in followed.rows()] == [(0, step) for step in range(STEPS)]

    @pytest.mark.parametrize("tag", ["rollout/raw_reward", "kl", "my/score"])
    def test_two_that_log_the_same_are_two_runs(self, tmp_path, tag):
        """Also under a name that is not known, if nothing else is known of them."""
        for number in (1, 2):
            file = tmp_path / f"events.out.tfevents.{number}.h.1.0"
            file.write_bytes(event(0, tag, 0.5) + event(0, f"other{number}", 0.5))
        for refuse in (Followed, read_log):
            with pytest.raises(InputError, match=r"tfevents\.1\.h.*tfevents\.2\.h"):
                refuse(tmp_path)

    def test_what_is_not_judged_may_be_logged_by_two(self, tmp_path):
        first, second = self.files(tmp_path, apart=False)
        self.write((first, second))
        append(second, event(0, *self.SAMPLES))
        assert len(replayed(tmp_path)) == STEPS

    def test_of_two_folders_of_which_nothing_is_known_none_is_chosen(self, tmp_path):
        for run in "ab":
            (tmp_path / run).mkdir()
            (tmp_path / run / "events.out.tfevents.1.h.1.0").write_bytes(event(0, "my/score", 0.5))
        for refuse in (Followed, read_log):
            with pytest.raises(InputError, match="`a`, `b`"):
                refuse(tmp_path)

    def test_of_two_folders_with_a_reward_none_is_chosen(self, tmp_path):
        self.write(self.files(tmp_path, apart=True))
        events(tmp_path / "other", 3)
        for refuse in (Followed, read_log):
            with pytest.raises(InputError, match="`20260801_100412`, `other`"):
                refuse(tmp_path)


class TestAFolderThatIsThereFirst:
    """What its log is, is seen when it comes, not at the start."""

    @pytest.mark.parametrize("there", [True, False])
    @pytest.mark.parametrize("new_run", [True, False])
    def test_a_log_comes(self, tmp_path, there, new_run):
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

    @pytest.mark.parametrize("new_run", [True, False])
    def test_a_trainer_state_comes(self, tmp_path, new_run):
        followed = Followed(tmp_path, "trl", new_run=new_run)
        followed.poll()
        (tmp_path / "checkpoint-5").mkdir()
        history = [{"step": s, "reward": reward(s), "kl": kl(s)} for s in range(1, 6)]
        (tmp_path / "checkpoint-5" / "trainer_state.json").write_text(json.dumps({"log_history": history}))
        followed.poll()
        followed.finish()
        assert [row[1] for row in followed.rows()] == list(range(1, 6))

    def test_a_trainer_state_of_an_earlier_run_is_not_of_a_new_one(self, tmp_path):
        (tmp_path / "checkpoint-5").mkdir()
        state = json.dumps({"log_history": [{"step": 5, "reward": 0.5}]})
        (tmp_path / "checkpoint-5" / "trainer_state.json").write_text(state)
        followed = Followed(tmp_path, "trl", new_run=True)
        followed.poll()
        followed.finish()
        assert followed.rows() == []


class TestTheStateOfACheckpoint:
    """TRL's trainer_state.json has the log from its beginning, of the start that it went on from, too."""

    def save(self, folder, rows, last):
        (folder / f"checkpoint-{last}").mkdir(parents=True)
        state = folder / f"checkpoint-{last}" / "trainer_state.json"
        state.write_text(json.dumps({"log_history": rows}, indent=2))
        os.utime(state, (last, last))

    def rows(self, first, last, factor=0.1):
        return [{"step": s, "reward": factor * s, "kl": kl(s)} for s in range(first, last + 1)]

    @pytest.mark.parametrize("from_step", [5, 10])
    def test_of_a_run_that_goes_on_the_new_steps_are_reported(self, tmp_path, from_step):
        for last in (5, 10):
            self.save(tmp_path, self.rows(1, last), last)
        followed = Followed(tmp_path, "trl", new_run=True)
        followed.poll()
        gone_on = self.rows(1, from_step) + self.rows(from_step + 1, 15, 0.2)
        self.save(tmp_path, gone_on, 15)
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
        monkeypatch.setattr(
            before_module, "MOST_BYTES", (tmp_path / "checkpoint-10/trainer_state.json").stat().st_size
        )
        assert len(scan(tmp_path, None, "trl").rows) == 10

    def events(self, folder, last, number=1):
        folder.mkdir(parents=True, exist_ok=True)
        data = b"".join(event(s, "train/reward", 0.5) for s in range(1, last + 1))
        (folder / f"events.out.tfevents.{number}.h.1.0").write_bytes(data)

    def read_both(self, folder):
        followed = Followed(folder, "trl")
        followed.finish()
        run = load_run(read_log(folder), str(folder), {})
        assert [row[1] for row in followed.rows()] == run.step.tolist()
        return run.step.tolist(), " ".join(run.notes), " ".join(followed.said)

    def test_beside_event_files_those_are_read_and_it_is_told(self, tmp_path):
        self.save(tmp_path, self.rows(1, 10), 10)
        self.events(tmp_path / "runs" / "a", 15)
        steps, *told = self.read_both(tmp_path)
        assert steps == list(range(1, 16))
        assert all("rainer_state.json, which ends at its checkpoint, is not read" in t for t in told)

    def test_an_old_one_beside_new_event_files_is_nothing_that_is_left_out(self, tmp_path):
        self.save(tmp_path, self.rows(1, 10), 10)
        followed = Followed(tmp_path, "trl", new_run=True)
        self.events(tmp_path / "runs" / "a", 15)
        followed.finish()
        assert len(followed.rows()) == 15 and not any("not read" in said for said in followed.said)

    def test_beside_event_files_of_several_starts_it_is_replayed_and_they_are_told(self, tmp_path):
        self.save(tmp_path, self.rows(1, 10), 10)
        for number in (1, 2):
            self.events(tmp_path / "runs" / str(number), 15, number)
        run = load_run(read_log(tmp_path), "", {})
        assert run.step.tolist() == list(range(1, 11))
        assert any("The event files, which lie in several folders, are not read" in n for n in run.notes)
        with pytest.raises(InputError, match="several runs"):
            Followed(tmp_path, "trl")

    def test_a_follower_that_starts_again_reads_the_event_files_on(self, tmp_path, monkeypatch):
        """A state has the same steps with more digits: they would be another start of the trainer."""
        monkeypatch.setattr(source_module, "LOOK_SECONDS", 0.0)
        followed = Followed(tmp_path, "trl", new_run=True)
        for number, last in enumerate((10, 15), start=1):
            self.events(tmp_path / "runs" / str(number), last, number)
            self.save(tmp_path, [{**row, "reward": 0.5000001} for row in self.rows(1, last)], last)
            followed.poll()
            followed.restart()
        followed.finish()
        assert {row[:3] for row in followed.rows()} == {(0, s, 0.5) for s in range(1, 16)}


def test_a_file_that_is_seen_while_it_is_empty_begins_anew(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(lines({"step": s, "reward": 0.1} for s in (1, 2)) + b'{"step": 3, "rew')
    followed = Followed(path)
    followed.poll()
    path.write_bytes(b"")
    followed.poll()
    append(path, lines({"step": s, "reward": 0.2} for s in (1, 2)))
    followed.poll()
    followed.finish()
    assert [row[:3] for row in followed.rows()] == [(0, 1, 0.1), (0, 2, 0.1), (1, 1, 0.2), (1, 2, 0.2)]


class TestWhatTheLogItselfSays:
    @pytest.mark.parametrize("file", ["run.jsonl", "log.csv"])
    def test_which_kl_it_is(self, tmp_path, file):
        path = tmp_path / file
        kinds = ["ref_token_mean", "ref_seq_sum", "behaviour", ""]
        if file.endswith("csv"):
            rows = "".join(f"{s},0.5,3.0,{kind}\n" for s, kind in enumerate(kinds))
            path.write_text("step,reward,kl,kl_kind\n" + rows)
        else:
            path.write_bytes(
                lines(
                    {"step": s, "reward": 0.5, "kl": 3.0, "kl_kind": k or None} for s, k in enumerate(kinds)
                )
            )
        followed = Followed(path)
        followed.poll()
        followed.finish()
        run = load_run(read_log(path), str(path), {})
        assert [followed.guard.steps[0, s].kl_kind.value for s in range(4)] == [
            k or "ref_token_mean" for k in kinds
        ]
        assert run.armed_kl().tolist() == [True, False, False, True]

    def test_a_kind_that_is_none_arms_nothing(self, tmp_path):
        path = tmp_path / "run.jsonl"
        bad = ["Ref_token_mean", 7, ["ref_token_mean"], {"a": 1}, "x" * 1000]
        path.write_bytes(
            lines({"step": s, "reward": 0.5, "kl": 3.0, "kl_kind": k} for s, k in enumerate(bad) if s != 3)
        )
        followed = Followed(path)
        followed.poll()
        followed.finish()
        assert [row[1:] for row in followed.rows()] == [(s, 0.5, None) for s in (0, 1, 2, 4)]
        assert [s for s in followed.said if "kl_kind='Ref_token_mean'" in s and len(s) < 200]

    def test_which_attempt_it_is(self, tmp_path):
        path = tmp_path / "run.jsonl"
        rows = [(0, 1), (0, 2), (2, 2), (2, 3), (3, 3)]
        path.write_bytes(lines({"attempt": a, "step": s, "reward": 0.5} for a, s in rows))
        followed = Followed(path)
        followed.poll()
        followed.finish()
        followed.restart()
        followed.finish()
        assert [row[:2] for row in followed.rows()] == rows
        assert followed.rows() == replayed(path)


class TestAColumnOfMap:
    def test_it_comes_late(self, tmp_path):
        path = tmp_path / "run.jsonl"
        followed = Followed(path, "verl", overrides={"reward": "my/reward"})
        append(path, lines({"step": s, "data": {"critic/score/mean": 0.1}} for s in (1, 2)))
        followed.poll()
        append(path, lines([{"step": 3, "data": {"critic/score/mean": 0.3, "my/reward": 77.0}}]))
        followed.poll()
        followed.finish()
        assert followed.rows() == [(0, 3, 77.0, None)]

    def test_a_kl_that_comes_late_is_no_reason_to_lose_a_step(self, tmp_path):
        path = tmp_path / "run.jsonl"
        followed = Followed(path, "trl", overrides={"kl": "my/kl"})
        append(path, lines({"step": s, "reward": 0.1} for s in (1, 2)))
        followed.poll()
        assert followed.rows() == []
        append(path, lines([{"step": 3, "reward": 0.3, "my/kl": 0.5}]))
        followed.poll()
        followed.finish()
        assert followed.rows() == [(0, 1, 0.1, None), (0, 2, 0.1, None), (0, 3, 0.3, 0.5)]

    def test_it_comes_after_more_columns_than_are_remembered(self, tmp_path):
        path = tmp_path / "run.jsonl"
        followed = Followed(path, "trl", overrides={"reward": "mine"})
        append(path, lines([{"step": 1, **{f"c{i}": 0 for i in range(6_000)}}, {"step": 2, "mine": 0.5}]))
        followed.poll()
        followed.finish()
        assert followed.rows() == [(0, 2, 0.5, None)]

    def test_it_never_comes(self, tmp_path):
        path = tmp_path / "run.jsonl"
        followed = Followed(path, "verl", overrides={"reward": "my/reward", "heldout": "no"})
        append(path, lines({"step": s, "data": {"my/rewards": 0.1}} for s in (1, 2)))
        followed.poll()
        followed.finish()
        [said] = followed.said
        assert "--map reward=my/reward" in said and "near to it: `my/rewards`" in said


@pytest.mark.parametrize(
    ("format_", "tags"),
    [
        ("skyrl", {"reward/avg_raw_reward": 0.5, "trainer/epoch": 0.0, "trainer/global_step": 3.0}),
        ("verl", {"critic/score/mean": 0.5, "training/global_step": 3.0}),
        ("slime", {"rollout/raw_reward": 0.5, "rollout/step": 3.0, "train/step": 3.0}),
        ("trl", {"train/reward": 0.5, "train/global_step": 3.0, "step": 7.0}),
    ],
)
def test_the_step_of_an_event_is_its_own(tmp_path, format_, tags):
    path = tmp_path / "events.out.tfevents.1.host.1.0"
    path.write_bytes(tensorboard(lambda s, a: tags)(0))
    followed = Followed(path, format_)
    followed.poll()
    followed.finish()
    assert [row[1] for row in followed.rows()] == list(range(1, STEPS + 1))
    assert followed.rows() == replayed(path)


class TestTheAttemptOfACheckpoint:
    """A trainer saved step 20 and starts again from 10: the folder has the same name, and other weights."""

    def follow(self, tmp_path, last=25):
        followed = Followed(tmp_path / "log.jsonl", "trl", tmp_path)
        self.write(tmp_path, range(1, last + 1), 0.1)
        followed.poll()
        self.path = save(tmp_path, "trl", 20)
        followed.poll()
        return followed

    def write(self, tmp_path, steps, factor):
        append(tmp_path / "log.jsonl", lines({"step": s, "reward": factor * s} for s in steps))

    def save_again(self):
        for file in self.path.iterdir():
            os.utime(file, (1_000_000_100, 1_000_000_100))

    def test_it_is_of_the_new_start_once_its_step_has_come(self, tmp_path):
        followed = self.follow(tmp_path)
        assert [c[:2] for c in followed.guard.checkpoints] == [(0, 20)]
        self.write(tmp_path, range(11, 21), 0.2)
        self.save_again()
        followed.poll()
        self.write(tmp_path, [21], 0.2)
        followed.poll()
        followed.poll()
        assert [c[:2] for c in followed.guard.checkpoints] == [(0, 20), (1, 20)]

    def test_it_is_saved_before_the_log_has_anything_of_the_new_start(self, tmp_path):
        followed = self.follow(tmp_path)
        self.save_again()
        followed.poll()
        self.write(tmp_path, range(11, 22), 0.2)
        followed.poll()
        assert [c[:2] for c in followed.guard.checkpoints] == [(0, 20), (1, 20)]

    def test_one_that_was_scored_is_not_scored_again_by_a_new_follower(self, tmp_path):
        followed = self.follow(tmp_path)
        self.write(tmp_path, range(11, 18), 0.2)
        followed.poll()
        followed.restart()
        followed.poll()
        followed.now += follower_module.SETTLE_SECONDS
        followed.poll()
        assert [c[:2] for c in followed.guard.checkpoints] == [(0, 20)]

    def test_it_waits_for_its_step_but_not_for_ever(self, tmp_path):
        followed = self.follow(tmp_path, last=15)
        assert followed.guard.checkpoints == []
        followed.now += follower_module.SETTLE_SECONDS
        followed.poll()
        assert [c[:2] for c in followed.guard.checkpoints] == [(0, 20)]

    def test_after_the_wait_it_is_of_the_start_that_is_on_its_way_there(self, tmp_path):
        followed = self.follow(tmp_path)
        self.write(tmp_path, range(11, 18), 0.2)
        self.save_again()
        followed.poll()
        followed.now += follower_module.SETTLE_SECONDS
        followed.poll()
        assert [c[:2] for c in followed.guard.checkpoints] == [(0, 20), (1, 20)]

    def test_nothing_is_waited_for_at_the_end(self, tmp_path):
        followed = self.follow(tmp_path, last=15)
        followed.finish()
        assert [c[:2] for c in followed.guard.checkpoints] == [(0, 20)]


class TestNothingIsWaitedForInSilence:
    def test_a_wrong_path(self, tmp_path):
        followed = Followed(tmp_path / "run.jsonl", "verl", tmp_path / "ckpt")
        followed.poll()
        assert followed.said == []
        followed.now += follower_module.PATIENCE_SECONDS
        followed.poll()
        followed.poll()
        log, checkpoints = followed.said
        assert "run.jsonl (not there)" in log and "trainer.logger" in log
        assert "ckpt (not there)" in checkpoints and "`global_step_N`" in checkpoints
        assert "save_contents" in checkpoints

    def test_a_checkpoint_without_weights_that_can_be_scored(self, tmp_path):
        (tmp_path / "step_10" / "policy" / "weights").mkdir(parents=True)
        (tmp_path / "step_10" / "policy" / "weights" / "__0_0.distcp").write_bytes(b"x")
        followed = Followed(tmp_path / "run.jsonl", "nemo-rl", tmp_path)
        append(tmp_path / "run.jsonl", lines([{"step": 1, "reward": 0.1}]))
        followed.now += follower_module.PATIENCE_SECONDS
        followed.poll()
        assert [s for s in followed.said if "save_consolidated" in s]
        assert not any("no record" in s for s in followed.said)

    def test_nothing_is_said_of_a_run_that_is_read(self, tmp_path):
        save(tmp_path, "trl", 1)
        followed = Followed(tmp_path / "run.jsonl", "trl", tmp_path)
        append(tmp_path / "run.jsonl", lines({"step": s, "reward": 0.1} for s in (1, 2)))
        followed.poll()
        followed.now += follower_module.PATIENCE_SECONDS
        followed.poll()
        assert not any("after 10 minutes" in s for s in followed.said)


def test_names_of_a_log_do_not_drive_the_terminal(tmp_path):
    path = tmp_path / "run.jsonl"
    followed = Followed(path)
    names = {"\x1b[2J\nall is well - reward": 0.1, "y" * 5_000: 1.0, "my/\x9bkl": 0.1}
    append(path, lines([{"step": 1, **names}, {"step": 2}]))
    followed.poll()
    followed.finish()
    assert followed.said and all(s.isprintable() and len(s) <= 2_000 for s in followed.said)
    other = Followed(path, overrides={"reward": "x"})
    other.poll()
    other.finish()
    assert other.said and all(s.isprintable() and len(s) <= 600 for s in other.said)


def test_a_step_of_an_event_file_is_not_whole_when_its_reward_is_there(tmp_path):
    (tmp_path / "run.yaml").write_text("kl_penalty: kl")
    followed = Followed(tmp_path, "roll", run_config=tmp_path / "run.yaml")
    tags = {"critic/score/mean": 0.5, "math/critic/kl": 0.01}
    (tmp_path / "events.out.tfevents.1.h.1.0").write_bytes(tensorboard(lambda s, a: tags)(0))
    followed.poll()
    followed.finish()
    assert [row[3] for row in followed.rows()] == pytest.approx([0.01] * STEPS)


class TestARowThatIsThereAgain:
    """Of several rows of a step the first value counts that can."""

    ONE, OTHER = {"reward": 0.5, "kl": 0.1}, {"reward": 0.7, "kl": 0.3}
    NAN, ENDLESS, BELOW = math.nan, math.inf, -0.1

    def read(self, path, *rows, **overrides):
        """What is reported of a step with these rows; without `--map` a replay must have the same."""
        path.write_bytes(lines([*({"step": 1, **row} for row in rows), {"step": 2, **self.ONE}]))
        followed = Followed(path, "trl", overrides=overrides)
        followed.poll()
        followed.finish()
        if not overrides:
            assert followed.rows() == replayed(path)
        return followed.guard.steps[0, 1]

    @pytest.mark.parametrize(
        ("first", "again", "reward", "kl"),
        [
            (ONE, OTHER, 0.5, 0.1),
            ({"reward": NAN}, OTHER, 0.7, 0.3),
            ({"reward": ENDLESS, "kl": 0.1}, OTHER, 0.7, 0.1),
            ({"reward": -0.5, "kl": NAN}, OTHER, -0.5, 0.3),
            ({"reward": 0.5, "kl": BELOW}, OTHER, 0.5, 0.3),
            ({"reward": NAN, "kl": 0.1}, {"reward": 0.7, "kl": BELOW}, 0.7, 0.1),
        ],
    )
    def test_a_value_that_cannot_count_gives_way_to_one_that_does(self, tmp_path, first, again, reward, kl):
        report = self.read(tmp_path / "run.jsonl", first, again)
        assert (report.reward, report.kl) == (reward, kl)

    @pytest.mark.parametrize("reward_is_known", [True, False])
    @pytest.mark.parametrize("column", ["kl", "mine"])
    def test_whichever_column_is_the_kl_and_before_the_reward_is_known(
        self, tmp_path, reward_is_known, column
    ):
        rows = [{column: self.BELOW}, {column: 0.3}]
        rows.insert(0 if reward_is_known else 2, {"reward": 0.5})
        overrides = {} if column == "kl" else {"kl": column}
        assert self.read(tmp_path / "run.jsonl", *rows, **overrides).kl == 0.3

    @pytest.mark.parametrize("again", [BELOW, ENDLESS, None, "", "none"])
    def test_a_kl_that_is_not_finite_stays_one_where_none_can_count(self, tmp_path, again):
        rows = [{"reward": 0.5, "kl": kl} for kl in (self.NAN, again)]
        report = self.read(tmp_path / "run.jsonl", *rows, reward="reward")
        assert report.kl_kind is KlKind.NOT_FINITE

    @pytest.mark.parametrize("column", ["kl_kind", "what"])
    def test_a_kl_is_of_the_kind_that_its_own_row_says(self, tmp_path, column):
        """A sum over a completion would fire as a mean."""
        rows = [
            {"reward": 0.5, "kl": kl, column: kind}
            for kl, kind in ((self.NAN, "ref_token_mean"), (900.0, "ref_seq_sum"), (0.1, "ref_token_mean"))
        ]
        overrides = {} if column == "kl_kind" else {"kl_kind": column}
        report = self.read(tmp_path / "run.jsonl", *rows, **overrides)
        assert (report.kl, report.kl_kind) == (900.0, KlKind.REF_SEQ_SUM)

    def test_and_where_its_row_says_none_of_that_which_was_said(self, tmp_path):
        rows = {"reward": 0.5, "kl": self.NAN, "kl_kind": "ref_seq_sum"}, {"kl": 900.0, "kl_kind": ""}
        report = self.read(tmp_path / "run.jsonl", *rows, reward="reward")
        assert (report.kl, report.kl_kind) == (900.0, KlKind.REF_SEQ_SUM)

    def test_a_row_whose_reward_does_not_count_is_no_step_by_itself(self, tmp_path):
        (path := tmp_path / "run.jsonl").write_bytes(
            lines(
                {"step": s, "data": {"critic/score/mean": reward, "actor/entropy": e, "actor/pg_loss": 0.1}}
                for s, reward, e in ((1, 0.5, 1.0), (2, self.NAN, 2.0), (2, 0.7, 3.0), (3, 0.5, 1.0))
            )
        )
        followed = Followed(path, "verl")
        followed.finish()
        assert (report := followed.guard.steps[0, 2]).reward == 0.7 and report.entropy == 2.0
        assert followed.rows() == replayed(path)


class TestWhatIsLoggedBesideTheSteps:
    """NeMo-RL's `monitor_gpus` logs from a thread, into the same file, by the seconds since its start."""

    BESIDE = ("ray/node.0.gpu.0.util", 50.0)

    def rows(self):
        for step in range(1, STEPS + 1):
            values = {"train/loss": 0.1, "train/reward": reward(step), "train/kl_penalty": kl(step)}
            for number, value in enumerate(values.items()):
                yield 600 * step + number, self.BESIDE
                yield step, value

    def expected(self):
        return [
            (0, s, pytest.approx(reward(s), rel=1e-6), pytest.approx(kl(s), rel=1e-6))
            for s in range(1, STEPS + 1)
        ]

    @pytest.mark.parametrize("file", ["events.out.tfevents.1.h.1.0", "run.jsonl"])
    def test_it_ends_no_step(self, tmp_path, file):
        (tmp_path / "run.json").write_text(
            json.dumps({"token_level_loss": True, "reference_policy_kl_penalty": 0.01})
        )
        path = tmp_path / file
        if file.endswith("jsonl"):
            path.write_bytes(lines({"step": step, name: value} for step, (name, value) in self.rows()))
        else:
            path.write_bytes(b"".join(event(step, *tag) for step, tag in self.rows()))
        followed = Followed(path, "nemo-rl", run_config=tmp_path / "run.json")
        followed.poll()
        followed.finish()
        assert followed.rows() == self.expected()
        assert replayed(path, find_settings(tmp_path / "run.json", None)) == self.expected()
        assert followed.guard.ends == []

    def test_it_ends_no_step_whose_columns_are_not_known_yet(self, tmp_path):
        path = tmp_path / "run.jsonl"
        rows = [{"step": 1, "kl": 0.1}, {"step": 600, "beside": 1.0}, {"step": 1, "mine": 0.5}, {"step": 2}]
        path.write_bytes(lines(rows))
        followed = Followed(path, "trl", overrides={"reward": "mine"})
        followed.poll()
        followed.finish()
        assert followed.rows() == [(0, 1, 0.5, 0.1)]

    def test_nor_does_it_where_the_step_is_mapped(self, tmp_path):
        path = tmp_path / "run.jsonl"
        rows = [{"at": 1, "kl": 0.1}, {"at": 600, "beside": 1.0}, {"at": 1, "mine": 0.5}, {"at": 2}]
        path.write_bytes(lines(rows))
        followed = Followed(path, "trl", overrides={"step": "at", "reward": "mine"})
        followed.poll()
        followed.finish()
        assert followed.rows() == [(0, 1, 0.5, 0.1)]

    def test_a_mapped_column_is_of_its_step_before_all_are_known(self, tmp_path):
        path = tmp_path / "run.jsonl"
        rows = [{"step": s, name: 0.1 * s} for s in range(1, 5) for name in ("entropy", "mine", "my_kl")]
        path.write_bytes(lines(row for row in rows if "my_kl" not in row or row["step"] == 3))
        overrides = {"reward": "mine", "kl": "my_kl"}
        followed = Followed(path, "trl", overrides=overrides)
        followed.poll()
        followed.finish()
        assert followed.rows() == [(0, s, 0.1 * s, 0.1 * s if s == 3 else None) for s in range(1, 5)]

    def test_a_figure_of_its_own_line_is_of_the_start_that_it_stands_in(self, tmp_path):
        figure = {"completions/clipped_ratio": 0.5}
        rows = [{"step": s, "reward": 0.1 * s} for s in range(1, 5)]
        rows += [{"step": 2, "reward": 0.4}, {"step": 3, **figure}, {"step": 3, "reward": 0.6}]
        (tmp_path / "run.jsonl").write_bytes(lines(rows))
        run = load_run(read_log(tmp_path / "run.jsonl"), "", {})
        [ratio] = run.figures.values()
        told = {(a, s): r for a, s, r in zip(run.attempt, run.step, ratio, strict=True) if r == r}
        assert told == {(1, 3): 0.5}
