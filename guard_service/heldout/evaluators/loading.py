"""Read a model's files, and say what is wrong with them. They are hostile input."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from guard_service.heldout.errors import EvaluationError, one_line
from rlguard.core.adapter import AdapterError
from rlguard.core.wire import FailureKind

#: No code and no file but those of the directory.
SAFELY = {"local_files_only": True, "trust_remote_code": False}
#: How torch, vLLM and its workers say that there is no room: in a ValueError, or in a RuntimeError that
#: repeats what a worker said.
_NO_ROOM = re.compile(
    "out of memory"
    r"|is less than desired \w+ memory utilization"
    "|no available memory for the cache blocks"
    "|larger than the available kv cache memory"
    r"|not enough \w+ memory available"
    "|can't allocate memory",
    re.IGNORECASE,
)
#: Keys of a configuration that say who wrote it, and from where.
_VARY = ("transformers_version", "_name_or_path")


def whole_model(path: Path, shown: str, *, nothing_else: bool = False, **options: Any) -> Any:
    """The model in a directory, of which no weight is missing.

    Args:
        path: the directory.
        shown: how it is called in errors.
        nothing_else: whether weights that are none of the model's are refused. transformers leaves them
            alone; vLLM may know such names, and load them over others.
        options: of `from_pretrained`.

    Raises:
        EvaluationError: it does not load, is not whole, or has more.
    """
    from transformers import AutoModelForCausalLM

    with loading(shown, FailureKind.WEIGHTS):
        model, info = AutoModelForCausalLM.from_pretrained(
            path, **SAFELY, use_safetensors=True, output_loading_info=True, **options
        )
    if wrong := sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]])):
        raise EvaluationError(
            f"{shown}: {len(wrong)} of the model's weights are missing or have another shape, the "
            f"first: {wrong[0]}; it was not saved whole",
            FailureKind.WEIGHTS,
        )
    if nothing_else and (more := sorted(map(str, info["unexpected_keys"]))):
        raise EvaluationError(
            f"{shown}: {len(more)} of its weights are none of a {type(model).__name__}, the first: "
            f"{more[0][:200]}; save the model alone, without heads or copies of a trainer's",
            FailureKind.WEIGHTS,
        )
    return model


@contextmanager
def loading(shown: str, kind: FailureKind) -> Iterator[None]:
    """Whatever a library raises at a checkpoint's files, told as a failure of this kind."""
    try:
        yield
    except AdapterError as error:
        raise EvaluationError(f"{shown}: {error}", kind) from error
    except Exception as error:
        raise EvaluationError(
            f"{shown} cannot be loaded: {type(error).__name__}: {one_line(error)}",
            FailureKind.OUT_OF_MEMORY if out_of_memory(error) else kind,
        ) from error


def out_of_memory(error: Exception) -> bool:
    """Whether the machine or the device has no room left; torch's error is known by its name."""
    known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return known or _NO_ROOM.search(str(error)) is not None


def not_finite(weights: Iterable[tuple[str, Any]]) -> list[str]:
    """Names of the tensors with a value that is infinite or NaN, without a copy of any."""
    found = []
    for name, tensor in weights:
        if tensor.is_floating_point() and tensor.numel():
            low, high = tensor.detach().aminmax()
            if not (low.isfinite() & high.isfinite()).item():
                found.append(name)
    return sorted(found)


def refuse_not_finite(names: Sequence[str], shown: str) -> None:
    """Refuse a model with such parameters.

    Raises:
        EvaluationError: names the first.
    """
    if names:
        raise EvaluationError(
            f"{shown}: {len(names)} of the model's weights hold values that are infinite or not a "
            f"number, the first: {names[0][:200]}; the training has diverged, or the checkpoint is damaged",
            FailureKind.WEIGHTS,
        )


def on_cuda() -> bool:
    """Whether there is a device of CUDA, or of what looks like one."""
    import torch

    return bool(torch.cuda.is_available())


def precision(wanted: str, *, cuda: bool) -> str:
    """Name of the dtype to load in: `wanted`, or what `auto` means on that device."""
    import torch

    if wanted != "auto":
        return wanted
    return "bfloat16" if cuda and torch.cuda.is_bf16_supported() else "float32"


def tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each tensor with its name; none is read before it is asked for."""
    from safetensors import safe_open

    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118
                yield name, weights.get_tensor(name)


def layout(path: Path, shown: str) -> str:
    """Digest the configuration and each tensor's name, type and shape: what an engine of vLLM is built for.

    Raises:
        EvaluationError: the files cannot be read, have a tensor twice, or name another model to load.
    """
    from safetensors import safe_open

    with loading(shown, FailureKind.CHECKPOINT):
        config = json.loads((path / "config.json").read_bytes())
        config = {key: value for key, value in config.items() if key not in _VARY}
    if "speculators_config" in config:  # vLLM would follow it
        raise EvaluationError(
            f"{shown}: config.json has a speculators_config, which names another model: save the policy "
            "itself",
            FailureKind.CHECKPOINT,
        )
    forms: list[tuple[str, str, list[int]]] = []
    with loading(shown, FailureKind.WEIGHTS):
        for file in path.glob("*.safetensors"):
            with safe_open(file, "np") as weights:
                slices = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
                forms += [(name, one.get_dtype(), one.get_shape()) for name, one in slices.items()]
        forms.sort()
        if twice := [one[0] for one, other in itertools.pairwise(forms) if one[0] == other[0]]:
            raise ValueError(f"{len(twice)} of its weights are there twice, the first: {twice[0][:200]}")
    return hashlib.sha256(json.dumps([config, forms], sort_keys=True).encode()).hexdigest()
