"""Whoever holds connections, or sends nonsense, keeps nobody out and fills no disk."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rlguard.client.client import GuardClient
from rlguard.core.wire import KlKind, StepReport
from tests.service.conftest import INGEST
from tests.service.test_tls import files, named

#: A guard that may have 256 descriptors.
FEW = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"


def opened(guard: Any, stack: contextlib.ExitStack, number: int, sent: bytes) -> None:
    parts = urlsplit(guard.url)
    for _ in range(number):
        connection = stack.enter_context(socket.create_connection((parts.hostname, parts.port), 20))
        with contextlib.suppress(OSError):
            connection.sendall(sent)


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: guard\r\nX: "])
@pytest.mark.parametrize("encrypted", [True, False])
def test_connections_that_do_nothing_keep_no_trainer_out(
    new_guard: Callable[..., Any], tmp_path: Path, encrypted: bool, sent: bytes
) -> None:
    tls = files(tmp_path) if encrypted else None
    guard = new_guard(before=FEW, **(tls.settings if tls else {})).start()
    reports = [
        StepReport(attempt=0, step=n, reward=0.5, kl=9.0 if n else 0.01, kl_kind=KlKind.REF_TOKEN_MEAN)
        for n in range(12)
    ]
    with contextlib.ExitStack() as stack:
        opened(guard, stack, 300, sent)
        client = GuardClient(named(guard.url), INGEST, timeout=30, ca=tls.certificate if tls else None)
        assert client.post_steps(reports).verdict.fire
        opened(guard, stack, 300, sent)
        client.close()  # cut off, it connects again
        assert client.post_steps(reports).duplicates == 12
        client.close()
    assert guard.end() == 0
    assert "descriptor" not in guard.log and "resource" not in guard.log and "Traceback" not in guard.log


def test_bad_requests_fill_no_log(guard: Any) -> None:
    before = guard.log
    token = f"Authorization: Bearer {INGEST}\r\n".encode()
    for sent in (
        b"nonsense\r\n\r\n",
        b"GET /nowhere HTTP/1.1\r\nHost: guard\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: guard\r\nUpgrade: websocket\r\nConnection: close, upgrade\r\n\r\n",
        b"POST /v1/end HTTP/1.1\r\nHost: guard\r\nContent-Length: 0\r\nConnection: close\r\n"
        + token
        + b"\r\n",
    ):
        with contextlib.ExitStack() as stack:
            opened(guard, stack, 20, sent)
    assert guard.get("/healthz").status_code == 200
    assert guard.log == before
