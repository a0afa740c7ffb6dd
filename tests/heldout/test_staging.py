"""Staging a checkpoint: what is taken, what is refused, and that the digest is of what was copied."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guard_service.heldout import scorable, staging
from guard_service.heldout.errors import CheckpointGoneError, EvaluationError
from guard_service.heldout.scorable import why_unscorable
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
        "modeling_evil.py": "raise SystemExit",
        "completions.json": "no JSON",
        "processor_config.json": '{"auto_map": {}}',
        "model.safetensors.index.json": '{"weight_map": {"layer.0": "model-00001-of-00002.safetensors"}}',
    }.items():
        (path / name).write_text(content)
    sparse(path / "rollouts.json", staging.MAX_SMALL_BYTES_IN_ALL + 1)
    return path


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def shard(checkpoint: Path, *names: str) -> None:
    (checkpoint / "model.safetensors").unlink()
    for name in names:
        (checkpoint / name).write_bytes(os.fsencode(name))
    index = {"weight_map": {f"layer.{i}": name for i, name in enumerate(names)}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))


def test_takes_what_loading_needs_and_nothing_else(checkpoint: Path, tmp_path: Path) -> None:
    """No code, nothing that no score depends on, and no index of an earlier save, which vLLM would follow."""
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


def test_the_digest_of_shards_is_that_of_sha256sums_lines(checkpoint: Path, tmp_path: Path) -> None:
    names = ["model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors"]
    shard(checkpoint, *names)
    staged = stage(checkpoint, tmp_path / "stage")
    lines = "".join(f"{hashlib.sha256(n.encode()).hexdigest()}  {n}\n" for n in sorted(names))
    assert staged.sha256 == hashlib.sha256(lines.encode()).hexdigest()
    assert all((staged.path / name).read_text() == name for name in names)


def test_what_is_hashed_is_what_is_staged_while_the_trainer_writes(checkpoint: Path, tmp_path: Path) -> None:
    weights, size = checkpoint / "model.safetensors", 32 << 20
    weights.write_bytes(bytes(size))
    done, written = threading.Event(), threading.Event()

    def keep_writing() -> None:
        with weights.open("r+b", buffering=0) as file:
            for number in itertools.count(1):
                os.pwrite(file.fileno(), number.to_bytes(8), number * 4096 % size)
                written.set()
                if done.is_set():
                    return

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        written.wait()
        staged = stage(checkpoint, tmp_path / "stage")
        written.clear()
        written.wait()
    finally:
        done.set()
        writer.join()
    copied = hashlib.sha256((staged.path / "model.safetensors").read_bytes()).hexdigest()
    assert staged.sha256 == copied != hashlib.sha256(weights.read_bytes()).hexdigest()


# -- what is refused ---------------------------------------------------------------------------------------


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


def shards_named(index: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        (path / "model.safetensors").unlink()
        (path / "model.safetensors.index.json").write_text(index)

    return spoil


def many_vocabularies(path: Path) -> None:
    for number in range(5):
        sparse(path / f"vocab-{number}.txt", staging.MAX_SMALL_BYTES)


REFUSED: list[tuple[Callable[[Path], Any], str]] = [
    (adapter_only, "PEFT adapter: give the guard the base model"),
    (half_written_shards, "1 of 2 shards are missing, the first: b.safetensors"),
    (linked, "model.safetensors is a symbolic link: save real files"),
    (piped, "model.safetensors is not a plain file"),
    (shards_named('{"weight_map": {"w": "../elsewhere.safetensors"}}'), "1 of 1 shards are missing"),
    (shards_named(r'{"weight_map": {"w": "\ud800\n.safetensors"}}'), r"the first: \ud800\n.safetensors"),
    (shards_named("[]"), "has no weight_map"),
    (lambda p: shard(p, "adapter_model.safetensors"), "is how weights of an adapter are called"),
    (lambda p: shard(p, os.fsdecode(b"\x80.safetensors")), r"b'\x80.safetensors', a name that is not UTF-8"),
    (lambda p: shard(p, "a.bin"), "save the model with save_pretrained"),
    (lambda p: (p / "config.json").write_text('{"auto_map": {}}'), "config.json has an auto_map"),
    (
        lambda p: (p / "tokenizer_config.json").write_text('{"x": [{"auto_map": 1}]}'),
        "has an auto_map, which",
    ),
    (lambda p: (p / "config.json").write_text("{"), "config.json is not JSON"),
    (lambda p: (p / "config.json").write_text("[" * 100_000), "config.json is not JSON"),
    (
        lambda p: sparse(p / "tokenizer.model", staging.MAX_SMALL_BYTES + 1),
        "tokenizer.model has 67108865 bytes, and of such a file at most 67108864 are taken",
    ),
    (
        lambda p: sparse(p / "tokenizer_config.json", staging.MAX_CONFIG_BYTES + 1),
        "tokenizer_config.json has 8388609 bytes, and of such a file at most 8388608 are taken",
    ),
    (many_vocabularies, "bytes, and at most 1000 with 268435456 are taken"),
    (lambda p: [(p / f"{n}.jinja").touch() for n in range(1000)], "it has 1005 files with"),
]


@pytest.mark.parametrize(("spoil", "told"), REFUSED)
def test_refuses_naming_the_checkpoint_and_leaves_nothing(
    checkpoint: Path, tmp_path: Path, spoil: Callable[[Path], Any], told: str
) -> None:
    spoil(checkpoint)
    with pytest.raises(EvaluationError) as caught:
        stage(checkpoint, tmp_path / "stage")
    assert str(caught.value).isprintable() and not isinstance(caught.value, CheckpointGoneError)
    assert told in str(caught.value) and str(checkpoint) in str(caught.value)
    assert not (tmp_path / "stage").exists()


def test_a_look_refuses_the_same_and_reads_no_weights(checkpoint: Path, tmp_path: Path) -> None:
    """As `rlguard check` looks."""
    linked(checkpoint)  # whoever reads the weights fails
    refuse_unstageable(checkpoint)
    with pytest.raises(EvaluationError, match="no such directory"):
        refuse_unstageable(tmp_path / "nowhere")
    (checkpoint / "config.json").write_text('{"auto_map": {}}')
    with pytest.raises(EvaluationError, match="auto_map"):
        refuse_unstageable(checkpoint)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json"])
def test_a_vocabulary_may_be_larger_than_a_configuration(checkpoint: Path, tmp_path: Path, name: str) -> None:
    content = "[" + " " * staging.MAX_CONFIG_BYTES + "]"
    (checkpoint / name).write_text(content)
    assert (stage(checkpoint, tmp_path / "stage").path / name).read_text() == content


# -- a disk that fails, and a trainer that deletes ---------------------------------------------------------


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have something happen when a file of this name is opened."""

    def install(name: str, happen: Callable[[], object]) -> None:
        def opened(path: Any, *arguments: Any, **keywords: Any) -> int:
            if path == name:
                happen()
            return int(real(path, *arguments, **keywords))

        real = os.open
        monkeypatch.setattr(os, "open", opened)

    return install


