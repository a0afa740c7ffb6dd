"""Exponential backoff with jitter."""

from __future__ import annotations

import random

#: A server's `Retry-After` counts up to here, seconds: an admission webhook may say any number.
LONGEST_RETRY_AFTER = 60.0


class Backoff:
    """Delays that double from `base` up to `cap` seconds; each is drawn from the upper half of its range."""

    def __init__(self, base: float, cap: float) -> None:
        self._base = base
        self._cap = cap
        self._failures = 0

    def next(self, at_least: float | None = None) -> float:
        """The delay after one more failure, seconds; at least a server's `Retry-After`, up to a minute."""
        delay = min(self._cap, self._base * 2.0 ** min(self._failures, 30))
        self._failures += 1
        least = min(at_least or 0.0, LONGEST_RETRY_AFTER)
        return max(least, delay * random.uniform(0.5, 1.0))  # noqa: S311 - not for secrets

    def reset(self) -> None:
        """Start again from `base`, after a success."""
        self._failures = 0
