"""What the guard adds to vLLM's workers, each of which holds the model or a part of it. They import this."""

from __future__ import annotations

from typing import Any

from guard_service.heldout.parent import die_with_parent

# With more than one GPU each worker is a process, which imports this first: one that hangs would else outlive
# the evaluation process, with the memory of its GPU.
die_with_parent()


class GuardedWorker:
    """A base class that vLLM gives its worker; the names must not be the worker's own."""

    _guard_broken: Any = None
    _guard_tied: tuple[bool, ...] = ()

    def guard_watch(self) -> None:
        """Remember from now on whether a row of logits had no finite maximum; single ones may be -inf."""
        import torch

        model: Any = self.get_model()  # type: ignore[attr-defined]
        self._guard_tied = tuple(_shares_its_weights(head, model) for head in _outputs(model))
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

    def guard_broken(self) -> bool:
        """Whether there was such a row since this was last asked."""
        broken, self._guard_broken = self._guard_broken, None
        return broken is not None and bool(broken.item())

    def guard_output(self) -> bool:
        """Whether the output computes with the weights that were loaded, after it was made of them again.

        Where it has the weights of the input, vLLM 0.32 loads these once, and what its kernels have made of
        them for the output stays: a packed copy, on a CPU. Of an output that is quantized this is not known.
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

        model: Any = self.get_model()  # type: ignore[attr-defined]
        outputs = _outputs(model)
        if not all(isinstance(head.quant_method, UnquantizedEmbeddingMethod) for head in outputs):
            return False
        for head in outputs:
            head.quant_method.process_weights_after_loading(head)
        tied = tuple(_shares_its_weights(head, model) for head in outputs)
        return tied == self._guard_tied and all(_computes_with_its_weights(head) for head in outputs)


def _outputs(model: Any) -> list[Any]:
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    return [module for module in model.modules() if isinstance(module, ParallelLMHead)]


def _shares_its_weights(head: Any, model: Any) -> bool:
    """Whether these output embeddings are input embeddings: one tensor, and not two that are alike."""
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    own = getattr(head, "weight", None)
    others = (m for m in model.modules() if isinstance(m, VocabParallelEmbedding) and m is not head)
    return any(own is not None and own is getattr(other, "weight", None) for other in others)


def _computes_with_its_weights(head: Any) -> bool:
    import torch

    hidden = torch.ones(1, head.weight.shape[1], dtype=head.weight.dtype, device=head.weight.device)
    made = head.quant_method.apply(head, hidden).float()
    expected = torch.nn.functional.linear(hidden, head.weight).float()
    near = 0.02 * expected.abs().max().item()  # the kernels of the two add in another order
    return bool(torch.allclose(made, expected, rtol=0.0, atol=near, equal_nan=True))
