"""What is applied is both JSON and YAML, whatever characters a trainer's text has."""

from __future__ import annotations

import json
import sys

import pytest
import yaml

from rlguard.core.apply_body import apply_body

EVERY = [chr(n) for n in range(sys.maxunicode + 1) if not 0xD800 <= n < 0xE000]


def test_every_character_arrives_as_it_is() -> None:
    body = apply_body({"".join(EVERY): "".join(EVERY)})
    assert json.loads(body) == {"".join(EVERY): "".join(EVERY)}
    # Character by character for a reader of YAML: those that it does not take raw are escaped.
    assert not yaml.reader.Reader.NON_PRINTABLE.search(body)
    assert not {*"\x85\u2028\u2029"} & {*body}, "they end a line, which a reader may fold"


@pytest.mark.parametrize(
    "text", ["\0\x01\x1b", "a\x7f\x85\x9fb", "\u2028\u2029", "\ufeff\ufffe\uffff", "😀\U0010ffff", "\r\n\t"]
)
def test_a_text_arrives_through_yaml(text: str) -> None:
    assert yaml.safe_load(apply_body({"text": f"a{text}z"})) == {"text": f"a{text}z"}


def test_half_a_pair_is_replaced() -> None:
    assert json.loads(apply_body({"\ud83d": "a\udfffb"})) == {"\ufffd": "a\ufffdb"}


def test_two_halves_that_json_escapes_are_what_a_reader_of_yaml_refuses() -> None:
    """Why the body is not what `json.dumps` makes of it: the API server's reader refuses any half."""
    assert "\\ud83d\\ude00" in json.dumps("😀") and "\\ud83d" not in apply_body("😀")
