"""The base model that adapters are applied to: the guard's own, given in its settings, never the trainer's.

It is read where it lies, for a copy would cost as much as it does. Its digest is taken once, when the guard
starts, and is kept with the run; that its files are still those is seen by their sizes and times. No torch
here.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from guard_core import adapter
from guard_service.heldout.errors import SplitError
from guard_service.heldout.fitness import NEEDED_SUFFIXES, why_unfit

CHUNK_BYTES = 1 << 22

#: Name, size in bytes, time of the last change in ns.
Stamp = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A base model as it was when the guard started.

    `sha256`: of the lines that `sha256sum` would print for its files in order of name.
    """

    path: Path
    sha256: str
    stamps: tuple[Stamp, ...]

    def changed(self) -> bool:
        """Whether its files are no longer those that were hashed."""
        try:
            return _stamps(self.path) != self.stamps
        except OSError:
            return True


def look_at(path: Path) -> BaseModel:
    """Hash a base model.

    Raises:
        SplitError: it is no whole model in safetensors with its tokenizer, or would run code.
    """
    try:
        if problem := _why_unusable(path):
            raise SplitError(f"base_model {path}: {problem}")
        stamps = _stamps(path)
        listing = "".join(f"{sha256_of(path / name)}  {name}\n" for name, _, _ in stamps)
    except (ValueError, RecursionError) as error:
        raise SplitError(f"base_model {path}: a configuration in it is not JSON: copy it again") from error
    except OSError as error:
        raise SplitError(
            f"base_model {path} cannot be read: {error.strerror}: mount it for the guard"
        ) from error
    return BaseModel(path, hashlib.sha256(listing.encode()).hexdigest(), stamps)


def _why_unusable(path: Path) -> str:
    names = os.listdir(path)
    if adapter.CONFIG in names:  # transformers would follow it to another base
        return f"it has an {adapter.CONFIG}: give the whole model that adapters are trained on"
    if problem := why_unfit(names, None):
        return problem
    for name in names:
        if name.endswith("config.json") and "auto_map" in json.loads((path / name).read_bytes()):
            return (
                f"{name} has an auto_map, which names code to load: use an architecture that transformers has"
            )
    return ""


def _stamps(path: Path) -> tuple[Stamp, ...]:
    """Of all files that loading may read."""
    names = sorted(name for name in os.listdir(path) if name.endswith((*NEEDED_SUFFIXES, ".safetensors")))
    found = [(name, os.stat(path / name)) for name in names]
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in found)


def sha256_of(path: Path) -> str:
    """Digest of a file, in hexadecimal digits; it is read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
    return digest.hexdigest()
