"""The guard's Unix socket: where its trainer reports in a pod, whoever has its ports."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from guard_client.client import GuardClient, socket_path
from guard_core.wire import KlKind, StepReport
from tests.service.conftest import INGEST, READ

SOON = 30.0
#: A guard that tries again at once.
EAGER = "import guard_service.server as s; s.RETRY_SECONDS = 0.1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def thief() -> Iterator[Callable[[], socket.socket]]:
    """Takes ports of loopback, as a process beside the guard can."""
    with contextlib.ExitStack() as stack:

        def take() -> socket.socket:
            taken = stack.enter_context(socket.socket())
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            return taken

        yield take


def port_of(taken: socket.socket) -> str:
    return str(taken.getsockname()[1])


def step(number: int, **values: Any) -> StepReport:
    return StepReport(attempt=0, step=number, reward=0.5, **values)


@contextlib.contextmanager
def reader(guard: Any) -> Iterator[httpx.Client]:
    transport = httpx.HTTPTransport(uds=socket_path(guard.url))
    headers = {"Authorization": f"Bearer {READ}"}
    with httpx.Client(transport=transport, base_url="http://guard", headers=headers, timeout=20) as client:
        yield client


def verdict(guard: Any) -> dict[str, Any]:
    with reader(guard) as client:
        told: dict[str, Any] = client.get("/v1/verdict").json()
        return told


def port_taken(guard: Any) -> dict[str, Any] | None:
    """What the verdict says of ports that are taken."""
    return next((c for c in verdict(guard)["conditions"] if c["code"] == "port_taken"), None)


def eventually(probe: Callable[[], Any], what: str) -> Any:
    until = time.monotonic() + SOON
    while not (found := probe()):
        assert time.monotonic() < until, what
        time.sleep(0.05)
    return found


def test_a_trainer_reports_through_it_and_people_read_at_the_port(
    new_guard: Callable[..., Any], path: Path
) -> None:
    guard = new_guard(SOCKET=str(path)).start()
    assert guard.url == f"unix://{path}"
    client = GuardClient(guard.url, INGEST)
    assert client.post_steps([step(1), step(2)]).accepted == 2
    assert client.verdict().step == 2, "on the same connection"
    client.close()
    assert path.stat().st_mode & 0o777 == 0o666, "for a trainer of any user; the tokens say who may do what"
    found = re.search(r"readers at (\S+)", guard.log)
    assert found is not None, guard.log
    with httpx.Client(base_url=found[1], headers={"Authorization": f"Bearer {READ}"}) as people:
        assert people.get("/v1/verdict").json()["steps"] == 2
    assert port_taken(guard) is None
    assert guard.end() == 0 and "Traceback" not in guard.log


def test_the_tokens_count_there_too(new_guard: Callable[..., Any], path: Path) -> None:
    new_guard(SOCKET=str(path)).start()
    transport = httpx.HTTPTransport(uds=str(path))
    with httpx.Client(transport=transport, base_url="http://guard", timeout=20) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/v1/verdict").status_code == 401
        ingest = {"Authorization": f"Bearer {INGEST}"}
        assert client.get("/v1/history", headers=ingest).status_code == 403


def test_a_guard_whose_ports_are_taken_runs_judges_and_says_so(
    new_guard: Callable[..., Any], path: Path, thief: Callable[[], socket.socket]
) -> None:
    readers, metrics = thief(), thief()
    ports = {"PORT": port_of(readers), "METRICS_PORT": port_of(metrics)}
    guard = new_guard(before=EAGER, SOCKET=str(path), **ports).start()

    said = eventually(lambda: port_taken(guard), "the verdict says that the ports are taken")
    assert said["advice"] and all(port in said["message"] for port in ports.values())
    assert verdict(guard)["code"] != "port_taken", "it is no verdict about the run"
    for name, port in ports.items():
        (line,) = (line for line in guard.log.splitlines() if f"RLGUARD_GUARD_{name}={port}" in line)
        assert "Address already in use" in line
    with reader(guard) as client:
        assert 'rlguard_guard_advice{code="port_taken"} 1.0' in client.get("/metrics").text

    client = GuardClient(guard.url, INGEST)
    fired = client.post_steps(
        [step(n, kl=0.01 if n == 1 else 9.0, kl_kind=KlKind.REF_TOKEN_MEAN) for n in range(1, 12)]
    )
    client.close()
    assert fired.verdict.fire and fired.verdict.code == "kl_hard_stop"

    metrics.close()
    found = eventually(
        lambda: re.search(r"metrics, without a token, at (\S+)", guard.log), "the port is taken back"
    )
    assert "rlguard_guard_fired 1.0" in httpx.get(found[1]).text
    left = eventually(
        lambda: (c := port_taken(guard)) and ports["METRICS_PORT"] not in c["message"] and c, "one is left"
    )
    assert ports["PORT"] in left["message"]
    assert guard.end() == 0, "while one of them is still taken"
    assert guard.log.count("tries again") == 2 and "Traceback" not in guard.log


def test_a_guard_without_a_socket_needs_its_port(
    new_guard: Callable[..., Any], thief: Callable[[], socket.socket]
) -> None:
    guard = new_guard(PORT=port_of(thief()))
    guard.launch()
    assert guard.wait() == 2 and "in use" in guard.log


def test_a_guard_that_was_killed_listens_there_again(new_guard: Callable[..., Any], path: Path) -> None:
    guard = new_guard(SOCKET=str(path)).start()
    client = GuardClient(guard.url, INGEST)
    client.post_steps([step(1)])
    guard.end(signal.SIGKILL)
    assert path.is_socket(), "what it left"
    guard.start()
    assert client.post_steps([step(1), step(2)]).duplicates == 1, "by the same client"
    client.close()


def test_a_socket_in_use_is_left_alone(new_guard: Callable[..., Any], path: Path) -> None:
    first = new_guard(SOCKET=str(path)).start()
    second = new_guard("second", SOCKET=str(path))
    second.launch()
    assert second.wait() == 2 and "another guard listens there" in second.log
    assert verdict(first)["steps"] == 0, "it goes on"
    assert first.end() == 0
