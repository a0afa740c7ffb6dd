"""Runs that have ended, in a browser: the page of one, or several side by side. Nothing is written."""

from __future__ import annotations

import html
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

from rlguard.cli.errors import CliError
from rlguard.cli.saved_run import find_report, read_run_file, verdict_at_end
from rlguard.cli.summary import checkpoints, heldout_scores

#: What is served of a run, as it stands in its folder, and its content type.
_FILES = {"report.html": "text/html; charset=utf-8", "plot.svg": "image/svg+xml"}
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr)); gap: 1rem; }
article { border: 1px solid #8886; border-radius: 8px; padding: 0 1rem 1rem; overflow-wrap: anywhere; }
img { width: 100%; background: #fff; border-radius: 4px; }
"""


def runs_in(folder: Path) -> dict[str, Path]:
    """The report folders of the runs that this is, or that lie in it, by the names of the runs' folders.

    Raises:
        CliError: there is none.
    """
    if (report := find_report(folder)) is not None:
        return {folder.absolute().name: report}
    inside = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    found = {path.name: report for path in inside if (report := find_report(path)) is not None}
    if not found:
        raise CliError(f"{folder} holds no run that has ended: name the folder of one, or the folder above")
    return found


def serve_runs(folder: Path, host: str, port: int) -> None:
    """Show the runs in a folder until a signal comes.

    Raises:
        CliError: there is none, or the port is taken.
    """
    runs_in(folder)

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                found = _page(unquote(self.path), runs_in(folder))
            except (CliError, OSError) as error:
                found = HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", str(error)
            status, kind, body = found
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    try:
        server = ThreadingHTTPServer((host, port), Pages)
    except OSError as error:
        raise CliError(f"{host}:{port} cannot be used: {error.strerror}", 1) from None
    with server:
        print(f"http://{host}:{server.server_port}/", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _page(path: str, runs: Mapping[str, Path]) -> tuple[HTTPStatus, str, str]:
    """Status, content type and body of what is at a path."""
    if path == "/" and len(runs) > 1:
        return HTTPStatus.OK, _FILES["report.html"], _side_by_side(runs)
    name, _, file = path.strip("/").partition("/")
    report, file = runs.get(name or next(iter(runs))), file or "report.html"
    if report is None or file not in _FILES:
        return HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", "there is no such run"
    return HTTPStatus.OK, _FILES[file], (report / file).read_text("utf-8", errors="replace")


def _side_by_side(runs: Mapping[str, Path]) -> str:
    cards = "".join(_card(name, report) for name, report in runs.items())
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>RLGuard runs</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style><h1>{len(runs)} runs</h1><main>{cards}</main></html>"
    )


def _card(name: str, report: Path) -> str:
    facts, verdict = read_run_file(report / "run.json"), verdict_at_end(report)
    link = quote(name)
    scores = "" if verdict is None else f"held-out {heldout_scores(verdict)}; {checkpoints(verdict)}"
    outcome, result = (html.escape(str(facts.get(key, ""))) for key in ("outcome", "result"))
    return (
        f'<article><h2><a href="/{link}/">{html.escape(name)}</a>: {result}</h2>'
        f'<p>{html.escape(scores)}</p><img src="/{link}/plot.svg" alt="Reward and held-out score of the run">'
        f"<p>{outcome}</p></article>"
    )
