"""Whether a checkpoint is what was announced, and one that this run may be judged by.

Who writes checkpoints is under suspicion. So nothing is scored but the files that were announced, weights
that differ from those of the checkpoint before, and the tokenizer, chat template and generation config with
which the run's first checkpoint was scored, with what its configuration says of them: others make other
texts of the same weights. No torch here.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guard_service.heldout.errors import CheckpointGoneError, EvaluationError
from guard_service.heldout.scorable import MAX_NAMES
from rlguard.core.wire import FailureKind

_WEIGHTS = ".safetensors"
_CONFIG = "config.json"
_CONFIGS = ("adapter_config.json", "model.safetensors.index.json")
#: What a tokenizer or a chat template is loaded from, and what ends a completion.
_PINNED = (
    "tokenizer",
    "vocab",
    "tekken",
    "merges",
    "special_tokens_map",
    "added_tokens",
    "chat_template",
    "generation_config",
    "dict",
    "bpe",
    "normalizer",
    "byte_maps",
    "emoji",
    "entity_vocab",
    "target_vocab",
    "word_",
)
_PINNED_SUFFIXES = (".model", ".jinja")
#: Keys that decide no score and vary: how the trainer's last call cut and padded; the library that wrote the
#: file, and from where it had loaded, which a restart or an upgrade in mid-run changes.
_VARY = {
    "tokenizer.json": ("truncation", "padding"),
    "generation_config.json": ("transformers_version", "_from_model_config"),
    "tokenizer_config.json": ("transformers_version", "is_local", "local_files_only", "name_or_path"),
}
#: Keys of `config.json`, there or in a configuration inside it, that decide which tokenizer is loaded, what
#: ends a completion where no generation config says it, and how long a sequence may be. Its others may
#: change: weights fit them, or are refused.
_OF_TEXT = frozenset(
    {
        "tokenizer_class",
        "model_type",
        "model_name",
        "eos_token_id",
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "model_max_length",
        "context_length",
        # And to vLLM, which takes the least of all.
        "seq_length",
        "seq_len",
        "max_sequence_length",
        "max_seq_length",
        "max_target_positions",
    }
)
#: Its keys that transformers takes for the configuration of texts, if they are there.
_TEXT_CONFIGS = frozenset({"text_config", "text_encoder", "decoder", "generator"})
_NONE = ""  # instead of a digest: there is no such file
MAX_SHOWN = 3  # names in a message: they are the checkpoint's


@dataclass(frozen=True, slots=True)
class Expected:
    """What a checkpoint must be to be scored; what is None is not known.

    `manifest`: of its files when it was announced.
    `pins`: digests of the files that stay as they were in the run's first checkpoint, by name.
    `before`: digest of the weights that were scored before; these must be others.
    """

    manifest: str | None = None
    pins: Mapping[str, str] | None = None
    before: str | None = None


ANYTHING = Expected()


def manifest(directory: Path | int, *, links: bool = False) -> str | None:
    """What the files are that a score depends on; None if they are too many, or cannot be listed.

    A line for each file: the digest of its name, size and times. No content is read: a model of 15 GB is
    announced in no time. A user cannot set back the time of change (`ctime`) of a file that was written over.
    Numbers of inodes are left out: some file systems make them up.

    `directory`: a path, or an open one. `links`: follow them.
    """
    try:
        with os.scandir(directory) as entries:
            named = list(itertools.islice(entries, MAX_NAMES + 1))
    except OSError:
        return None
    if len(named) > MAX_NAMES:
        return None
    lines = []
    for entry in named:
        with contextlib.suppress(OSError):  # removed since it was listed
            if matters(entry.name):
                lines.append(_line(entry, links))
    return "".join(sorted(lines))


def _line(entry: os.DirEntry[str], links: bool) -> str:
    about = entry.stat(follow_symlinks=links)
    facts = f"{entry.name}\0{about.st_mode}\0{about.st_size}\0{about.st_mtime_ns}\0{about.st_ctime_ns}"
    return hashlib.blake2b(facts.encode(errors="surrogateescape"), digest_size=16).hexdigest() + "\n"


def matters(name: str) -> bool:
    """Whether a score may depend on a file of this name."""
    return name.endswith(_WEIGHTS) or name in _CONFIGS or _is_pinned(name)


def _is_pinned(name: str) -> bool:
    return name == _CONFIG or name.startswith(_PINNED) or name.endswith(_PINNED_SUFFIXES)


def refuse_changed(source: Path, directory: int, announced: str | None) -> None:
    """Refuse an open directory whose files are not those that were announced.

    Raises:
        CheckpointGoneError: some of them were removed, and all others are as they were.
        EvaluationError: they were changed since.
    """
    now = manifest(directory)
    if announced in (None, now):
        return
    assert announced is not None
    if now is not None and set(now.split()) < set(announced.split()):
        raise gone(source)
    raise EvaluationError(
        f"checkpoint {source}: its files were changed after it was announced, so it is not scored: "
        "announce a checkpoint once it is complete, and leave it as it is until it has been scored",
        FailureKind.CHANGED,
    )


def gone(source: Path) -> CheckpointGoneError:
    """For a checkpoint of which all or a part is no longer there."""
    return CheckpointGoneError(
        f"checkpoint {source} was rotated away before it was scored: keep more checkpoints "
        "(save_total_limit), save less often, or make an evaluation cheaper"
    )


def pinned(staged: Path) -> dict[str, str]:
    """Digests, by name, of what must stay the same."""
    found = {path.name: _pin(path) for path in sorted(staged.iterdir()) if _is_pinned(path.name)}
    return {_CONFIG: _NONE, **found}


def _pin(path: Path) -> str:
    content = path.read_bytes()
    with contextlib.suppress(ValueError, AttributeError, RecursionError):  # else its bytes are as good
        if path.name == _CONFIG:
            content = json.dumps(_of_text(json.loads(content)), sort_keys=True).encode()
        elif vary := _VARY.get(path.name):
            content = json.dumps({k: v for k, v in json.loads(content).items() if k not in vary}).encode()
    return hashlib.sha256(content).hexdigest()


def _of_text(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration says of texts, and the configurations in it, such as `text_config`."""
    own = {k: v for k, v in config.items() if k in _OF_TEXT or k in _TEXT_CONFIGS}
    inside = {k: _of_text(v) for k, v in config.items() if isinstance(v, Mapping)}
    return own | {k: v for k, v in inside.items() if v}


def refuse_others(source: Path, pins: Mapping[str, str], sha256: str, expected: Expected) -> None:
    """Refuse another tokenizer than the run's, and weights that were scored as the checkpoint before.

    Raises:
        EvaluationError: which of them it is.
    """
    known = pins if expected.pins is None else expected.pins
    if changed := sorted(name for name in pins.keys() | known.keys() if pins.get(name) != known.get(name)):
        names = ", ".join(map(repr, changed[:MAX_SHOWN]))
        raise EvaluationError(
            f"checkpoint {source}: {names} is not as in the run's first checkpoint, so it is not "
            "scored: keep tokenizer, chat template, generation config, and model_type, eos_token_id and the "
            "longest sequence of config.json for a whole run, or start a new one",
            FailureKind.TOKENIZER_CHANGED,
        )
    if sha256 == expected.before:
        raise EvaluationError(
            f"checkpoint {source}: its weights are to the bit those that were scored before, so it is no new "
            "evidence: nothing was trained in between, or what is saved is not what is trained",
            FailureKind.UNCHANGED,
        )
