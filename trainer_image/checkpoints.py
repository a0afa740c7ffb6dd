"""Checkpoints on disk: which one to resume from.

The newest that is complete is resumed from. A trainer that is killed while it saves leaves a directory that
looks like a checkpoint. The Trainer writes `trainer_state.json` last, so one that can be read, beside weights
that can be read, is complete. Weights in a layout that nobody here knows are no reason to start from zero,
because the run that they are of would be trained over.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

from safetensors import SafetensorError, safe_open

from guard_client.errors import GuardConfigError

log = logging.getLogger(__name__)

_NAME = re.compile(r"checkpoint-(\d+)")
_INDEX = "model.safetensors.index.json"
_WEIGHTS = ("model.safetensors", "adapter_model.safetensors")
#: What the Trainer also resumes from and nobody here can check: pickles, shards of FSDP and of DeepSpeed.
_UNCHECKED = ("pytorch_model*.bin", "pytorch_model.bin.index.json", "pytorch_model_fsdp_*", "global_step*")


def latest_complete(output_dir: Path) -> Path | None:
    """The complete checkpoint with the highest step in `output_dir`, or None where none was saved to its end.

    Raises:
        GuardConfigError: a checkpoint was saved to its end, but none is known to be fit to resume from.
    """
    if not output_dir.is_dir():
        return None
    found = [(int(match[1]), path) for path in output_dir.iterdir() if (match := _NAME.fullmatch(path.name))]
    unfit: list[str] = []
    for _, path in sorted(found, reverse=True):
        reason = incomplete_because(path)
        if reason is None:
            return path
        log.warning("%s is not complete and is passed over: %s", path, reason)
        if _saved_to_its_end(path):
            unfit.append(f"{path}: {reason}")
    if unfit:
        raise GuardConfigError(
            "resume: no checkpoint is fit to resume from, and starting from zero would train over "
            f"{unfit[0]}; set resume to false to do so, or choose another output_dir"
        )
    return None


def incomplete_because(checkpoint: Path) -> str | None:
    """Why the Trainer could not resume from this checkpoint, or None if it could."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text("utf-8"))
        for name in _weight_files(checkpoint):
            with safe_open(checkpoint / name, framework="np"):  # checks the header against the file's size
                pass
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _saved_to_its_end(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / "trainer_state.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return True


def _weight_files(checkpoint: Path) -> set[str]:
    if (checkpoint / _INDEX).exists():
        return set(json.loads((checkpoint / _INDEX).read_text("utf-8"))["weight_map"].values())
    present = {name for name in _WEIGHTS if (checkpoint / name).exists()}
    if not present and not any(any(checkpoint.glob(pattern)) for pattern in _UNCHECKED):
        raise FileNotFoundError(f"none of {', '.join((*_WEIGHTS, _INDEX, *_UNCHECKED))}")
    return present
