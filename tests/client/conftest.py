"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.trainer.faulty_guard import FaultyGuard


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks and tries again at once."""
    monkeypatch.setattr("rlguard.client.reporter._FIRST_RETRY_SECONDS", 0.005)
    monkeypatch.setattr("rlguard.client.reporter._LAST_RETRY_SECONDS", 0.02)
    monkeypatch.setattr("rlguard.client.reporter.POLL_SECONDS", 0.02)
    monkeypatch.setattr("rlguard.client.guard.LAG_POLL_SECONDS", 0.01)


@pytest.fixture
def guard() -> Iterator[FaultyGuard]:
    server = FaultyGuard()
    yield server
    server.close()
