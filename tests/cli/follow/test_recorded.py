"""The log that each framework's own writer made: replayed, and followed while a program writes it."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rlguard.follow import sources as source_module
from rlguard.follow.frameworks import FRAMEWORKS
from tests.cli.follow.followed import Followed, replayed
from tests.cli.logs.recorded import RECORDED, kl, reward, steps

WRITER = Path(__file__).with_name("live.py")


@pytest.fixture
def config(tmp_path, request):
    """The run's own configuration, where the KL of its log depends on it."""
    recorded = RECORDED[request.getfixturevalue("name")]
    if not recorded.armed:
        return None
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"actor": recorded.armed}))
    return file


def expected(name):
    has_kl = RECORDED[name].armed is not None
    return [
        (
            attempt,
            step,
            pytest.approx(reward(step, attempt)),
            pytest.approx(kl(step, attempt)) if has_kl else None,
        )
        for attempt in (0, 1)
        for step in steps(attempt)
    ]


def whole(name, folder):
    """All that both starts wrote, in one log: a file of lines, or a folder with the event files."""
    recorded = RECORDED[name]
    folder.mkdir()
    if recorded.has_lines:
        (path := folder / recorded.log).write_bytes(recorded.start(0) + recorded.start(1))
        return path
    for attempt in (0, 1):
        for path, data in recorded.files(attempt).items():
            if ".tfevents." in path and path.count("/") == recorded_depth(name):
                alone = path.rpartition("/")[2]
                parts = recorded.rolled() if alone == recorded.log else {alone: data}
                for part, content in parts.items():
                    (folder / part).write_bytes(content)
    return folder


def recorded_depth(name):
    return list(RECORDED[name].files(0))[-1].count("/")


@pytest.mark.parametrize("name", RECORDED)
def test_what_is_followed_while_it_is_written_is_what_is_replayed(tmp_path, name, config, monkeypatch):
    """The log is rotated: lines go on in another file of the same name, events in one beside."""
    recorded = RECORDED[name]
    monkeypatch.setattr(source_module, "LOOK_SECONDS", 0.0)
    folder = tmp_path / "log"
    folder.mkdir()
    path = folder / recorded.log if recorded.has_lines else folder
    followed = Followed(path, recorded.format, new_run=True, run_config=config)
    command = [sys.executable, "-m", "tests.cli.follow.live", name, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        said = []
        listener = threading.Thread(target=lambda: said.extend(writer.stdout), daemon=True)
        listener.start()
        answered = polls = 0
        while writer.poll() is None:
            if waits := len(said) > answered:
                followed.restart()
            followed.poll()
            polls += 1
            if waits:  # what is cut away from here on has been read by the follower that goes on
                answered += 1
                writer.stdin.write("\n")
                writer.stdin.flush()
        assert writer.returncode == 0
        assert answered == 2 and polls > 10
    followed.finish()
    assert followed.rows() == expected(name)
    assert followed.rows() == replayed(whole(name, tmp_path / "whole"), recorded.armed or {})


def test_there_is_a_log_of_every_framework_in_the_table():
    known = {framework.key for framework in FRAMEWORKS if framework.reads}
    assert {recorded.format for recorded in RECORDED.values()} == known
    assert all(framework.tested for framework in FRAMEWORKS if framework.reads)
