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

from guard_service.heldout.errors import CheckpointGoneError, EvaluationError
from guard_service.heldout.identity import Expected, manifest, pinned
from guard_service.heldout.scorable import MAX_NAMES, NEEDED_SUFFIXES
from guard_service.heldout.staging import pins_of, stage
from rlguard.core.wire import FailureKind

CONFIG = {"model_type": "llama", "eos_token_id": 2, "vocab_size": 9, "rope": {"theta": 1.0}}
TOKENIZER = {"padding": None, "truncation": None, "model": {"vocab": {"a": 0}}}
Change = Callable[[Path], object]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint-10"
    path.mkdir()
    for name, content in {
        "config.json": json.dumps(CONFIG),
        "generation_config.json": '{"eos_token_id": 1, "transformers_version": "5.0"}',
        "tokenizer.json": json.dumps(TOKENIZER),
        "tokenizer_config.json": "{}",
        "chat_template.jinja": "{{ x }}",
        "model.safetensors": "weights",
        "notes.json": "{}",
        "trainer_state.json": "{}",
    }.items():
        (path / name).write_text(content)
    return path


# -- as announced ------------------------------------------------------------------------------------------


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


def remove_one_and_change_another(path: Path) -> None:
    (path / "model.safetensors").unlink()
    overwrite(path / "chat_template.jinja", "{{ y }}")


