"""The configuration that a run leaves behind is hostile input."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from guard_follow import run_config as settings_module
from guard_follow.errors import InputError
from guard_follow.run_config import find_settings
from tests.cli.follow.test_follower import Followed
from tests.cli.logs.recorded import RECORDED, STEPS

PLAIN = "actor: &a {kl_penalty: kl}\nalgorithm: {again: *a}\n"


def test_a_setting_is_found_and_a_merge_key_is_refused(tmp_path: Path) -> None:
    """Seven lines of merge keys would be two million keys; an alias alone costs nothing."""
    (config := tmp_path / "config.yaml").write_text(PLAIN)
    assert find_settings(config, None)["kl_penalty"] == "kl"
    config.write_text(f"{PLAIN}more: {{<<: [*a, *a]}}\n")
    with pytest.raises(
        InputError, match=r"config.yaml: not a configuration that can be read \(ConstructorError"
    ):
        find_settings(config, None)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b"? [a]\n: 1",
        b"a: !!bool 7",
        b'a: !!int ""',
        b"a: !!timestamp x",
        b"a: 2001-99-99",
        b"a: 1" + b":1" * 200 + b".5",
        b"0x" + b"f" * 5_000 + b": 1",
        b"a: " + b"9" * 5_000,
        b"a: &a [*a, *b]",
        b"a: !!python/object/apply:os.system [true]",
    ],
    ids=range(12),
)
def test_what_is_no_configuration_is_told_whatever_it_holds(tmp_path: Path, content: bytes) -> None:
    (config := tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(InputError, match=r"config\.yaml: not a configuration that can be read"):
        find_settings(config, None)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, r"No such file"),
        (b"a: !!bool 7", r"not a configuration that can be read \(KeyError\)"),
        (b" " * (settings_module.MAX_BYTES + 1), r"more than 2 MiB"),
        (b"- kl_penalty: kl", ""),
        (b"null", ""),
    ],
)
def test_a_configuration_that_the_trainer_writes_may_hold_anything_or_never_come(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    """The log is followed all the same: its reward is judged, and its KL is not armed."""
    if content is not None:
        (tmp_path / "run.yaml").write_bytes(content)
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra/config.yaml").write_text("kl_penalty: kl")  # not the one that is named
    row = {"step": 1, "data": {"critic/score/mean": 0.5, "actor/reward_kl_penalty": 0.1}}
    (tmp_path / "log.jsonl").write_text(json.dumps(row) + "\n")
    followed = Followed(tmp_path / "log.jsonl", "verl", written_config=tmp_path / "run.yaml")
    followed.poll()
    assert followed.rows() == [(0, 1, 0.5, None)]
    told = [line for line in followed.said if "the run's configuration is not known" in line]
    assert len(told) == bool(why) and all(re.search(why, line) for line in told)
    assert any("on a cluster with metrics.follow.runConfig" in line for line in followed.said)


def test_a_configuration_that_the_trainer_writes_is_read_once_it_is_there(tmp_path: Path) -> None:
    log, config = tmp_path / "log.jsonl", tmp_path / "run.yaml"
    followed = Followed(log, "verl", new_run=True, written_config=config)
    followed.poll()
    config.write_text("algorithm: {kl_penalty: low_var_kl}")
    row = {"step": 1, "data": {"critic/score/mean": 0.5, "actor/reward_kl_penalty": 0.1}}
    log.write_text(json.dumps(row) + "\n")
    followed.poll()
    assert followed.rows() == [(0, 1, 0.5, 0.1)]


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
        ({"kl": {"init_coef": "much"}}, {}),
        ({"a": {"token_level_loss": True}}, {"token_level_loss": "true"}),
        ({"a": {"use_kl_loss": 1.0}}, {"use_kl_loss": "true"}),
        ({"kl_penalty": 0.1, "algorithm": {"kl_penalty": "kl"}}, {"kl_penalty": "kl"}),
        ({"actor": {"x.y": {"kl_penalty": "k1"}}, "critic": {"kl_penalty": "kl"}}, {"kl_penalty": "k1"}),
        ({"critic": {"kl_penalty": "kl"}, "a": {"b.actor": {"kl_penalty": "k1"}}}, {"kl_penalty": "k1"}),
    ],
)
def test_a_key_is_the_end_of_a_path_and_has_values_of_its_kind(
    tmp_path: Path, written: dict[str, Any], found: dict[str, str]
) -> None:
    (config := tmp_path / "run.json").write_text(json.dumps(written))
    assert find_settings(config, None) == found


@pytest.mark.parametrize(
    ("written", "armed"), [(None, False), ({"kl_in_reward": True}, False), ({"kl_in_reward": False}, True)]
)
@pytest.mark.parametrize("format_", ["auto", "trl", "ms-swift"])
def test_ms_swift_says_in_its_args_json_what_its_kl_is(
    tmp_path: Path, format_: str, written: dict[str, Any] | None, armed: bool
) -> None:
    """Written at its start, beside the log."""
    followed = Followed(tmp_path / "logging.jsonl", format_, new_run=True)
    if written is not None:
        (tmp_path / "args.json").write_text(json.dumps({"beta": 0.04, **written}))
    (tmp_path / "logging.jsonl").write_bytes(RECORDED["ms-swift"].start(0))
    followed.poll()
    followed.finish()
    assert [row[3] is not None for row in followed.rows()] == [armed] * STEPS
    assert any("kl_in_reward=false" in sentence for sentence in followed.said) != armed


class TestSeveralConfigurations:
    """Of what lies beside the metrics and above them."""

    def test_one_without_a_setting_hides_no_other(self, tmp_path: Path) -> None:
        (log := tmp_path / "logs").mkdir()
        (log / "args.json").write_text('{"seed": 1}')
        (tmp_path / ".hydra").mkdir()
        (tmp_path / ".hydra/config.yaml").write_text("kl_penalty: kl")
        assert find_settings(None, log) == {"kl_penalty": "kl"}

    def test_the_nearest_counts_alone(self, tmp_path: Path) -> None:
        (log := tmp_path / "logs").mkdir()
        (log / "args.json").write_text('{"kl_penalty": "abs"}')
        (tmp_path / "args.json").write_text('{"kl_penalty": "kl", "use_kl_loss": true}')
        assert find_settings(None, log) == {"kl_penalty": "abs"}


def test_long_names_cost_nothing_for_each_that_lies_below(tmp_path: Path) -> None:
    below = {f"k{i}": {"kl_penalty": "kl"} for i in range(20_000)}
    (config := tmp_path / "run.json").write_text(json.dumps({"x" * 1_000_000: below}))
    began = time.perf_counter()
    assert find_settings(config, None) == {"kl_penalty": "kl"}
    assert time.perf_counter() - began < 5
