"""Show which weights vLLM scores. This runs in vLLM's workers, each with the model or a part of it.

Before a reload, NaN is loaded for every tensor, by vLLM's own way, and every parameter is made NaN. After it
none may be: so each was written since, and the only source was the directory of the checkpoint, whose tensors
the guard has hashed and found finite. Embeddings, which vLLM may share between input and output, are compared
with the file, and what a kernel makes of an output must compute what its weights do. Whatever else is made
of what was erased still has NaN in its logits, which are watched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from guard_service.heldout.processes import die_with_parent

# With more than one GPU each worker is a process, which imports this first: one that hangs would else outlive
# the evaluation process, with the memory of its GPU.
die_with_parent()


class GuardedWorker:
    """A base class that vLLM gives its worker; the names must not be the worker's own."""

    _guard_broken: Any = None

    def guard_watch(self) -> bool:
        """Watch the logits from now on. Whether other weights can be loaded over these."""
        model = self._guard_model()
        compute = model.compute_logits

        def watched(*args: Any, **options: Any) -> Any:
            logits = compute(*args, **options)
            if logits is not None and logits.numel():  # None where another worker has them
                broken = ~logits.amax(dim=-1).isfinite().all()  # single ones may be -inf
                known = self._guard_broken
                self._guard_broken = broken if known is None else known | broken
            return logits

        model.compute_logits = watched
        # vLLM changes the classes of models that it runs with transformers' own: no other one, to merge an
        # adapter into, can be loaded in this process.
        own = not type(model).__module__.startswith("vllm.model_executor.models.transformers")
        return own and all(map(_can_be_erased, model.parameters()))

    def guard_broken(self) -> bool:
        """Whether a row of logits had no finite maximum since this was last asked."""
        broken, self._guard_broken = self._guard_broken, None
        return broken is not None and bool(broken.item())

    def guard_erase(self, path: str) -> None:
        """Make NaN of every parameter, and of all that vLLM makes of the tensors in this directory."""
        self.reload_weights(weights_iterator=_erased(Path(path)))  # type: ignore[attr-defined]
        for parameter in self._guard_model().parameters():
            parameter.data.fill_(math.nan)

    def guard_has(self, path: str) -> bool:
        """Whether the model has the weights in this directory, and none of before."""
        from vllm.model_executor.layers import vocab_parallel_embedding as layers

        model = self._guard_model()
        if any(p.isnan().any() for p in model.parameters() if _can_be_erased(p)):
            return False
        for name, module in model.named_modules():
            if not isinstance(module, layers.VocabParallelEmbedding):
                continue
            if not isinstance(module.quant_method, layers.UnquantizedEmbeddingMethod):
                continue
            module.quant_method.process_weights_after_loading(module)
            is_output = isinstance(module, layers.ParallelLMHead)
            if not _is_as_saved(name, module, Path(path)):
                return False
            if is_output and not _computes_with_its_weights(module):
                return False
        return True

    def _guard_model(self) -> Any:
        return self.get_model()  # type: ignore[attr-defined]


def _erased(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield NaN for each tensor, with its name and in its shape. None takes memory."""
    import torch
    from safetensors import safe_open

    for file in path.glob("*.safetensors"):
        with safe_open(file, "pt") as saved:
            for name in saved.keys():  # noqa: SIM118
                yield name, torch.tensor(math.nan).expand(saved.get_slice(name).get_shape())


def _can_be_erased(parameter: Any) -> bool:
    """Whether it can be made NaN: no quantized one can."""
    return bool(parameter.is_floating_point() and parameter.itemsize > 1)


def _is_as_saved(name: str, embedding: Any, path: Path) -> bool:
    """Whether a tensor that was saved by the module's name is what this worker has of it."""
    from safetensors import safe_open

    ending = f"{name.rpartition('.')[2]}.weight"
    part = embedding.shard_indices
    first, last = part.org_vocab_start_index, part.org_vocab_end_index
    for file in path.glob("*.safetensors"):
        with safe_open(file, "pt") as saved:
            for tensor in (key for key in saved.keys() if key.endswith(ending)):  # noqa: SIM118
                own = embedding.weight[: last - first]
                if not own.equal(saved.get_slice(tensor)[first:last].to(own.device, own.dtype)):
                    return False
    return True


def _computes_with_its_weights(head: Any) -> bool:
    """Whether its kernel gives what its weights give. A CPU's has a packed copy of them."""
    import torch

    hidden = torch.randn(8, head.weight.shape[1], generator=torch.Generator().manual_seed(0))
    hidden = hidden.to(head.weight.device, head.weight.dtype)
    made = head.quant_method.apply(head, hidden).float()
    expected = torch.nn.functional.linear(hidden, head.weight).float()
    near = 0.02 * expected.abs().amax(dim=0)  # of each row: the kernels of the two add in another order
    return bool(((made - expected).abs() <= near + 1e-6).all())
