"""TRL's trainer_state.json: each checkpoint has one, with the log from the beginning of the run.

A trainer that goes on from a checkpoint copies the log of that one, so what a state has is of several starts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from itertools import dropwhile
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from rlguard.follow.errors import InputError
from rlguard.follow.safe_open import entries, open_regular

STATE = "trainer_state.json"
MAX_BYTES = 256 << 20

LogRow = Mapping[str, Any]


def states(folder: Path) -> list[Path]:
    """The states of TRL in the checkpoints of a folder."""
    inside = [entry.name for entry in entries(folder) if entry.is_dir(follow_symlinks=False)]
    files = [folder / name / STATE for name in inside if name.startswith("checkpoint-")]
    return [file for file in files if file.exists()]


def rows_of(state: Path, most: int = MAX_BYTES) -> list[LogRow] | None:
    """The rows of its log; None where it cannot be read in so many bytes, as while it is being written."""
    try:
        with os.fdopen(open_regular(state), "rb") as stream:
            rows = from_json(stream.read(most)).get("log_history", [])
    except (OSError, ValueError, AttributeError, InputError):
        return None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def digest_of(row: LogRow) -> str:
    """A digest by which a row is known again in the log of another state."""
    return sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:16]


def without(rows: Sequence[LogRow], known: Collection[str]) -> Sequence[LogRow]:
    """The rows after those with these digests with which they begin."""
    return list(dropwhile(lambda row: digest_of(row) in known, rows)) if known else rows
