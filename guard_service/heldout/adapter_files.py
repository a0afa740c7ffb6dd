"""What an adapter (PEFT) is, read from the guard's own copy of it: its configuration and its weights' shapes.

No torch here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from guard_core.adapter import (
    CONFIG,
    WEIGHTS,
    AdapterConfig,
    AdapterError,
    Shapes,
    another_base,
    read_adapter_config,
    read_shapes,
)

_FLOATS = ("F16", "BF16", "F32", "F64")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA that can be applied. `shapes`: of both factors of each module that it adapts."""

    config: AdapterConfig
    shapes: Mapping[str, Shapes]


def read_adapter(copy: Path, base: Path) -> Adapter:
    """The adapter in this directory, if it is one of the base model in `base`.

    Raises:
        AdapterError: why it cannot be applied.
    """
    try:
        content = json.loads((copy / CONFIG).read_bytes())
    except (ValueError, RecursionError):
        raise AdapterError(f"{CONFIG} cannot be read: save the adapter again, complete") from None
    config = read_adapter_config(content)
    if reason := another_base(config, str(base)):
        raise AdapterError(reason)
    return Adapter(config, read_shapes(config, _tensors(copy / WEIGHTS)))


def _tensors(path: Path) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor."""
    from safetensors import SafetensorError, safe_open

    shapes = {}
    try:
        with safe_open(path, "np") as weights:
            for name in weights.keys():  # noqa: SIM118
                tensor = weights.get_slice(name)
                if tensor.get_dtype() not in _FLOATS:
                    raise AdapterError(f"{WEIGHTS}: {name[:200]!r} is not one of {', '.join(_FLOATS)}")
                shapes[name] = tuple(tensor.get_shape())
    except SafetensorError:
        raise AdapterError(f"{WEIGHTS} cannot be read: save the adapter again, complete") from None
    return shapes
