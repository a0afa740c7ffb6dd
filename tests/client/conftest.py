"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.trainer.faulty_guard import FaultyGuard


@pytest.fixture
def guard() -> Iterator[FaultyGuard]:
    server = FaultyGuard()
    yield server
    server.close()
