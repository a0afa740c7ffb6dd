"""The page of all jobs: static files for everybody, and the jobs for who has the token.

Any replica whose caches are filled serves it; nothing is asked of the API server for it. The list is made at
most once in `LIST_SECONDS`, however many people look: the same processor stops runs.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from guard_operator.page.rows import details, row
from guard_operator.runtime.client import Json
from guard_operator.runtime.reflector import Key
from guard_operator.runtime.serving import IDLE_SECONDS, PortServer

#: How old the list may be that is shown.
LIST_SECONDS = 5.0
LEAST_TOKEN = 16

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/page/style.css": ("style.css", "text/css; charset=utf-8"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}
_JOBS = "/v1/jobs"


@dataclass(frozen=True, slots=True)
class Shown:
    """Where the page reads: every job as cached, one of them, and how far the caches are.

    `namespaces`: (namespace, "" for all; whether it could be read). `quiet_for`: seconds since the API server
    last showed something of the jobs.
    """

    jobs: Callable[[], Iterable[Json]]
    job: Callable[[Key], Json | None]
    namespaces: Callable[[], Iterable[tuple[str, bool]]]
    quiet_for: Callable[[], float]


class TokenFile:
    """The token of the page, in a file that may change under a running process, as a mounted Secret does."""

    def __init__(self, path: Path) -> None:
        """Read it once.

        Raises:
            ValueError: it cannot be read or is too short.
        """
        self._path = path
        try:
            token = self._read()
        except (OSError, ValueError) as error:
            raise ValueError(f"--page-token-file {path} cannot be read: {error}") from None
        if len(token) < LEAST_TOKEN:
            raise ValueError(
                f"--page-token-file {path}: the token has {len(token)} characters, "
                f"and must have at least {LEAST_TOKEN}: make one with `openssl rand -hex 32`"
            )

    def admits(self, authorization: str | None) -> bool:
        """Whether this is the header of who has the token; the time that it takes tells nothing of it."""
        try:
            token = self._read()
        except (OSError, ValueError):
            return False
        scheme, _, given = (authorization or "").partition(" ")
        same = hmac.compare_digest(_digest(token), _digest(given.strip()))
        return same and scheme.lower() == "bearer" and len(token) >= LEAST_TOKEN

    def _read(self) -> str:
        return self._path.read_text("utf-8").strip()


class PageServer(PortServer):
    """Serves until closed; see the module."""

    def __init__(self, address: tuple[str, int], token: TokenFile, shown: Shown) -> None:
        static = files(__package__) / "static"
        assets = {path: ((static / name).read_bytes(), kind) for path, (name, kind) in _ASSETS.items()}
        jobs = _List(shown)

        class Handler(BaseHTTPRequestHandler):
            timeout = IDLE_SECONDS

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path in assets:
                    self._respond(200, *assets[path])
                elif path != _JOBS and not path.startswith(f"{_JOBS}/"):
                    self._say(404, "there are / and /v1/jobs")
                elif not token.admits(self.headers.get("Authorization")):
                    self._say(401, "the page's token is needed: send 'Authorization: Bearer …'")
                elif path == _JOBS:
                    self._jobs()
                else:
                    self._job(path)

            do_HEAD = do_GET

            def _refuse(self) -> None:
                self._say(405, "the page is read-only: GET and HEAD")

            do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse

            def _jobs(self) -> None:
                packed = jobs.packed()
                if packed is None:
                    self._say(503, "no namespace could be read yet: there is no list of jobs")
                elif "gzip" in self.headers.get("Accept-Encoding", ""):
                    self._respond(200, packed, "application/json", {"Content-Encoding": "gzip"})
                else:
                    self._respond(200, gzip.decompress(packed), "application/json")

            def _job(self, path: str) -> None:
                namespace, _, name = (unquote(part) for part in path[len(_JOBS) + 1 :].partition("/"))
                raw = shown.job((namespace, name))
                if raw is None:
                    self._say(404, f"there is no job {namespace[:64]}/{name[:64]} among those watched")
                else:
                    self._respond(200, json.dumps(details(raw)).encode(), "application/json")

            def _say(self, status: int, detail: str) -> None:
                more = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
                self._respond(status, json.dumps({"detail": detail}).encode(), "application/json", more)

            def _respond(
                self, status: int, body: bytes, kind: str, more: dict[str, str] | None = None
            ) -> None:
                self.send_response(status)
                length = {"Content-Type": kind, "Content-Length": str(len(body))}
                for name, value in {**HEADERS, **length, **(more or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def version_string(self) -> str:
                return "rlguard"

            def log_message(self, format: str, *args: object) -> None:
                """A page that asks every few seconds is not worth lines of log, nor are its addresses."""

        super().__init__(address, Handler, "page")


class _List:
    """All rows as JSON, packed; made anew when it is asked for and `LIST_SECONDS` old."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._lock = threading.Lock()
        self._packed: bytes | None = None
        self._made_at = 0.0

    def packed(self) -> bytes | None:
        """It; None while no namespace could be read, which is not the same as no jobs."""
        with self._lock:
            if self._packed is None or time.monotonic() - self._made_at >= LIST_SECONDS:
                self._packed, self._made_at = self._make(), time.monotonic()
            return self._packed

    def _make(self) -> bytes | None:
        namespaces = list(self._shown.namespaces())
        if not any(synced for _, synced in namespaces):
            return None
        content: dict[str, Any] = {
            "unread": [namespace for namespace, synced in namespaces if not synced],
            "quiet_seconds": round(self._shown.quiet_for()),
            "jobs": [row(raw) for raw in self._shown.jobs()],
        }
        return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 4)


def _digest(token: str) -> bytes:
    """Of equal length, so that a comparison does not tell the length of the token either."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
