"""An error of this program while a trainer runs: it ends the trainer as a stop does, and is not hidden."""

import sys
from pathlib import Path

import pytest

from rlguard.cli.run import session
from rlguard.cli.run.plan import Plan

SAVES = """
import pathlib, signal, sys, time
def save(*_):
    time.sleep(0.3)
    pathlib.Path("saved").touch()
    sys.exit()
signal.signal(signal.SIGTERM, save)
pathlib.Path("ready").touch()
time.sleep(60)
"""


class Broken:
    """A guard of which no verdict can be read, once the trainer is there."""

    url, session = "http://127.0.0.1:9", 0

    def __init__(self, *_, **__):
        self.stopped = False

    def verdict(self):
        if Path("ready").exists():
            raise RuntimeError("an error of ours")

    def stop(self):
        self.stopped = True


def test_the_trainer_gets_its_grace_whatever_fails(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guard = Broken()
    monkeypatch.setattr(session, "GuardProcess", lambda *_, **__: guard)
    plan = Plan([sys.executable, "-c", SAVES], tmp_path / "out", {"checkpoint_root": tmp_path}, grace=30.0)
    with pytest.raises(RuntimeError, match="an error of ours"):
        session.run_guarded(plan)
    assert Path("saved").exists()
    assert guard.stopped
