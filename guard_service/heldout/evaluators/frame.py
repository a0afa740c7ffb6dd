"""What an engine of vLLM is built for, which weights that are loaded over others must share.

vLLM leaves a tensor that is missing as it was, and what it derives from a configuration as it was derived: of
another frame the engine would score a mixture of two checkpoints.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guard_core.wire import FailureKind
from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.evaluators.weights import SAFELY, loading

#: How tensors of output embeddings are called.
OUTPUT_EMBEDDINGS = ("lm_head.weight", "embed_out.weight", "output.weight")
#: Keys of a configuration that say who wrote it, and from where.
_VARY = ("transformers_version", "_name_or_path")


#: Name, type and shape of a tensor.
Form = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Frame:
    """Of a directory with a model. `tied`: its output embeddings are its input embeddings. `output`: it has
    output embeddings of its own, though they may be alike.
    """

    digest: str
    tied: bool
    output: bool


def frame_of(path: Path, shown: str) -> Frame:
    """The configuration, each tensor's name, type and shape, and whether an output is saved as an input is.

    Such a pair is one tensor to an engine that is started with it, and so would be two that differ.

    Raises:
        EvaluationError: the files cannot be read, or name another model to load.
    """
    from transformers import AutoConfig

    with loading(shown, FailureKind.CHECKPOINT):
        config = json.loads((path / "config.json").read_bytes())
        config = {key: value for key, value in config.items() if key not in _VARY}
    if "speculators_config" in config:  # vLLM would follow it
        raise EvaluationError(
            f"{shown}: config.json has a speculators_config, which names another model: save the policy "
            "itself",
            FailureKind.CHECKPOINT,
        )
    with loading(shown, FailureKind.WEIGHTS):
        found = _forms(path)
        read = AutoConfig.from_pretrained(path, **SAFELY)
        text = read.get_text_config()
        alike = _is_tied(path, found)
        frame = json.dumps([config, sorted(found), alike], sort_keys=True)
    tied = alike or read.tie_word_embeddings or text.tie_word_embeddings
    output = any(name.endswith(OUTPUT_EMBEDDINGS) for name, *_ in found)
    return Frame(hashlib.sha256(frame.encode()).hexdigest(), bool(tied), output)


def _forms(path: Path) -> list[Form]:
    from safetensors import safe_open

    found: list[Form] = []
    for file in _files(path):
        with safe_open(file, "np") as weights:
            slices = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
            found += [(name, part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()]
    names = sorted(name for name, *_ in found)
    if twice := [one for one, other in itertools.pairwise(names) if one == other]:
        raise ValueError(f"{len(twice)} of its weights are there twice, the first: {twice[0][:200]}")
    return found


def has_tied_values(path: Path, dtype: Any) -> bool:
    """Whether an output of the model in a directory has the values of a tensor of its shape, in this type."""
    return _is_tied(path, _forms(path), dtype)


def _is_tied(path: Path, found: Sequence[Form], dtype: Any = None) -> bool:
    """The same, whatever the configuration says; `dtype` None: as they are, and of one type.

    Of those `found` those are read that may be the same as an output.
    """
    from torch import equal

    for output, *form in found:
        if output.endswith(OUTPUT_EMBEDDINGS):
            of = slice(1, None) if dtype is not None else slice(None)  # the shape, or the type as well
            alike = dict(tensors(path, {name for name, *other in found if other[of] == form[of]}))
            own, *others = (
                one if dtype is None else one.to(dtype) for one in (alike.pop(output), *alike.values())
            )
            if any(equal(own, one) for one in others):
                return True
    return False


def _files(path: Path) -> list[Path]:
    """Those with weights."""
    return sorted(path.glob("*.safetensors"))


def tensors(path: Path, names: Set[str] | None = None) -> Iterator[tuple[str, Any]]:
    """Name and tensor, one after the other, of all or of these; none is read before it is asked for."""
    from safetensors import safe_open

    for file in _files(path):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118
                if names is None or name in names:
                    yield name, weights.get_tensor(name)
