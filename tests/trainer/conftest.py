"""Fixtures of the trainer's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.faulty_guard import FaultyGuard


@pytest.fixture
def guard() -> Iterator[FaultyGuard]:
    server = FaultyGuard()
    yield server
    server.close()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.trainer.tiny import make_model

    return make_model(tmp_path_factory.mktemp("tiny"))
