"""A small OpenAI-compatible endpoint that answers as it is told, to inject faults."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """One answer. `body` None hangs up without one."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0


def says(text: str) -> Reply:
    return Reply(body={"choices": [{"message": {"role": "assistant", "content": text}, "text": text}]})


@dataclass
class Endpoint:
    """Where it listens and what it was asked: (path, headers, body). `models`: what it says of its models."""

    url: str
    asked: list[tuple[str, dict[str, str], dict[str, Any]]]
    busiest: int = 0
    busy: int = 0
    models: Any = None


@contextmanager
def endpoint(reply: Callable[[dict[str, Any], int], Reply]) -> Iterator[Endpoint]:
    """Serve `reply(body, number of the request)` on a free loopback port."""
    lock, over = threading.Lock(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
            with lock:
                state.asked.append((self.path, dict(self.headers), body))
                answer = reply(body, len(state.asked) - 1)
                state.busy += 1
                state.busiest = max(state.busiest, state.busy)
            over.wait(answer.delay)
            with lock:
                state.busy -= 1
            if answer.body is None and answer.status == 200:
                self.close_connection = True
                return
            self.answer(answer)

        def do_GET(self) -> None:
            self.answer(Reply(body=state.models))

        def answer(self, answer: Reply) -> None:
            content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: object) -> None:
            """A client that gave up is what some tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    state = Endpoint(f"http://127.0.0.1:{server.server_address[1]}/v1", [])
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield state
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()
