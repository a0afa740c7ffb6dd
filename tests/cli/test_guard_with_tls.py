"""Commands that ask a guard whose certificate only RLGUARD_CA vouches for, as in a trainer's pod."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rlguard.operator.reconcile.certificate import own_certificate
from tests.trainer.faulty_guard import eventually
from tests.trainer.real_guard import INGEST, READ, RealGuard


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A guard that speaks TLS, by the name in its certificate, with the variables that a trainer has."""
    certificate, key = own_certificate("localhost", datetime.now(UTC))
    for name, text in (("CERTIFICATE", certificate), ("KEY", key)):
        (tmp_path / name).write_text(text)
        monkeypatch.setenv(f"RLGUARD_GUARD_TLS_{name}", str(tmp_path / name))
    running = RealGuard(tmp_path / "run", tmp_path / "out")
    monkeypatch.setenv("RLGUARD_CA", certificate)
    monkeypatch.setenv("RLGUARD_TOKEN", INGEST)
    monkeypatch.setenv("RLGUARD_READ_TOKEN", READ)
    yield running.url.replace("127.0.0.1", "localhost")
    running.close()


def shown(rlguard: Any, url: str) -> Any:
    return json.loads(rlguard("status", "--url", url, "--json").stdout)


def test_status_and_follow_take_the_certificate_of_the_environment(
    rlguard: Any, url: str, tmp_path: Path
) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(json.dumps({"step": step, "reward": 0.5}) + "\n" for step in (1, 2, 3)))
    command = [sys.executable, "-m", "rlguard.cli.main", "follow", "--metrics", str(log), "--format", "jsonl"]
    with subprocess.Popen([*command, "--url", url]) as following:
        try:
            eventually(lambda: shown(rlguard, url)["verdict"]["steps"] > 0)
        finally:
            following.terminate()
    assert shown(rlguard, url)["verdict"]["steps"] == 3


@pytest.mark.parametrize("ca", ["", "no certificate"])
def test_without_it_the_guard_is_not_believed(
    rlguard: Any, url: str, monkeypatch: pytest.MonkeyPatch, ca: str
) -> None:
    monkeypatch.setenv("RLGUARD_CA", ca)
    shown = rlguard("status", "--url", url)
    assert shown.returncode == 1 and f"no guard responds at {url}" in shown.stderr
    assert shown.stderr.count("\n") == 1
