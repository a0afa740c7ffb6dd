"""What a checkpoint must be to be scored: as announced, of the run's tokenizer, and with other weights."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from guard_core.wire import FailureKind
from guard_service.heldout import identity, staging
from guard_service.heldout.errors import CheckpointGoneError, EvaluationError
from guard_service.heldout.identity import Expected, as_one, manifest, pinned, refuse_others
from guard_service.heldout.scorable import NEEDED_SUFFIXES
from guard_service.heldout.staging import Staged, stage


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint-10"
    path.mkdir()
    for name, content in {
        "config.json": "{}",
        "generation_config.json": '{"eos_token_id": 1}',
        "tokenizer.json": '{"padding": null, "truncation": null, "model": {"vocab": {"a": 0}}}',
        "tokenizer_config.json": "{}",
        "chat_template.jinja": "{{ x }}",
        "model.safetensors": "weights",
        "notes.json": "{}",
        "trainer_state.json": "{}",
    }.items():
        (path / name).write_text(content)
    return path


def overwrite(path: Path, content: str) -> None:
    """As someone who wants it to go unnoticed: same size, same time of writing."""
    about = path.stat()
    path.write_text(content)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (about.st_size, about.st_mtime_ns)


def swap(path: Path) -> None:
    shutil.copytree(path, path.with_name("other"))
    path.rename(path.with_name("former"))
    path.with_name("other").rename(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "weights": lambda path: overwrite(path / "model.safetensors", "WEIGHTS"),
    "template": lambda path: overwrite(path / "chat_template.jinja", "{{ y }}"),
    "a tokenizer more": lambda path: (path / "tokenizer.model").write_text("x"),
    "a file less, and another one changed": lambda path: (
        (path / "model.safetensors").unlink(),
        overwrite(path / "config.json", "[]"),
    ),
    "a file under another name": lambda path: (path / "chat_template.jinja").rename(
        path / "chat_template_2.jinja"
    ),
    "another directory": swap,
    "a link": lambda path: ((path / "config.json").unlink(), (path / "config.json").symlink_to("notes.json")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_was_changed_after_the_announcement_is_not_scored(
    checkpoint: Path, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    announced = manifest(checkpoint)
    change(checkpoint)
    with pytest.raises(EvaluationError, match="were changed after it was announced") as caught:
        stage(checkpoint, tmp_path / "stage", announced=announced)
    assert caught.value.kind is FailureKind.CHANGED and not (tmp_path / "stage").exists()


@pytest.mark.parametrize("removed", [["config.json"], ["model.safetensors", "tokenizer.json"], None])
def test_a_rotation_under_way_is_no_change(
    checkpoint: Path, tmp_path: Path, removed: list[str] | None
) -> None:
    """Small files go at once, and an optimizer's state of 30 GB takes seconds."""
    (checkpoint / "optimizer.pt").write_text("long")
    announced = manifest(checkpoint)
    for name in removed or [path.name for path in checkpoint.iterdir() if path.suffix != ".pt"]:
        (checkpoint / name).unlink()
    with pytest.raises(CheckpointGoneError, match="was rotated away before it was scored"):
        stage(checkpoint, tmp_path / "stage", announced=announced)


