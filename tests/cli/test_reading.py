"""How a command asks a guard."""

from __future__ import annotations

from guard_follow.reading import reader
from tests.trainer.faulty_guard import FaultyGuard


def test_a_reader_asks_with_its_token() -> None:
    guard = FaultyGuard()
    with reader(guard.url, "secret", 20.0) as client:
        assert client.get("/v1/verdict").json()["code"] == "ok"
    guard.close()
    assert guard.requests == [("GET", "/v1/verdict")]
    assert {key.lower(): value for key, value in guard.headers[0].items()}["authorization"] == "Bearer secret"
