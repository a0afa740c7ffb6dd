"""Copy what is needed of a checkpoint while hashing it, so that what is hashed is what is scored.

The directory was written by the process under suspicion and may be rotated away at any moment. Only plain
files at its top are read, links are not followed, and nothing that could run code is taken: weights in
safetensors only, no `auto_map`. Everything but the weights must be small, and of no file is more copied than
the room was checked for. No torch here.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from guard_core import adapter
from guard_core.adapter import AdapterError
from guard_core.wire import FailureKind
from guard_service.heldout.adapter_files import Adapter, read_adapter
from guard_service.heldout.errors import CheckpointGoneError, EvaluationError
from guard_service.heldout.identity import gone, matters, pinned, refuse_changed
from guard_service.heldout.scorable import (
    INDEX,
    NEEDED_SUFFIXES,
    WEIGHTS,
    instead,
    is_adapter,
    why_names_unscorable,
)

CHUNK_BYTES = 1 << 22
#: Of configuration and tokenizer: for each file, and for all. The largest tokenizers have 35 MB.
MAX_SMALL_BYTES = 64 << 20
MAX_SMALL_BYTES_IN_ALL = 256 << 20
MAX_SMALL_FILES = 1_000
#: Of JSON that is no vocabulary: read, it takes up to thirty times as much memory. The largest have 2 MB.
MAX_CONFIG_BYTES = 8 << 20
#: Room that no copy takes: the guard's store lies on the same disk, and may grow to as much.
RESERVED_BYTES = 1 << 30
RESERVED_SHARE = 0.25  # of a disk on which that would be more
MAX_TOLD = 200  # characters of a name in a file, in a message
#: How JSON begins to be called that is a vocabulary, or has an entry for each tensor, and names no code.
_LARGE = ("tokenizer.json", "vocab", "tekken", INDEX)
T = TypeVar("T")
#: Errors of a file that was there when the directory was listed; ESTALE is what NFS says.
_GONE = frozenset({errno.ENOENT, errno.ESTALE})


@dataclass(frozen=True, slots=True)
class Staged:
    """A private copy of a checkpoint.

    `sha256`: of the weights: that of `model.safetensors`, or for shards that of the lines `sha256sum` would
    print for them in order of name; for an adapter of the lines for its configuration and its weights.
    `adapter`: what to apply to the base model; None where the copy is a whole model.
    """

    path: Path
    sha256: str
    adapter: Adapter | None = None


def stage(source: Path, target: Path, base: Path | None = None, announced: str | None = None) -> Staged:
    """Copy the loadable part of the checkpoint `source` into the new directory `target`.

    Args:
        source: the checkpoint.
        target: the new directory.
        base: the guard's own base model, to which an adapter is applied; None refuses adapters.
        announced: manifest of its files when it was announced; they must be the same before and after.

    Raises:
        CheckpointGoneError: it was removed, perhaps in part or while it was copied; `target` is removed.
        EvaluationError: no complete, safe checkpoint is there; `target` is removed.
    """

    def as_announced(source: Path, directory: int, target: Path) -> Staged:
        refuse_changed(source, directory, announced)
        try:
            return _stage(source, directory, target, base)
        finally:  # says more than what is wrong or missing by then
            refuse_changed(source, directory, announced)

    return _with_directory(source, target, as_announced)


def refuse_unstageable(source: Path, base: Path | None = None) -> None:
    """Refuse what `stage` would refuse, but copy only what is small. The arguments are those of `stage`.

    Raises:
        EvaluationError: no complete, safe checkpoint is there.
    """

    def look(source: Path, directory: int, target: Path) -> None:
        if _prepare(source, directory, target, base) == [adapter.WEIGHTS]:
            weights = _sizes(directory, [adapter.WEIGHTS])  # an adapter is small
            _refuse_too_large(source, target, "its weights need", weights)
            _copy(source, directory, adapter.WEIGHTS, target, weights[adapter.WEIGHTS])
            _read_adapter(source, target, base)

    with tempfile.TemporaryDirectory(prefix="rlguard-") as folder:
        try:
            _with_directory(source, Path(folder) / "checkpoint", look)
        except CheckpointGoneError as error:  # nobody announced it, so nobody rotated it away
            raise EvaluationError(f"checkpoint {source}: no such directory") from error


def pins_of(source: Path, target: Path, base: Path | None, announced: str | None) -> dict[str, str]:
    """`pinned` of a checkpoint, of which only what is small is copied. The arguments are those of `stage`.

    Raises:
        CheckpointGoneError: it was removed.
        EvaluationError: `stage` would refuse it.
    """

    def look(source: Path, directory: int, target: Path) -> dict[str, str]:
        refuse_changed(source, directory, announced)
        _prepare(source, directory, target, base)
        refuse_changed(source, directory, announced)
        return pinned(target)

    return _with_directory(source, target, look)


def _with_directory(source: Path, target: Path, act: Callable[[Path, int, Path], T]) -> T:
    """What `act` makes of the open directory; `target` is removed if it fails."""
    try:
        target.mkdir(mode=0o700)
    except OSError as error:
        raise EvaluationError(f"{target} cannot be made: {error.strerror}") from error
    try:
        directory = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        if error.errno in _GONE:
            raise gone(source) from error
        raise EvaluationError(f"checkpoint {source} cannot be opened: {error.strerror}") from error
    try:
        return act(source, directory, target)
    except BaseException as error:
        shutil.rmtree(target, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in _GONE:
            raise gone(source) from error
        if isinstance(error, EvaluationError) and not source.exists():  # what is missing was being removed
            raise gone(source) from error
        if isinstance(error, PermissionError):
            raise EvaluationError(
                f"checkpoint {source}: {error.filename} may not be read by the guard (user {os.getuid()}): "
                "make it readable before the checkpoint is announced; GuardCallback does"
            ) from error
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            raise EvaluationError(
                f"checkpoint {source}: the guard ran out of memory while it copied its files: give it more",
                FailureKind.OUT_OF_MEMORY,
            ) from error
        if isinstance(error, OSError):
            what = "a symbolic link" if error.errno == errno.ELOOP else f"not copied ({error.strerror})"
            raise EvaluationError(
                f"checkpoint {source}: {error.filename} is {what}: save real files, complete, before the "
                "checkpoint is announced, and keep it until it is scored"
            ) from error
        raise
    finally:
        os.close(directory)


def _prepare(source: Path, directory: int, target: Path, base: Path | None) -> list[str]:
    """Copy configuration and tokenizer, look at them, and name the files of the weights."""
    names = sorted(os.listdir(directory))
    if reason := why_names_unscorable(names, base):
        raise EvaluationError(f"checkpoint {source}: {reason}")
    # Beside whole weights transformers would load what an adapter's configuration names.
    not_needed = set() if is_adapter(names) else {adapter.CONFIG}
    if WEIGHTS in names:  # an index beside it is of an earlier save, and names shards that are not taken
        not_needed = not_needed | {INDEX}
    needed = [n for n in names if n.endswith(NEEDED_SUFFIXES) and matters(n) and n not in not_needed]
    small = _sizes(directory, needed)
    if reason := _why_not_small(small):
        raise EvaluationError(f"checkpoint {source}: {reason}")
    _refuse_too_large(source, target, "its configuration and tokenizer need", small)
    for name, size in small.items():
        _copy(source, directory, name, target, size)
    for name in small:
        _refuse_remote_code(source, target / name)
    return [adapter.WEIGHTS] if is_adapter(names) else _weight_files(source, names, target)


def _stage(source: Path, directory: int, target: Path, base: Path | None) -> Staged:
    weights = _sizes(directory, _prepare(source, directory, target, base))
    _refuse_too_large(source, target, "its weights need", weights)
    digests = {name: _copy(source, directory, name, target, size) for name, size in weights.items()}
    if len(digests) == 1 and WEIGHTS in digests:
        return Staged(target, digests[WEIGHTS])
    found = None
    if adapter.WEIGHTS in digests:
        found = _read_adapter(source, target, base)
        digests[adapter.CONFIG] = hashlib.sha256((target / adapter.CONFIG).read_bytes()).hexdigest()
    listing = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return Staged(target, hashlib.sha256(listing.encode()).hexdigest(), found)


def _sizes(directory: int, names: list[str]) -> dict[str, int]:
    return {name: os.stat(name, dir_fd=directory, follow_symlinks=False).st_size for name in names}


def _why_not_small(sizes: Mapping[str, int]) -> str:
    """Why these files are too large for configuration and tokenizer, in one clause; "" if they are not."""
    if large := next((name for name, size in sizes.items() if size > _most(name)), None):
        return (
            f"{large} has {sizes[large]} bytes, and of such a file at most {_most(large)} are taken: "
            "remove it, or save the tokenizer again"
        )
    if len(sizes) > MAX_SMALL_FILES or sum(sizes.values()) > MAX_SMALL_BYTES_IN_ALL:
        return (
            f"besides weights it has {len(sizes)} files with {sum(sizes.values())} bytes, and at most "
            f"{MAX_SMALL_FILES} with {MAX_SMALL_BYTES_IN_ALL} are taken: save it into a directory of its own"
        )
    return ""


def _most(name: str) -> int:
    """Bytes that a file of this name may have, which is no weights."""
    return MAX_CONFIG_BYTES if _is_configuration(name) else MAX_SMALL_BYTES


def _is_configuration(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(_LARGE)


def _refuse_too_large(source: Path, target: Path, what: str, sizes: Mapping[str, int]) -> None:
    refuse_without_room(target.parent, f"checkpoint {source}: {what}", sum(sizes.values()))


def refuse_without_room(folder: Path, what: str, needed: int) -> None:
    """Refuse to write so many bytes into the folder if they do not fit beside the reserve.

    Raises:
        EvaluationError: `what`, which ends with a verb, and the numbers.
    """
    disk = shutil.disk_usage(folder)
    reserve = int(min(RESERVED_BYTES, RESERVED_SHARE * disk.total))
    if disk.free < needed + reserve:
        raise EvaluationError(
            f"{what} {needed} bytes in {folder}, which has {disk.free} and keeps {reserve} for the guard's "
            "store: free some, or move the guard's state directory"
        )


def _read_adapter(source: Path, copy: Path, base: Path | None) -> Adapter:
    assert base is not None, "an adapter is unfit without a base model"
    try:
        return read_adapter(copy, base)
    except AdapterError as error:
        raise EvaluationError(f"checkpoint {source}: {error}") from error


def _weight_files(source: Path, names: list[str], target: Path) -> list[str]:
    if WEIGHTS in names:
        return [WEIGHTS]
    try:
        shards = set(json.loads((target / INDEX).read_bytes())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise EvaluationError(f"checkpoint {source}: {INDEX} has no weight_map: save it again") from error
    missing = sorted(str(shard) for shard in shards if shard not in names)
    if missing:
        raise EvaluationError(
            f"checkpoint {source}: {len(missing)} of {len(shards)} shards are missing, the first: "
            f"{missing[0][:MAX_TOLD]}; announce a checkpoint when it is complete"
        )
    if adapter.WEIGHTS in shards:  # what is of that name is applied to the base model
        raise EvaluationError(
            f"checkpoint {source}: {INDEX} names {adapter.WEIGHTS}, which is how weights of an adapter are "
            "called: save the whole model, or the adapter alone"
        )
    if unsafe := sorted(shard for shard in shards if not shard.endswith(".safetensors")):
        raise EvaluationError(f"checkpoint {source}: {instead(unsafe)}")
    return sorted(shards)


def _copy(source: Path, directory: int, name: str, target: Path, most: int) -> str:
    """Copy one plain file of at most so many bytes and give the sha256 of the bytes that were written."""
    digest, left = hashlib.sha256(), most
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    with open(descriptor, "rb", buffering=0) as file, open(target / name, "xb", buffering=0) as copy:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise EvaluationError(f"checkpoint {source}: {name} is not a plain file: save a real copy")
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while size := file.readinto(buffer):
            left -= size
            if left < 0:
                raise EvaluationError(
                    f"checkpoint {source}: {name} grew while it was copied: announce a checkpoint when it is "
                    "complete"
                )
            digest.update(buffer[:size])
            copy.write(buffer[:size])
    return digest.hexdigest()


def _refuse_remote_code(source: Path, path: Path) -> None:
    if not _is_configuration(path.name) or path.name == adapter.CONFIG:
        return
    try:
        names_code = _has_key(json.loads(path.read_bytes()), "auto_map")
    except (ValueError, RecursionError) as error:
        raise EvaluationError(f"checkpoint {source}: {path.name} is not JSON: save it again") from error
    if names_code:
        raise EvaluationError(
            f"checkpoint {source}: {path.name} has an auto_map, which names code to load; the guard runs no "
            "code of a checkpoint: use an architecture that transformers has"
        )


def _has_key(value: Any, key: str) -> bool:
    if isinstance(value, dict):
        return key in value or any(_has_key(v, key) for v in value.values())
    return isinstance(value, list) and any(_has_key(v, key) for v in value)
