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
from typing import TypeVar

from guard_service.heldout.errors import CheckpointGoneError, EvaluationError
from guard_service.heldout.identity import (
    ANYTHING,
    Expected,
    gone,
    matters,
    pinned,
    refuse_changed,
    refuse_others,
)
from guard_service.heldout.scorable import (
    INDEX,
    NEEDED_SUFFIXES,
    WEIGHTS,
    drop_named_files,
    instead,
    is_adapter,
    is_configuration,
    parse_adapter_config,
    why_names_unscorable,
    why_not_loaded,
)
from rlguard.core import adapter
from rlguard.core.adapter import (
    AdapterConfig,
    AdapterError,
    Shapes,
    read_shapes,
)
from rlguard.core.wire import FailureKind

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
MAX_NAME = 200  # characters of a name in a file, in a message
_FLOATS = ("F16", "BF16", "F32", "F64")
T = TypeVar("T")
#: Errors of a file that was there when the directory was listed; ESTALE is what NFS says.
_GONE = frozenset({errno.ENOENT, errno.ESTALE})


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA that can be applied. `shapes`: of both factors of each module that it adapts."""

    config: AdapterConfig
    shapes: Mapping[str, Shapes]


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


@dataclass(frozen=True, slots=True)
class _Copying:
    """A checkpoint, open as `directory`, that is copied to the new directory `target`.

    `base`: the guard's own base model, to which an adapter is applied; None refuses adapters.
    """

    source: Path
    directory: int
    target: Path
    base: Path | None

    def failure(self, reason: str) -> EvaluationError:
        """What to raise."""
        return EvaluationError(f"checkpoint {self.source}: {reason}")


def stage(source: Path, target: Path, base: Path | None = None, expected: Expected = ANYTHING) -> Staged:
    """Copy the loadable part of the checkpoint `source` into the new directory `target`.

    Args:
        source: the checkpoint.
        target: the new directory.
        base: the guard's own base model, to which an adapter is applied; None refuses adapters.
        expected: what the checkpoint must be. Its files must be the same before and after.

    Raises:
        CheckpointGoneError: it was removed, perhaps in part or while it was copied; `target` is removed.
        EvaluationError: no complete, safe checkpoint is there, or another one; `target` is removed.
    """

    def take(copying: _Copying) -> Staged:
        refuse_changed(source, copying.directory, expected.manifest)
        try:
            staged = _copy_all(copying)
        finally:  # says more than what is wrong or missing by then
            refuse_changed(source, copying.directory, expected.manifest)
        refuse_others(source, pinned(target), staged.sha256, expected)
        # Not before: the pins are of what the trainer has saved.
        if reason := drop_named_files(target):
            raise copying.failure(reason)
        return staged

    return _with_directory(source, target, base, take)


def refuse_unstageable(source: Path, base: Path | None = None) -> None:
    """Refuse what `stage` would refuse, but copy only what is small. The arguments are those of `stage`.

    Raises:
        EvaluationError: no complete, safe checkpoint is there.
    """

    def look(copying: _Copying) -> None:
        if _copy_small(copying) == [adapter.WEIGHTS]:  # an adapter is small
            _copy_files(copying, [adapter.WEIGHTS], "its weights need")
            _read_adapter(copying)

    with tempfile.TemporaryDirectory(prefix="rlguard-") as folder:
        try:
            _with_directory(source, Path(folder) / "checkpoint", base, look)
        except CheckpointGoneError as error:  # nobody announced it, so nobody rotated it away
            raise EvaluationError(f"checkpoint {source}: no such directory") from error


def pins_of(source: Path, target: Path, base: Path | None, announced: str | None) -> dict[str, str]:
    """`pinned` of a checkpoint, of which only what is small is copied. The arguments are those of `stage`.

    `announced`: manifest of its files when it was announced.

    Raises:
        CheckpointGoneError: it was removed.
        EvaluationError: `stage` would refuse it.
    """

    def look(copying: _Copying) -> dict[str, str]:
        refuse_changed(source, copying.directory, announced)
        _copy_small(copying)
        refuse_changed(source, copying.directory, announced)
        return pinned(target)

    return _with_directory(source, target, base, look)


def _with_directory(source: Path, target: Path, base: Path | None, act: Callable[[_Copying], T]) -> T:
    """What `act` makes of the open directory; `target` is removed if it fails."""
    try:
        target.mkdir(mode=0o700)
    except OSError as error:
        raise EvaluationError(f"{target} cannot be made: {error.strerror}") from error
    try:
        directory = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return act(_Copying(source, directory, target, base))
        finally:
            os.close(directory)
    except BaseException as error:
        shutil.rmtree(target, ignore_errors=True)
        raise _in_words(error, source) from error


def _in_words(error: BaseException, source: Path) -> BaseException:
    """What to raise for an error of taking a checkpoint's files."""
    # What is missing was being removed.
    was_removed = isinstance(error, EvaluationError) and not source.exists()
    if was_removed or (isinstance(error, OSError) and error.errno in _GONE):
        return gone(source)
    if isinstance(error, PermissionError):
        return EvaluationError(
            f"checkpoint {source}: {error.filename} may not be read by the guard (user {os.getuid()}): "
            "make it readable before the checkpoint is announced; GuardCallback does"
        )
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return EvaluationError(
            f"checkpoint {source}: the guard ran out of memory while it copied its files: give it more",
            FailureKind.OUT_OF_MEMORY,
        )
    if isinstance(error, OSError):
        what = "a symbolic link" if error.errno == errno.ELOOP else f"not copied ({error.strerror})"
        return EvaluationError(
            f"checkpoint {source}: {error.filename} is {what}: save real files, complete, before the "
            "checkpoint is announced, and keep it until it is scored"
        )
    return error


