"""What others wrote, for a terminal, a log or a message."""

from __future__ import annotations


def plain(text: str, most: int | None = None) -> str:
    """The text on one line without what could steer a terminal; cut after `most` characters."""
    cut = text if most is None or len(text) <= most else text[: most - 1] + "…"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in cut)


def escaped(text: str) -> str:
    """The text on one line, with what cannot be printed as Python writes it.

    A file's name may be any bytes. Those that are not UTF-8 are halves of surrogate pairs in it, which no
    response, store or API server takes.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def is_unicode(name: str) -> bool:
    """Whether a file's name is UTF-8, so that it may be written down elsewhere."""
    return not any("\ud800" <= c <= "\udfff" for c in name)
