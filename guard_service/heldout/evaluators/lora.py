"""Apply a checked LoRA adapter to the guard's base model, with PEFT.

PEFT is never shown the adapter's own configuration, which can name modules to import, models to fetch and
regular expressions to try: it gets one that is made here of what was checked.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from guard_service.heldout.base_model import BaseModel
from guard_service.heldout.errors import failing_as
from guard_service.heldout.evaluators.loading import loading, whole_model
from guard_service.heldout.staging import Adapter, Staged, refuse_without_room
from rlguard.core.adapter import MERGE, WEIGHTS, AdapterError, copied_module, misfits
from rlguard.core.wire import FailureKind


def apply_adapter(model: Any, directory: Path, adapter: Adapter) -> Any:
    """The model with the adapter in its layers, not merged, as it was trained.

    Raises:
        AdapterError: it does not fit the model.
    """
    from peft import inject_adapter_in_model, set_peft_model_state_dict
    from safetensors.torch import load_file

    wrong = list(misfits(adapter.shapes, _linear_layers(model)))
    if wrong:
        raise AdapterError(
            f"{len(wrong)} of {len(adapter.shapes)} modules of the adapter do not fit, the first: "
            f"{wrong[0]}; {MERGE}"
        )
    weights = _without_copies(load_file(directory / WEIGHTS), model)
    model = inject_adapter_in_model(_peft_config(adapter), model)
    loaded = set_peft_model_state_dict(model, weights)
    lost = sorted([*loaded.unexpected_keys, *(key for key in loaded.missing_keys if "lora_" in key)])
    if lost:
        raise AdapterError(f"{len(lost)} of its weights were not taken, the first: {lost[0][:200]}; {MERGE}")
    return model.eval()


def _without_copies(weights: dict[str, Any], model: Any) -> dict[str, Any]:
    """The adapter's own weights, without copies of the model's.

    Raises:
        AdapterError: one that is called a copy is none.
    """
    copies = {name: module for name in weights if (module := copied_module(name)) is not None}
    for name, module in copies.items():
        if not _is_copy(weights[name], model.get_submodule(module).weight.detach()):
            raise AdapterError(
                f"{WEIGHTS} holds {name}, which is not the base model's own weight of {module}: it was "
                f"trained on another base, or in another type, or that weight itself was trained; {MERGE}"
            )
    return {name: tensor for name, tensor in weights.items() if name not in copies}


def _is_copy(tensor: Any, own: Any) -> bool:
    """Whether they are the same to the bit, in the coarser of the types that trainer and guard load."""
    from torch import equal

    coarser = min(tensor.dtype, own.dtype, key=lambda dtype: dtype.itemsize)
    return equal(tensor.to(own.device, coarser), own.to(coarser))


@contextmanager
def merged(staged: Staged, base: BaseModel, dtype: str, shown: str) -> Iterator[Path]:
    """Save the base model with an adapter in its weights beside the adapter's copy, and remove it.

    Args:
        staged: the adapter.
        base: the guard's own base model.
        dtype: of the weights that are added.
        shown: how the adapter's checkpoint is called in errors.

    Raises:
        EvaluationError: the adapter does not fit, or there is no room.
    """
    import torch

    assert staged.adapter is not None
    target = staged.path.with_name(f"{staged.path.name}-merged")
    model = whole_model(base.path, f"the base model {base.path}", dtype=getattr(torch, dtype))
    with failing_as(FailureKind.EVALUATOR):
        what = f"{shown}: the base model with the adapter in it needs"
        refuse_without_room(target.parent, what, model.get_memory_footprint())
    try:
        with loading(shown, FailureKind.WEIGHTS):
            _save_merged(model, staged.path, staged.adapter, target)
        yield target
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _save_merged(model: Any, directory: Path, adapter: Adapter, target: Path) -> None:
    """Save the model with the adapter's weights added to its own: a model without an adapter.

    Raises:
        AdapterError: it does not fit the model.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    if (output := _tied_output(model)) in adapter.shapes:
        raise AdapterError(
            f"it changes {output}, whose weights are the input embeddings of the base model as well: merged "
            f"it would change both; train it without {output}, or use the evaluator hf"
        )
    model = apply_adapter(model, directory, adapter)
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            module.merge()
    whole = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in model.state_dict().items()
        if ".lora_" not in name
    }
    model.save_pretrained(target, state_dict=whole)


def _tied_output(model: Any) -> str | None:
    """The name of the output layer where its weights are the input embeddings."""
    output, inputs = model.get_output_embeddings(), model.get_input_embeddings()
    if output is None or inputs is None or output.weight is not inputs.weight:
        return None
    return str(next(name for name, module in model.named_modules() if module is output))


def _linear_layers(model: Any) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of each linear layer."""
    from torch.nn import Linear
    from transformers.pytorch_utils import Conv1D

    found = {}
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            found[name] = (module.in_features, module.out_features)
        elif isinstance(module, Conv1D):
            found[name] = (module.nx, module.nf)
    return found


def _peft_config(adapter: Adapter) -> Any:
    from peft import LoraConfig

    config = adapter.config
    return LoraConfig(
        r=config.r,
        lora_alpha=config.lora_alpha,
        rank_pattern=dict(config.rank_pattern),
        alpha_pattern=dict(config.alpha_pattern),
        use_rslora=config.use_rslora,
        use_dora=config.use_dora,
        target_modules=sorted(adapter.shapes),
        inference_mode=True,
    )
