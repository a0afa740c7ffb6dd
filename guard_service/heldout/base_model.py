"""The base model that adapters are applied to: the guard's own, given in its settings, never the trainer's.

It is read where it lies, for a copy would cost as much as it does. Each evaluation process takes its digest
when it starts; the guard keeps it with the run, and refuses another. While a process lasts, a file system
says whether the files are still those. Where they may not be, another process reads them again, for a backup
or a change of permissions makes no other model. No torch here.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from guard_service.heldout.errors import SplitError, StartAgainError
from guard_service.heldout.identity import manifest
from guard_service.heldout.scorable import NEEDED_SUFFIXES, why_names_unscorable, why_not_loaded
from rlguard.core import adapter
from rlguard.core.wire import FailureKind


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A base model as it was when its files were read.

    `sha256`: of the lines that `sha256sum` would print for its files in order of name.
    """

    path: Path
    sha256: str
    manifest: str

    def refuse_changed(self) -> None:
        """Refuse to score with files that may no longer be those that were hashed.

        Raises:
            StartAgainError: a new process has to read them.
        """
        if manifest(self.path, links=True) != self.manifest:
            raise StartAgainError(
                f"the files of the base model in {self.path} were touched", FailureKind.EVALUATOR
            )


def look_at(path: Path) -> BaseModel:
    """Hash a base model.

    Raises:
        SplitError: it is no whole model in safetensors with its tokenizer, or would run code.
    """
    try:
        if problem := _why_unusable(path):
            raise SplitError(f"base_model {path}: {problem}")
        if (before := manifest(path, links=True)) is None:
            raise SplitError(f"base_model {path} has too many files: give it a directory of its own")
        listing = "".join(f"{_sha256(path / name)}  {name}\n" for name in _names_read(path))
    except OSError as error:
        raise SplitError(
            f"base_model {path} cannot be read: {error.strerror}: mount it for the guard"
        ) from error
    return BaseModel(path, hashlib.sha256(listing.encode()).hexdigest(), before)


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
    configurations = (path / name for name in sorted(names) if name.endswith("config.json"))
    return why_names_unscorable(names, None) or next(filter(None, map(why_not_loaded, configurations)), "")


def _names_read(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.endswith((*NEEDED_SUFFIXES, ".safetensors")))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
