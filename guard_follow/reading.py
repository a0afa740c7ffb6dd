"""Asking a guard with its read token."""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a command that asks nobody does not load it
    import httpx


def ca_of_environment() -> str | None:
    """The certificates in RLGUARD_CA, as the operator sets it in a trainer's pod."""
    return os.environ.get("RLGUARD_CA") or None


def reader(url: str, token: str | None, seconds: float, ca: str | None = None) -> httpx.Client:
    """A client of the guard at a URL, with that many seconds for each step.

    `ca`: certificates, PEM, of which one must have signed the guard's; None: those that the system trusts.

    Raises:
        ValueError, httpx.InvalidURL: it is no URL, or these are no certificates.
    """
    import httpx

    try:
        trusted = True if ca is None else ssl.create_default_context(cadata=ca)
    except ssl.SSLError as error:
        raise ValueError(f"RLGUARD_CA must be certificates, PEM: {error}") from None
    return httpx.Client(
        base_url=url,
        verify=trusted,
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=seconds,
        trust_env=False,
    )
