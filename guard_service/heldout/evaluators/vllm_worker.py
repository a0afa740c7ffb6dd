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

    def guard_watch(self) -> None:
        """Remember from now on whether a row of logits had no finite maximum; single ones may be -inf."""
        import torch

        model: Any = self.get_model()  # type: ignore[attr-defined]
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
