"""What a guard's store holds in the end."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from guard_core.judge import Latch
from guard_core.wire import StepReport
from guard_service.errors import StoreError
from guard_service.store import Store, stored_policy


def stored(state: Path, copy: Path) -> tuple[dict[int, dict[str, Any]], bool]:
    """The steps that a store holds, by number, and whether it holds a fire; read from a copy, made here."""
    copy.mkdir()
    for file in state.glob("guard.*"):
        shutil.copy(file, copy)
    steps, latched = dict[int, dict[str, Any]](), False
    try:
        store = Store(copy, stored_policy(copy))
    except StoreError:  # no guard ever finished its start, or nothing of it can be read
        return steps, latched
    for _, event in store.events(after=0):
        if isinstance(event, StepReport):
            steps[event.step] = event.model_dump(mode="json")
        latched = latched or (isinstance(event, Latch) and event.fire)
    store.close()
    return steps, latched
