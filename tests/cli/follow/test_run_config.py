"""The configuration that a run leaves behind is hostile input."""

import json

import pytest

from rlguard.follow import run_config
from rlguard.follow.errors import InputError
from rlguard.follow.run_config import find_settings
from tests.cli.follow.followed import Followed, followed_to_the_end, replayed
from tests.cli.logs.recorded import RECORDED, STEPS
from tests.cli.logs.shapes import SHAPES, kl

PLAIN = "actor: &a {kl_penalty: kl}\nalgorithm: {again: *a}\n"


def test_a_setting_is_found_and_a_merge_key_is_refused(tmp_path):
    """Seven lines of merge keys would be two million keys; an alias alone costs nothing."""
    (config := tmp_path / "config.yaml").write_text(PLAIN)
    assert find_settings(config, None)["kl_penalty"] == "kl"
    config.write_text(f"{PLAIN}more: {{<<: [*a, *a]}}\n")
    with pytest.raises(InputError, match=r"config.yaml: not a configuration that can be read \(Construct"):
        find_settings(config, None)


@pytest.mark.parametrize(
    "content",
    [
        *(b"\xff\xfe\x00", b"[" * 5_000, b"? [a]\n: 1", b"a: !!bool 7", b'a: !!int ""', b"a: !!timestamp x"),
        *(b"a: 1" + b":1" * 200 + b".5", b"0x" + b"f" * 5_000 + b": 1", b"a: " + b"9" * 5_000),
        *(b"a: &a [*a, *b]", b"a: !!python/object/apply:os.system [true]"),
    ],
    ids=range(11),
)
def test_what_is_no_configuration_is_told_whatever_it_holds(tmp_path, content):
    (config := tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(InputError, match=r"config\.yaml: not a configuration that can be read"):
        find_settings(config, None)


ALGO = {"kl": {"estimator": "k1", "init_coef": 0.01, "use_loss": False}}
OF_ALGO = {"kl.estimator": "k1", "kl.init_coef": "0.01", "kl.use_loss": "false"}


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ({"algo": ALGO}, OF_ALGO),
        ({"algo.kl.estimator": "k1", "algo": {"kl.init_coef": 0.01, "kl.use_loss": 0.0}}, OF_ALGO),
        ({"algo": {"advantage": {"estimator": "gae"}, "estimator": "k1", "xkl": ALGO["kl"]}}, {}),
        ({"kl": {"init_coef": "1e-3"}}, {"kl.init_coef": "1e-3"}),  # so YAML has it
        ({"kl": {"init_coef": True, "estimator": 3, "use_loss": "no"}}, {"kl.use_loss": "no"}),
        ({"a": {"use_kl_loss": 1.0}}, {"use_kl_loss": "true"}),
        ({"kl_penalty": 0.1, "algorithm": {"kl_penalty": "kl"}}, {"kl_penalty": "kl"}),
        ({"critic": {"kl_penalty": "kl"}, "a": {"b.actor": {"kl_penalty": "k1"}}}, {"kl_penalty": "k1"}),
        ({"x" * 1_000_000: {f"k{i}": {"kl_penalty": "kl"} for i in range(20_000)}}, {"kl_penalty": "kl"}),
    ],
    ids=range(9),
)
def test_a_key_is_the_end_of_a_path_and_has_values_of_its_kind(tmp_path, written, found):
    (config := tmp_path / "run.json").write_text(json.dumps(written))
    assert find_settings(config, None) == found


@pytest.mark.parametrize(
    ("far", "near", "found"),
    [
        ({"kl_penalty": "kl"}, {"seed": 1}, {"kl_penalty": "kl"}),  # one without a setting hides no other
        ({"kl_penalty": "kl", "use_kl_loss": True}, {"kl_penalty": "abs"}, {"kl_penalty": "abs"}),
    ],
)
def test_of_several_configurations_the_nearest_counts_alone(tmp_path, far, near, found):
    (log := tmp_path / "logs").mkdir()
    (log / "args.json").write_text(json.dumps(near))
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra/config.yaml").write_text(json.dumps(far))
    assert find_settings(None, log) == found