def test_more_files_than_are_looked_at_are_no_manifest(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is beyond them could be changed unnoticed."""
    monkeypatch.setattr(identity, "MAX_NAMES", len(list(checkpoint.iterdir())))
    announced = manifest(checkpoint)
    assert announced is not None
    (checkpoint / "one more").touch()
    assert manifest(checkpoint) is None
    with pytest.raises(EvaluationError, match="were changed after it was announced"):
        stage(checkpoint, tmp_path / "stage", announced=announced)


def test_what_is_changed_while_it_is_copied_is_not_scored(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = staging._stage

    def slow(source: Path, directory: int, target: Path, base: Path | None) -> Staged:
        staged = real(source, directory, target, base)
        overwrite(checkpoint / "model.safetensors", "WEIGHTS")
        return staged

    announced = manifest(checkpoint)
    monkeypatch.setattr(staging, "_stage", slow)
    with pytest.raises(EvaluationError, match="were changed after it was announced"):
        stage(checkpoint, tmp_path / "stage", announced=announced)


def test_another_directory_for_a_moment_is_noticed(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is looked at is what was opened, whatever has the name by then."""
    announced, real = manifest(checkpoint), os.open

    def swapped(path: object, *args: int, **more: int) -> int:
        if path == checkpoint:
            swap(checkpoint)
        file = real(path, *args, **more)  # type: ignore[call-overload]
        if path == checkpoint:
            checkpoint.rename(tmp_path / "gone")
            (tmp_path / "former").rename(checkpoint)
        return int(file)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(EvaluationError, match="were changed after it was announced"):
        stage(checkpoint, tmp_path / "stage", announced=announced)
    monkeypatch.undo()
    assert manifest(checkpoint) == announced, "it looks as if nothing had happened"


def test_what_no_score_depends_on_may_change(checkpoint: Path, tmp_path: Path) -> None:
    announced = manifest(checkpoint)
    (checkpoint / "optimizer.pt").write_text("late")
    (checkpoint / "notes.json").write_text('{"loss": 1}')
    (checkpoint / "trainer_state.json").write_text('{"step": 1}')
    staged = stage(checkpoint, tmp_path / "stage", announced=announced)
    assert "notes.json" not in pinned(staged.path)
    assert not (staged.path / "notes.json").exists(), "nothing that varies can be loaded"


def test_nothing_that_a_tokenizer_is_loaded_from_is_lost(tmp_path: Path) -> None:
    """By what transformers says of its tokenizers."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None and spec.origin is not None
    modules = Path(spec.origin).parent.glob("models/*/tokenization_*.py")
    found = {name for module in modules for name in re.findall(r'_file": "([\w.-]+)"', module.read_text())}
    needed = {name for name in found if name.endswith(NEEDED_SUFFIXES)}
    assert {"vocab.json", "emoji.json", "spiece.model"} <= needed
    for name in needed:
        (tmp_path / name).write_text("{}")
    assert pinned(tmp_path).keys() == needed | {"config.json"}


CONFIG = {
    "model_type": "llama",
    "eos_token_id": 2,
    "vocab_size": 9,
    "use_cache": True,
    "rope": {"theta": 1.0},
}


@pytest.mark.parametrize(
    ("said", "is_another"),
    [
        ({"model_type": "gpt2"}, True),
        ({"tokenizer_class": "BertTokenizer"}, True),
        ({"eos_token_id": [2, 7]}, True),
        ({"eos_token_id": None}, True),
        ({"max_position_embeddings": 64}, True),
        ({"n_positions": 64}, True),
        ({"text_config": {"eos_token_id": 7}}, True),
        ({"rope": {"theta": 1.0, "model_type": "x"}}, True),
        ({"model_name": "phi3"}, True),
        ({"seq_length": 64}, True),
        ({"text_encoder": {"a": 1}}, True),
        ({"decoder": []}, True),
        ({"use_cache": False, "transformers_version": "9", "rope": {"theta": 2.0}, "new": {}}, False),
    ],
    ids=str,
)
def test_what_a_configuration_says_of_texts_stays(
    checkpoint: Path, tmp_path: Path, said: dict[str, object], is_another: bool
) -> None:
    config = checkpoint / "config.json"
    config.write_text(json.dumps(CONFIG))
    first = pinned(stage(checkpoint, tmp_path / "first").path)
    config.write_text(json.dumps({**said, **{k: v for k, v in CONFIG.items() if k not in said}}))
    later = pinned(stage(checkpoint, tmp_path / "later").path)
    if is_another:
        with pytest.raises(EvaluationError, match=r"'config\.json' is not as in"):
            refuse_others(checkpoint, later, "other", Expected(pins=first))
    else:
        refuse_others(checkpoint, later, "other", Expected(pins=first))


@pytest.mark.parametrize(
    "content", ["[]", "{", "[" * 100_000, '{"eos_token_id": ' + "9" * 5000 + "}", "\udc80"]
)
def test_a_configuration_that_is_none_is_pinned_as_it_is(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    first = pinned(tmp_path)
    (tmp_path / "config.json").write_bytes(content.encode(errors="surrogateescape") + b" ")
    assert pinned(tmp_path) != first


def test_a_configuration_that_comes_later_is_another_one(checkpoint: Path) -> None:
    """As beside an adapter, which needs none."""
    (checkpoint / "config.json").unlink()
    first = pinned(checkpoint)
    (checkpoint / "config.json").write_text(json.dumps(CONFIG))
    later = pinned(checkpoint)
    with pytest.raises(EvaluationError, match=r"'config\.json' is not as in"):
        refuse_others(checkpoint, later, "other", Expected(pins=first))


def test_one_digest_stands_for_all_of_them(checkpoint: Path) -> None:
    """As a status has it, which has no room for as many names as a trainer likes."""
    pins = pinned(checkpoint)
    refuse_others(checkpoint, pins, "other", Expected(pins=as_one(pins)))
    for others in ({**pins, "merges.txt": "a"}, {**pins, "config.json": "a"}, {}):
        with pytest.raises(EvaluationError, match="one of its files is not as in") as refused:
            refuse_others(checkpoint, others, "other", Expected(pins=as_one(pins)))
        assert refused.value.kind is FailureKind.TOKENIZER_CHANGED
    assert as_one(dict(reversed(pins.items()))) == as_one(pins) == as_one(as_one(pins))


def test_every_name_of_the_longest_sequence_is_known(tmp_path: Path) -> None:
    """By what transformers calls it in the configurations of its models."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None and spec.origin is not None
    modules = Path(spec.origin).parent.glob("models/*/configuration_*.py")
    other_name = r'"max_position_embeddings": "(\w+)"'
    names = {name for module in modules for name in re.findall(other_name, module.read_text())}
    assert {"n_positions", "max_seq_len"} <= names
    for name in names:
        (tmp_path / "config.json").write_text(json.dumps({name: 1}))
        first = pinned(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps({name: 2}))
        assert pinned(tmp_path) != first, name


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", '{"model": {"vocab": {"b": 0}}}'),
        ("tokenizer_config.json", '{"chat_template": "{{ 1 }}"}'),
        ("chat_template.jinja", "{{ 'a' * 9 }}"),
        ("generation_config.json", '{"eos_token_id": 7}'),
        ("tokenizer.model", "sentencepiece"),
        ("special_tokens_map.json", "{}"),
    ],
)
def test_another_tokenizer_template_or_generation_config_is_refused(
    checkpoint: Path, tmp_path: Path, name: str, content: str
) -> None:
    first = pinned(stage(checkpoint, tmp_path / "first").path)
    (checkpoint / name).write_text(content)
    later = pinned(stage(checkpoint, tmp_path / "later").path)
    with pytest.raises(EvaluationError, match=f"'{name}' is not as in the run's first checkpoint") as caught:
        refuse_others(checkpoint, later, "other", Expected(pins=first))
    assert caught.value.kind is FailureKind.TOKENIZER_CHANGED
    refuse_others(checkpoint, later, "other", Expected())  # the first of a run says how it is