def fail(number: int, name: str) -> Callable[[], object]:
    def failing() -> None:
        raise OSError(number, os.strerror(number), name)

    return failing


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.EACCES, r"may not be read by the guard \(user \d+\)"),
        (errno.ENOENT, "rotated away before it was scored"),
        (errno.ESTALE, "rotated away before it was scored"),  # as NFS says it
        (errno.ENOMEM, "ran out of memory"),
        (errno.EIO, r"not copied \(Input/output error\)"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_an_error_of_the_disk_is_told_as_what_it_is(
    checkpoint: Path, tmp_path: Path, opening: Callable[..., None], name: str, number: int, told: str
) -> None:
    opening(name, fail(number, name))
    with pytest.raises(EvaluationError, match=told) as caught:
        stage(checkpoint, tmp_path / "stage")
    assert isinstance(caught.value, CheckpointGoneError) is ("rotated" in told)
    assert not (tmp_path / "stage").exists()


def test_a_checkpoint_that_was_rotated_away_says_so(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointGoneError, match="rotated away before it was scored"):
        stage(checkpoint.parent / "checkpoint-5", tmp_path / "stage")
    assert why_unscorable(checkpoint.parent / "checkpoint-5") == ""


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


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_a_file_that_grows_while_it_is_copied_fills_no_disk(
    checkpoint: Path, tmp_path: Path, opening: Callable[..., None], name: str
) -> None:
    def grow() -> None:
        with (checkpoint / name).open("ab") as file:
            file.write(b"x")

    opening(name, grow)
    with pytest.raises(EvaluationError, match=f"{name} grew while it was copied"):
        stage(checkpoint, tmp_path / "stage")


# -- what is refused when it is announced: by names alone, with the setting that changes it ----------------

WHOLE = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "optimizer.pt")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (WHOLE, ""),
        (("config.json", "model.safetensors.index.json", "model-1.safetensors", "vocab.json"), ""),
        (("config.json", "model.safetensors", "spiece.model"), ""),
        ((*WHOLE, "adapter_config.json", "pytorch_model.bin", "zero_to_fp32.py"), ""),
        ((), "no config.json; save the model with save_pretrained"),
        (("config.json", "tokenizer.json"), "no model.safetensors; save the model with save_pretrained"),
        (("config.json", "model.safetensors"), "no tokenizer; give it to the trainer (processing_class"),
        (("adapter_config.json", "adapter_model.safetensors", "tokenizer.json"), "(--base-model DIR"),
        (("config.json", "pytorch_model.bin", "vocab.json"), "pytorch_model.bin is a pickle"),
        (("config.json", "pytorch_model_fsdp_0", "__0_0.distcp"), "fsdp_state_dict_type to FULL_STATE_DICT"),
        ((".metadata", "__0_0.distcp"), "(DCP): have the framework save whole weights in safetensors"),
        (("config.json", "zero_to_fp32.py"), "stage3_gather_16bit_weights_on_model_save"),
        (("mp_rank_00_model_states.pt",), "OpenRLHF: --ckpt.save_hf"),
        (("actor", "data.pt"), "actor_rollout_ref.actor.checkpoint.save_contents"),
        (("model_world_size_8_rank_0.pt", "huggingface"), "announce its actor/huggingface"),
    ],
)
def test_what_can_never_be_scored_is_told_with_what_to_set(
    tmp_path: Path, names: tuple[str, ...], told: str
) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert told in why_unscorable(tmp_path) and bool(told) == bool(why_unscorable(tmp_path))


def test_what_cannot_be_looked_at_in_full_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beyond it could be changed unnoticed."""
    for number in range(scorable.MAX_NAMES + 1):
        (tmp_path / str(number)).touch()
    assert "it has more than 10000 files" in why_unscorable(tmp_path)
    monkeypatch.setattr(scorable.os, "scandir", lambda path: fail(errno.EACCES, str(path))())
    assert f"may not be read by the guard (user {os.getuid()})" in why_unscorable(
        tmp_path
    )  # not even as root
