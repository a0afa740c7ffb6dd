"""Finds the checkpoints of a run that are complete, by the framework's own marker or layout.

What lies there is a trainer's, so hostile: no link is followed, no file is loaded, and of each only a bounded
part is read.
"""

from __future__ import annotations

import json
import os
import re
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlguard.follow.errors import InputError
from rlguard.follow.frameworks import BY_KEY, FRAMEWORKS, Layout
from rlguard.follow.safe_open import entries, open_regular

#: Without a marker a checkpoint is complete when none of its files has changed for so long, seconds.
QUIET_SECONDS = 30.0
#: So long where the mark of the whole folder is older, s: by another clock, or of an earlier start.
OLD_MARK_SECONDS = 300.0
#: Of Hugging Face's code, and of ROLL's with Megatron.
_SHARD = re.compile(r".*-\d{5}-of-\d{5}\.safetensors|model\d+_\d+\.safetensors")
MAX_HEADER = 64 << 20
MAX_SMALL_FILE = 16 << 20

#: Bytes at the end of a mark of JSON in which its last brace is.
MARK_TAIL = 64
_WHAT_HOSTILE_FILES_RAISE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError),
    struct.error,
    InputError,
)


@dataclass(frozen=True, slots=True)
class CompleteCheckpoint:
    """A checkpoint that is complete: its step, the folder with the model, and when that was written, ns."""

    step: int
    path: Path
    written: int


@dataclass(frozen=True, slots=True)
class Unfit:
    """A checkpoint that cannot be scored; `why` goes on after its path."""

    step: int
    path: Path
    why: str


def layouts_of(framework: str | None) -> tuple[Layout, ...]:
    """Where to look: the layouts of one framework, or every one that cannot be taken for another's."""
    if framework is not None:
        return BY_KEY[framework].layouts
    every = [layout for f in FRAMEWORKS for layout in f.layouts if not layout.ambiguous]
    return tuple(dict.fromkeys(every))


def find_checkpoints(
    root: Path, layouts: Sequence[Layout], now: float | None = None
) -> list[CompleteCheckpoint | Unfit]:
    """The complete checkpoints directly below `root`, by step.

    Args:
        root: a folder, which need not exist yet.
        layouts: of these, the first by which a folder is complete.
        now: the time, seconds since 1970; None asks the clock.
    """
    now = time.time() if now is None else now
    found: list[CompleteCheckpoint | Unfit] = []
    for name, path in _folders(root):
        checked = [c for layout in layouts if (c := _check(root, name, path, layout, now)) is not None]
        fit = [c for c in checked if isinstance(c, CompleteCheckpoint)]
        found += fit[:1] or checked[:1]
    return sorted(found, key=lambda c: c.step)


def _folders(root: Path) -> Iterator[tuple[str, Path]]:
    for entry in entries(root):
        if entry.is_dir(follow_symlinks=False):
            yield entry.name, root / entry.name


def _check(
    root: Path, name: str, path: Path, layout: Layout, now: float
) -> CompleteCheckpoint | Unfit | None:
    match = layout.folder.fullmatch(name)
    if match is None:
        return None
    step = int(match[1])
    try:
        marked = _marked(root, path, layout, step)
        if marked is None:
            return None
        model = next(filter(_has_weights, _places(path, layout)), None)
        if model is None:
            why = f"holds no weights in safetensors, so it cannot be scored: {layout.advice}"
            return Unfit(step, path, why) if layout.marks else None
        written = _newest(model)
        # An old mark beside a newer file: it is being written again, perhaps shard by shard, or the clocks of
        # two nodes differ. A file within the checkpoint is written before some others of it, and a copy has
        # any order, so there the weights or a shorter quiet count.
        newest = written if layout.latest else max(_when(file) for file in _weights(model))
        quiet = OLD_MARK_SECONDS if layout.latest else QUIET_SECONDS
        settled = newest <= marked or now - written / 1e9 >= quiet
        return CompleteCheckpoint(step, model, written) if settled and _whole(model) else None
    except PermissionError:
        why = f"cannot be read by user {os.geteuid()}: let the trainer's script `chmod -R a+rX` what it saved"
        return Unfit(step, path, why)
    except _WHAT_HOSTILE_FILES_RAISE:
        return None  # it changes, or goes, while it is looked at


def _places(path: Path, layout: Layout) -> Iterator[Path]:
    """Where the model of a checkpoint may be."""
    yield from (path / sub for sub in layout.models)
    if layout.merged:
        yield path.with_name(path.name + layout.merged)


def _marked(root: Path, path: Path, layout: Layout, step: int) -> int | None:
    """When the framework marked it as complete, ns; 0 where it has no mark; None if it is not, or no such."""
    if layout.latest:
        file = root / layout.latest
        text = _small(file).decode()
        newest = json.loads(text)[layout.latest_key] if layout.latest_key else int(text)
        return _when(file) if isinstance(newest, int) and newest >= step else None
    if layout.marker:
        mark = path / layout.marker
        return _when(mark) if mark.is_file() and _is_written(mark) else None
    return None if layout.known_by and not (path / layout.known_by).is_file() else 0


def _is_written(mark: Path) -> bool:
    """Whether a mark with content has it: it is there, and empty, before its writer has closed it."""
    if mark.suffix != ".json":
        return True
    with os.fdopen(open_regular(mark), "rb") as stream:
        end = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, end - MARK_TAIL))
        return stream.read().rstrip().endswith(b"}")


def _has_weights(model: Path) -> bool:
    return model.is_dir() and not model.is_symlink() and any(True for _ in _weights(model))


def _weights(model: Path) -> Iterator[Path]:
    for entry in entries(model):
        if entry.name.endswith(".safetensors") and entry.is_file(follow_symlinks=False):
            yield model / entry.name


def _newest(model: Path) -> int:
    files = (entry for entry in entries(model) if entry.is_file())
    return max(entry.stat(follow_symlinks=False).st_mtime_ns for entry in files)


def _whole(model: Path) -> bool:
    """Whether each file of weights is as long as its header says, and all that the index names are there."""
    there = {file.name for file in _weights(model) if _is_whole(file)}
    if any(file.name not in there for file in _weights(model)):
        return False
    index = model / "model.safetensors.index.json"
    if not index.exists():  # it is written after the shards
        return not any(_SHARD.fullmatch(name) for name in there)
    return set(json.loads(_small(index))["weight_map"].values()) <= there


def _when(file: Path) -> int:
    return os.lstat(file).st_mtime_ns


def _is_whole(file: Path) -> bool:
    with os.fdopen(open_regular(file), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > min(MAX_HEADER, size):
            return False
        header = json.loads(stream.read(length))
    ends = [t["data_offsets"][1] for name, t in header.items() if name != "__metadata__"]
    return bool(size == 8 + length + max(ends, default=0))


def _small(file: Path) -> bytes:
    with os.fdopen(open_regular(file), "rb") as stream:
        return stream.read(MAX_SMALL_FILE)