def of_verl(path):
    path.write_bytes(SHAPES["verl"][2](0).replace(b"actor/kl_loss", b"actor/reward_kl_penalty"))


class TestAKlThatDependsOnTheRun:
    @pytest.mark.parametrize(
        ("estimator", "armed"), [("kl", True), ("low_var_kl", True), ("abs", False), (None, False)]
    )
    def test_verl(self, tmp_path, estimator, armed):
        of_verl(path := tmp_path / "run.jsonl")
        if estimator:
            (tmp_path / ".hydra").mkdir()
            (tmp_path / ".hydra" / "config.yaml").write_text(f"algorithm: {{kl_penalty: {estimator}}}")
        followed = followed_to_the_end(path, "verl")
        assert all((row[3] is not None) == armed for row in followed.rows())
        assert followed.tells("is not taken as the KL") != armed
        assert followed.rows() == replayed(path, find_settings(None, path))

    @pytest.mark.parametrize("written", [None, {"kl_in_reward": True}, {"kl_in_reward": False}])
    @pytest.mark.parametrize("format_", ["auto", "trl", "ms-swift"])
    def test_ms_swift_says_it_in_its_args_json(self, tmp_path, format_, written):
        followed = Followed(tmp_path / "logging.jsonl", format_, new_run=True)
        if written is not None:
            (tmp_path / "args.json").write_text(json.dumps({"beta": 0.04, **written}))
        (tmp_path / "logging.jsonl").write_bytes(RECORDED["ms-swift"].start(0))
        followed.poll()
        followed.finish()
        armed = written == {"kl_in_reward": False}
        assert [row[3] is not None for row in followed.rows()] == [armed] * STEPS
        assert followed.tells("kl_in_reward=false") != armed

    def test_one_may_vouch_for_it(self, tmp_path):
        (path := tmp_path / "run.jsonl").write_bytes(SHAPES["verl"][2](0))
        followed = followed_to_the_end(path, "verl", overrides={"kl": "actor/kl_loss"})
        assert followed.rows()[3][3] == kl(4)

    @pytest.mark.parametrize("again", [False, True])
    def test_a_configuration_that_was_there_before_is_of_another_run(self, tmp_path, again):
        path, config = tmp_path / "run.jsonl", tmp_path / ".hydra" / "config.yaml"
        config.parent.mkdir()
        config.write_text("{algorithm: {kl_penalty: kl}}")
        followed = Followed(path, "verl", new_run=True)
        followed.poll()
        if again:  # the trainer writes it when it starts
            config.write_text("{algorithm: {kl_penalty: low_var_kl}}")
        of_verl(path)
        followed.poll()
        assert followed.rows()[3][3] == (kl(4) if again else None)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file"),
        (b"a: !!bool 7", "not a configuration that can be read (KeyError)"),
        (b" " * (run_config.MAX_BYTES + 1), "more than 2 MiB"),
        (b"- kl_penalty: kl", ""),
    ],
    ids=range(4),
)
def test_a_configuration_that_the_trainer_writes_may_hold_anything_or_come_late(tmp_path, content, told):
    """The log is followed all the same: its reward is judged, and its KL is not armed."""
    log, config = tmp_path / "log.jsonl", tmp_path / "run.yaml"
    if content is not None:
        config.write_bytes(content)
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra/config.yaml").write_text("kl_penalty: kl")  # not the one that is named
    row = {"step": 1, "data": {"critic/score/mean": 0.5, "actor/reward_kl_penalty": 0.1}}
    log.write_text(json.dumps(row) + "\n")
    followed = followed_to_the_end(log, "verl", run_config=config)
    assert followed.rows() == [(0, 1, 0.5, None)]
    assert followed.tells("the run's configuration is not known") == bool(told) and followed.tells(told)
    config.write_text("algorithm: {kl_penalty: low_var_kl}")
    assert followed_to_the_end(log, "verl", run_config=config).rows() == [(0, 1, 0.5, 0.1)]
