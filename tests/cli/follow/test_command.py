"""The command line of a follower, and what a replay of a followed log adds: bad input is one sentence."""

import json
import os
import subprocess
import sys

import pytest

from tests.cli.logs.shapes import SHAPES


def rlguard(*arguments, **environment):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RLGUARD_")}
    return subprocess.run(
        [sys.executable, "-m", "rlguard.cli.main", *map(str, arguments)],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "said"),
    [
        (["--metrics", "m.jsonl"], {}, 2, "give --url, or set RLGUARD_URL"),
        (["--metrics", "m.jsonl", "--format", "vrel"], {"RLGUARD_URL": "http://127.0.0.1:9"}, 2, "mean verl"),
        (["--metrics", "m.jsonl"], {"RLGUARD_URL": "ftp://x"}, 2, "must look like"),
        (["--metrics", "m.jsonl"], {"RLGUARD_URL": "http://127.0.0.1:9"}, 1, "no guard responds"),
        (["--metrics", "m.jsonl", "--map", "kl"], {"RLGUARD_URL": "http://127.0.0.1:9"}, 2, "NAME=COLUMN"),
        (["--metrics", "-"], {"RLGUARD_URL": "http://127.0.0.1:9"}, 2, "| tee train.log"),
        (["--metrics", "m", "--read-token-file", "no"], {"RLGUARD_URL": "http://x:9"}, 2, "cannot be read"),
    ],
)
def test_bad_arguments(tmp_path, arguments, environment, code, said):
    done = rlguard("follow", *arguments, **environment)
    assert done.returncode == code and said in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_options_of_a_followed_log_need_one():
    done = rlguard("run", "--heldout", "x.jsonl", "--format", "verl", "--", "true")
    assert done.returncode == 2 and "give --follow" in done.stderr


def test_a_replay_of_verl_says_why_its_kl_is_not_armed(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(SHAPES["verl"][2](0))
    notes = json.loads(rlguard("replay", path, "--json").stdout)["notes"]
    assert any("`actor/kl_loss` is not taken" in note for note in notes)
    path.write_bytes(path.read_bytes().replace(b"actor/kl_loss", b"actor/reward_kl_penalty"))
    config = tmp_path / "config.yaml"
    config.write_text("{algorithm: {kl_penalty: low_var_kl}}")
    armed = json.loads(rlguard("replay", path, "--json", "--run-config", config).stdout)
    assert armed["columns"]["kl"] == "actor/reward_kl_penalty" and armed["notes"] == []
