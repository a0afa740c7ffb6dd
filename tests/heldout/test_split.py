"""The held-out split: what is read, what is refused and how it is told.

Invariant 8 here: no error quotes anything of a line but its id, and no repr shows a prompt or an answer.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guard_service.heldout.errors import SplitError
from guard_service.heldout.split import HeldoutSplit, read_train_prompts
from guard_service.heldout.text import asked, normalised, tokens

GOOD = {"id": "a", "prompt": "1+2=", "answer": "3"}
SECRET = "xyzzy plugh"


def write(path: Path, *rows: Any) -> Path:
    """Rows as JSON lines; text and bytes are written as they are."""
    lines = [
        r if isinstance(r, bytes) else (r if isinstance(r, str) else json.dumps(r)).encode() for r in rows
    ]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_reads_items_in_order_and_digests_the_file(tmp_path: Path) -> None:
    """A line ends at a newline and nowhere else."""
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2+2="}]
    odd = {**GOOD, "prompt": "one\u2028two\x85three"}
    other = {"id": "b", "prompt": chat, "answer": [4, "four"], "scorer": "numeric", "meta": {"level": 2}}
    path = write(tmp_path / "split", "\ufeff" + json.dumps(odd, ensure_ascii=False), "  ", other)
    split = HeldoutSplit.load(path)
    assert [item.id for item in split.items] == ["a", "b"] and len(split) == 2
    assert split.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert split.items[0].conversation == [{"role": "user", "content": "one\u2028two\x85three"}]
    assert split.items[1].conversation == chat and split.items[1].answers == ("4", "four")
    assert (split.items[1].scorer, split.items[1].meta) == ("numeric", {"level": 2})


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ("{", "line 2: not JSON at column 2"),
        ('"text"', "line 2: not a JSON object"),
        (b"\xff\xfe{}", "line 2: not UTF-8 at byte 0"),
        ('{"id":"x","id":"y","prompt":"p","answer":"1"}', "line 2: a key occurs twice"),
        ("[" * 100_000, "line 2: nested too deeply"),
        ({"prompt": "p", "answer": "1"}, "line 2: id is missing"),
        ({"id": "x", "prompt": "p", "answer": {}}, "line 2: answer must be a text, a number, or a list"),
        ({"id": "x y", "prompt": "p", "answer": "1"}, "line 2: id must be 1 to 128 visible"),
        ({"id": "x", "prompt": "", "answer": "1"}, "line 2: prompt must be a text, or a list of messages"),
        ({"id": "x", "prompt": [{"role": "tool", "content": "c"}]}, "line 2: prompt must be"),
        ({**GOOD, "id": "x", "promt": "q"}, "line 2: unknown key promt: did you mean prompt? An item has"),
        ({**GOOD, "id": "x", "zzz": "q"}, "line 2: unknown key zzz: an item has id, prompt, answer, "),
        ({**GOOD, "id": "x", "scorer": 7}, "line 2: scorer: Input should be a valid string"),
        ({**GOOD, "id": "x", "group": ""}, "line 2: group: String should have at least 1"),
        ({**GOOD, "id": "x", "meta": [1]}, "line 2: meta: Input should be a valid dictionary"),
        ({**GOOD, "id": "x", "chat_template_kwargs": {"tokenize": True}}, "line 2: chat_template_kwargs"),
        ({**GOOD, "id": "x", "answer_after": "x" * 999}, "line 2: answer_after: String should have at most"),
        (
            {"id": "x", "system_prompt": "s", "prompt": [{"role": "system", "content": "t"}]},
            "and a system_prompt: keep one",
        ),
        ({**GOOD, "prompt": "other"}, "line 2: id 'a' is already on line 1: rename one"),
        ({**GOOD, "id": "b", "prompt": " 1 + 2 = "}, "line 2: id 'b' has the same prompt as 'a' on line 1"),
        ({**GOOD, "id": "b", "prompt": [{"role": "user", "content": "1+2="}]}, "same prompt as 'a'"),
    ],
)
def test_refuses_bad_lines_with_their_number(tmp_path: Path, bad: Any, told: str) -> None:
    with pytest.raises(SplitError) as caught:
        HeldoutSplit.load(write(tmp_path / "split.jsonl", GOOD, bad))
    assert told in str(caught.value) and "split.jsonl: 1 bad line" in str(caught.value)


def test_tells_each_mistake_once_up_to_a_bound(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match=r"30 bad lines: line 1: [^;]*; and 29 more$"):
        HeldoutSplit.load(write(tmp_path / "s", *["{"] * 30))
    with pytest.raises(SplitError, match=r"9 bad lines: .*; line 3: .*; and 6 more$"):
        HeldoutSplit.load(write(tmp_path / "s", *[{**GOOD, f"k{n}": 1} for n in range(9)]))


def test_refuses_an_empty_split_and_none(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match="no items"):
        HeldoutSplit.load(write(tmp_path / "s", "", " "))
    with pytest.raises(SplitError, match=r"nowhere\.jsonl: No such file"):
        HeldoutSplit.load(tmp_path / "nowhere.jsonl")


_JSON = st.recursive(
    st.sampled_from([SECRET, None, 1, True]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([SECRET, "id", "role", "content", "prompt"]), inner, max_size=4)
    ),
    max_leaves=6,
)


@given(
    row=st.dictionaries(st.sampled_from(["prompt", "answer", "meta", "scorer", "id", SECRET]), _JSON),
    cut=st.integers(0, 40),
)
def test_no_error_quotes_a_line(
    tmp_path_factory: pytest.TempPathFactory, row: dict[str, Any], cut: int
) -> None:
    text = json.dumps(row)
    path = write(tmp_path_factory.mktemp("s") / "s", text[: len(text) - cut])
    for read in (HeldoutSplit.load, lambda p: list(read_train_prompts(p))):
        told = ""
        try:
            read(path)
        except SplitError as error:
            told = str(error)
        assert "xyzzy" not in told and "plugh" not in told


def test_a_repr_shows_the_id_only(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": SECRET}]
    row = {"id": "a", "prompt": chat, "answer": SECRET, "meta": {"k": SECRET}}
    shown = repr(HeldoutSplit.load(write(tmp_path / "s", row)))
    assert "id='a'" in shown and SECRET not in shown


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1+2=", "1 + 2 = ", True),
        ("What is 3.5?", "what is 3.5", True),
        ("It\u2019s", "it's", True),
        ("\uff11\uff0b\uff12", "1+2", True),
        ([{"role": "user", "content": "2+2="}], "2+2=", True),
        ("3-4", "3+4", False),
        ("3.5", "35", False),
        ("5!", "5", False),
        ("???", "", False),
        ([{"role": "system", "content": "a"}, {"role": "user", "content": "2+2="}], "2+2=", False),
    ],
)
def test_when_two_prompts_are_the_same(one: Any, other: Any, same: bool) -> None:
    assert (normalised(one) == normalised(other)) is same


def test_what_a_prompt_asks_is_what_its_users_say() -> None:
    think = [{"role": "system", "content": "a"}, {"role": "user", "content": "2+2="}]
    assert asked(think) == asked("2+2=")
    assert tokens("東京はabc12") == ["東", "京", "は", "abc", "12"], "a script without spaces"


# -- training prompts --------------------------------------------------------------------------------------


def test_reads_training_prompts_with_and_without_ids(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi", "name": "n"}, {"role": "tool", "content": None}]
    path = write(tmp_path / "t", {"prompt": "p", "answer": 1}, "", {"id": 7, "prompt": chat})
    assert list(read_train_prompts(path)) == [
        ("line 1", "p"),
        ("7", [{"role": "user", "content": "hi"}, {"role": "tool", "content": ""}]),
    ]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"prompt": "p"}, {"question": "q"}], r"line 2: no column prompt \(there are: question\): is it qu"),
        ([{"prompt": 3}], "line 1: prompt must be"),
        ([], "no training prompts"),
    ],
)
def test_refuses_bad_training_prompts(tmp_path: Path, rows: list[Any], told: str) -> None:
    with pytest.raises(SplitError, match=told):
        list(read_train_prompts(write(tmp_path / "t", *rows)))


def test_split_and_disjointness_are_imported_without_torch() -> None:
    code = (
        "import sys; from guard_service.heldout import disjoint, make_split, split, worker;"
        "assert not {'torch', 'transformers', 'numpy', 'httpx'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
