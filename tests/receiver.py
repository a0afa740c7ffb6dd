"""A webhook's other side: a server that takes, fails, redirects, hangs, or sends a byte now and then."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """`answers` are what the next requests meet, the last one for ever: a status, "hang" or "drip"."""

    def __init__(self, *answers: int | str) -> None:
        self.answers = list(answers or (200,))
        self.bodies: list[Any] = []
        self.paths: list[str] = []
        leave = self._leave = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.paths.append(self.path)
                receiver.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                answer = receiver.answers.pop(0) if len(receiver.answers) > 1 else receiver.answers[0]
                with contextlib.suppress(OSError):
                    self._answer(answer)

            def _answer(self, answer: int | str) -> None:
                if answer == "hang":
                    leave.wait(10)
                elif answer == "drip":
                    for _ in range(200):  # ten seconds: whoever waits for an end does get one
                        self.wfile.write(b"H")
                        if leave.wait(0.05):
                            break
                else:
                    self.send_response(int(answer))
                    self.send_header("Location", "/elsewhere")
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            do_GET = do_POST

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/services/SECRET"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._server.shutdown()
        self._server.server_close()
