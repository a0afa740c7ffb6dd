"""The dashboard: one page at `/` that draws the run from `/v1/verdict` and `/v1/history`.

The page and its four files hold no data of a run and need no token; the browser asks the API with the read
token. The content security policy forbids every other origin, so the page works without a network. It shows
what the API says and decides nothing. `rlguard run` writes the same page, with its data in it, as its report.
"""

from __future__ import annotations

from fastapi import APIRouter, Response

from guard_service.dashboard.page import asset, live_page

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_ASSETS = {
    "app.js": "text/javascript",
    "charts.js": "text/javascript",
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
}


def router() -> APIRouter:
    """The routes of the page: `/` and `/dashboard/<file>`. Everything is read once, when this is called."""
    routes = APIRouter(include_in_schema=False)
    _serve(routes, "/", live_page(), "text/html")
    for name, media_type in _ASSETS.items():
        _serve(routes, f"/dashboard/{name}", asset(name), media_type)
    return routes


def _serve(routes: APIRouter, path: str, text: str, media_type: str) -> None:
    async def respond() -> Response:
        return Response(text, media_type=media_type, headers=HEADERS)

    routes.add_api_route(path, respond, methods=["GET", "HEAD"])
