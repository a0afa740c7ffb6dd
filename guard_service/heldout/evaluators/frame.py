"""What an engine of vLLM is built for, which weights that are loaded over others must share.

vLLM leaves a tensor that is missing as it was, and what it derives from a configuration as it was derived: of
another frame the engine would score a mixture of two checkpoints.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guard_core.wire import FailureKind
from guard_service.heldout.base_model import sha256_of
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
    """Of a directory with a model. `tied`: its output embeddings are its input embeddings."""

    digest: str
    tied: bool


def frame_of(path: Path, shown: str) -> Frame:
    """The configuration, and each tensor's name, type and shape; of tied embeddings the values, too.

    vLLM ties embeddings when an engine starts, and a reload may leave the output of the checkpoint before:
    such a model takes an engine of its own for each checkpoint in which they are others. An adapter leaves
    them as they are.

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
        tied = read.tie_word_embeddings or text.tie_word_embeddings or _is_tied(path, found)
        values = _embeddings(path, found, getattr(text, "vocab_size", None)) if tied else []
    frame = json.dumps([config, sorted(found), values], sort_keys=True)
    return Frame(hashlib.sha256(frame.encode()).hexdigest(), bool(tied))


def _forms(path: Path) -> list[Form]:
    from safetensors import safe_open

    found: list[Form] = []
    for file in _files(path):
        with safe_open(file, "np") as weights:
            slices = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
            found += [(name, part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()]
    return found


def _is_tied(path: Path, found: Sequence[Form]) -> bool:
    """Whether output and input embeddings have the same values, whatever the configuration says.

    Of those `found` those are read that may be the same as an output.
    """
    from torch import equal

    for output, *form in found:
        if output.endswith(OUTPUT_EMBEDDINGS):
            alike = dict(tensors(path, {name for name, *other in found if other == form}))
            own = alike.pop(output)
            if any(equal(own, one) for one in alike.values()):
                return True
    return False


def _embeddings(path: Path, found: Iterable[Form], vocabulary: int | None) -> list[str]:
    """Digests of what may be embeddings, which have a row for each token; without such, of all files."""
    names = {name for name, _, shape in found if len(shape) == 2 and shape[0] == vocabulary}
    if not names:
        return [sha256_of(file) for file in _files(path)]
    return [f"{name} {_digest(tensor)}" for name, tensor in tensors(path, names)]


def _digest(tensor: Any) -> str:
    import torch

    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy()).hexdigest()


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
