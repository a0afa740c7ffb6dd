"""What others wrote, for a terminal."""

from __future__ import annotations


def plain(text: str, most: int | None = None) -> str:
    """The text on one line without what could steer a terminal; cut after `most` characters."""
    cut = text if most is None or len(text) <= most else text[: most - 1] + "…"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cut)
