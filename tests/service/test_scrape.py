"""The metrics port: one page without a token, and nothing that a scraper does is felt by the guard."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from guard_service.metrics import WITHHELD

Step = Callable[..., dict[str, Any]]


def url_of(guard: Any) -> str:
    """Where the log says that the metrics are; the port is a free one."""
    found = re.search(r"metrics, without a token, at (\S+)/metrics", guard.log)
    assert found is not None, guard.log
    return found[1]


@contextlib.contextmanager
def scraper(guard: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url_of(guard), timeout=20, trust_env=False) as client:
        yield client


def connect(guard: Any, sent: bytes) -> socket.socket:
    parts = urlsplit(url_of(guard))
    connection = socket.create_connection((parts.hostname, parts.port), timeout=20)
    with contextlib.suppress(ConnectionError):  # it may have been cut already
        connection.sendall(sent)
    return connection


@pytest.fixture
def guard(new_guard: Callable[..., Any]) -> Any:
    return new_guard(METRICS_PORT="0").start()


def test_the_page_is_that_of_the_guards_own_port_without_what_is_withheld(guard: Any, step: Step) -> None:
    guard.post("/v1/steps", [step(1), step(2)])
    with scraper(guard) as client:
        answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == guard.get("/metrics").headers["content-type"]
    names = re.compile(r"^\w+", re.MULTILINE)
    whole = names.findall(guard.get("/metrics").text)
    assert names.findall(answer.text) == [one for one in whole if not one.startswith(tuple(WITHHELD))]
    assert len(names.findall(answer.text)) < len(whole)
    assert "rlguard_guard_steps_total 2.0" in answer.text


def test_the_page_is_fresh(guard: Any, step: Step) -> None:
    with scraper(guard) as client:
        assert "rlguard_guard_steps_total 0.0" in client.get("/metrics").text
        guard.post("/v1/steps", step(1))
        assert "rlguard_guard_steps_total 1.0" in client.get("/metrics").text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/verdict", 404),
        ("GET", "/v1/history", 404),
        ("POST", "/v1/steps", 404),
        ("GET", "/", 404),
        ("GET", "/healthz", 404),
        ("GET", "/openapi.json", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/metrics", 405),
    ],
)
def test_there_is_nothing_else(guard: Any, method: str, path: str, status: int) -> None:
    with scraper(guard) as client:
        assert client.request(method, path).status_code == status


def test_scrapers_that_never_finish_delay_neither_the_trainer_nor_the_end(guard: Any, step: Step) -> None:
    halves = [connect(guard, b"GET /metrics HTTP/1.1\r\nHost: x\r\n") for _ in range(100)]
    deaf = [connect(guard, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50) for _ in range(20)]
    with guard.client() as trainer:
        for number in range(1, 51):
            started = time.monotonic()
            assert trainer.post("/v1/steps", json=step(number)).status_code == 200
            assert time.monotonic() - started < 10.0
    started = time.monotonic()
    assert guard.end() == 0
    assert time.monotonic() - started < 20.0
    assert "Traceback" not in guard.log and "no longer served" not in guard.log
    for connection in (*halves, *deaf):
        connection.close()


def test_a_port_in_use_is_named(new_guard: Callable[..., Any]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        guard = new_guard(METRICS_PORT=str(port))
        guard.launch()
        assert guard.wait() == 2
    assert f"RLGUARD_GUARD_METRICS_PORT={port}" in guard.log and "in use" in guard.log
    assert "Traceback" not in guard.log
