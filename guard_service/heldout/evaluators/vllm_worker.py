"""What the guard adds to vLLM's workers, each of which holds the model or a part of it. They import this."""

from __future__ import annotations

from typing import Any, NamedTuple

from guard_service.heldout.processes import die_with_parent

# With more than one GPU each worker is a process, which imports this first: one that hangs would else outlive
# the evaluation process, with the memory of its GPU.
die_with_parent()


class Watched(NamedTuple):
    """What a worker says of its model.

    `tied`: an output is tied to an input there. `reloadable`: other weights may be loaded over these.
    `sleeps`: all that it computes with is there again after a sleep and a reload.
    """

    tied: bool
    reloadable: bool
    sleeps: bool


class GuardedWorker:
    """A base class that vLLM gives its worker; the names must not be the worker's own."""

    _guard_broken: Any = None
    _guard_tied: tuple[bool, ...] = ()

    def guard_watch(self) -> Watched:
        """Remember from now on whether a row of logits had no finite maximum; single ones may be -inf."""
        import torch

        model: Any = self.get_model()  # type: ignore[attr-defined]
        outputs = _outputs(model)
        self._guard_tied = tuple(_shares_its_weights(head, model) for head in outputs)
        tied = any(self._guard_tied)
        biased = any(getattr(head, "bias", None) is not None for head in outputs)
        # A reload leaves the bias of a tied output as it was. The other models are transformers' own, whose
        # classes vLLM changes: no further one can be made in this process, to merge an adapter into.
        anew = _is_of_transformers(model) or not _are_plain(outputs) or (tied and biased)
        compute = model.compute_logits

        def watched(*args: Any, **options: Any) -> Any:
            logits = compute(*args, **options)
            if logits is not None and logits.numel():  # None where another worker has them
                broken = ~logits.amax(dim=-1).isfinite().all()
                known = self._guard_broken
                self._guard_broken = broken if known is None else known | broken
            return logits

        assert isinstance(model, torch.nn.Module)
        model.compute_logits = watched  # type: ignore[assignment]
        return Watched(tied, not anew, not keeps_tensors_of_its_own(model))

    def guard_broken(self) -> bool:
        """Whether there was such a row since this was last asked."""
        broken, self._guard_broken = self._guard_broken, None
        return broken is not None and bool(broken.item())

    def guard_output(self) -> bool:
        """Whether the output computes with the weights that were loaded, after it was made of them again.

        Where it has the weights of the input, vLLM 0.32 loads these once, and what its kernels have made of
        them for the output stays: a packed copy, on a CPU.
        """
        model: Any = self.get_model()  # type: ignore[attr-defined]
        outputs = _outputs(model)
        for head in outputs:
            head.quant_method.process_weights_after_loading(head)
        tied = tuple(_shares_its_weights(head, model) for head in outputs)
        return tied == self._guard_tied and all(_computes_with_its_weights(head) for head in outputs)


def _outputs(model: Any) -> list[Any]:
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    return [module for module in model.modules() if isinstance(module, ParallelLMHead)]


def keeps_tensors_of_its_own(model: Any) -> bool:
    """Whether an attention computes with a tensor that is none of the model's, such as the slopes of ALiBi.

    vLLM 0.32 gives up all of the weights' memory when it sleeps; after it, it has parameters and buffers.
    """
    import torch

    known = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    backends = (vars(module.impl) for module in model.modules() if hasattr(module, "impl"))
    kept = (t for attributes in backends for t in attributes.values() if isinstance(t, torch.Tensor))
    return any(tensor.untyped_storage().data_ptr() not in known for tensor in kept)


def _is_of_transformers(model: Any) -> bool:
    return type(model).__module__.startswith("vllm.model_executor.models.transformers")


def _are_plain(outputs: list[Any]) -> bool:
    """Whether none of them is quantized."""
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    return all(isinstance(head.quant_method, UnquantizedEmbeddingMethod) for head in outputs)


def _shares_its_weights(head: Any, model: Any) -> bool:
    """Whether these output embeddings are input embeddings: one tensor, and not two that are alike."""
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    own = getattr(head, "weight", None)
    others = (m for m in model.modules() if isinstance(m, VocabParallelEmbedding) and m is not head)
    return any(own is not None and own is getattr(other, "weight", None) for other in others)


def _computes_with_its_weights(head: Any) -> bool:
    import torch

    weight = head.weight
    hidden = torch.randn(8, weight.shape[1], generator=torch.Generator().manual_seed(0))
    hidden = hidden.to(weight.device, weight.dtype)
    made = head.quant_method.apply(head, hidden).float()
    expected = torch.nn.functional.linear(hidden, weight).float()
    near = 0.02 * expected.abs().amax(dim=0)  # of each row: the kernels of the two add in another order
    return bool(((made - expected).abs() <= near + 1e-6).all())