CHANGES: dict[str, Change] = {
    "weights": lambda path: overwrite(path / "model.safetensors", "WEIGHTS"),
    "template": lambda path: overwrite(path / "chat_template.jinja", "{{ y }}"),
    "a tokenizer more": lambda path: (path / "tokenizer.model").write_text("x"),
    "a file less, and another one changed": remove_one_and_change_another,
    "another name": lambda path: (path / "chat_template.jinja").rename(path / "chat_template_2.jinja"),
    "another directory": swap,
    "a link": lambda path: ((path / "config.json").unlink(), (path / "config.json").symlink_to("notes.json")),
    "too many files": lambda path: [(path / str(n)).touch() for n in range(MAX_NAMES)],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_was_changed_after_the_announcement_is_not_scored(
    checkpoint: Path, tmp_path: Path, change: Change
) -> None:
    announced = manifest(checkpoint)
    change(checkpoint)
    with pytest.raises(EvaluationError, match="were changed after it was announced") as caught:
        stage(checkpoint, tmp_path / "stage", expected=Expected(announced))
    assert caught.value.kind is FailureKind.CHANGED and not (tmp_path / "stage").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda path: overwrite(path / "chat_template.jinja", "{{ y }}"),  # which was copied before
        swap,  # what is looked at is what was opened, whatever has the name by then
    ],
    ids=["a file", "the directory"],
)
def test_what_is_changed_while_it_is_copied_is_not_scored(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    announced, real = manifest(checkpoint), os.open

    def opened(path: object, *args: int, **more: int) -> int:
        if path == ("model.safetensors" if change is not swap else checkpoint):
            change(checkpoint)
        file = int(real(path, *args, **more))  # type: ignore[call-overload]
        if change is swap and path == checkpoint:
            checkpoint.rename(tmp_path / "gone")
            (tmp_path / "former").rename(checkpoint)
        return file

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(EvaluationError, match="were changed after it was announced"):
        stage(checkpoint, tmp_path / "stage", expected=Expected(announced))


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
        stage(checkpoint, tmp_path / "stage", expected=Expected(announced))


def test_what_no_score_depends_on_may_change(checkpoint: Path, tmp_path: Path) -> None:
    announced = manifest(checkpoint)
    for name in ("optimizer.pt", "notes.json", "trainer_state.json"):
        (checkpoint / name).write_text('{"step": 1}')
    staged = stage(checkpoint, tmp_path / "stage", expected=Expected(announced))
    assert not (staged.path / "notes.json").exists(), "nothing that varies can be loaded"


# -- of the run's tokenizer --------------------------------------------------------------------------------


def again(checkpoint: Path, change: Change) -> None:
    """Stage a later checkpoint of the run, which is the first one with a change."""
    pins = pins_of(checkpoint, checkpoint.with_name("pins"), None, None)
    change(checkpoint)
    stage(checkpoint, checkpoint.with_name("stage"), expected=Expected(pins=pins))


def write(name: str, content: object) -> Change:
    return lambda path: (path / name).write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize(
    "change",
    [
        write("tokenizer.json", TOKENIZER | {"model": {"vocab": {"b": 0}}}),
        write("tokenizer_config.json", {"chat_template": "{{ 1 }}"}),
        write("tokenizer_config.json", {"vocab_file": "/another"}),
        write("chat_template.jinja", "{{ 'a' * 9 }}"),
        write("generation_config.json", {"eos_token_id": 7}),
        write("tokenizer.model", "sentencepiece"),
        write("config.json", CONFIG | {"model_type": "gpt2"}),
        write("config.json", CONFIG | {"eos_token_id": [2, 7]}),
        write("config.json", {key: value for key, value in CONFIG.items() if key != "eos_token_id"}),
        write("config.json", CONFIG | {"text_config": {"eos_token_id": 7}}),
        write("config.json", CONFIG | {"decoder": []}),
    ],
)
def test_another_tokenizer_template_or_generation_config_is_refused(checkpoint: Path, change: Change) -> None:
    """Also what a configuration says of texts."""
    with pytest.raises(EvaluationError, match="' is not as in the run's first checkpoint") as caught:
        again(checkpoint, change)
    assert caught.value.kind is FailureKind.TOKENIZER_CHANGED
    assert not checkpoint.with_name("stage").exists()


@pytest.mark.parametrize(
    "change",
    [
        write(
            "tokenizer.json", TOKENIZER | {"padding": {"strategy": "BatchLongest"}, "truncation": {"n": 9}}
        ),
        write("generation_config.json", {"eos_token_id": 1, "transformers_version": "5.1"}),
        write("config.json", CONFIG | {"use_cache": False, "transformers_version": "9", "new": {}}),
        write("config.json", CONFIG | {"rope": {"theta": 2.0}}),
    ],
)
def test_what_decides_no_text_may_change(checkpoint: Path, change: Change) -> None:
    """How the trainer last padded, another release of the library."""
    again(checkpoint, change)


def survey(modules: str, pattern: str) -> set[str]:
    """What transformers says in its own sources."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None and spec.origin is not None
    sources = Path(spec.origin).parent.glob(modules)
    return {name for source in sources for name in re.findall(pattern, source.read_text())}


def test_nothing_that_a_tokenizer_is_loaded_from_is_lost(tmp_path: Path) -> None:
    found = survey("models/*/tokenization_*.py", r'_file": "([\w.-]+)"')
    needed = {name for name in found if name.endswith(NEEDED_SUFFIXES)}
    assert {"vocab.json", "emoji.json", "spiece.model"} <= needed
    for name in needed:
        (tmp_path / name).write_text("{}")
    assert pinned(tmp_path).keys() == needed | {"config.json"}


def test_every_name_of_the_longest_sequence_is_known(tmp_path: Path) -> None:
    names = survey("models/*/configuration_*.py", r'"max_position_embeddings": "(\w+)"')
    assert {"n_positions", "max_seq_len"} <= names
    for name in names:
        (tmp_path / "config.json").write_text(json.dumps({name: 1}))
        first = pinned(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps({name: 2}))
        assert pinned(tmp_path) != first, name


# -- with other weights ------------------------------------------------------------------------------------


def test_the_same_weights_under_another_name_are_no_new_evidence(checkpoint: Path, tmp_path: Path) -> None:
    first = stage(checkpoint, tmp_path / "first")
    later = shutil.copytree(checkpoint, tmp_path / "checkpoint-20")
    with pytest.raises(EvaluationError, match="those that were scored before") as caught:
        stage(later, tmp_path / "second", expected=Expected(before=first.sha256))
    assert caught.value.kind is FailureKind.UNCHANGED
    overwrite(later / "model.safetensors", "WEIGHTS")
    stage(later, tmp_path / "second", expected=Expected(before=first.sha256))
