"""Where the guard listens: the socket that is its own, and ports that others may have taken."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guard_core.judge import Judge
from guard_core.policy import Policy
from guard_core.wire import Code, Level
from guard_service import ports
from guard_service.engine.verdicts import beside
from guard_service.errors import SettingsError
from guard_service.ports import SidePort, TakenPorts
from guard_service.server import inherited, listen_at
from guard_service.settings import load_settings


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


def test_a_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listen_at(path) as listener:
        listener.listen()
        with pytest.raises(SettingsError, match=rf"RLGUARD_GUARD_SOCKET='{path}': another guard listens"):
            listen_at(path)
        with socket.socket(socket.AF_UNIX) as trainer:
            trainer.connect(str(path))


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("mine")
    with pytest.raises(SettingsError, match="something else than a socket"):
        listen_at(path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(("name", "why"), [("x/" * 60 + "s", "too long"), ("no/s", "No such file")])
def test_a_path_that_cannot_be_is_named(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(SettingsError, match=rf"cannot listen on RLGUARD_GUARD_SOCKET=.*{why}"):
        listen_at(tmp_path / name)


# -- a socket that was passed on -------------------------------------------------------------------------


def test_a_socket_that_was_passed_on_is_not_passed_on_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as supervisors:
        given = os.dup(supervisors.fileno())
        os.set_inheritable(given, True)
        with inherited(given) as listener:
            assert listener.getsockname() == supervisors.getsockname()
            assert not listener.get_inheritable(), "a scorer's process must not listen there"


def bound() -> socket.socket:
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    return found


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (bound, "must be a TCP socket that listens"),
        (lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM), "must be a TCP socket that listens"),
        (lambda: socket.socketpair()[0], "must be a TCP socket that listens"),
    ],
    ids=["not listening", "UDP", "connected"],
)
def test_what_does_not_listen_is_refused(made: Callable[[], socket.socket], why: str) -> None:
    descriptor = made().detach()
    with pytest.raises(SettingsError, match=rf"RLGUARD_GUARD_LISTEN_FD={descriptor} {why}"):
        inherited(descriptor)


def test_a_unix_socket_or_a_file_is_refused(tmp_path: Path) -> None:
    listener = listen_at(tmp_path / "s")
    listener.listen()
    with pytest.raises(SettingsError, match="must be a TCP socket that listens"):
        inherited(listener.detach())
    file = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    with pytest.raises(SettingsError, match="Socket operation on non-socket; it must be passed on by"):
        inherited(file)
    os.close(file)
    with pytest.raises(SettingsError, match="Bad file descriptor; it must be passed on by"):
        inherited(file)


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"ingest_token": "i", "read_token": "r", "socket": "/s"}, "listen_fd and socket are both set"),
        (
            {"ingest_token": "i", "allow_unauthenticated_loopback": True},
            "listen_fd without read_token: where that socket listens is not told by host='127.0.0.1'",
        ),
    ],
)
def test_what_does_not_go_with_it(tmp_path: Path, others: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        load_settings(state_dir=tmp_path, checkpoint_root=tmp_path, listen_fd=3, **others)


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
