"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from guard_client import reporter
from tests.trainer.faulty_guard import FaultyGuard


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reporter that tries again at once."""
    monkeypatch.setattr(reporter, "_FIRST_RETRY_SECONDS", 0.005)
    monkeypatch.setattr(reporter, "_LAST_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(reporter, "POLL_SECONDS", 0.02)


@pytest.fixture
def guard() -> Iterator[FaultyGuard]:
    server = FaultyGuard()
    yield server
    server.close()