def _copy_all(copying: _Copying) -> Staged:
    digests = _copy_files(copying, _copy_small(copying), "its weights need")
    if digests.keys() == {WEIGHTS}:
        return Staged(copying.target, digests[WEIGHTS])
    found = None
    if adapter.WEIGHTS in digests:
        found = _read_adapter(copying)
        digests[adapter.CONFIG] = hashlib.sha256((copying.target / adapter.CONFIG).read_bytes()).hexdigest()
    listing = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return Staged(copying.target, hashlib.sha256(listing.encode()).hexdigest(), found)


def _copy_small(copying: _Copying) -> list[str]:
    """Copy configuration and tokenizer, look at them, and name the files of the weights."""
    names = sorted(os.listdir(copying.directory))
    if reason := why_names_unscorable(names, copying.base):
        raise copying.failure(reason)
    # Beside whole weights transformers would load what an adapter's configuration names.
    not_needed = set() if is_adapter(names) else {adapter.CONFIG}
    if WEIGHTS in names:  # an index beside it is of an earlier save, and names shards that are not taken
        not_needed = not_needed | {INDEX}
    needed = [n for n in names if n.endswith(NEEDED_SUFFIXES) and matters(n) and n not in not_needed]
    if reason := _why_not_small(_sizes(copying, needed)):
        raise copying.failure(reason)
    _copy_files(copying, needed, "its configuration and tokenizer need")
    for name in needed:
        checked = is_configuration(name) and name != adapter.CONFIG  # which is read in its own way
        if checked and (reason := why_not_loaded(copying.target / name)):
            raise copying.failure(reason)
    return [adapter.WEIGHTS] if is_adapter(names) else _weight_files(copying, names)


