"""Guards as an operator meets them: HTTPS at a pod's address, with the key of the job's Secret.

What is real is the wire: TLS, tokens, long polls, states. What a guard says is what a test says.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import tempfile
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pydantic.alias_generators import to_snake

from rlguard.core.wire import Verdict

Json = dict[str, Any]

_numbers = count(1)


def next_address() -> str:
    """A loopback address that no other pod of these tests has, of another process neither."""
    number = next(_numbers)
    return f"127.{64 + os.getpid() % 191}.{number // 250 % 250}.{number % 250 + 1}"


class Guard:
    """One guard. `told`: what its operator told it of its run; None: nothing so far. `asked`: how often.

    Args:
        address, port: where it listens.
        secret: the data of the job's Secret, as the API server has it.
    """

    def __init__(self, address: str, port: int, secret: Mapping[str, str]) -> None:
        self.told: Json | None = None
        self.port, self.asked = port, 0
        self.verdict: Json = {"level": "unknown", "code": "warming_up", "reason": "no step yet"}
        self.verdict |= {"fire": False, "halt": False, "stop": False}
        self.evidence: Json = {}
        self._revision, self._changed, self._ends = 1, threading.Condition(), False
        data = {key: base64.b64decode(value).decode() for key, value in secret.items()}
        self._token = f"Bearer {data['supervisor-token']}"
        self._server = ThreadingHTTPServer((address, port), _handler(self))
        self._server.daemon_threads = True
        with tempfile.TemporaryDirectory() as folder:
            pair = [Path(folder) / name for name in ("tls.crt", "tls.key")]
            for path in pair:
                path.write_text(data[path.name])
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*pair)
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def says(self, **status: Any) -> None:
        """Say this from now on: fields of `status.guard`, or of a verdict."""
        with self._changed:
            self.verdict |= as_verdict(status)
            Verdict.model_validate_json(json.dumps(self.verdict))
            self._revision += 1
            self._changed.notify_all()

    def end(self) -> None:
        """It is gone: connections are cut, and nobody listens any more."""
        self._ends = True
        with self._changed:
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def response(self, method: str, path: str, token: str | None, body: bytes) -> tuple[int, Any]:
        """Status and content of a response; the ETag is of now."""
        url = urlsplit(path)
        self.asked += 1
        if token != self._token:
            return 401, {"title": "the supervisor's token is needed"}
        if (method, url.path) == ("PUT", "/v1/state"):
            first, self.told = self.told is None, self.told or json.loads(body)
            return 200, {"adopted": first}
        if self.told is None:
            return 503, {"title": "nobody has told this guard of its run"}
        if url.path == "/v1/verdict":
            query = {key: value[-1] for key, value in parse_qs(url.query).items()}
            self._wait(query.get("since"), float(query.get("wait", "0")))
            return 200, self.verdict
        if url.path == "/v1/state":
            return 200, {"sequence": self._revision, "state": None, "latches": [], "pins": None, "lost": ""}
        return (200, self.evidence) if url.path == "/v1/evidence" else (404, {})

    def etag(self) -> str:
        return f'"{self._revision}"'

    def _wait(self, since: str | None, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ends or str(self._revision) != since, seconds)
        if self._ends:
            raise ConnectionResetError


def as_verdict(status: Mapping[str, Any]) -> Json:
    """A verdict of what `status.guard` is to say."""
    said = {to_snake(key): value for key, value in status.items()}
    for kind in ("fire", "halt"):
        if isinstance(latch := said.get(kind), Mapping):
            said |= {"code": latch["code"], "reason": latch["reason"], kind: True, "stop": True}
            said |= {
                "latch_attempt": latch["attempt"],
                "latch_step": latch["step"],
                "latched_at": latch["at"],
            }
            said["level"] = "fired" if kind == "fire" else said.get("level", "warning")
            said["halt"] = kind == "halt"
    for old, new in (("last_evaluation", "last_evaluation"), ("best_checkpoint", "best_evaluation")):
        if old in said:
            said[new] = {to_snake(key): value for key, value in said.pop(old).items()}
    if "ended" in said:
        said["ended"] = bool(said["ended"])
    return said


def _handler(guard: Guard) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                token = self.headers.get("Authorization")
                status, content = guard.response(self.command, self.path, token, body)
            except ConnectionResetError:
                self.close_connection = True
                return
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", guard.etag())
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = _respond

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    return Handler
