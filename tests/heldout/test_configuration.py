"""What a checkpoint's configuration names outside the checkpoint is not read.

The tokenizers and configurations are transformers' own. What it would follow lies outside the copy: a
vocabulary that could be exchanged between two checkpoints, and the split.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.evaluators.completions import Stops, Tokenization
from guard_service.heldout.scorable import names_a_file, without_files
from guard_service.heldout.staging import stage

SECRET = "17+25"
WORDS = {word: i for i, word in enumerate(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "a", "b"])}
GEMMA = "GemmaTokenizer"  # transformers 5.23 puts nothing but `tokenizer_file` in the place of what it names


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Files beside the checkpoint, and not in it."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "v.json").write_text(json.dumps(WORDS))
    (folder / "m.txt").write_text("#version: 0.2\n")
    (folder / "heldout.jsonl").write_text(f'{{"id":"h1","prompt":"{SECRET}=? ","answer":"42"}}\n')
    others = {word: len(WORDS) - 1 - i for word, i in WORDS.items()}
    (folder / "tokenizer.1.0.json").write_text(tokenizer_json(others))
    return folder


def tokenizer_json(vocabulary: Any, kind: str = "WordLevel", **more: Any) -> str:
    model = {"type": kind, "vocab": vocabulary, "unk_token": "<unk>", **more}
    split = {"type": "WhitespaceSplit"}
    return json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": split, "model": model})


def read(tmp_path: Path, **files: Any) -> Tokenization:
    """Stage a checkpoint with these JSON files, and read its tokenizer as an evaluator does."""
    path = tmp_path / "checkpoint-10"
    path.mkdir()
    (path / "model.safetensors").write_bytes(b"weights")
    for name, content in {"config": {"model_type": "gpt2", "n_positions": 64}, **files}.items():
        (path / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    staged = stage(path, tmp_path / "stage")
    return Tokenization.load(staged.path, staged.path, "it", Stops())


@pytest.mark.torch
@pytest.mark.parametrize("merges", ["m.txt", "heldout.jsonl"])
@pytest.mark.parametrize("form", ["keys", "map", "positions", "texts"])
def test_no_tokenizer_is_made_of_files_outside_its_checkpoint(
    outside: Path, tmp_path: Path, form: str, merges: str
) -> None:
    of, by = str(outside / "v.json"), str(outside / merges)
    own: dict[str, Any] = {"tokenizer_class": GEMMA}
    files = {"vocab_file": of, "merges_file": by}
    forms: dict[str, dict[str, Any]] = {
        "keys": {"tokenizer_config": own | files},
        "map": {"tokenizer_config": own, "special_tokens_map": files},
        "positions": {"tokenizer_config": own | {"init_inputs": [of, by]}},
        "texts": {"tokenizer_config": own | {"vocab": of, "merges": by}},
    }
    told, tokens = "", set[str]()
    try:
        tokens = set(read(tmp_path, **forms[form]).tokenizer.get_vocab())
    except EvaluationError as error:
        told = str(error)
    assert SECRET not in told and not {"a", "b"} & tokens


@pytest.mark.torch
def test_no_vocabulary_in_a_tokenizer_json_is_the_name_of_one(outside: Path, tmp_path: Path) -> None:
    """Python reads it before Rust does, and hands the text on, which is opened."""
    wordpiece = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 9}
    tokenizer = tokenizer_json(str(outside / "heldout.jsonl"), "WordPiece", **wordpiece)
    made = read(tmp_path, tokenizer=tokenizer, tokenizer_config={"tokenizer_class": "BertTokenizer"})
    assert not [token for token in made.tokenizer.get_vocab() if SECRET in token]


@pytest.mark.torch
def test_the_tokenizer_and_the_configuration_of_a_checkpoint_are_its_own(
    outside: Path, tmp_path: Path
) -> None:
    """One for a release of transformers may be named, and is looked for from the directory on."""
    other = next(outside.glob("tokenizer*")).name
    made = read(
        tmp_path,
        config={"model_type": "gpt2", "n_positions": 64, "configuration_files": ["config.1.0.json"]},
        tokenizer=tokenizer_json(WORDS),
        tokenizer_config={
            "tokenizer_class": "PreTrainedTokenizerFast",
            "vocab_file": "/old/vocab.json",
            "fast_tokenizer_files": [f"../outside/{other}"],
        },
    )
    assert made.positions == 64 and made.tokenizer("a b")["input_ids"] == [WORDS["a"], WORDS["b"]]


def test_a_configuration_that_is_nested_too_deeply_is_refused_in_words(tmp_path: Path) -> None:
    deep = '{"model": ' * 5_000 + "1" + "}" * 5_000
    with pytest.raises(EvaluationError, match=r"tokenizer\.json is nested too deeply"):
        read(tmp_path, tokenizer=deep)


@pytest.mark.parametrize(
    ("key", "value", "is_one"),
    [
        ("vocab_file", "x", True),
        ("fast_tokenizer_files", ["x"], True),
        ("sudachi_config_path", "x", True),
        ("source_spm", "x", True),
        ("init_inputs", ["x"], True),
        ("merges", "x", True),
        ("vocab", 5, True),
        ("vocab", {"x_file": 1}, False),
        ("merges", [["a", "b"]], False),
        ("drop_path", 0.1, False),
        ("tokenizer_class", "x", False),
    ],
)
def test_what_names_a_file_is_dropped_at_any_depth(key: str, value: object, is_one: bool) -> None:
    assert without_files({"a": [{key: value}], "b": 1}) == {"a": [{} if is_one else {key: value}], "b": 1}


def test_every_file_that_a_tokenizer_of_transformers_takes_is_known() -> None:
    spec = importlib.util.find_spec("transformers")
    assert spec is not None and spec.origin is not None
    found = set()
    for module in Path(spec.origin).parent.glob("models/*/tokenization_*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                found |= {argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]}
    words = {"file", "path", "dir", "spm", "rules", "vocab", "merges"}
    found = {name for name in found if name.rpartition("_")[2] in words}
    assert {"vocab_file", "vocab", "sudachi_config_path", "rewriting_rules", "target_spm"} <= found
    assert {name for name in found if not names_a_file(name, "a text")} == set()
