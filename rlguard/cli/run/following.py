"""Follows what the trainer of a local run writes, in a thread beside the loop that watches both processes."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rlguard.client.client import GuardClient
from rlguard.follow.config import FollowConfig
from rlguard.follow.errors import InputError
from rlguard.follow.follower import Follower
from rlguard.follow.guard_history import KnownHistory

POLL_SECONDS = 0.5
#: Seconds for the last reports after the trainer has ended.
FINISH_SECONDS = 60.0


class Following:
    """Made before the trainer starts, so that what lies there already is known to be of another run.

    Args:
        what: is followed.
        url: of the guard.
        token: its ingest token.
        say: gets sentences for the user; called from the thread.

    Raises:
        InputError: it cannot be followed.
    """

    def __init__(self, what: FollowConfig, url: str, token: str, say: Callable[[str], None]) -> None:
        self._stopping, self._ending = threading.Event(), threading.Event()
        self._follower = Follower(what, GuardClient(url, token), KnownHistory(), say, self._stopping)
        #: Why the log can no longer be followed; "" while it can.
        self.lost = ""
        self._thread = threading.Thread(target=self._run, name="rlguard-follow", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """The trainer has ended: report the rest, for a bounded time."""
        self._ending.set()
        self._thread.join(FINISH_SECONDS)
        if self._thread.is_alive():
            self.lost = f"the last reports did not reach the guard within {FINISH_SECONDS:.0f} s"
        self._stopping.set()

    def _run(self) -> None:
        try:
            while not self._ending.wait(POLL_SECONDS):
                self._follower.poll()
            self._follower.finish(trainer_ended=True)
        except InputError as error:
            self.lost = f"what the trainer writes can no longer be followed: {error}"
        except Exception as error:  # a dead thread would leave the run unguarded without a word
            self.lost = f"the follower failed: {error!r}"
