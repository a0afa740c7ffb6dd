"""Asking a guard with its read token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guard_client.client import socket_path

if TYPE_CHECKING:  # a command that asks nobody does not load it
    import httpx


def reader(url: str, token: str | None, seconds: float) -> httpx.Client:
    """A client of the guard at a URL, http(s) or `unix:///PATH`, with that many seconds for each step.

    Raises:
        ValueError, httpx.InvalidURL: it is no URL.
    """
    import httpx

    path = socket_path(url)
    return httpx.Client(
        base_url=url if path is None else "http://guard",
        transport=None if path is None else httpx.HTTPTransport(uds=path),
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=seconds,
        trust_env=False,
    )
