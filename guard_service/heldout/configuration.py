"""What is dangerous in a checkpoint's configuration: code to load, and files outside the checkpoint.

transformers hands all keys of these files to the class of a tokenizer or a configuration, which opens what
some of them name, wherever it lies. That is pinned by nobody, and may be the split. Checkpoints of earlier
releases have such keys, too, and loading needs none of them; so they are dropped from the copy, not refused.
No torch here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
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
