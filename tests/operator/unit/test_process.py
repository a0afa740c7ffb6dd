"""The operator as a process: its log where no API server is, and the port of probes and metrics."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from urllib.error import HTTPError

import pytest
import yaml

from rlguard.operator.runtime.health import MOST_CONNECTIONS, HealthServer
from rlguard.operator.runtime.metrics import OperatorMetrics

Serve = Callable[..., HealthServer]


def test_every_line_of_its_log_is_json_if_that_is_asked_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"  # nobody will listen there
    config = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **config}))
    flags = ("--guard-image=g", "--bind=127.0.0.1", "--port=0", "--log-format=json", "--log-level=debug")
    command = [sys.executable, "-m", "rlguard.operator", f"--kubeconfig={path}", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(json.loads(line))
            if len(lines) == 5:  # it has found out that nobody is there
                break
        process.send_signal(signal.SIGTERM)
        lines += map(json.loads, process.stderr)
        process.wait(60)
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in lines)
    assert all(datetime.fromisoformat(line["time"]).tzinfo is not None for line in lines)
    assert any(line["message"].startswith("probes and metrics on port ") for line in lines)
    assert any("127.0.0.1" in line["message"] for line in lines), "it never asked"


def test_a_kind_that_it_does_not_know_is_refused_with_those_that_it_knows() -> None:
    command = [sys.executable, "-m", "rlguard.operator", "--guard-image=g", "--kind=Deployment"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and "--kind Deployment: must be one of PyTorchJob, Job," in ended.stderr


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(host: str = "127.0.0.1", idle: float = 600.0) -> HealthServer:
            registry = OperatorMetrics().registry
            server = HealthServer((host, 0), lambda: True, lambda: False, registry, idle)
            stack.callback(server.close)
            return server

        yield start


def page(server: HealthServer, path: str, host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{server.port}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def connected(stack: ExitStack, server: HealthServer) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))


def test_what_it_answers(serve: Serve) -> None:
    server = serve("::")
    assert page(server, "/healthz") == "ok\n"
    if socket.has_dualstack_ipv6():
        assert page(server, "/healthz", "[::1]") == "ok\n"
    assert "rlguard_fires" in page(server, "/metrics")
    for path, status in (("/readyz", "503"), ("/../etc/passwd", "404")):
        with pytest.raises(HTTPError, match=status):
            page(server, path)


def test_connections_that_are_left_open_hold_up_no_probe(serve: Serve) -> None:
    server = serve()
    with ExitStack() as stack:
        idle = [connected(stack, server) for _ in range(400)]
        assert page(server, "/healthz") == "ok\n"
        for one in idle[:-MOST_CONNECTIONS]:
            assert one.recv(1) == b"", "the oldest made room"


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTT"])
def test_an_idle_connection_ends(serve: Serve, sent: bytes) -> None:
    server = serve(idle=0.2)
    with ExitStack() as stack:
        idle = connected(stack, server)
        idle.sendall(sent)
        assert idle.recv(1) == b""
