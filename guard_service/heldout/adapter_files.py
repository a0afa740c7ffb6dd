"""Read what an adapter (PEFT) says of itself, without torch: its configuration and the header of its weights.

The directory may be the trainer's own, at the announcement, or the guard's copy of it. Only plain files are
read, links are not followed, and of the weights no more than the names and shapes.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from guard_core.adapter import (
    CONFIG,
    MAX_MODULES,
    WEIGHTS,
    AdapterConfig,
    AdapterError,
    Shapes,
    another_base,
    read_adapter_config,
    read_shapes,
)

MAX_CONFIG_BYTES = 1 << 20
MAX_HEADER_BYTES = 1 << 24
#: In a header, which the guard reads itself: two factors for each module, copies, and some room. Each is an
#: object with five commas and two lists.
MAX_TENSORS = 4 * MAX_MODULES
_LENGTH_BYTES = 8  # of the header, in front of it, little-endian: the format of safetensors
_FLOATS = ("F16", "BF16", "F32", "F64")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA that can be applied. `shapes`: of both factors of each module that it adapts."""

    config: AdapterConfig
    shapes: Mapping[str, Shapes]


def read_adapter(directory: Path, base: Path) -> Adapter:
    """The adapter in this directory, if it is one of the base model in `base`.

    Raises:
        AdapterError: why it cannot be applied.
        OSError: a file is missing, a link, or cannot be read.
    """
    with _open(directory / CONFIG) as file:
        config = read_adapter_config(_json(CONFIG, file.read(MAX_CONFIG_BYTES + 1), MAX_CONFIG_BYTES))
    if reason := another_base(config, str(base)):
        raise AdapterError(reason)
    with _open(directory / WEIGHTS) as file:
        return Adapter(config, read_shapes(config, _tensors(file)))


def _open(path: Path) -> BinaryIO:
    file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise AdapterError(f"{path.name} is not a plain file: save a real copy")
    return file


def _tensors(file: BinaryIO) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    data = file.read(min(length, MAX_HEADER_BYTES + 1))
    # What has no more commas and brackets has no more values, and so takes no more memory once it is read.
    if data.count(b"{") > MAX_TENSORS + 2 or data.count(b",") + data.count(b"[") > 8 * MAX_TENSORS:
        raise AdapterError(f"{WEIGHTS} has more than {MAX_TENSORS} tensors: save the adapter again")
    header = _json(WEIGHTS, data, MAX_HEADER_BYTES)
    if not isinstance(header, dict):
        raise AdapterError(f"{WEIGHTS} is not a safetensors file: save the adapter again")
    header.pop("__metadata__", None)
    return {name: _shape(name, entry) for name, entry in header.items()}


def _shape(name: str, entry: object) -> tuple[int, ...]:
    shape = entry.get("shape") if isinstance(entry, dict) else None
    if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
        raise AdapterError(f"{WEIGHTS}: {name[:200]!r} has no shape: save the adapter again")
    if isinstance(entry, dict) and entry.get("dtype") not in _FLOATS:
        raise AdapterError(
            f"{WEIGHTS}: {name[:200]!r} is not one of {', '.join(_FLOATS)}: save the adapter again"
        )
    return tuple(shape)


def _json(name: str, data: bytes, most: int) -> object:
    if len(data) > most:
        raise AdapterError(
            f"{name} is longer than {most} bytes where it says what the adapter is: save it again"
        )
    try:
        content: object = json.loads(data)
    except (ValueError, RecursionError):
        raise AdapterError(f"{name} cannot be read: save the adapter again, complete") from None
    return content