def _weight_files(copying: _Copying, names: list[str]) -> list[str]:
    if WEIGHTS in names:
        return [WEIGHTS]
    try:
        shards = set(json.loads((copying.target / INDEX).read_bytes())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise copying.failure(f"{INDEX} has no weight_map: save it again") from error
    if missing := sorted(str(shard) for shard in shards if shard not in names):
        raise copying.failure(
            f"{len(missing)} of {len(shards)} shards are missing, the first: {missing[0][:MAX_NAME]}; "
            "announce a checkpoint when it is complete"
        )
    if adapter.WEIGHTS in shards:  # what is of that name is applied to the base model
        raise copying.failure(
            f"{INDEX} names {adapter.WEIGHTS}, which is how weights of an adapter are called: save the whole "
            "model, or the adapter alone"
        )
    if unsafe := sorted(shard for shard in shards if not shard.endswith(".safetensors")):
        raise copying.failure(instead(unsafe))
    return sorted(shards)


def _sizes(copying: _Copying, names: list[str]) -> dict[str, int]:
    return {n: os.stat(n, dir_fd=copying.directory, follow_symlinks=False).st_size for n in names}


def _why_not_small(sizes: dict[str, int]) -> str:
    """Why these files are too large for configuration and tokenizer, in one clause; "" if they are not."""
    for name, size in sizes.items():
        most = MAX_CONFIG_BYTES if is_configuration(name) else MAX_SMALL_BYTES
        if size > most:
            return (
                f"{name} has {size} bytes, and of such a file at most {most} are taken: remove it, or save "
                "the tokenizer again"
            )
    if len(sizes) > MAX_SMALL_FILES or sum(sizes.values()) > MAX_SMALL_BYTES_IN_ALL:
        return (
            f"besides weights it has {len(sizes)} files with {sum(sizes.values())} bytes, and at most "
            f"{MAX_SMALL_FILES} with {MAX_SMALL_BYTES_IN_ALL} are taken: save it into a directory of its own"
        )
    return ""


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


def _read_adapter(copying: _Copying) -> Adapter:
    assert copying.base is not None, "an adapter is unfit without a base model"
    try:
        return read_adapter(copying.target, copying.base)
    except AdapterError as error:
        raise copying.failure(str(error)) from error


def read_adapter(copy: Path, base: Path) -> Adapter:
    """The adapter in this directory, if it is one of the base model in `base`.

    Raises:
        AdapterError: why it cannot be applied.
    """
    config = parse_adapter_config((copy / adapter.CONFIG).read_bytes(), base)
    return Adapter(config, read_shapes(config, _tensors(copy / adapter.WEIGHTS)))


def _tensors(path: Path) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor."""
    from safetensors import SafetensorError, safe_open

    shapes = {}
    try:
        with safe_open(path, "np") as weights:
            for name in weights.keys():  # noqa: SIM118
                tensor = weights.get_slice(name)
                if tensor.get_dtype() not in _FLOATS:
                    raise AdapterError(
                        f"{adapter.WEIGHTS}: {name[:200]!r} is not one of {', '.join(_FLOATS)}"
                    )
                shapes[name] = tuple(tensor.get_shape())
    except SafetensorError:
        raise AdapterError(f"{adapter.WEIGHTS} cannot be read: save the adapter again, complete") from None
    return shapes


def _copy_files(copying: _Copying, names: list[str], need: str) -> dict[str, str]:
    """Copy these files, if there is room for them; gives the digest of each."""
    sizes = _sizes(copying, names)
    refuse_without_room(copying.target.parent, f"checkpoint {copying.source}: {need}", sum(sizes.values()))
    return {name: _copy(copying, name, size) for name, size in sizes.items()}


def _copy(copying: _Copying, name: str, most: int) -> str:
    """Copy one plain file of at most so many bytes and give the sha256 of the bytes that were written."""
    digest, left = hashlib.sha256(), most
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=copying.directory)
    with open(descriptor, "rb", buffering=0) as file, open(copying.target / name, "xb", buffering=0) as copy:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise copying.failure(f"{name} is not a plain file: save a real copy")
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while size := file.readinto(buffer):
            left -= size
            if left < 0:
                raise copying.failure(
                    f"{name} grew while it was copied: announce a checkpoint when it is complete"
                )
            digest.update(buffer[:size])
            copy.write(buffer[:size])
    return digest.hexdigest()
