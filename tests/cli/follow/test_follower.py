"""A log that is written in pieces that end anywhere: what is reported is what a replay reads."""

import itertools
import json
import math
import os
import random

import pytest

from guard_cli.logs.readers import read_log
from guard_cli.replay.run import load_run
from guard_client.client import Acknowledgement, VerdictView
from guard_client.errors import GuardUnavailableError, ReportRefusedError
from guard_client.samples import StepSample
from guard_follow import follower as follower_module
from guard_follow.config import FollowConfig
from guard_follow.errors import InputError
from guard_follow.follower import Follower
from guard_follow.guard_history import KnownHistory
from guard_follow.preexisting import PreexistingFiles, scan
from guard_follow.sources import framework_of
from tests.cli.follow.writer import save
from tests.cli.logs.shapes import DATA, SHAPES, STEPS, kl, lines, reward

VERDICT = VerdictView(fire=False, stop=False)


class Guard:
    """A guard in memory that keeps what it acknowledges, and refuses what contradicts it."""

    def __init__(self):
        self.steps, self.checkpoints, self.ends, self.down = {}, [], [], 0

    def _answer(self):
        if self.down:
            self.down -= 1
            raise GuardUnavailableError("down")

    def verdict(self):
        self._answer()
        return VERDICT

    def post_steps(self, reports):
        self._answer()
        for report in reports:
            assert self.steps.setdefault((report.attempt, report.step), report) == report, "contradicts"
            assert self.steps[report.attempt, report.step] is report, f"twice: {report.step}"
        return Acknowledgement(verdict=VERDICT, accepted=len(reports))

    def post_checkpoint(self, report):
        self._answer()
        self.checkpoints.append((report.attempt, report.step, report.path))
        return Acknowledgement(verdict=VERDICT)

    def post_end(self, report):
        self._answer()
        self.ends.append(report)
        return Acknowledgement(verdict=VERDICT)

    def history(self):
        known = {}
        for (attempt, step), r in self.steps.items():
            sample = StepSample(step, r.reward, r.kl, r.kl_kind, r.entropy, r.reward_std)
            known.setdefault(attempt, {})[step] = sample
        return KnownHistory(known, frozenset(self.checkpoints))


class Followed:
    """One followed log, and a follower that can be started again."""

    def __init__(self, path, format_="auto", checkpoints=None, new_run=False, **more):
        self.guard, self.said, self.now = Guard(), [], 0.0
        before = scan(path, checkpoints, framework_of(format_)) if new_run else None
        if before is not None:
            before = PreexistingFiles.from_json(before.to_json())
        self.what = FollowConfig(path, checkpoints, format_, before=before, **more)
        self.restart()

    def restart(self):
        self.follower = Follower(
            self.what, self.guard, self.guard.history(), self.said.append, clock=lambda: self.now
        )

    def poll(self):
        self.follower.poll()

    def finish(self):
        self.follower.finish(trainer_ended=True)

    def rows(self):
        return sorted((a, s, r.reward, r.kl) for (a, s), r in self.guard.steps.items())


def replayed(path, settings=None):
    run = load_run(read_log(path), str(path), {}, settings)
    kls = [None if k != k else k for k in run.kl.tolist()]
    return sorted(zip(run.attempt.tolist(), run.step.tolist(), run.reward.tolist(), kls, strict=True))


def pieces(data, seed):
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(1, len(data)), 25))
    return [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])]


def append(path, data):
    with path.open("ab") as file:
        file.write(data)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["csv", "verl", "verl-console", "ms-swift", "openrlhf", "tinker"])
def test_what_is_followed_in_pieces_is_what_is_replayed(tmp_path, name, seed):
    format_, file, write, has_kl = SHAPES[name]
    path = tmp_path / file
    followed = Followed(path, format_)
    for number, piece in enumerate(pieces(write(0), seed)):
        append(path, piece)
        followed.poll()
        if number % 10 == seed:
            followed.restart()
    followed.finish()
    assert followed.rows() == replayed(path)
    assert [row[:2] for row in followed.rows()] == [(0, s) for s in range(1, STEPS + 1)]
    assert all((row[3] is not None) == has_kl for row in followed.rows())
    assert [row[2] for row in followed.rows()] == pytest.approx([reward(s) for s in range(1, STEPS + 1)])


