"""Waiting for what a cluster does in its own time; every time-out of these tests is here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from rlguard.operator.runtime.errors import ClusterError

T = TypeVar("T")

#: Many times what an idle machine needs: nothing may fail because this one is busy.
WITHIN_SECONDS = 90.0
POLL_SECONDS = 0.05


def eventually(probe: Callable[[], T], what: str, within: float = WITHIN_SECONDS) -> T:
    """The first truthy value of `probe`; an error of the cluster counts as not yet."""
    deadline = time.monotonic() + within
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = probe()
        except ClusterError as error:
            last = error
        else:
            if last:
                return last
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"not within {within:g} s: {what}; last seen: {last!r}")
