"""What a checkpoint's configuration names outside the checkpoint is not read, and its pins stay the same.

The tokenizers and configurations are transformers' own. What it would follow lies outside the copy: a
vocabulary that could be exchanged between two checkpoints, and the split.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from guard_service.heldout.named_files import names_a_file, without_files
from guard_service.heldout.prompts import Stops

from guard_core.wire import FailureKind
from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.evaluators.evaluator import stage_as_expected
from guard_service.heldout.evaluators.tokenization import Tokenization
from guard_service.heldout.identity import Expected
from guard_service.heldout.staging import pins_of
from guard_service.heldout.worker import EvaluationRequest

SECRET = "17+25"
WORDS = {word: i for i, word in enumerate(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "a", "b"])}
OTHER_WORDS = {word: len(WORDS) - 1 - i for word, i in WORDS.items()}


@dataclass(frozen=True)
class Outside:
    """Files beside the checkpoint, and not in it."""

    vocabulary: Path
    merges: Path
    split: Path
    tokenizer: Path


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    folder = tmp_path / "outside"
    folder.mkdir()
    names = ("v.json", "m.txt", "heldout.jsonl", "tokenizer.1.0.json")
    found = Outside(*(folder / name for name in names))
    found.vocabulary.write_text(json.dumps(WORDS))
    found.merges.write_text("#version: 0.2\n")
    found.split.write_text(f'{{"id":"h1","prompt":"{SECRET}=? ","answer":"42"}}\n')
    found.tokenizer.write_text(tokenizer_json(OTHER_WORDS))
    return found


def tokenizer_json(vocabulary: Any, kind: str = "WordLevel", **more: Any) -> str:
    model = {"type": kind, "vocab": vocabulary, "unk_token": "<unk>", **more}
    split = {"type": "WhitespaceSplit"}
    return json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": split, "model": model})


def saved(tmp_path: Path, **files: Any) -> Path:
    """A checkpoint with these JSON files."""
    path = tmp_path / "checkpoint-10"
    path.mkdir()
    (path / "model.safetensors").write_bytes(b"weights")
    for name, content in {"config": {"model_type": "gpt2", "n_positions": 64}, **files}.items():
        (path / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def read(checkpoint: Path, scratch: Path) -> Tokenization:
    """As an evaluator reads it."""
    staged = stage_as_expected(EvaluationRequest(0, 10, checkpoint), scratch, None)
    return Tokenization.load(staged.path, staged.path, f"checkpoint {checkpoint}", Stops())


def failure(act: Callable[[], object]) -> EvaluationError | None:
    try:
        act()
    except EvaluationError as error:
        return error
    return None


GEMMA = "GemmaTokenizer"  # transformers 5.23 puts nothing but `tokenizer_file` in the place of what it names


@pytest.mark.torch
@pytest.mark.parametrize("merges", ["merges", "split"])
@pytest.mark.parametrize("form", ["keys", "map", "positions", "texts"])
def test_no_tokenizer_is_made_of_files_outside_its_checkpoint(
    outside: Outside, tmp_path: Path, form: str, merges: str
) -> None:
    of, by = str(outside.vocabulary), str(getattr(outside, merges))
    own: dict[str, Any] = {"tokenizer_class": GEMMA}
    files = {"vocab_file": of, "merges_file": by}
    forms: dict[str, dict[str, Any]] = {
        "keys": {"tokenizer_config": own | files},
        "map": {"tokenizer_config": own, "special_tokens_map": files},
        "positions": {"tokenizer_config": own | {"init_inputs": [of, by]}},
        "texts": {"tokenizer_config": own | {"vocab": of, "merges": by}},
    }
    made: list[Tokenization] = []
    failed = failure(lambda: made.append(read(saved(tmp_path, **forms[form]), tmp_path)))
    if failed is not None:
        assert failed.kind is FailureKind.TOKENIZER and SECRET not in str(failed)
    assert not any({"a", "b"} & codec.tokenizer.get_vocab().keys() for codec in made)


@pytest.mark.torch
def test_no_vocabulary_in_a_tokenizer_json_is_the_name_of_one(outside: Outside, tmp_path: Path) -> None:
    """Python reads it before Rust does, and hands the text on, which is opened."""
    wordpiece = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 9}
    tokenizer = tokenizer_json(str(outside.split), "WordPiece", **wordpiece)
    checkpoint = saved(tmp_path, tokenizer=tokenizer, tokenizer_config={"tokenizer_class": "BertTokenizer"})
    codec = read(checkpoint, tmp_path)
    assert not [token for token in codec.tokenizer.get_vocab() if SECRET in token]


@pytest.mark.torch
def test_the_tokenizer_and_the_configuration_of_a_checkpoint_are_its_own(
    outside: Outside, tmp_path: Path
) -> None:
    """One for a release of transformers may be named, and is looked for from the directory on."""
    checkpoint = saved(
        tmp_path,
        config={
            "model_type": "gpt2",
            "n_positions": 64,
            "configuration_files": ["config.1.0.json"],
        },
        tokenizer=tokenizer_json(WORDS),
        tokenizer_config={
            "tokenizer_class": "PreTrainedTokenizerFast",
            "vocab_file": "/old/vocab.json",
            "fast_tokenizer_files": [f"../outside/{outside.tokenizer.name}"],
        },
    )
    codec = read(checkpoint, tmp_path)
    assert codec.positions == 64 and codec.tokenizer("a b")["input_ids"] == [WORDS["a"], WORDS["b"]]


def test_the_pins_are_of_what_was_announced(outside: Outside, tmp_path: Path) -> None:
    """An earlier release pinned the paths, too: a guard that comes back as this one calls nothing changed."""
    config = {"tokenizer_class": GEMMA, "vocab_file": str(outside.vocabulary)}
    checkpoint = saved(tmp_path, tokenizer_config=config, tokenizer=tokenizer_json(WORDS))
    pins = pins_of(checkpoint, tmp_path / "pins", None, None)
    expected = Expected(pins=pins)
    staged = stage_as_expected(EvaluationRequest(0, 10, checkpoint, expected=expected), tmp_path, None)
    assert json.loads((staged.path / "tokenizer_config.json").read_text()) == {"tokenizer_class": GEMMA}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(config | {"vocab_file": "/another"}))
    with pytest.raises(EvaluationError, match=r"'tokenizer_config\.json' is not as in"):
        stage_as_expected(EvaluationRequest(0, 20, checkpoint, expected=expected), tmp_path, None)


def test_a_configuration_that_names_no_file_is_left_to_the_byte(tmp_path: Path) -> None:
    text = '{ "tokenizer_class" : "x", "drop_path": 0.1, "vocab": {"x_file": 1}, "n": NaN }'
    checkpoint = saved(tmp_path, tokenizer_config=text, tokenizer=tokenizer_json(WORDS))
    staged = stage_as_expected(EvaluationRequest(0, 10, checkpoint), tmp_path, None)
    assert (staged.path / "tokenizer_config.json").read_text() == text


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[" * 900 + "]" * 900,
        "[]",
        '{"a": ' * 300 + "1" + "}" * 300,
        '{"model": ' * 5_000 + "1" + "}" * 5_000,
    ],
    ids=["cut", "list", "empty", "nested", "nested too deeply"],
)
@pytest.mark.parametrize("name", ["config", "tokenizer_config", "special_tokens_map", "tokenizer"])
def test_a_configuration_that_is_none_is_refused_in_words_or_ends_nothing(
    tmp_path: Path, name: str, content: str
) -> None:
    checkpoint = saved(tmp_path, **{"tokenizer": tokenizer_json(WORDS), name: content})
    failed = failure(lambda: stage_as_expected(EvaluationRequest(0, 10, checkpoint), tmp_path, None))
    if "model" in content:
        assert failed is not None and f"{name}.json is" in str(failed)
    assert failed is None or failed.kind is FailureKind.CHECKPOINT


@pytest.mark.parametrize(
    ("key", "value", "is_one"),
    [
        ("vocab_file", "x", True),
        ("vocab_file", None, True),
        ("fast_tokenizer_files", ["x"], True),
        ("sudachi_config_path", "x", True),
        ("sudachi_resource_dir", "x", True),
        ("source_spm", "x", True),
        ("init_inputs", ["x"], True),
        ("vocab", "x", True),
        ("merges", "x", True),
        ("backbone", "x", True),
        ("transformers_weights", "x", True),
        ("vocab", {"x": 1}, False),
        ("merges", [["a", "b"]], False),
        ("vocab", [["a", -1.5]], False),
        ("vocab", {"x_file": 1}, False),
        ("vocab_file", 5, True),
        ("vocab", 5, True),
        ("vocab_file", {"x": 1}, True),
        ("drop_path", 0.1, False),
        ("tokenizer_class", "x", False),
        ("eos_token", "</s>", False),
    ],
)
def test_what_names_a_file(key: str, value: object, is_one: bool) -> None:
    assert names_a_file(key, value) is is_one
    assert without_files({"a": [{key: value}], "b": 1}) == {"a": [{} if is_one else {key: value}], "b": 1}


def arguments_of_tokenizers() -> Iterator[str]:
    """All of them, by transformers' own sources."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None and spec.origin is not None
    for module in Path(spec.origin).parent.glob("models/*/tokenization_*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                yield from (argument.arg for argument in [*node.args.args, *node.args.kwonlyargs])


def test_every_file_that_a_tokenizer_of_transformers_takes_is_known() -> None:
    words = {"file", "path", "dir", "spm", "rules", "vocab", "merges"}
    found = {name for name in arguments_of_tokenizers() if words & set(name.split("_")[-1:])}
    assert {"vocab_file", "vocab", "sudachi_config_path", "rewriting_rules", "target_spm"} <= found
    assert {name for name in found if not names_a_file(name, "a text")} == set()
