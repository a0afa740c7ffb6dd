"""The operator as a process that finds no API server."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import yaml

#: What each line has; a line may have more.
FIELDS = {"time", "level", "logger", "message"}


def kubeconfig(folder: Path) -> Path:
    """Of a server that does not listen."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    path = folder / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return path


def test_every_line_of_its_log_is_json_if_that_is_asked_for(tmp_path: Path) -> None:
    flags = ("--guard-image=g", "--bind=127.0.0.1", "--port=0", "--log-format=json", "--log-level=debug")
    command = [sys.executable, "-m", "guard_operator", f"--kubeconfig={kubeconfig(tmp_path)}", *flags]
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
    assert all(line.keys() >= FIELDS for line in lines)
    assert all(datetime.fromisoformat(line["time"]).tzinfo is not None for line in lines)
    assert any(line["message"].startswith("probes and metrics on port ") for line in lines)
    assert any("127.0.0.1" in line["message"] for line in lines), "it never asked"
