"""Staging a checkpoint: what is taken, what is refused, and that the digest is of what was copied."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from guard_service.heldout import staging
from guard_service.heldout.errors import CheckpointGoneError, EvaluationError
from guard_service.heldout.staging import refuse_unstageable, stage


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A directory as the Hugging Face trainer leaves it. Staging reads no tensor: any bytes are weights."""
    path = tmp_path / "checkpoint-10"
    path.mkdir()
    for name, content in {
        "config.json": '{"model_type": "llama"}',
        "generation_config.json": "{}",
        "tokenizer.json": '{"model": {"vocab": {"auto_map": 3}}}',
        "tokenizer_config.json": "{}",
        "chat_template.jinja": "{{ x }}",
        "model.safetensors": "weights" * 1000,
        "trainer_state.json": "{}",
        "optimizer.pt": "pickle",
        "training_args.bin": "pickle",
        "rng_state.pth": "pickle",
        "modeling_evil.py": "raise SystemExit",
    }.items():
        (path / name).write_text(content)
    return path


def shard(checkpoint: Path, *names: str) -> None:
    (checkpoint / "model.safetensors").unlink()
    for name in names:
        (checkpoint / name).write_bytes(os.fsencode(name))
    index = {"weight_map": {f"layer.{i}": name for i, name in enumerate(names)}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))