@pytest.mark.parametrize("auto", ["verl", "easyr1", "ms-swift", "tinker", "roll", "openrlhf", "prime-rl"])
def test_a_format_is_found_by_its_names(tmp_path, auto):
    _, file, write, has_kl = SHAPES[auto]
    (tmp_path / file).write_bytes(write(0))
    followed = Followed(tmp_path / file)
    followed.poll()
    followed.finish()
    assert len(followed.rows()) == STEPS
    assert followed.rows() == replayed(tmp_path / file)
    assert (followed.rows()[3][3] is not None) == has_kl


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


@pytest.mark.parametrize("how", ["truncated", "renamed", "replaced"])
@pytest.mark.parametrize("name", ["verl", "ms-swift", "csv", "verl-console"])
def test_a_trainer_that_starts_again_with_a_new_file(tmp_path, name, how):
    format_, file, write, _ = SHAPES[name]
    path = tmp_path / file
    followed = Followed(path, format_)
    first = write(0)
    append(path, first[: len(first) // 2])
    followed.poll()
    append(path, first[len(first) // 2 :])  # read only after the file has another name
    if how == "renamed":
        path.rename(tmp_path / "old")
        path.write_bytes(write(1))
    elif how == "replaced":
        followed.poll()
        (tmp_path / "new").write_bytes(write(1))
        (tmp_path / "new").rename(path)
    else:
        followed.poll()
        path.write_bytes(write(1))
    followed.poll()
    followed.restart()
    followed.poll()
    followed.finish()
    assert [row[:2] for row in followed.rows()] == [(0, s) for s in range(1, 13)] + [
        (1, s) for s in range(9, 15)
    ]


@pytest.mark.parametrize("look", [False, True], ids=["", "seen"])
@pytest.mark.parametrize("name", ["verl", "ms-swift", "csv", "verl-console"])
def test_a_file_that_is_cut_under_its_writer(tmp_path, name, look):
    """As by logrotate's copytruncate: the writer goes on where it was, behind a hole, without a header."""
    format_, file, write, _ = SHAPES[name]
    path = tmp_path / file
    followed = Followed(path, format_)
    lines_ = write(0).splitlines(keepends=True)
    with path.open("wb", buffering=0) as log:
        for number, line in enumerate(lines_):
            if number == len(lines_) // 2:
                path.with_name("copy").write_bytes(path.read_bytes())
                os.truncate(path, 0)
                if look:
                    followed.poll()
            log.write(line)
            followed.poll()
    followed.finish()
    assert [row[:2] for row in followed.rows()] == [(0, s) for s in range(1, STEPS + 1)]
    assert not any("left out" in said for said in followed.said)


def test_a_file_that_begins_anew_with_another_header(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text("step,reward\n1,0.1\n2,0.1\n")
    followed = Followed(path)
    followed.poll()
    path.write_text("reward,step\n0.1,3\n0.1,4\n")
    followed.poll()
    followed.finish()
    assert [row[:3] for row in followed.rows()] == [(0, s, 0.1) for s in range(1, 5)]


def test_a_hole_that_is_longer_than_a_line_may_be(tmp_path):
    path = tmp_path / "run.jsonl"
    with path.open("wb") as log:
        log.seek(6 << 20)
        log.write(lines({"step": s, "reward": 0.1} for s in (1, 2)))
    followed = Followed(path)
    followed.poll()
    followed.finish()
    assert [row[1] for row in followed.rows()] == [1, 2]
    assert [row[:2] for row in replayed(path)] == [(0, 1), (0, 2)]


def test_a_file_that_was_renamed_is_read_on_while_the_other_one_is_empty(tmp_path):
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
    assert [row[:2] for row in followed.rows()] == [(0, s) for s in range(1, 11)]


def test_a_file_that_was_cut_and_has_grown_past_where_it_was_read(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(lines({"step": s, "reward": 0.1, "kl": kl(s)} for s in range(1, 3)))
    followed = Followed(path)
    followed.poll()
    path.write_bytes(lines({"step": s, "reward": 0.2, "kl": kl(s)} for s in range(2, 20)))
    followed.poll()
    followed.finish()
    # Step 2 of the first file was still being gathered when the file began anew.
    assert [row[:3] for row in followed.rows()] == [(0, 1, 0.1), (0, 2, 0.1)] + [
        (1, s, 0.2) for s in range(2, 20)
    ]


def test_a_third_start_after_the_file_of_the_others_is_gone(tmp_path):
    path = tmp_path / "run.jsonl"
    followed = Followed(path)
    for attempt, steps in ((0, range(1, 131)), (1, range(101, 151)), (2, range(131, 171))):
        path.write_bytes(lines({"step": s, "reward": 0.1 + attempt, "kl": kl(s)} for s in steps))
        followed.poll()
    followed.restart()  # knows of the first two from the guard alone
    followed.poll()
    followed.finish()
    counts = [sum(row[0] == attempt for row in followed.rows()) for attempt in range(4)]
    assert counts == [130, 50, 40, 0]


class TestSeveralRuns:
    def test_folders(self, tmp_path):
        for run in ("a", "b"):
            (tmp_path / run).mkdir()
            (tmp_path / run / "events.out.tfevents.1.h.1.0").write_bytes(SHAPES["openrlhf"][2](0))
        for refuse in (Followed, read_log):
            with pytest.raises(InputError, match="`a`, `b`"):
                refuse(tmp_path)

    def test_files_that_both_begin_at_the_start(self, tmp_path):
        for number in (1, 2):
            (tmp_path / f"events.out.tfevents.{number}.h.1.0").write_bytes(SHAPES["openrlhf"][2](0))
        for refuse in (Followed, read_log):
            with pytest.raises(InputError, match=r"tfevents\.1\.h.*tfevents\.2\.h"):
                refuse(tmp_path)

    def test_those_of_an_earlier_run_are_not_of_a_new_one(self, tmp_path):
        for run in ("a", "b"):
            (tmp_path / run).mkdir()
            (tmp_path / run / "events.out.tfevents.1.h.1.0").write_bytes(SHAPES["openrlhf"][2](0))
        followed = Followed(tmp_path, new_run=True)
        (tmp_path / "c").mkdir()
        (tmp_path / "c" / "events.out.tfevents.3.h.1.0").write_bytes(SHAPES["openrlhf"][2](1))
        followed.poll()
        followed.finish()
        assert [row[1] for row in followed.rows()] == list(range(9, 15))


class TestTheGuardIsTheMemory:
    def test_a_guard_that_is_away_loses_nothing(self, tmp_path, monkeypatch):
        monkeypatch.setattr(follower_module, "_FIRST_RETRY_SECONDS", 0.001)
        path = tmp_path / "run.jsonl"
        followed = Followed(path)
        path.write_bytes(lines({"step": s, "reward": 0.1 * s} for s in range(1, 30)))
        followed.guard.down = 7
        followed.poll()
        followed.finish()
        assert len(followed.rows()) == 29

    def test_one_report_that_is_refused_does_not_stop_the_others(self, tmp_path):
        path = tmp_path / "run.jsonl"
        followed = Followed(path)
        path.write_bytes(lines({"step": s, "reward": 0.1 * s} for s in range(1, 30)))
        post = followed.guard.post_steps

        def refuse_seven(reports):
            if any(r.step == 7 for r in reports):
                raise ReportRefusedError("no seven")
            return post(reports)

        followed.guard.post_steps = refuse_seven
        followed.poll()
        followed.finish()
        assert len(followed.rows()) == 28
        assert any("step 7" in s for s in followed.said)


class TestHostile:
    @pytest.mark.parametrize(
        "bad",
        [
            b"\xff\xfe\x00\n",
            b"[" * 100_000 + b"\n",
            b'{"step": 5, "reward": 1' + b"0" * 5000 + b"}\n",
            b'{"step": 1e400, "reward": 1}\n{"step": -1, "reward": 1}\n{"step": 2.5, "reward": 1}\n',
            b'{"step": "x", "reward": 1}\n{"step": 5, "reward": [1]}\n{"step": 5, "reward": {"a": {}}}\n',
            b'{"step": 5, "reward": NaN}\n{"step": 6, "reward": Infinity}\n{"step": 7, "reward": 1e300}\n',
            b'{"step": true, "reward": true}\n[]\n"x"\nnull\n',
            b'{"step": 5, "rew{"step": 6, "reward": 0.1}\n',
            b"\x00" * 1000 + b"\n",
        ],
    )
    @pytest.mark.parametrize("file", ["run.jsonl", "driver.log", "log.csv", "events.out.tfevents.1"])
    def test_what_cannot_be_read_is_left_out_and_never_quoted(self, tmp_path, bad, file):
        path = tmp_path / file
        path.write_bytes(bad)
        followed = Followed(path)
        if file.startswith("events"):
            append(path, b"x" * 12)
            with pytest.raises(InputError, match="damaged"):
                followed.poll()
            return
        followed.poll()
        append(path, b'{"step": 50, "reward": 0.5}\n')
        followed.poll()
        followed.finish()
        not_finite = [(0, 5), (0, 6)] if b"NaN" in bad else []
        expected = [*not_finite, (0, 50)] if file in ("run.jsonl", "driver.log") else []
        assert [row[:2] for row in followed.rows()] == expected
        assert not any("rew" in s and "{" in s for s in followed.said)

    def test_a_line_without_an_end_is_passed_over(self, tmp_path, monkeypatch):
        monkeypatch.setattr("guard_follow.decoders.MAX_LINE", 1000)
        path = tmp_path / "run.jsonl"
        path.touch()
        followed = Followed(path)
        for _ in range(50):
            append(path, b"x" * 500)
            followed.poll()
        append(path, b'x\n{"step": 1, "reward": 0.5}\n')
        followed.poll()
        followed.finish()
        assert len(followed.rows()) == 1

    @pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
    def test_what_is_no_regular_file(self, tmp_path, kind):
        path = tmp_path / "run.jsonl"
        if kind == "link":
            (tmp_path / "secret.jsonl").write_bytes(lines([{"step": 1, "reward": 0.5}]))
            path.symlink_to(tmp_path / "secret.jsonl")
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


def test_only_a_step_that_is_whole_is_reported(tmp_path):
    path = tmp_path / "metrics.jsonl"
    followed = Followed(path, "trl")
    append(path, lines([{"global_step": 1, "reward": 0.5}]))
    followed.poll()
    assert followed.rows() == []
    append(path, lines([{"global_step": 1, "kl": 0.01}, {"global_step": 2, "reward": 0.5}]))
    followed.poll()
    assert followed.rows() == [(0, 1, 0.5, 0.01)]


def test_the_last_step_is_taken_for_whole_after_a_while(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append(path, lines([{"step": 1, "reward": 0.5}]))
    now = [0.0]
    guard = Guard()
    one = Follower(FollowConfig(path), guard, KnownHistory(), print, clock=lambda: now[0])
    one.poll()
    now[0] = follower_module.SETTLE_SECONDS - 1
    one.poll()
    assert not guard.steps
    now[0] += 2
    one.poll()
    assert len(guard.steps) == 1


class TestAKlThatDependsOnTheRun:
    @pytest.mark.parametrize(
        ("estimator", "armed"),
        [("kl", True), ("low_var_kl", True), ("abs", False), ("mse", False), (None, False)],
    )
    def test_verl(self, tmp_path, estimator, armed):
        path = tmp_path / "run.jsonl"
        path.write_bytes(SHAPES["verl"][2](0).replace(b"actor/kl_loss", b"actor/reward_kl_penalty"))
        if estimator:
            (tmp_path / ".hydra").mkdir()
            config = "actor_rollout_ref: {actor: {loss_agg_mode: token-mean}}\n"
            config += f"algorithm: {{kl_penalty: {estimator}}}"
            (tmp_path / ".hydra" / "config.yaml").write_text(config)
        followed = Followed(path, "verl")
        followed.poll()
        assert all((row[3] is not None) == armed for row in followed.rows())
        assert any("is not taken as the KL" in s for s in followed.said) != armed
        from guard_follow.run_config import find_settings

        assert followed.rows() == replayed(path, find_settings(None, path))

    def test_one_may_vouch_for_it(self, tmp_path):
        path = tmp_path / "run.jsonl"
        path.write_bytes(SHAPES["verl"][2](0))
        followed = Followed(path, "verl", overrides={"kl": "actor/kl_loss"})
        followed.poll()
        assert followed.rows()[3][3] == kl(4)

    def test_a_configuration_that_was_there_before_is_of_another_run(self, tmp_path):
        path, config = tmp_path / "run.jsonl", tmp_path / ".hydra" / "config.yaml"
        config.parent.mkdir()
        config.write_text("{algorithm: {kl_penalty: low_var_kl}}")
        followed = Followed(path, "verl", new_run=True)
        path.write_bytes(SHAPES["verl"][2](0).replace(b"actor/kl_loss", b"actor/reward_kl_penalty"))
        followed.poll()
        assert all(row[3] is None for row in followed.rows())

    def test_a_configuration_that_the_trainer_writes_when_it_starts(self, tmp_path):
        path, config = tmp_path / "run.jsonl", tmp_path / ".hydra" / "config.yaml"
        config.parent.mkdir()
        config.write_text("{algorithm: {kl_penalty: abs}}")
        followed = Followed(path, "verl", new_run=True)
        followed.poll()
        config.write_text("{algorithm: {kl_penalty: low_var_kl}}")
        os.utime(config, ns=(1, 1))
        path.write_bytes(SHAPES["verl"][2](0).replace(b"actor/kl_loss", b"actor/reward_kl_penalty"))
        followed.poll()
        assert followed.rows()[3][3] == kl(4)

    def test_a_configuration_that_is_none(self, tmp_path):
        path = tmp_path / "run.jsonl"
        path.write_bytes(SHAPES["easyr1"][2](0))
        for bad in (b"\xff\xfe", b"[" * 100_000, b"{", b'{"a": ' * 3000, b"null"):
            (tmp_path / "experiment_config.json").write_bytes(bad)
            followed = Followed(path)
            followed.poll()
            followed.finish()
            assert followed.rows()[0][3] is None
        (tmp_path / "experiment_config.json").write_text(
            '{"worker": {"actor": {"loss_avg_mode": "token"}}, "algorithm": {"kl_penalty": "low_var_kl"}}'
        )
        followed = Followed(path)
        followed.poll()
        assert followed.rows()[0][3] == kl(1)


@pytest.mark.parametrize("reward", [math.nan, None, math.inf])
def test_steps_without_a_finite_reward_are_reported_as_such(tmp_path, reward):
    path = tmp_path / "run.jsonl"
    rows = [{"step": s, "reward": 0.5 if s <= 3 else reward} for s in range(1, 8)]
    path.write_bytes(lines([*rows, {"step": 9, "loss": 1.0}]))
    followed = Followed(path)
    followed.finish()
    assert [row[1:3] for row in followed.rows()] == [(s, 0.5 if s <= 3 else None) for s in range(1, 8)]
    assert [s for s in followed.said if "no finite reward" in s]


def test_a_log_without_a_reward_says_so_once(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(lines({"step": s, "loss": 1.0} for s in range(5)))
    followed = Followed(path)
    followed.poll()
    followed.poll()
    assert [s for s in followed.said if "no column is known to be the reward" in s] == followed.said
    assert len(followed.said) == 1


@pytest.mark.parametrize(
    "row",
    ['{"iter": %d, "score_mean": 0.5}', '{"loss": 0.5, "lr": %d}', "%d,0.5"],
    ids=["json", "loss", "csv"],
)
def test_a_log_of_which_no_column_is_known_is_trouble(tmp_path, row):
    """`not_followed` is made of it: else a guard would look as if it read its trainer."""
    path = tmp_path / ("log.csv" if row.startswith("%") else "log.jsonl")
    followed = Followed(path)
    append(path, "".join(row % number + "\n" for number in range(300)).encode())
    followed.poll()
    assert followed.guard.steps == {}
    assert followed.follower.trouble.startswith("no column") and "--map" in followed.follower.trouble


@pytest.mark.parametrize("again", [False, True], ids=["goes on", "is written anew"])
@pytest.mark.parametrize("there", [0, 3])
def test_a_csv_log_that_stood_there_before_goes_on_under_its_header(tmp_path, there, again):
    """What a guard is attached to has a log already."""
    path, header = tmp_path / "log.csv", b"step,reward,kl\n"
    append(path, header + b"".join(b"%d,0.25,0.5\n" % step for step in range(1, 1 + there)))
    followed = Followed(path, new_run=True)
    followed.poll()
    if again:
        path.write_bytes(header)
    append(path, b"".join(b"%d,0.5,0.01\n" % step for step in range(11, 15)))
    followed.poll()
    followed.finish()
    assert followed.rows() == [(0, step, 0.5, 0.01) for step in range(11, 15)]


def test_a_trainer_state_of_each_checkpoint(tmp_path):
    followed = Followed(tmp_path)
    for last in (5, 10):
        (tmp_path / f"checkpoint-{last}").mkdir()
        history = [{"step": s, "reward": reward(s), "kl": kl(s)} for s in range(1, last + 1)]
        state = json.dumps({"global_step": last, "log_history": history})
        (tmp_path / f"checkpoint-{last}" / "trainer_state.json").write_text(state)
        if last == 5:
            followed = Followed(tmp_path)
        followed.poll()
    followed.finish()
    assert [row[1] for row in followed.rows()] == list(range(1, 11))


def test_an_event_file_that_trl_wrote(tmp_path):
    data = (DATA / "trl" / "events.out.tfevents.1.trl.1.0").read_bytes()
    path = tmp_path / "events.out.tfevents.1.trl.1.0"
    followed = Followed(tmp_path, "trl")
    for piece in pieces(data, 0):
        append(path, piece)
        followed.poll()
    followed.finish()
    assert followed.rows() == replayed(path)
    state = replayed(DATA / "trl" / "trainer_state.json")
    assert [row[:2] for row in followed.rows()] == [row[:2] for row in state]
    assert [row[2] for row in followed.rows()] == pytest.approx([row[2] for row in state])
    assert [row[3] for row in followed.rows()] == pytest.approx([row[3] for row in state], abs=1e-6)
