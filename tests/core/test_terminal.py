"""What others wrote, made fit to be shown and passed on."""

from __future__ import annotations

import os

import pytest

from rlguard.core.terminal import escaped, is_unicode, plain

ODD = os.fsdecode(b"tokenizer\x80.json")


@pytest.mark.parametrize("text", ["checkpoint-7", "Qwen2.5 für 日本語 😀", ""])
def test_what_can_be_printed_stays_as_it_is(text: str) -> None:
    assert escaped(text) == plain(text) == text and is_unicode(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (ODD, r"tokenizer\udc80.json"),
        ("\ud800", r"\ud800"),
        ("a\nb\x1b[31m\0", r"a\nb\x1b[31m\x00"),
        ("\u202e", r"\u202e"),
    ],
)
def test_what_cannot_is_written_as_python_does(text: str, shown: str) -> None:
    assert escaped(text) == shown and shown.encode()


def test_a_name_of_other_bytes_is_not_unicode() -> None:
    assert not is_unicode(ODD) and not is_unicode("\ud7ff\udfff")
    assert is_unicode("\ud7ff\ue000\n")
