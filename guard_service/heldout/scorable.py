"""Whether a checkpoint can ever be scored, by the names in its directory.

What cannot be is refused when it is announced, with the setting to change, so that the trainer's log says it
at its first checkpoint and not after hours. No torch here.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection
from pathlib import Path

from guard_core import adapter
from guard_core.terminal import is_unicode
from guard_service.heldout.configuration import INDEX

WEIGHTS = "model.safetensors"
NEEDED_SUFFIXES = (".json", ".txt", ".jinja", ".model")  # configuration and tokenizer
MAX_NAMES = 10_000  # that are looked at: the directory is not ours
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_TOKENIZERS = ("tokenizer", "vocab", "tekken")


def why_unscorable(checkpoint: Path, base: Path | None = None) -> str:
    """Why this directory can never be scored, in one sentence with what to set; "" if it may be.

    A directory that is no longer there was rotated away, which is no fault of it.

    Args:
        checkpoint: the directory.
        base: the guard's own base model, to which an adapter is applied; None without one.
    """
    try:
        with os.scandir(checkpoint) as entries:
            names = {entry.name for entry in itertools.islice(entries, MAX_NAMES + 1)}
    except PermissionError:
        return f"it may not be read by the guard (user {os.getuid()}): make it readable before announcing it"
    except OSError:
        return ""
    if len(names) > MAX_NAMES:
        return f"it has more than {MAX_NAMES} files: save each checkpoint to a directory of its own"
    return why_names_unscorable(names, base)


def is_adapter(names: Collection[str]) -> bool:
    """Whether the directory holds an adapter alone; whole weights beside one are what counts."""
    whole = "config.json" in names and (WEIGHTS in names or INDEX in names)
    return adapter.CONFIG in names and not whole


def why_names_unscorable(names: Collection[str], base: Path | None) -> str:
    """The same by the names in a directory alone."""
    if odd := next((name for name in sorted(names) if not is_unicode(name)), None):
        return f"it has {os.fsencode(odd)!r}, a name that is not UTF-8: rename it, or save without it"
    if is_adapter(names):
        return "" if base is not None and adapter.WEIGHTS in names else _why_not_applied(names, base)
    if "config.json" not in names:
        return f"no config.json; {instead(names)}"
    if WEIGHTS not in names and INDEX not in names:
        return f"no {WEIGHTS}; {instead(names)}"
    return without_tokenizer(names)


def _why_not_applied(names: Collection[str], base: Path | None) -> str:
    if base is None:
        return (
            "it holds a PEFT adapter: give the guard the base model that it is trained on (--base-model DIR, "
            "evaluator.base_model, on a cluster baseModel of the evaluator), or save the merged model "
            "(merge_and_unload)"
        )
    if adapter.PICKLE in names:
        return f"{adapter.PICKLE} is a pickle, and loading it can run code: save as safetensors"
    return f"no {adapter.WEIGHTS}: save the adapter with save_pretrained, complete, before it is announced"


def without_tokenizer(names: Collection[str]) -> str:
    """The same, of the tokenizer alone."""
    if any(name.startswith(_TOKENIZERS) or name.endswith(".model") for name in names):
        return ""
    return "no tokenizer; give it to the trainer (processing_class=tokenizer), which then saves it too"


def instead(names: Collection[str]) -> str:
    """What to do about a directory without a whole model in safetensors: what wrote it, and its setting."""
    for is_so, advice in _SIGNS:
        if found := next(filter(is_so, sorted(names)), None):
            return advice.format(name=found)
    return "save the model with save_pretrained, complete, before it is announced"


#: What a name gives away, the more telling first.
_SIGNS: tuple[tuple[Callable[[str], bool], str], ...] = (
    (
        lambda name: name == "actor" or name.startswith("model_world_size_"),
        "it holds shards of FSDP or Megatron: with verl add hf_model to "
        "actor_rollout_ref.actor.checkpoint.save_contents, and announce its actor/huggingface (EasyR1: what "
        "scripts/model_merger.py makes of them); with SkyRL set trainer.hf_save_interval, and announce the "
        "folder below trainer.export_path",
    ),
    (
        lambda name: name.startswith("pytorch_model_fsdp"),
        "it holds FSDP shards: set fsdp_state_dict_type to FULL_STATE_DICT",
    ),
    (
        lambda name: name.endswith(".distcp"),
        "it holds shards of torch.distributed.checkpoint (DCP): have the framework save whole weights in "
        "safetensors, too (NeMo-RL: checkpointing.save_consolidated=true, slime: --save-hf, SkyRL: "
        "trainer.hf_save_interval), and announce their directory",
    ),
    (
        lambda name: (
            name == "zero_to_fp32.py" or name.startswith(("global_step", "mp_rank_", "zero_pp_rank_"))
        ),
        "it holds DeepSpeed shards: set stage3_gather_16bit_weights_on_model_save (OpenRLHF: --ckpt.save_hf)",
    ),
    (
        lambda name: name.endswith(_PICKLES) and name.startswith(("pytorch_model", "model")),
        "{name} is a pickle, and loading it can run code: save as safetensors",
    ),
)
