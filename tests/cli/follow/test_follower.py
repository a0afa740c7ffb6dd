"""A log that is written in pieces that end anywhere: what is reported is what a replay reads."""

import json
import math
import os

import pytest

from rlguard.cli.logs.readers import read_log
from rlguard.cli.replay.run import load_run
from rlguard.core.wire import KlKind
from rlguard.follow import follower as follower_module
from rlguard.follow.errors import InputError
from tests.cli.follow.followed import Followed, append, followed_to_the_end, pieces, replayed
from tests.cli.follow.writer import save
from tests.cli.logs.shapes import DATA, SHAPES, STEPS, event, kl, lines, reward, tensorboard

TWO_STARTS = [(0, s) for s in range(1, 13)] + [(1, s) for s in range(9, 15)]
WHOLE = [(0, s) for s in range(1, STEPS + 1)]


@pytest.mark.parametrize("name", ["csv", "verl-console", "openrlhf"])
def test_what_is_followed_in_pieces_is_what_is_replayed(tmp_path, name):
    format_, file, write, has_kl = SHAPES[name]
    path = tmp_path / file
    followed = Followed(path, format_)
    for number, piece in enumerate(pieces(write(0), seed=0)):
        append(path, piece)
        followed.poll()
        if number % 10 == 0:
            followed.restart()
    followed.finish()
    assert followed.rows() == replayed(path) and followed.places() == WHOLE
    assert all((row[3] is not None) == has_kl for row in followed.rows())
    assert [row[2] for row in followed.rows()] == pytest.approx([reward(s) for s in range(1, STEPS + 1)])


@pytest.mark.parametrize("name", ["verl", "easyr1", "ms-swift", "tinker", "roll", "openrlhf", "prime-rl"])
def test_a_format_is_found_by_its_names(tmp_path, name):
    _, file, write, has_kl = SHAPES[name]
    (tmp_path / file).write_bytes(write(0))
    followed = followed_to_the_end(tmp_path / file)
    assert followed.places() == WHOLE and followed.rows() == replayed(tmp_path / file)
    assert (followed.rows()[3][3] is not None) == has_kl


