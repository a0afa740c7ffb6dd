"""The file of rollouts beside a store: for people, and no part of what the run is judged by.

It is apart from the chained events because it is bounded by dropping what is old, and because a verdict must
not depend on it: one that cannot be read or written costs what it would have shown, and nothing else.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from guard_core.rollouts import Steps
from guard_core.wire import RolloutsReport

log = logging.getLogger("rlguard.guard")

ROLLOUTS_FILE = "rollouts.json"
#: More than what is kept can take; what is larger was not written by a guard.
MAX_FILE_BYTES = 8 << 20

_STEPS = TypeAdapter(tuple[RolloutsReport, ...])


def read_rollouts(state_dir: Path) -> Steps:
    """What a guard has kept there; nothing if there is none, or it cannot be read, which the log says."""
    path = state_dir / ROLLOUTS_FILE
    try:
        if not path.exists():
            return ()
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"it has more than {MAX_FILE_BYTES} bytes")
        return _STEPS.validate_json(path.read_bytes())
    except ValidationError:
        reason = "it is damaged"
    except (OSError, ValueError) as error:
        reason = str(error)
    log.warning("%s is not read, so earlier rollouts are not shown: %s", path, reason)
    return ()


def write_rollouts(state_dir: Path, steps: Steps) -> None:
    """Keep these in place of what was kept before.

    Raises:
        OSError: it cannot be written; what was kept before still is.
    """
    path = state_dir / ROLLOUTS_FILE
    draft = path.with_suffix(".new")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as out:
        out.write(_STEPS.dump_json(steps))
    draft.replace(path)
