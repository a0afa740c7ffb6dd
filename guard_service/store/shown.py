"""The files beside a store that are for people, and no part of what the run is judged by.

They are apart from the chained events because they are bounded by dropping what is old, and because a verdict
must not depend on them: one that cannot be read or written costs what it would have shown, and nothing else.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from guard_core.figures import Points
from guard_core.rollouts import RolloutSteps
from guard_core.wire import FiguresReport, RolloutsReport

log = logging.getLogger("rlguard.guard")

#: More than what is kept can take; what is larger was not written by a guard.
MAX_FILE_BYTES = 8 << 20

T = TypeVar("T")


@dataclass(frozen=True)
class ShownFile(Generic[T]):
    """One of these files: its name in `state_dir`, what it holds, for a sentence, and how that is written."""

    name: str
    holds: str
    nothing: T
    adapter: TypeAdapter[T]

    def read(self, state_dir: Path) -> T:
        """What a guard has kept there; nothing if there is none, or it cannot be read, which the log says."""
        path = state_dir / self.name
        try:
            if not path.exists():
                return self.nothing
            if path.stat().st_size > MAX_FILE_BYTES:
                raise ValueError(f"it has more than {MAX_FILE_BYTES} bytes")
            return self.adapter.validate_json(path.read_bytes())
        except ValidationError:
            reason = "it is damaged"
        except (OSError, ValueError) as error:
            reason = str(error)
        log.warning("%s is not read, so earlier %s are not shown: %s", path, self.holds, reason)
        return self.nothing

    def write(self, state_dir: Path, value: T) -> None:
        """Keep this in place of what was kept before.

        Raises:
            OSError: it cannot be written; what was kept before still is.
        """
        path = state_dir / self.name
        draft = path.with_suffix(".new")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(self.adapter.dump_json(value))
        draft.replace(path)


ROLLOUTS: ShownFile[RolloutSteps] = ShownFile(
    "rollouts.json", "rollouts", (), TypeAdapter(tuple[RolloutsReport, ...])
)
FIGURES: ShownFile[Points] = ShownFile("figures.json", "figures", (), TypeAdapter(tuple[FiguresReport, ...]))
