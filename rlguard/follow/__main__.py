"""`python -m rlguard.follow`: follows one run for the guard that started it. People have `rlguard follow`.

The first line of stdin is a `FollowOrder`; when stdin ends, so has the trainer, and the rest is reported. On
stdout it tells, a JSON object a line, what it does: `began` once it knows what lay there before the run,
`say` for people, `state` every few seconds, and `lost` when it cannot go on.

It could read what is the guard's, and what it reads was written by the trainer: it is confined to the
checkpoint root and to so much memory, and tells nothing that it read but names of columns.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rlguard.client.client import GuardClient
from rlguard.core.feed import FollowOrder
from rlguard.follow.config import FollowConfig
from rlguard.follow.errors import InputError
from rlguard.follow.follower import Follower
from rlguard.follow.guard_history import KnownHistory, ask_history
from rlguard.follow.preexisting import PreexistingFiles, scan
from rlguard.follow.safe_open import restrict_to

POLL_SECONDS = 0.5
STATE_SECONDS = 5.0
#: For the last reports, once the trainer has ended.
FINISH_SECONDS = 15.0
#: A guard that starts has so long until it listens.
GUARD_SECONDS = 60.0
#: Bytes of address space.
MEMORY = 2 << 30
KEPT = "before.json"


def main() -> int:
    """Follow until stdin ends; returns the exit code."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    order = FollowOrder.model_validate_json(sys.stdin.readline())
    restrict_to(order.root)
    ended, stopping = threading.Event(), threading.Event()
    threading.Thread(target=_await_the_end, args=(ended, stopping), daemon=True).start()
    try:
        _follow(order, ended, stopping)
    except InputError as error:
        _tell(lost=str(error))
        return error.exit_code
    except Exception as error:  # what it says may quote what was read
        _tell(lost=f"the follower failed ({type(error).__name__})")
        return 1
    return 0


def _follow(order: FollowOrder, ended: threading.Event, stopping: threading.Event) -> None:
    followed = order.feed.follow
    log = order.root / followed.path
    saved = order.root / order.feed.checkpoints.path
    config = None if followed.run_config is None else order.root / followed.run_config
    before = _before(order, log, saved)
    _tell(began=True)
    what = FollowConfig(
        log, saved, followed.format, run_config=config, before=before, layout=order.feed.layout
    )
    follower = Follower(
        what, GuardClient(order.url, order.token, ca=order.ca), _history(order, ended), _say, stopping
    )
    told = -STATE_SECONDS
    while not ended.wait(POLL_SECONDS):
        follower.poll()
        if time.monotonic() - told >= STATE_SECONDS:
            told = time.monotonic()
            _tell(state={"trouble": follower.trouble})
    follower.finish(trainer_ended=True)
    _tell(state={"trouble": follower.trouble})


def _before(order: FollowOrder, log: Path, saved: Path) -> PreexistingFiles:
    """What lay there before the run, as it was found at its first start."""
    kept = order.state / KEPT
    try:
        return PreexistingFiles.from_json(kept.read_text("utf-8"))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{kept} cannot be read ({type(error).__name__}): remove it, or restore it."
        ) from None
    before = scan(log, saved, order.feed.layout)
    draft = kept.with_suffix(".new")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(before.to_json())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(kept)
    except OSError as error:
        raise InputError(f"{kept} cannot be written: {error.strerror or error}.", 1) from None
    return before


def _history(order: FollowOrder, ended: threading.Event) -> KnownHistory:
    """What the guard has, once it listens."""
    until = time.monotonic() + GUARD_SECONDS
    while True:
        try:
            return ask_history(order.url, order.read_token, order.ca)
        except InputError:
            if time.monotonic() >= until or ended.wait(POLL_SECONDS):
                raise


def _await_the_end(ended: threading.Event, stopping: threading.Event) -> None:
    """Until the guard closes the pipe, or is gone."""
    sys.stdin.read()
    ended.set()
    time.sleep(FINISH_SECONDS)
    stopping.set()


def _say(sentence: str) -> None:
    _tell(say=sentence)


def _tell(**message: Any) -> None:
    try:
        print(json.dumps(message), flush=True)
    except BrokenPipeError:  # nobody is left to be told
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