def test_takes_what_loading_needs_and_nothing_else(checkpoint: Path, tmp_path: Path) -> None:
    staged = stage(checkpoint, tmp_path / "stage")
    assert sorted(p.name for p in staged.path.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert staged.sha256 == hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()
    assert (tmp_path / "stage").stat().st_mode & 0o077 == 0


def test_an_index_of_an_earlier_save_is_not_taken_beside_whole_weights(
    checkpoint: Path, tmp_path: Path
) -> None:
    """vLLM would look for the shards that it names."""
    index = {"weight_map": {"layer.0": "model-00001-of-00002.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    staged = stage(checkpoint, tmp_path / "stage")
    assert "model.safetensors.index.json" not in {p.name for p in staged.path.iterdir()}


def test_the_digest_of_shards_is_that_of_sha256sums_lines(checkpoint: Path, tmp_path: Path) -> None:
    names = ["model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"]
    shard(checkpoint, *names)
    staged = stage(checkpoint, tmp_path / "stage")
    lines = "".join(f"{hashlib.sha256(n.encode()).hexdigest()}  {n}\n" for n in sorted(names))
    assert staged.sha256 == hashlib.sha256(lines.encode()).hexdigest()
    assert all((staged.path / name).read_text() == name for name in names)


def test_what_is_hashed_is_what_is_staged_while_the_trainer_writes(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "CHUNK_BYTES", 4096)
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(bytes(1 << 20))
    done = threading.Event()

    def overwrite() -> None:
        with weights.open("r+b") as file:
            while not done.is_set():
                file.seek(0)
                file.write(os.urandom(1 << 20))

    writer = threading.Thread(target=overwrite)
    writer.start()
    try:
        time.sleep(0.02)
        staged = stage(checkpoint, tmp_path / "stage")
    finally:
        done.set()
        writer.join()
    copied = hashlib.sha256((staged.path / "model.safetensors").read_bytes()).hexdigest()
    assert staged.sha256 == copied != hashlib.sha256(weights.read_bytes()).hexdigest()


def pickles_only(path: Path) -> None:
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


def adapter_only(path: Path) -> None:
    (path / "model.safetensors").rename(path / "adapter_model.safetensors")
    (path / "config.json").rename(path / "adapter_config.json")


def half_written_shards(path: Path) -> None:
    shard(path, "a.safetensors", "b.safetensors")
    (path / "b.safetensors").unlink()


def linked(path: Path) -> None:
    (path / "model.safetensors").rename(path.parent / "elsewhere")
    (path / "model.safetensors").symlink_to(path.parent / "elsewhere")


def piped(path: Path) -> None:
    (path / "model.safetensors").unlink()
    os.mkfifo(path / "model.safetensors")


def escaping_shard(path: Path) -> None:
    shard(path, "a.safetensors")
    index = {"weight_map": {"w": "../elsewhere.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def shard_called_as_an_adapter(path: Path) -> None:
    shard(path, "adapter_model.safetensors", "b.safetensors")


def one_shard_called_as_an_adapter(path: Path) -> None:
    shard(path, "adapter_model.safetensors")


def name_of_other_bytes(path: Path) -> None:
    shard(path, os.fsdecode(b"\x80.safetensors"))


def shard_named_by_half_a_pair(path: Path) -> None:
    (path / "model.safetensors").unlink()
    (path / "model.safetensors.index.json").write_text(r'{"weight_map": {"w": "\ud800\n.safetensors"}}')


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (pickles_only, "pytorch_model.bin is a pickle, and loading it can run code: save as safetensors"),
        (adapter_only, "PEFT adapter: give the guard the base model"),
        (half_written_shards, "1 of 2 shards are missing, the first: b.safetensors"),
        (linked, "model.safetensors is a symbolic link: save real files"),
        (piped, "model.safetensors is not a plain file"),
        (escaping_shard, "1 of 1 shards are missing"),
        (shard_called_as_an_adapter, "names adapter_model.safetensors, which is how weights of an adapter"),
        (one_shard_called_as_an_adapter, "names adapter_model.safetensors, which is how weights of an"),
        (name_of_other_bytes, r"b'\x80.safetensors', a name that is not UTF-8"),
        (shard_named_by_half_a_pair, r"1 of 1 shards are missing, the first: \ud800\n.safetensors"),
        (lambda p: shard(p, "a.bin"), "save the model with save_pretrained"),
        (lambda p: (p / "config.json").unlink(), "no config.json; save the model with save_pretrained"),
        (lambda p: (p / "model.safetensors").unlink(), "no model.safetensors; save the model"),
        (lambda p: [f.unlink() for f in p.glob("tokenizer*")], "no tokenizer; give it to the trainer"),
        (lambda p: (p / "config.json").write_text('{"auto_map": {}}'), "config.json has an auto_map"),
        (
            lambda p: (p / "tokenizer_config.json").write_text('{"x": [{"auto_map": 1}]}'),
            "tokenizer_config.json has an auto_map, which names code to load",
        ),
        (lambda p: (p / "config.json").write_text("{"), "config.json is not JSON"),
    ],
)
@pytest.mark.parametrize("base", [None, Path("/base")], ids=str)
def test_refuses_naming_the_checkpoint_and_leaves_nothing(
    checkpoint: Path, tmp_path: Path, spoil, told: str, base: Path | None
) -> None:
    if spoil is adapter_only and base is not None:
        told = "adapter_config.json names no peft_type"
    spoil(checkpoint)
    with pytest.raises(EvaluationError) as caught:
        stage(checkpoint, tmp_path / "stage", base)
    assert str(caught.value).isprintable()
    assert told in str(caught.value) and str(checkpoint) in str(caught.value)
    assert not isinstance(caught.value, CheckpointGoneError)
    assert not (tmp_path / "stage").exists()


def test_a_checkpoint_that_the_guard_may_not_read_says_so(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Any, *arguments: Any, **keywords: Any) -> int:
        if path == "model.safetensors":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return opened(path, *arguments, **keywords)

    opened = os.open
    monkeypatch.setattr(staging.os, "open", denied)  # the tests may run as root, who may read everything
    with pytest.raises(EvaluationError, match=r"model.safetensors may not be read by the guard \(user \d+\)"):
        stage(checkpoint, tmp_path / "stage")
    assert not (tmp_path / "stage").exists()


def test_a_checkpoint_that_was_rotated_away_says_so(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointGoneError, match="rotated away before it was scored"):
        stage(checkpoint.parent / "checkpoint-5", tmp_path / "stage")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE])
@pytest.mark.parametrize("victim", ["config.json", "model.safetensors"])
def test_a_checkpoint_that_vanishes_while_it_is_copied_is_gone_and_not_broken(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str, number: int
) -> None:
    def vanished(path: Any, *arguments: Any, **keywords: Any) -> int:
        if path == victim:
            raise OSError(number, "gone", path)
        return opened(path, *arguments, **keywords)

    opened = os.open
    monkeypatch.setattr(staging.os, "open", vanished)
    with pytest.raises(CheckpointGoneError):
        stage(checkpoint, tmp_path / "stage")
    assert not (tmp_path / "stage").exists()


@pytest.mark.parametrize(
    ("room", "told"),
    [
        (1_010, r"its configuration and tokenizer need \d+ bytes in .*, which has 1010 and keeps 1000 for"),
        (7_999, r"its weights need 7000 bytes in .*, which has 7999 and keeps 1000 for the guard's store:"),
    ],
)
def test_a_full_disk_is_told_before_the_copy(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, told: str
) -> None:
    class Usage:
        free, total = room, 4_000

    monkeypatch.setattr(staging.shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(EvaluationError, match=told):
        stage(checkpoint, tmp_path / "stage")


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def one_too_large(path: Path) -> None:
    sparse(path / "tokenizer.model", staging.MAX_SMALL_BYTES + 1)


def one_configuration_too_large(path: Path) -> None:
    sparse(path / "tokenizer_config.json", staging.MAX_CONFIG_BYTES + 1)


def too_large_together(path: Path) -> None:
    for number in range(5):
        sparse(path / f"vocab-{number}.txt", staging.MAX_SMALL_BYTES)


def too_many(path: Path) -> None:
    for number in range(staging.MAX_SMALL_FILES):
        (path / f"{number}.jinja").touch()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (one_too_large, "tokenizer.model has 67108865 bytes, and of such a file at most 67108864 are taken"),
        (
            one_configuration_too_large,
            "tokenizer_config.json has 8388609 bytes, and of such a file at most 8388608 are taken",
        ),
        (
            too_large_together,
            r"it has 10 files with 3355\d+ bytes, and at most 1000 with 268435456 are taken",
        ),
        (too_many, r"it has 1005 files with \d+ bytes, and at most 1000"),
    ],
)
@pytest.mark.parametrize(
    "look", [refuse_unstageable, lambda checkpoint: stage(checkpoint, checkpoint.parent / "stage")]
)
def test_what_is_too_large_for_a_tokenizer_is_refused_before_anything_is_copied(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, look: Any, spoil: Any, told: str
) -> None:
    spoil(checkpoint)
    monkeypatch.setattr(staging, "_copy", lambda *_: pytest.fail("copied"))
    with pytest.raises(EvaluationError, match=told) as refused:
        look(checkpoint)
    assert str(refused.value).count("\n") == 0


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json", "tekken.json", "tokenizer.model"])
def test_a_vocabulary_may_be_larger_than_a_configuration(checkpoint: Path, tmp_path: Path, name: str) -> None:
    content = "[" + " " * staging.MAX_CONFIG_BYTES + "]"
    (checkpoint / name).write_text(content)
    assert (stage(checkpoint, tmp_path / "stage").path / name).read_text() == content


