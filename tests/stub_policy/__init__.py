"""A policy of the test's own, in place of a model: an endpoint that says what the test wants.

The guard, its evaluation process, staging, scorers and judge are real. Only the engine that completes prompts
is replaced, in every Python process whose environment is `environment(url)`. It takes what a checkpoint needs
by its names (`save_checkpoint`), and needs no torch.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ON_PATH = Path(__file__).with_name("on_path")
URL = "STUB_POLICY_URL"


@dataclass
class Reply:
    """What the policy writes. `text` None hangs up. `delay`: seconds before it does."""

    text: str | None
    truncated: bool = False
    delay: float = 0.0


@dataclass
class Policy:
    """Where it listens; what it was asked: `step`, `pass`, `prompt`, `temperature`; and what it replies."""

    url: str
    reply: Callable[[dict[str, Any]], Reply]
    asked: list[dict[str, Any]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.url)


def environment(url: str) -> dict[str, str]:
    """Variables with which the processes of a guard ask this policy."""
    path = os.environ.get("PYTHONPATH", "")
    known = [str(ON_PATH), *(one for one in path.split(os.pathsep) if one and one != str(ON_PATH))]
    return {URL: url, "PYTHONPATH": os.pathsep.join(known)}


@contextmanager
def policy(reply: Callable[[dict[str, Any]], Reply]) -> Iterator[Policy]:
    """Serve a policy on a free loopback port."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            served.asked.append(body)
            answer = served.reply(body)
            over.wait(answer.delay)
            if answer.text is None:
                return
            content = json.dumps({"text": answer.text, "truncated": answer.truncated}).encode()
            with suppress(ConnectionError):  # the guard was ended meanwhile
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = Policy(f"http://127.0.0.1:{server.server_port}/", reply)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def save_checkpoint(path: Path, weights: str = "") -> Path:
    """Save what a checkpoint must have by its names. `weights`: others than those of the one before."""
    path.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json"):
        (path / name).write_text("{}")
    (path / "model.safetensors").write_text(weights or path.name)
    return path
