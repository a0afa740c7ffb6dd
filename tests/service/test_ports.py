"""Where the guard listens: the socket that is its own, and ports that others may have taken."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard_core.judge import Judge
from guard_core.policy import Policy
from guard_core.wire import Code, Level
from guard_service import ports
from guard_service.engine.verdicts import beside
from guard_service.errors import SettingsError
from guard_service.ports import SidePort, TakenPorts
from guard_service.server import listen_at


@pytest.fixture
def thief() -> Iterator[socket.socket]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken


def number(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


# -- the socket ------------------------------------------------------------------------------------------


def test_every_user_may_connect(tmp_path: Path) -> None:
    with listen_at(tmp_path / "s") as listener, socket.socket(socket.AF_UNIX) as trainer:
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o666, "the tokens say who may do what"
        listener.listen()
        trainer.connect(str(tmp_path / "s"))


def test_what_a_dead_guard_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    for _ in range(2):
        with listen_at(path) as listener:
            listener.listen()
        assert path.is_socket()


# -- a socket that was passed on -------------------------------------------------------------------------


# -- ports -----------------------------------------------------------------------------------------------


def test_a_port_is_the_guards_from_when_it_is_open() -> None:
    """An address that is only bound can still be taken by another who has bound it, too."""
    port = SidePort("", "127.0.0.1", 0, "{}", TakenPorts())
    port.open()
    with asyncio.run(port.listener()) as listener, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(listener.getsockname())


def test_a_port_that_is_taken_is_tried_again_and_told_once(
    thief: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(ports, "RETRY_SECONDS", 0.01)
    taken, wanted = TakenPorts(), number(thief)
    port = SidePort("METRICS_", "127.0.0.1", wanted, "metrics at {}", taken)
    port.try_open()
    said = taken.condition()
    assert said is not None and f"port {wanted}," in said.message

    async def wait() -> socket.socket:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(port.listener(), 0.1)
        assert taken.condition() == said
        thief.close()
        return await asyncio.wait_for(port.listener(), 30.0)

    with asyncio.run(wait()) as listener:
        assert number(listener) == wanted and taken.condition() is None
    (refused, listening) = (record.getMessage() for record in caplog.records)
    assert f"RLGUARD_GUARD_METRICS_PORT={wanted}" in refused and "tries again" in refused
    assert listening == f"metrics at http://127.0.0.1:{wanted}"


def test_a_port_that_is_needed_is_an_error(thief: socket.socket) -> None:
    with pytest.raises(SettingsError, match=f"RLGUARD_GUARD_PORT={number(thief)}: Address already in use"):
        SidePort("", "127.0.0.1", number(thief), "{}", TakenPorts()).open()


def test_what_is_advice_never_speaks_for_the_verdict() -> None:
    taken = TakenPorts()
    assert taken.condition() is None
    taken.note(8471, taken=True)
    taken.note(8470, taken=True)
    healthy = Judge(Policy()).verdict().model_copy(update={"level": Level.HEALTHY, "code": Code.OK})
    told = beside(healthy, taken.condition())
    assert (told.level, told.code, told.reason) == (Level.HEALTHY, Code.OK, healthy.reason)
    assert told.conditions[-1].code is Code.PORT_TAKEN and told.conditions[-1].advice
    assert "port 8470 and port 8471" in told.conditions[-1].message
    taken.note(8470, taken=False)
    taken.note(8471, taken=False)
    assert taken.condition() is None
