"""Checkpoints on disk: which one to resume from."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

log = logging.getLogger(__name__)

_NAME = re.compile(r"checkpoint-(\d+)")


def latest_complete(output_dir: Path) -> Path | None:
    """Find the complete checkpoint with the highest step in `output_dir`; None if there is none.

    A trainer that is killed while it saves leaves a directory that looks like a checkpoint. The Trainer
    writes `trainer_state.json` last, so a checkpoint in which that file can be read is complete.
    """
    if not output_dir.is_dir():
        return None
    found = [(int(match[1]), path) for path in output_dir.iterdir() if (match := _NAME.fullmatch(path.name))]
    for _, path in sorted(found, reverse=True):
        try:
            json.loads((path / "trainer_state.json").read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s is not complete and is passed over: %r", path, error)
        else:
            return path
    return None
