"""Asking a guard with its read token."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a command that asks nobody does not load it
    import httpx


def reader(url: str, token: str | None, seconds: float, ca: str | None = None) -> httpx.Client:
    """A client of the guard at a URL, with that many seconds for each step.

    `ca`: certificates, PEM, of which one must have signed the guard's; None: those that the system trusts.

    Raises:
        ValueError, httpx.InvalidURL: it is no URL.
    """
    import httpx

    return httpx.Client(
        base_url=url,
        verify=True if ca is None else ssl.create_default_context(cadata=ca),
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=seconds,
        trust_env=False,
    )
