"""The one page: as the guard serves it, and frozen into a file that needs neither guard nor network.

Both are made of the same template, style and scripts, so a report looks as the dashboard did. What a run or
a trainer wrote goes into the page as text, or as JSON that cannot end its element; the content security
policy of a frozen page admits its own script by digest and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from rlguard.core.codes import Code, Level

_STATIC = files(__package__) / "static"
_IMPORT = 'import { Chart, short } from "./charts.js";\n'
_LIVE = {
    "title": "RLGuard",
    "head": '<link rel="icon" href="dashboard/icon.svg" type="image/svg+xml">\n  '
    '<link rel="stylesheet" href="dashboard/style.css">',
    "script": '<script type="module" src="dashboard/app.js"></script>',
    "icon": "dashboard/icon.svg",
    "name": "",
    "live": "connecting …",
    "state": "waiting",
    "word": "Waiting",
    "headline": "Waiting for the guard\u2019s first response",
    "reason": "",
    "since": "",
    "first": "",
    "last": '<noscript><p class="notice">This page needs JavaScript. The same data: '
    "<code>GET /v1/verdict</code> and <code>GET /v1/history</code>.</p></noscript>",
}


@dataclass(frozen=True, slots=True)
class Banner:
    """What stands at the top of a frozen page, as plain text.

    `state` gives the colour; `word` stands above the headline, and is that of the level or of the run's end.
    """

    name: str
    when: str
    state: Level
    word: str
    headline: str
    reason: str
    since: str


def asset(name: str) -> str:
    """The text of one of the page's files."""
    return (_STATIC / name).read_text("utf-8")


def live_page() -> str:
    """The page as the guard serves it: it holds nothing of a run."""
    return _filled(_LIVE)


def frozen_page(banner: Banner, data: Mapping[str, Any], first: str, last: str) -> str:
    """The page with its data in it.

    Args:
        banner: what has become of the run.
        data: `verdict`, `history`, `rollouts` and `figures` as the API has them, and `policy`; or {} where
            no guard has said anything, and then there is nothing to draw.
        first, last: HTML below the banner, and at the end.
    """
    script = asset("charts.js").replace("export ", "") + asset("app.js").replace(_IMPORT, "")
    icon = "data:image/svg+xml;base64," + base64.b64encode(asset("icon.svg").encode()).decode()
    embedded = f'<script type="application/json" id="frozen">{_embedded(data)}</script>\n  ' if data else ""
    banner_texts = {name: text(getattr(banner, name)) for name in ("state", "word", "headline")}
    return _filled(
        banner_texts
        | {
            "title": text(f"{banner.name} · RLGuard report"),
            "head": f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n  '
            f'<link rel="icon" href="{icon}">\n  <style>{asset("style.css")}</style>',
            "script": embedded + (f'<script type="module">{script}</script>' if data else ""),
            "icon": icon,
            "name": text(banner.name),
            "live": text(banner.when),
            "reason": text(banner.reason),
            "since": text(banner.since),
            "first": first,
            "last": last,
        }
    )


def text(value: object) -> str:
    """A value as HTML text; what UTF-8 cannot hold becomes a question mark."""
    return html.escape(str(value).encode("utf-8", "replace").decode())


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _filled(values: Mapping[str, str]) -> str:
    """The template with its values. One pass: what stands in a value is never taken for a place."""
    known = dict(values) | {
        "meanings": _embedded({code: code.meaning for code in Code}),
        "found": _embedded({code: code.finding.words for code in Code if code.finding is not None}),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: known[place[1]], asset("index.html"))


def _embedded(value: Any) -> str:
    """JSON that cannot end the script element it stands in, in ASCII."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")