def test_what_no_score_depends_on_is_not_read_and_may_be_of_any_size(
    checkpoint: Path, tmp_path: Path
) -> None:
    """Such as completions that a trainer saves beside its model."""
    (checkpoint / "completions.json").write_text("no JSON")
    sparse(checkpoint / "rollouts.json", staging.MAX_SMALL_BYTES_IN_ALL + 1)
    (checkpoint / "processor_config.json").write_text('{"auto_map": {}}')
    staged = stage(checkpoint, tmp_path / "stage")
    assert not {"completions.json", "rollouts.json", "processor_config.json"} & {*os.listdir(staged.path)}


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_a_file_that_grows_while_it_is_copied_fills_no_disk(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def before_the_copy(path: Any, *arguments: Any, **keywords: Any) -> int:
        if path == name:
            with (checkpoint / name).open("ab") as file:
                file.write(b"x")
        return opened(path, *arguments, **keywords)

    opened = os.open
    monkeypatch.setattr(staging.os, "open", before_the_copy)
    with pytest.raises(EvaluationError, match=f"{name} grew while it was copied"):
        stage(checkpoint, tmp_path / "stage")
    assert not (tmp_path / "stage").exists()


# -- looking without copying --------------------------------------------------------------------------------


def test_inspect_takes_what_stage_takes_and_reads_no_weights(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors").symlink_to("/nowhere")  # whoever reads it fails
    refuse_unstageable(checkpoint)


def test_inspect_refuses_code_and_a_directory_that_is_not_there(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="no such directory"):
        refuse_unstageable(tmp_path / "nowhere")
    (checkpoint / "config.json").write_text('{"auto_map": {}}')
    with pytest.raises(EvaluationError, match="auto_map"):
        refuse_unstageable(checkpoint)
