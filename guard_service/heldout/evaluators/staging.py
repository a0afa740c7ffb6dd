"""Copy what is needed of a checkpoint while hashing it, so that what is hashed is what is scored.

The directory was written by the process under suspicion and may be rotated away at any moment. Only plain
files at its top are read, links are not followed, and nothing that could run code is taken: weights in
safetensors only, no `auto_map`. No torch here.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guard_service.heldout.errors import EvaluationError

CHUNK_BYTES = 1 << 22
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_NEEDED_SUFFIXES = (".json", ".txt", ".jinja", ".model")  # configuration and tokenizer
_NOT_NEEDED = {"trainer_state.json"}


@dataclass(frozen=True, slots=True)
class Staged:
    """A private copy of a checkpoint.

    `sha256`: of the weights: that of `model.safetensors`, or for shards that of the lines `sha256sum` would
    print for them in order of name.
    """

    path: Path
    sha256: str


def stage(source: Path, target: Path) -> Staged:
    """Copy the loadable part of the checkpoint `source` into the new directory `target`.

    Raises:
        EvaluationError: no complete, safe checkpoint is there; `target` is removed.
    """
    try:
        target.mkdir(mode=0o700)
        directory = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise EvaluationError(
            f"checkpoint {source}: {error.strerror}: it was never there, or was rotated away before it was "
            "scored; keep more checkpoints (save_total_limit) or save less often"
        ) from error
    try:
        return _stage(source, directory, target)
    except BaseException as error:
        shutil.rmtree(target, ignore_errors=True)
        if isinstance(error, PermissionError):
            raise EvaluationError(
                f"checkpoint {source}: {error.filename} may not be read by the guard (user {os.getuid()}): "
                "make it readable before the checkpoint is announced; GuardCallback does"
            ) from error
        if isinstance(error, OSError):
            what = "a symbolic link" if error.errno == errno.ELOOP else f"not copied ({error.strerror})"
            raise EvaluationError(
                f"checkpoint {source}: {error.filename} is {what}: save real files, complete, before the "
                "checkpoint is announced, and keep it until it is scored"
            ) from error
        raise
    finally:
        os.close(directory)


def _stage(source: Path, directory: int, target: Path) -> Staged:
    names = sorted(os.listdir(directory))
    small = [n for n in names if n.endswith(_NEEDED_SUFFIXES) and n not in _NOT_NEEDED]
    if "config.json" not in names:
        raise EvaluationError(f"checkpoint {source}: no config.json; {_instead(names)}")
    for name in small:
        _copy(source, directory, name, target)
    for name in small:
        _refuse_remote_code(source, target / name)
    weights = _weight_files(source, names, target)
    needed = sum(os.stat(n, dir_fd=directory, follow_symlinks=False).st_size for n in weights)
    if (free := shutil.disk_usage(target).free) < needed:
        raise EvaluationError(
            f"checkpoint {source}: its weights need {needed} bytes in {target.parent}, which has {free}: "
            "free some, or move the guard's state directory"
        )
    digests = {name: _copy(source, directory, name, target) for name in weights}
    if len(digests) == 1 and WEIGHTS in digests:
        return Staged(target, digests[WEIGHTS])
    listing = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return Staged(target, hashlib.sha256(listing.encode()).hexdigest())


def _weight_files(source: Path, names: list[str], target: Path) -> list[str]:
    if WEIGHTS in names:
        return [WEIGHTS]
    if INDEX not in names:
        raise EvaluationError(f"checkpoint {source}: no {WEIGHTS}; {_instead(names)}")
    try:
        shards = set(json.loads((target / INDEX).read_bytes())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise EvaluationError(f"checkpoint {source}: {INDEX} has no weight_map: save it again") from error
    missing = sorted(str(shard) for shard in shards if shard not in names)
    if missing:
        raise EvaluationError(
            f"checkpoint {source}: {len(missing)} of {len(shards)} shards are missing, the first: "
            f"{missing[0]}; announce a checkpoint when it is complete"
        )
    if unsafe := sorted(shard for shard in shards if not shard.endswith(".safetensors")):
        raise EvaluationError(f"checkpoint {source}: {_instead(unsafe)}")
    return sorted(shards)


def _instead(names: list[str]) -> str:
    """What to do about a directory without safetensors weights."""
    if "adapter_config.json" in names:
        return "it holds a PEFT adapter: save the merged model (merge_and_unload) to have it scored"
    if pickles := [n for n in names if n.endswith(_PICKLES) and n.startswith(("pytorch_model", "model"))]:
        return f"{pickles[0]} is a pickle, and loading it can run code: save as safetensors"
    return "save the model with save_pretrained, complete, before it is announced"


def _copy(source: Path, directory: int, name: str, target: Path) -> str:
    """Copy one plain file and give the sha256 of the bytes that were written."""
    digest = hashlib.sha256()
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    with open(descriptor, "rb", buffering=0) as file, open(target / name, "xb", buffering=0) as copy:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise EvaluationError(f"checkpoint {source}: {name} is no plain file: save a real copy")
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
            copy.write(buffer[:size])
    return digest.hexdigest()


def _refuse_remote_code(source: Path, path: Path) -> None:
    if path.suffix != ".json" or path.name in {"tokenizer.json", "vocab.json", INDEX}:
        return
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise EvaluationError(f"checkpoint {source}: {path.name} is not JSON: save it again") from error
    if _has_key(content, "auto_map"):
        raise EvaluationError(
            f"checkpoint {source}: {path.name} has an auto_map, which names code to load; the guard runs no "
            "code of a checkpoint: use an architecture that transformers has"
        )


def _has_key(value: Any, key: str) -> bool:
    if isinstance(value, dict):
        return key in value or any(_has_key(v, key) for v in value.values())
    return isinstance(value, list) and any(_has_key(v, key) for v in value)
