"""The base model that adapters are applied to: the guard's own, given in its settings, never the trainer's.

It is read where it lies, for a copy would cost as much as it does. Each evaluation process takes its digest
when it starts, the first with the guard and another after each that ended; the guard keeps it with the run,
and refuses another. While a process lasts, that the files are still those is seen by what a file system notes
of them. Where that has changed they are read again, for a backup or a change of permissions makes no other
model. No torch here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from guard_core import adapter
from guard_core.wire import FailureKind
from guard_service.heldout.errors import EvaluationError, SplitError
from guard_service.heldout.scorable import NEEDED_SUFFIXES, why_names_unscorable

CHUNK_BYTES = 1 << 22

#: Name, device, inode, size in bytes, times of the last write and of the last change in ns. Whoever may write
#: a file may set the former of its times, and not the latter.
Stamp = tuple[str, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A base model as it was when its files were read.

    `sha256`: of the lines that `sha256sum` would print for its files in order of name.
    """

    path: Path
    sha256: str
    stamps: tuple[Stamp, ...]

    def refreshed(self) -> BaseModel:
        """Read the files again if a file system says that they changed.

        Raises:
            EvaluationError: they are no longer those that were hashed.
        """
        with contextlib.suppress(OSError, SplitError):
            if _stamps(self.path) == self.stamps:
                return self
            if (found := look_at(self.path)).sha256 == self.sha256:
                return found
        raise EvaluationError(
            f"the base model in {self.path} is no longer the one that the guard started with: restore it, or "
            "start a new run",
            FailureKind.EVALUATOR,
        )


def look_at(path: Path) -> BaseModel:
    """Hash a base model.

    Raises:
        SplitError: it is no whole model in safetensors with its tokenizer, or would run code.
    """
    try:
        if problem := _why_unusable(path):
            raise SplitError(f"base_model {path}: {problem}")
        stamps = _stamps(path)
        listing = "".join(f"{sha256_of(path / name)}  {name}\n" for name, *_ in stamps)
    except (ValueError, RecursionError) as error:
        raise SplitError(f"base_model {path}: a configuration in it is not JSON: copy it again") from error
    except OSError as error:
        raise SplitError(
            f"base_model {path} cannot be read: {error.strerror}: mount it for the guard"
        ) from error
    return BaseModel(path, hashlib.sha256(listing.encode()).hexdigest(), stamps)


def why_the_trainers(path: Path, checkpoints: Path) -> str:
    """Why a base model is one that the trainer could exchange, in one sentence; "" if it is not.

    Args:
        path: of the base model, which may be missing.
        checkpoints: the directory under which the trainer writes, which may be missing, too.
    """
    try:
        files = [path / name for name in _names_read(path)]
    except OSError:  # told when it is read
        files = []
    found = next((one for one in (path, *files) if _is_under(one, checkpoints)), None)
    if found is None:
        return ""
    return (
        f"base_model {found} lies under the checkpoint root {checkpoints}, where the trainer writes: "
        "give the guard a copy that the trainer cannot write"
    )


def _is_under(path: Path, directory: Path) -> bool:
    """Whether it is in the directory once links are resolved, by whatever way a volume is mounted."""
    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(directory))
    return real.is_relative_to(root) or any(_are_same(one, root) for one in (real, *real.parents))


def _are_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _why_unusable(path: Path) -> str:
    names = os.listdir(path)
    if adapter.CONFIG in names:  # transformers would follow it to another base
        return f"it has an {adapter.CONFIG}: give the whole model that adapters are trained on"
    if problem := why_names_unscorable(names, None):
        return problem
    for name in names:
        if name.endswith("config.json") and "auto_map" in json.loads((path / name).read_bytes()):
            return (
                f"{name} has an auto_map, which names code to load: use an architecture that transformers has"
            )
    return ""


def _stamps(path: Path) -> tuple[Stamp, ...]:
    """Of all files that loading may read."""
    return tuple(_stamp(name, os.stat(path / name)) for name in _names_read(path))


def _names_read(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.endswith((*NEEDED_SUFFIXES, ".safetensors")))


def _stamp(name: str, status: os.stat_result) -> Stamp:
    return name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def sha256_of(path: Path) -> str:
    """Digest of a file, in hexadecimal digits; it is read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
    return digest.hexdigest()
