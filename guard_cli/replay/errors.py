"""The one error of `rlguard replay` and `rlguard calibrate`: something the user gave cannot be used."""

from __future__ import annotations


class InputError(ValueError):
    """The message says what was wrong, with which value, and what to do; it is shown without a traceback."""
