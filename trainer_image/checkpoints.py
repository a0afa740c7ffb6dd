"""Checkpoints on disk: which one to resume from, and who may read them.

The newest that is complete is resumed from. A trainer that is killed while it saves leaves a directory that
looks like a checkpoint. The Trainer writes `trainer_state.json` last, so one that can be read, beside weights
that can be read, is complete.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

from safetensors import SafetensorError, safe_open

log = logging.getLogger(__name__)

_NAME = re.compile(r"checkpoint-(\d+)")
_INDEX = "model.safetensors.index.json"
_WEIGHTS = ("model.safetensors", "adapter_model.safetensors")


def latest_complete(output_dir: Path) -> Path | None:
    """The complete checkpoint with the highest step in `output_dir`, or None."""
    if not output_dir.is_dir():
        return None
    found = [(int(match[1]), path) for path in output_dir.iterdir() if (match := _NAME.fullmatch(path.name))]
    for _, path in sorted(found, reverse=True):
        reason = incomplete_because(path)
        if reason is None:
            return path
        log.warning("%s is not complete and is passed over: %s", path, reason)
    return None


def incomplete_because(checkpoint: Path) -> str | None:
    """Why the Trainer could not resume from this checkpoint, or None if it could."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text("utf-8"))
        for name in _weight_files(checkpoint):
            with safe_open(checkpoint / name, framework="np"):  # checks the header against the file's size
                pass
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def let_the_guard_read(checkpoint: Path) -> None:
    """Let whoever may list the checkpoint read its weights.

    safetensors from 0.8 on writes files of mode 0600 whatever the umask, and a guard in a pod is another user
    than the trainer. The mode of the directory says what the umask wants. A failure is a warning: the guard
    itself tells if it cannot read.
    """
    try:
        readers = checkpoint.stat().st_mode & 0o044
        for path in checkpoint.glob("*.safetensors"):
            path.chmod(path.stat().st_mode | readers)
    except OSError as error:
        log.warning("the guard may not be able to read %s: %s", checkpoint, error)


def _weight_files(checkpoint: Path) -> set[str]:
    if (checkpoint / _INDEX).exists():
        return set(json.loads((checkpoint / _INDEX).read_text("utf-8"))["weight_map"].values())
    present = {name for name in _WEIGHTS if (checkpoint / name).exists()}
    if not present:
        raise FileNotFoundError(f"none of {', '.join((*_WEIGHTS, _INDEX))} in {checkpoint}")
    return present
