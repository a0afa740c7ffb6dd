"""Where the guard listens: the socket that is its own, and ports that others may have taken."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from guard_core.codes import Code, Level
from guard_core.judge import Judge
from guard_core.policy import Policy
from guard_service.engine.liveness import port_taken
from guard_service.engine.verdicts import beside
from guard_service.errors import SettingsError
from guard_service.server import inherited, listen, listen_at


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


# -- ports -----------------------------------------------------------------------------------------------


def test_a_port_is_the_guards_from_when_it_is_open() -> None:
    """An address that is only bound can still be taken by another who has bound it, too."""
    with listen("", "127.0.0.1", 0) as listener, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(listener.getsockname())


def test_a_port_that_is_needed_is_an_error(thief: socket.socket) -> None:
    with pytest.raises(SettingsError, match=f"RLGUARD_GUARD_PORT={number(thief)}: Address already in use"):
        listen("", "127.0.0.1", number(thief))


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_what_was_passed_on_must_listen(kind: socket.SocketKind) -> None:
    with socket.socket(type=kind) as given:
        given.bind(("127.0.0.1", 0))
        with pytest.raises(SettingsError, match=r"LISTEN_FD=\d+ must be a TCP socket that listens"):
            inherited(os.dup(given.fileno()))


def test_what_is_advice_never_speaks_for_the_verdict() -> None:
    assert port_taken(set()) is None
    healthy = Judge(Policy()).verdict().model_copy(update={"level": Level.HEALTHY, "code": Code.OK})
    told = beside(healthy, port_taken({8471, 8470}))
    assert (told.level, told.code, told.reason) == (Level.HEALTHY, Code.OK, healthy.reason)
    assert told.conditions[-1].code is Code.PORT_TAKEN and told.conditions[-1].advice
    assert "port 8470 and port 8471" in told.conditions[-1].message
