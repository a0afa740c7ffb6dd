"""The trainer: `GuardCallback` for any TRL or HF trainer, `GuardedGRPOTrainer`, and the image's entrypoint.

Importing the package loads neither torch nor transformers; the two public names load on first use.
"""

from typing import Any

__all__ = ["GuardCallback", "GuardedGRPOTrainer"]


def __getattr__(name: str) -> Any:
    if name == "GuardCallback":
        from trainer_image.callback import GuardCallback

        return GuardCallback
    if name == "GuardedGRPOTrainer":
        from trainer_image.guarded_trainer import GuardedGRPOTrainer

        return GuardedGRPOTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
