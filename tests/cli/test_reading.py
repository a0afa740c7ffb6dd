"""Where a command asks a guard: at an address, or at a Unix socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from guard_cli.errors import CliError
from guard_cli.guard_settings import without_a_guard
from guard_follow.reading import reader
from tests.trainer.faulty_guard import FaultyGuard


@pytest.mark.parametrize("name", [None, "s"])
def test_a_reader_asks_with_its_token(tmp_path: Path, name: str | None) -> None:
    guard = FaultyGuard(None if name is None else tmp_path / name)
    with reader(guard.url, "secret", 20.0) as client:
        assert client.get("/v1/verdict").json()["code"] == "ok"
    guard.close()
    assert guard.requests == [("GET", "/v1/verdict")]
    assert {key.lower(): value for key, value in guard.headers[0].items()}["authorization"] == "Bearer secret"


def test_a_socket_is_for_the_guard_of_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLGUARD_GUARD_SOCKET", "/run/guard.sock")
    with pytest.raises(CliError, match=r"RLGUARD_GUARD_SOCKET .* unset it"):
        without_a_guard({}, {})
