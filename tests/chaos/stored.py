"""What a guard's store holds in the end."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from guard_service.errors import StoreError
from guard_service.event_log import EventLog, stored_policy
from guard_service.history import export_history
from rlguard.core.judge import Latch


def stored(state: Path, copy: Path) -> tuple[dict[int, dict[str, Any]], bool]:
    """The steps that a store holds, by number, and whether it holds a fire; read from a copy, made here."""
    copy.mkdir()
    for file in state.glob("guard.db*"):
        shutil.copy(file, copy)
    try:
        log = EventLog(copy, stored_policy(copy))
        latched = any(isinstance(event, Latch) and event.fire for event in log.events(0))
        log.close()
        steps = {line["step"]: line for line in export_history(copy) if "step_event" in line}
    except StoreError:  # no guard ever finished its start, or nothing of it can be read
        return {}, False
    return steps, latched