class TestAFileThatIsRotated:
    @pytest.mark.parametrize("how", ["truncated", "renamed", "replaced"])
    @pytest.mark.parametrize("name", ["verl", "csv", "verl-console"])
    def test_by_a_trainer_that_starts_again(self, tmp_path, name, how):
        format_, file, write, _ = SHAPES[name]
        path, first = tmp_path / file, write(0)
        followed = Followed(path, format_)
        append(path, first[: len(first) // 2])
        followed.poll()
        append(path, first[len(first) // 2 :])  # of a renamed file it is read after the renaming
        if how == "renamed":
            path.rename(tmp_path / "old")
            path.write_bytes(write(1))
        else:
            followed.poll()
            (tmp_path / "new").write_bytes(write(1))
            (tmp_path / "new").rename(path) if how == "replaced" else path.write_bytes(write(1))
        followed.poll()
        followed.restart()
        followed.poll()
        followed.finish()
        assert followed.places() == TWO_STARTS

    @pytest.mark.parametrize("name", ["verl", "csv", "verl-console"])
    def test_under_its_writer(self, tmp_path, name):
        """As by logrotate's copytruncate: the writer goes on behind a hole, without a header."""
        format_, file, write, _ = SHAPES[name]
        path, written = tmp_path / file, write(0).splitlines(keepends=True)
        followed = Followed(path, format_)
        with path.open("wb", buffering=0) as log:
            for number, line in enumerate(written):
                if number == len(written) // 2:
                    os.truncate(path, 0)
                    followed.poll()
                log.write(line)
                followed.poll()
        followed.finish()
        assert followed.places() == WHOLE and not followed.tells("left out")

    def test_and_not_written_to_while_the_old_one_is(self, tmp_path):
        """As by logrotate's create: the writer knows nothing of the other file."""
        path = tmp_path / "run.jsonl"
        followed = Followed(path)
        with path.open("wb", buffering=0) as log:
            for step in range(1, 9):
                log.write(lines([{"step": step, "reward": 0.1}]))
                followed.poll()
                if step == 4:
                    path.rename(tmp_path / "run.jsonl.1")
                    path.touch()
                    followed.poll()
        path.write_bytes(lines({"step": s, "reward": 0.1} for s in (9, 10)))
        followed.poll()
        followed.finish()
        assert followed.places() == [(0, s) for s in range(1, 11)]

    def test_with_another_header(self, tmp_path):
        path = tmp_path / "run.csv"
        path.write_text("step,reward\n1,0.1\n2,0.1\n")
        followed = Followed(path)
        followed.poll()
        path.write_text("reward,step\n0.1,3\n0.1,4\n")
        followed.poll()
        followed.finish()
        assert [row[:3] for row in followed.rows()] == [(0, s, 0.1) for s in range(1, 5)]

    def test_and_has_grown_past_where_it_was_read_or_is_seen_empty(self, tmp_path):
        path = tmp_path / "run.jsonl"
        path.write_bytes(lines({"step": s, "reward": 0.1} for s in (1, 2)) + b'{"step": 3, "rew')
        followed = Followed(path)
        for empty, factor in ((False, 0.2), (True, 0.3)):
            followed.poll()
            if empty:
                path.write_bytes(b"")
                followed.poll()
            path.write_bytes(lines({"step": s, "reward": factor} for s in range(1, 30)))
        followed.poll()
        followed.restart()  # it knows of the first two starts from the guard alone
        followed.poll()
        followed.finish()
        counts = [sum(row[0] == attempt for row in followed.rows()) for attempt in range(4)]
        assert counts == [2, 29, 29, 0]


#: Name of the log, its format, a whole line of a step, and how much of it could be another line.
HALF_LINES = {
    "csv": ("run.csv", "auto", "{0},0.{0},{0}.1e-05\n", 8),
    "verl": (
        "driver.log",
        "verl",
        "step:{0} - critic/score/mean:0.{0} - actor/reward_kl_penalty:{0}.1e-05 - actor/entropy:1.0\n",
        64,
    ),
    "jsonl": ("run.jsonl", "auto", '{{"step": {0}, "reward": 0.{0}, "kl": {0}.1e-05}}\n', 40),
}


@pytest.mark.parametrize("name", HALF_LINES)
class TestALineThatIsHalfWritten:
    def begin(self, tmp_path, name):
        """A log of three steps, of which half of the last stands there."""
        file, format_, line, cut = HALF_LINES[name]
        (tmp_path / "run.json").write_text(json.dumps({"actor": {"kl_penalty": "low_var_kl"}}))
        (path := tmp_path / file).write_text("step,reward,kl\n" if name == "csv" else "")
        append(path, "".join(map(line.format, (1, 2))).encode() + line.format(3)[:cut].encode())
        followed = Followed(path, format_, run_config=tmp_path / "run.json")
        followed.poll()
        return path, followed

    def test_is_left_to_the_next_follower(self, tmp_path, name):
        path, followed = self.begin(tmp_path, name)
        followed.follower.finish(trainer_ended=False)
        assert [row[1] for row in followed.rows()] == [1, 2]
        _, _, line, cut = HALF_LINES[name]
        append(path, (line.format(3)[cut:] + line.format(4)).encode())
        followed.restart()
        followed.finish()
        assert followed.places() == [(0, s) for s in (1, 2, 3, 4)]
        assert followed.rows() == replayed(path, {"kl_penalty": "low_var_kl"})

    def test_is_counted_and_not_read_where_the_file_begins_anew(self, tmp_path, name):
        path, followed = self.begin(tmp_path, name)
        line = HALF_LINES[name][2]
        path.write_text(("step,reward,kl\n" if name == "csv" else "") + "".join(map(line.format, (3, 4))))
        followed.poll()
        followed.finish()
        assert followed.places() == [(0, s) for s in (1, 2, 3, 4)]
        assert followed.rows()[2][3] == 3.1e-05 and followed.follower.bad == 1


def test_the_last_line_of_a_log_that_has_ended_needs_no_end(tmp_path):
    (path := tmp_path / "run.jsonl").write_bytes(lines({"step": s, "reward": 0.5} for s in (1, 2))[:-1])
    assert followed_to_the_end(path).places() == [(0, 1), (0, 2)]


class TestTheGuardIsTheMemory:
    def test_one_that_is_away_loses_nothing(self, tmp_path, monkeypatch):
        monkeypatch.setattr(follower_module, "_FIRST_RETRY_SECONDS", 0.001)
        followed = Followed(path := tmp_path / "run.jsonl")
        path.write_bytes(lines({"step": s, "reward": 0.1 * s} for s in range(1, 30)))
        followed.guard.down = 7
        followed.poll()
        followed.finish()
        assert len(followed.rows()) == 29

    def test_one_report_that_is_refused_does_not_stop_the_others(self, tmp_path):
        followed = Followed(path := tmp_path / "run.jsonl")
        path.write_bytes(lines({"step": s, "reward": 0.1 * s} for s in range(1, 30)))
        followed.guard.refused = {7}
        followed.poll()
        followed.finish()
        assert len(followed.rows()) == 28 and followed.tells("step 7")


class TestWhenAStepIsWhole:
    def test_when_the_next_one_begins_or_after_a_while(self, tmp_path):
        followed = Followed(path := tmp_path / "metrics.jsonl", "trl")
        append(path, lines([{"global_step": 1, "reward": 0.5}]))
        followed.poll()
        assert followed.rows() == []
        append(path, lines([{"global_step": 1, "kl": 0.01}, {"global_step": 2, "reward": 0.5}]))
        followed.poll()
        assert followed.rows() == [(0, 1, 0.5, 0.01)]
        followed.now = follower_module.SETTLE_SECONDS + 1
        followed.poll()
        assert followed.places() == [(0, 1), (0, 2)]

    @pytest.mark.parametrize("name", ["verl", "verl-console", "roll", "ms-swift"])
    def test_at_once_where_a_row_holds_all_of_it(self, tmp_path, name):
        """Held in memory it would be lost with a follower that is killed, once the log is rotated."""
        format_, file, write, _ = SHAPES[name]
        followed = Followed(path := tmp_path / file, format_)
        append(path, write(0))
        followed.poll()
        path.rename(tmp_path / "rotated")
        followed.restart()  # it was killed
        followed.finish()
        assert followed.places() == WHOLE

    def test_not_by_the_reward_alone_in_an_event_file(self, tmp_path):
        (tmp_path / "run.yaml").write_text("kl_penalty: kl")
        tags = {"critic/score/mean": 0.5, "math/critic/kl": 0.01}
        (tmp_path / "events.out.tfevents.1.h.1.0").write_bytes(tensorboard(lambda s, a: tags)(0))
        followed = followed_to_the_end(tmp_path, "roll", run_config=tmp_path / "run.yaml")
        assert [row[3] for row in followed.rows()] == pytest.approx([0.01] * STEPS)

    @pytest.mark.parametrize("file", ["events.out.tfevents.1.h.1.0", "run.jsonl"])
    def test_what_is_logged_beside_it_by_another_clock_ends_no_step(self, tmp_path, file):
        """NeMo-RL's `monitor_gpus` logs from a thread, into the same file, by the seconds since its start."""
        rows = []
        for step in range(1, STEPS + 1):
            values = {"train/loss": 0.1, "train/reward": reward(step), "train/kl_penalty": kl(step)}
            for number, value in enumerate(values.items()):
                rows += [(600 * step + number, ("ray/node.0.gpu.0.util", 50.0)), (step, value)]
        path = tmp_path / file
        if file.endswith("jsonl"):
            path.write_bytes(lines({"step": step, name: value} for step, (name, value) in rows))
        else:
            path.write_bytes(b"".join(event(step, *tag) for step, tag in rows))
        settings = {"token_level_loss": "true", "reference_policy_kl_penalty": "0.01"}
        (tmp_path / "run.json").write_text(
            json.dumps({"token_level_loss": True, "reference_policy_kl_penalty": 0.01})
        )
        expected = [
            (0, s, pytest.approx(reward(s), rel=1e-6), pytest.approx(kl(s), rel=1e-6))
            for s in range(1, STEPS + 1)
        ]
        followed = followed_to_the_end(path, "nemo-rl", run_config=tmp_path / "run.json")
        assert followed.rows() == expected == replayed(path, settings)

    @pytest.mark.parametrize("step", ["step", "at"])
    def test_nor_before_the_columns_are_known(self, tmp_path, step):
        rows = [{step: 1, "kl": 0.1}, {step: 600, "beside": 1.0}, {step: 1, "mine": 0.5}, {step: 2}]
        (path := tmp_path / "run.jsonl").write_bytes(lines(rows))
        overrides = {"reward": "mine"} | ({"step": "at"} if step == "at" else {})
        assert followed_to_the_end(path, "trl", overrides=overrides).rows() == [(0, 1, 0.5, 0.1)]


class TestARowThatIsThereAgain:
    """Of several rows of a step the first value counts that can, as in a replay."""

    NAN = math.nan

    def read(self, path, *rows, **overrides):
        path.write_bytes(lines([*({"step": 1, **row} for row in rows), {"step": 2, "reward": 0.5}]))
        followed = followed_to_the_end(path, "trl", overrides=overrides)
        if not overrides:
            assert followed.rows() == replayed(path)
        return followed.guard.steps[0, 1]

    @pytest.mark.parametrize(
        ("first", "again", "reward", "kl"),
        [
            ({"reward": 0.5, "kl": 0.1}, {"reward": 0.7, "kl": 0.3}, 0.5, 0.1),
            ({"reward": NAN}, {"reward": 0.7, "kl": 0.3}, 0.7, 0.3),
            ({"reward": math.inf, "kl": 0.1}, {"reward": 0.7, "kl": 0.3}, 0.7, 0.1),
            ({"reward": -0.5, "kl": NAN}, {"reward": 0.7, "kl": 0.3}, -0.5, 0.3),
            ({"reward": 0.5, "kl": -0.1}, {"reward": 0.5, "kl": 0.3}, 0.5, 0.0),
        ],
    )
    def test_a_value_that_cannot_count_gives_way_to_one_that_does(self, tmp_path, first, again, reward, kl):
        report = self.read(tmp_path / "run.jsonl", first, again)
        assert (report.reward, report.kl) == (reward, kl)

    @pytest.mark.parametrize("column", ["kl_kind", "what"])
    def test_a_kl_is_of_the_kind_that_its_own_row_says(self, tmp_path, column):
        """A sum over a completion would fire as a mean."""
        kls = (self.NAN, "ref_token_mean"), (900.0, "ref_seq_sum"), (0.1, "ref_token_mean")
        rows = [{"reward": 0.5, "kl": kl, column: kind} for kl, kind in kls]
        report = self.read(tmp_path / "run.jsonl", *rows, kl_kind=column)
        assert (report.kl, report.kl_kind) == (900.0, KlKind.REF_SEQ_SUM)

    @pytest.mark.parametrize("again", [math.inf, None, "", "none"])
    def test_a_kl_that_is_not_finite_stays_one_where_none_can_count(self, tmp_path, again):
        rows = [{"reward": 0.5, "kl": kl} for kl in (self.NAN, again)]
        report = self.read(tmp_path / "run.jsonl", *rows, reward="reward")
        assert report.kl_kind is KlKind.NOT_FINITE


class TestWhatTheLogItselfSays:
    @pytest.mark.parametrize("file", ["run.jsonl", "log.csv"])
    def test_which_kl_it_is(self, tmp_path, file):
        path, kinds = tmp_path / file, ["ref_token_mean", "ref_seq_sum", "behaviour", ""]
        if file.endswith("csv"):
            rows = "".join(f"{s},0.5,3.0,{kind}\n" for s, kind in enumerate(kinds))
            path.write_text("step,reward,kl,kl_kind\n" + rows)
        else:
            rows = [{"step": s, "reward": 0.5, "kl": 3.0, "kl_kind": k or None} for s, k in enumerate(kinds)]
            path.write_bytes(lines(rows))
        steps = followed_to_the_end(path).guard.steps
        assert [steps[0, s].kl_kind.value for s in range(4)] == [k or "ref_token_mean" for k in kinds]
        run = load_run(read_log(path), str(path), {})
        assert run.armed_kl().tolist() == [True, False, False, True]

    def test_a_kind_that_is_none_arms_nothing(self, tmp_path):
        bad = ["Ref_token_mean", 7, ["ref_token_mean"], "x" * 1000]
        rows = [{"step": s, "reward": 0.5, "kl": 3.0, "kl_kind": k} for s, k in enumerate(bad)]
        (path := tmp_path / "run.jsonl").write_bytes(lines(rows))
        followed = followed_to_the_end(path)
        assert [row[1:] for row in followed.rows()] == [(s, 0.5, None) for s in range(4)]
        assert [s for s in followed.said if "kl_kind='Ref_token_mean'" in s and len(s) < 200]

    def test_which_attempt_it_is(self, tmp_path):
        places = [(0, 1), (0, 2), (2, 2), (2, 3), (3, 3)]
        rows = [{"attempt": a, "step": s, "reward": 0.5} for a, s in places]
        (path := tmp_path / "run.jsonl").write_bytes(lines(rows))
        followed = followed_to_the_end(path)
        followed.restart()
        followed.finish()
        assert followed.places() == places and followed.rows() == replayed(path)

    @pytest.mark.parametrize(
        ("format_", "tags"),
        [
            ("skyrl", {"reward/avg_raw_reward": 0.5, "trainer/epoch": 0.0, "trainer/global_step": 3.0}),
            ("slime", {"rollout/raw_reward": 0.5, "rollout/step": 3.0, "train/step": 3.0}),
            ("trl", {"train/reward": 0.5, "train/global_step": 3.0, "step": 7.0}),
        ],
    )
    def test_the_step_of_an_event_is_its_own(self, tmp_path, format_, tags):
        path = tmp_path / "events.out.tfevents.1.host.1.0"
        path.write_bytes(tensorboard(lambda s, a: tags)(0))
        followed = followed_to_the_end(path, format_)
        assert followed.places() == WHOLE and followed.rows() == replayed(path)


class TestAColumnOfMap:
    @pytest.mark.parametrize(
        ("overrides", "rows", "expected"),
        [
            (
                {"reward": "mine"},
                [{"step": s, "data": {"critic/score/mean": 0.1}} for s in (1, 2)]
                + [{"step": 3, "data": {"critic/score/mean": 0.3, "mine": 77.0}}],
                [(0, 3, 77.0, None)],
            ),
            (
                {"kl": "my/kl"},  # no reason to lose a step that was there before it
                [{"step": s, "reward": 0.1} for s in (1, 2)] + [{"step": 3, "reward": 0.3, "my/kl": 0.5}],
                [(0, 1, 0.1, None), (0, 2, 0.1, None), (0, 3, 0.3, 0.5)],
            ),
            (
                {"reward": "mine"},  # after more columns than are remembered
                [{"step": 1, **{f"c{i}": 0 for i in range(6_000)}}, {"step": 2, "mine": 0.5}],
                [(0, 2, 0.5, None)],
            ),
            (
                {"reward": "mine", "kl": "my_kl"},
                [{"step": s, name: 0.1 * s} for s in (1, 2, 3) for name in ("entropy", "mine", "my_kl")],
                [(0, s, 0.1 * s, 0.1 * s) for s in (1, 2, 3)],
            ),
        ],
        ids=["reward", "kl", "many", "each in its row"],
    )
    def test_it_comes_late(self, tmp_path, overrides, rows, expected):
        followed = Followed(
            path := tmp_path / "run.jsonl", "verl" if "data" in rows[0] else "trl", overrides=overrides
        )
        for row in rows:
            append(path, lines([row]))
            followed.poll()
        followed.finish()
        assert followed.rows() == expected

    def test_it_never_comes(self, tmp_path):
        rows = ({"step": s, "data": {"my/rewards": 0.1}} for s in (1, 2))
        (path := tmp_path / "run.jsonl").write_bytes(lines(rows))
        followed = followed_to_the_end(path, "verl", overrides={"reward": "my/reward", "heldout": "no"})
        [said] = followed.said
        assert "--map reward=my/reward" in said and "near to it: `my/rewards`" in said


class TestWhatCannotBeRead:
    @pytest.mark.parametrize(
        "bad",
        [
            b"\xff\xfe\x00\n",
            b"[" * 100_000 + b"\n",
            b'{"step": 5, "reward": 1' + b"0" * 5000 + b"}\n",
            b'{"step": 1e400, "reward": 1}\n{"step": -1, "reward": 1}\n{"step": 2.5, "reward": 1}\n',
            b'{"step": "x", "reward": 1}\n{"step": 5, "reward": [1]}\n{"step": 5, "reward": {"a": {}}}\n',
            b'{"step": true, "reward": true}\n[]\n"x"\nnull\n',
            b'{"step": 5, "rew{"step": 6, "reward": 0.1}\n',
            b"\x00" * (6 << 20) + b"\n",
            b"x" * (6 << 20) + b"\n",
        ],
        ids=range(9),
    )
    @pytest.mark.parametrize("file", ["run.jsonl", "driver.log"])
    def test_is_left_out_and_never_quoted(self, tmp_path, bad, file):
        (path := tmp_path / file).write_bytes(bad)
        followed = Followed(path)
        followed.poll()
        append(path, b'{"step": 50, "reward": 0.5}\n')
        followed.poll()
        followed.finish()
        assert followed.places() == [(0, 50)]
        assert not any("rew" in s and "{" in s for s in followed.said)

    @pytest.mark.parametrize("reward", [math.nan, None, math.inf])
    def test_a_reward_that_is_not_finite_is_reported_as_such(self, tmp_path, reward):
        rows = [{"step": s, "reward": 0.5 if s <= 3 else reward} for s in range(1, 8)]
        (path := tmp_path / "run.jsonl").write_bytes(lines([*rows, {"step": 9, "loss": 1.0}]))
        followed = followed_to_the_end(path)
        assert [row[1:3] for row in followed.rows()] == [(s, 0.5 if s <= 3 else None) for s in range(1, 8)]
        assert followed.tells("no finite reward")

    @pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
    def test_what_is_no_regular_file_is_refused(self, tmp_path, kind):
        path = tmp_path / "run.jsonl"
        if kind == "link":
            path.symlink_to(tmp_path / "secret.jsonl")
            (tmp_path / "secret.jsonl").write_bytes(lines([{"step": 1, "reward": 0.5}]))
        elif kind == "fifo":
            os.mkfifo(path)

        def follow():
            followed = Followed(path)
            if kind == "folder":
                path.write_bytes(b"")
                followed.poll()
                path.unlink()
                path.mkdir()
            followed.poll()

        with pytest.raises(InputError, match=r"symbolic link|not a regular file"):
            follow()

    @pytest.mark.parametrize(
        "row", ['{"iter": %d, "score_mean": 0.5}', '{"loss": 0.5, "lr": %d}', "%d,0.5"], ids=range(3)
    )
    def test_a_log_of_which_no_column_is_known_is_trouble(self, tmp_path, row):
        """`not_followed` is made of it: else a guard would look as if it read its trainer."""
        path = tmp_path / ("log.csv" if row.startswith("%") else "log.jsonl")
        path.write_text("".join(row % number + "\n" for number in range(300)))
        followed = followed_to_the_end(path)
        assert followed.rows() == [] and len(followed.said) == 1
        assert followed.follower.trouble.startswith("no column") and "--map" in followed.follower.trouble

    def test_names_of_a_log_do_not_drive_the_terminal(self, tmp_path):
        names = {"\x1b[2J\nall is well - reward": 0.1, "y" * 5_000: 1.0, "my/\x9bkl": 0.1}
        (path := tmp_path / "run.jsonl").write_bytes(lines([{"step": 1, **names}, {"step": 2}]))
        for overrides in ({}, {"reward": "x"}):
            followed = followed_to_the_end(path, overrides=overrides)
            assert followed.said and all(s.isprintable() and len(s) <= 2_000 for s in followed.said)


@pytest.mark.parametrize("again", [False, True], ids=["goes on", "is written anew"])
def test_a_csv_log_that_stood_there_before_goes_on_under_its_header(tmp_path, again):
    """What a guard is attached to has a log already, which is of another run."""
    path, header = tmp_path / "log.csv", b"step,reward,kl\n"
    append(path, header + b"".join(b"%d,0.25,0.5\n" % step for step in range(1, 4)))
    followed = Followed(path, new_run=True)
    followed.poll()
    if again:
        path.write_bytes(header)
    append(path, b"".join(b"%d,0.5,0.01\n" % step for step in range(11, 15)))
    followed.poll()
    followed.finish()
    assert followed.rows() == [(0, step, 0.5, 0.01) for step in range(11, 15)]


def test_a_checkpoint_is_announced_and_no_mode_in_it_is_changed(tmp_path):
    (secret := tmp_path / "heldout.jsonl").touch(0o600)
    (model := tmp_path / "global_step_4" / "actor" / "huggingface").mkdir(0o755, parents=True)
    (model / "x.safetensors").symlink_to(secret)  # before the mark: what is newer is being written
    save(tmp_path, 4)
    (model / "model.safetensors").chmod(0o600)
    followed = Followed(tmp_path / "log.jsonl", "verl", checkpoints=tmp_path)
    followed.finish()
    assert followed.guard.checkpoints == [(0, 4, str(model))]
    assert [p.stat().st_mode & 0o777 for p in (secret, model / "model.safetensors")] == [0o600, 0o600]


def test_an_event_file_that_trl_wrote_is_its_trainer_state(tmp_path):
    data = (DATA / "trl" / "events.out.tfevents.1.trl.1.0").read_bytes()
    followed = Followed(tmp_path, "trl")
    for piece in pieces(data, 0):
        append(tmp_path / "events.out.tfevents.1.trl.1.0", piece)
        followed.poll()
    followed.finish()
    state = replayed(DATA / "trl" / "trainer_state.json")
    assert followed.places() == [row[:2] for row in state]
    assert [row[2] for row in followed.rows()] == pytest.approx([row[2] for row in state])
    assert [row[3] for row in followed.rows()] == pytest.approx([row[3] for row in state], abs=1e-6)


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

    def test_a_run_that_is_read_but_has_no_weights_that_can_be_scored(self, tmp_path):
        (tmp_path / "step_10" / "policy" / "weights").mkdir(parents=True)
        append(tmp_path / "run.jsonl", lines([{"step": 1, "reward": 0.1}]))
        followed = Followed(tmp_path / "run.jsonl", "nemo-rl", tmp_path)
        followed.now += follower_module.PATIENCE_SECONDS
        followed.poll()
        assert followed.tells("save_consolidated") and not followed.tells("no record")


class TestTheAttemptOfACheckpoint:
    """A trainer saved step 20 and starts again from 10: the folder has the same name, and other weights."""

    def follow(self, tmp_path, last=25):
        from tests.cli.follow.test_checkpoints import save as save_trl

        followed = Followed(tmp_path / "log.jsonl", "trl", tmp_path)
        self.write(tmp_path, range(1, last + 1), 0.1)
        followed.poll()
        self.path = save_trl(tmp_path, "trl", 20)
        followed.poll()
        return followed

    def write(self, tmp_path, steps, factor):
        append(tmp_path / "log.jsonl", lines({"step": s, "reward": factor * s} for s in steps))

    def save_again(self):
        for file in self.path.iterdir():
            os.utime(file, (1_000_000_100, 1_000_000_100))

    def places(self, followed):
        return [c[:2] for c in followed.guard.checkpoints]

    @pytest.mark.parametrize("saved_first", [False, True])
    def test_it_is_of_the_new_start_once_its_step_has_come(self, tmp_path, saved_first):
        followed = self.follow(tmp_path)
        assert self.places(followed) == [(0, 20)]
        if saved_first:
            self.save_again()
            followed.poll()
        self.write(tmp_path, range(11, 21), 0.2)
        if not saved_first:
            self.save_again()
            followed.poll()
        self.write(tmp_path, [21], 0.2)
        followed.poll()
        followed.poll()
        assert self.places(followed) == [(0, 20), (1, 20)]

    def test_one_that_was_scored_is_not_scored_again_by_a_new_follower(self, tmp_path):
        followed = self.follow(tmp_path)
        self.write(tmp_path, range(11, 18), 0.2)
        followed.poll()
        followed.restart()
        followed.poll()
        followed.now += follower_module.SETTLE_SECONDS
        followed.poll()
        assert self.places(followed) == [(0, 20)]

    @pytest.mark.parametrize("ended", [False, True])
    def test_it_waits_for_its_step_but_not_for_ever(self, tmp_path, ended):
        followed = self.follow(tmp_path, last=15)
        assert self.places(followed) == []
        followed.now += 0 if ended else follower_module.SETTLE_SECONDS
        followed.finish() if ended else followed.poll()
        assert self.places(followed) == [(0, 20)]

    def test_after_the_wait_it_is_of_the_start_that_is_on_its_way_there(self, tmp_path):
        followed = self.follow(tmp_path)
        self.write(tmp_path, range(11, 18), 0.2)
        self.save_again()
        followed.poll()
        followed.now += follower_module.SETTLE_SECONDS
        followed.poll()
        assert self.places(followed) == [(0, 20), (1, 20)]