def test_how_the_trainer_last_padded_is_no_other_tokenizer(checkpoint: Path, tmp_path: Path) -> None:
    first = pinned(stage(checkpoint, tmp_path / "first").path)
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    tokenizer |= {"padding": {"strategy": "BatchLongest"}, "truncation": {"max_length": 9}}
    (checkpoint / "tokenizer.json").write_text(json.dumps(tokenizer))
    refuse_others(checkpoint, pinned(stage(checkpoint, tmp_path / "later").path), "w", Expected(pins=first))


def test_another_release_of_the_library_is_no_other_generation(checkpoint: Path, tmp_path: Path) -> None:
    config = checkpoint / "generation_config.json"
    config.write_text('{"eos_token_id": 1, "transformers_version": "5.0.0", "_from_model_config": true}')
    first = pinned(stage(checkpoint, tmp_path / "first").path)
    config.write_text('{"eos_token_id": 1, "transformers_version": "5.1.0"}')
    refuse_others(checkpoint, pinned(stage(checkpoint, tmp_path / "later").path), "w", Expected(pins=first))
    config.write_text('{"eos_token_id": 2, "transformers_version": "5.1.0"}')
    with pytest.raises(EvaluationError, match=r"generation_config\.json"):
        refuse_others(checkpoint, pinned(stage(checkpoint, tmp_path / "end").path), "w", Expected(pins=first))


def test_names_of_a_checkpoint_are_quoted_and_few(checkpoint: Path) -> None:
    later = {f"tokenizer\n{i}": "x" for i in range(1000)}
    with pytest.raises(EvaluationError) as caught:
        refuse_others(checkpoint, later, "other", Expected(pins={}))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_the_same_weights_under_another_name_are_no_new_evidence(checkpoint: Path) -> None:
    with pytest.raises(EvaluationError, match="those that were scored before") as caught:
        refuse_others(checkpoint, {}, "same", Expected(before="same"))
    assert caught.value.kind is FailureKind.UNCHANGED
    refuse_others(checkpoint, {}, "other", Expected(before="same"))
