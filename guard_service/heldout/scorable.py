"""Whether a checkpoint can be scored: by the names in its directory, and by what its configuration says.

What cannot be by its names, or is an adapter of another base model, is refused when it is announced, with the
setting to change, so that the trainer's log says it at its first checkpoint and not after hours. What is
dangerous in a configuration is looked at in the guard's own copy: code, and files outside the checkpoint.

transformers hands all keys of a configuration to the class of a tokenizer or a model, which opens what some
of them name, wherever it lies. That is pinned by nobody, and may be the split. Checkpoints of earlier
releases have such keys, too, and loading needs none; so they are dropped from the copy. No torch.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from rlguard.core import adapter
from rlguard.core.adapter import AdapterConfig, AdapterError, another_base, read_adapter_config
from rlguard.core.terminal import is_unicode

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
NEEDED_SUFFIXES = (".json", ".txt", ".jinja", ".model")  # configuration and tokenizer
MAX_NAMES = 10_000  # that are looked at: the directory is not ours
MAX_ADAPTER_CONFIG = 1 << 20  # bytes
#: How JSON begins to be called that is a vocabulary, or has an entry for each tensor, and names no code.
_LARGE = ("tokenizer.json", "vocab", "tekken", INDEX)
_ARGUMENTS = ("config.json", "tokenizer_config.json", "special_tokens_map.json")
_TOKENIZER = "tokenizer.json"
#: What keys end with that name files or directories: `vocab_file`, `source_spm`, `sudachi_config_path`.
_ENDINGS = ("_file", "_files", "_path", "_dir", "_spm")
#: By its place, and not by its name, an argument may be any of these.
_POSITIONS = "init_inputs"
#: Keys that may have the thing itself, which is a list or an object, or the name of a file with it.
_THINGS = frozenset(
    {"vocab", "merges", "entity_vocab", "rewriting_rules", "mecab_option", "backbone", "transformers_weights"}
)
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
    reason = why_names_unscorable(names, base)
    return _why_not_of(checkpoint, base) if base and is_adapter(names) and not reason else reason


def _why_not_of(checkpoint: Path, base: Path) -> str:
    """Why an adapter cannot be applied to this base model, by its configuration."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(checkpoint / adapter.CONFIG, flags), "rb") as file:
            parse_adapter_config(file.read(MAX_ADAPTER_CONFIG), base)
    except AdapterError as error:
        return str(error)
    except OSError:  # rotated away, or a link, which is told when it is staged
        pass
    return ""


def parse_adapter_config(data: bytes, base: Path) -> AdapterConfig:
    """The configuration of an adapter of this base model.

    Raises:
        AdapterError: why it cannot be applied.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise AdapterError(f"{adapter.CONFIG} cannot be read: save the adapter again, complete") from None
    config = read_adapter_config(content)
    if reason := another_base(config, str(base)):
        raise AdapterError(reason)
    return config


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


# -- what a configuration names ----------------------------------------------------------------------------


def is_configuration(name: str) -> bool:
    """Whether a file of this name is JSON that says how to load, and no vocabulary."""
    return name.endswith(".json") and not name.startswith(_LARGE)


def why_not_loaded(path: Path) -> str:
    """Why a configuration must not be loaded, in one clause; "" if it may be."""
    try:
        names_code = _has_key(json.loads(path.read_bytes()), "auto_map")
    except (ValueError, RecursionError):
        return f"{path.name} is not JSON: save it again"
    if names_code:
        return (
            f"{path.name} has an auto_map, which names code to load; the guard runs no code of a checkpoint: "
            "use an architecture that transformers has"
        )
    return ""


def _has_key(value: Any, key: str) -> bool:
    if isinstance(value, dict):
        return key in value or any(_has_key(v, key) for v in value.values())
    return isinstance(value, list) and any(_has_key(v, key) for v in value)


def drop_named_files(copy: Path) -> str:
    """Drop from the copy of a checkpoint what names a file; its own files are found by their names.

    Returns:
        Why that cannot be done, in one clause; "" if it was.
    """
    changes = dict.fromkeys(_ARGUMENTS, without_files) | {_TOKENIZER: _with_its_own_vocabulary}
    for name, change in changes.items():
        try:
            _rewrite(copy / name, change)
        except RecursionError:
            return f"{name} is nested too deeply: save the tokenizer again"
    return ""


def _rewrite(path: Path, change: Callable[[Any], Any]) -> None:
    """Write what this makes of a file's content over it, if it is another."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):  # transformers reads it by the same means
        return
    if (changed := change(content)) != content:
        path.write_text(json.dumps(changed))


def without_files(value: Any) -> Any:
    """A configuration without what names a file, at any depth but in a vocabulary, whose keys are tokens."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not names_a_file(k, v)}
        return {k: v if k in _THINGS else without_files(v) for k, v in kept.items()}
    return [without_files(one) for one in value] if isinstance(value, list) else value


def names_a_file(key: str, value: object) -> bool:
    """Whether a class may take this for a file to open: a text, or the number of one that is open."""
    if key in _THINGS:
        return not isinstance(value, dict | list)
    return key == _POSITIONS or (key.endswith(_ENDINGS) and not isinstance(value, float))


def _with_its_own_vocabulary(tokenizer: Any) -> Any:
    """A `tokenizer.json` whose vocabulary is in it; its other keys reach no class, and may be tokens."""
    if not isinstance(tokenizer, dict) or not isinstance(model := tokenizer.get("model"), dict):
        return tokenizer
    return tokenizer | {"model": {k: v for k, v in model.items() if not names_a_file(k, v)}}
