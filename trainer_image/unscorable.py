"""What a guard could never score, found before the first step and said with the setting to change.

A run whose checkpoints nobody can load would train to its end unjudged. Each check reads the trainer as it is
when training begins, and changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guard_core.adapter import MERGE, AdapterError, read_adapter_config
from guard_core.preflight import never_in_time
from guard_core.wire import Adapters

#: Checkpoints of a run that is saved often enough, before the guard says how many it takes.
WANTED_CHECKPOINTS = 10


def unscorable(args: Any, state: Any, trainer: Any) -> str | None:
    """Why no checkpoint of this run could be scored, in one sentence; None if nothing speaks against it.

    Args:
        args: the `TrainingArguments`; what they lack is not checked.
        state: the `TrainerState` at the beginning of training.
        trainer: the Trainer, or None where only its arguments are known.
    """
    found = [check(args, state) for check in _OF_ARGUMENTS]
    if trainer is not None:
        found += [check(trainer) for check in _OF_TRAINER]
    return next((reason for reason in found if reason is not None), None)


def _never_saved(args: Any, state: Any) -> str | None:
    strategy = getattr(args, "save_strategy", None)
    last = getattr(state, "max_steps", 0)
    every = getattr(state, "save_steps", 0)
    match getattr(strategy, "value", strategy):
        case "no":
            return (
                "no checkpoint would be saved that the guard could score: "
                f"set save_strategy='steps' and save_steps={max(1, last // 10)}"
            )
        case "steps" if last > 0:
            return never_in_time(every, last, min(last, WANTED_CHECKPOINTS))
    return None


def _no_safetensors(args: Any, _: Any) -> str | None:
    if getattr(args, "save_safetensors", True):
        return None
    return "the guard reads safetensors only, and runs no pickle of a trainer: set save_safetensors=True"


def outside_root(args: Any, root: str | None) -> str | None:
    """Why the guard would refuse every checkpoint of this run for its place; None if it would not.

    A guard may see other links than the trainer, so a place is wrong only if it is with and without them.

    Args:
        args: the `TrainingArguments`.
        root: the directory below which the guard takes checkpoints (`Verdict.checkpoint_root`); None: any,
            or it does not say.
    """
    output = getattr(args, "output_dir", None)
    if root is None or output is None:
        return None
    if any(Path(of(output)).is_relative_to(of(root)) for of in (os.path.abspath, os.path.realpath)):
        return None
    return (
        f"output_dir {os.path.abspath(output)} is outside the guard's checkpoint_root {root}, so it would "
        "refuse every checkpoint: set output_dir to a folder below it, or checkpoint_root to one above"
    )


def adapter_unscorable(trainer: Any, adapters: str | None) -> str | None:
    """Why no adapter (PEFT) of this run could be scored; None if nothing speaks against it, or there is none.

    Args:
        trainer: the Trainer, or None where only its arguments are known.
        adapters: what the guard makes of adapters (`Verdict.adapters`); None: it loads none, or does not say.
    """
    if not trains_adapter(trainer):
        return None
    if adapters == Adapters.REFUSED:
        return (
            "checkpoints of an adapter (PEFT) lack the base model, and the guard was given none: set "
            "--base-model DIR "
            "(evaluator.base_model; on a cluster baseModel of the evaluator) to the model that it "
            "is trained on"
        )
    if adapters == Adapters.APPLIED:
        for config in getattr(trainer.model, "peft_config", {}).values():
            try:
                read_adapter_config(config.to_dict())
            except AdapterError as error:
                return f"the guard could not score checkpoints of this adapter (peft_config): {error}"
        return _adapted_embedding(trainer.model)
    return None


def _adapted_embedding(model: Any) -> str | None:
    """That an embedding is adapted, which target_modules need not name: it may be tied to what they do."""
    names = [name for name, _ in model.named_parameters()] if hasattr(model, "named_parameters") else []
    name = next((name for name in names if ".lora_embedding_" in name), None)
    if name is None:
        return None
    return (
        f"the guard could not score checkpoints of this adapter: {name} adapts an embedding, and the guard "
        f"applies LoRA of linear layers only (target_modules, ensure_weight_tying): {MERGE}"
    )


def trains_adapter(trainer: Any) -> bool:
    """Whether a Trainer trains an adapter (PEFT), so that its checkpoints lack the base model."""
    model = getattr(trainer, "model", None)
    wrapped = any(base.__module__.split(".")[0] == "peft" for base in type(model).__mro__)
    return wrapped or bool(getattr(model, "_hf_peft_config_loaded", False))


def _no_tokenizer(trainer: Any) -> str | None:
    collator = getattr(trainer, "data_collator", None)
    if getattr(trainer, "processing_class", None) or getattr(collator, "tokenizer", None):
        return None
    return (
        "checkpoints would lack a tokenizer, without which nothing can be generated: "
        "pass processing_class=tokenizer to the trainer"
    )


def _sharded_fsdp(trainer: Any) -> str | None:
    if not getattr(trainer, "is_fsdp_enabled", False):
        return None
    kind = str(trainer.accelerator.state.fsdp_plugin.state_dict_type)
    if "FULL_STATE_DICT" in kind:
        return None
    return (
        f"FSDP saves shards ({kind}) that the guard cannot load: set state_dict_type to FULL_STATE_DICT "
        "in fsdp_config"
    )


def _sharded_deepspeed(trainer: Any) -> str | None:
    if not getattr(trainer, "is_deepspeed_enabled", False):
        return None
    zero = trainer.accelerator.state.deepspeed_plugin.deepspeed_config.get("zero_optimization", {})
    if zero.get("stage") != 3 or zero.get("stage3_gather_16bit_weights_on_model_save"):
        return None
    return (
        "DeepSpeed ZeRO-3 saves shards that the guard cannot load: set "
        "zero_optimization.stage3_gather_16bit_weights_on_model_save to true"
    )


_OF_ARGUMENTS: tuple[Callable[[Any, Any], str | None], ...] = (_never_saved, _no_safetensors)
_OF_TRAINER: tuple[Callable[[Any], str | None], ...] = (
    _no_tokenizer,
    _sharded_fsdp,
    _sharded_deepspeed,
)
