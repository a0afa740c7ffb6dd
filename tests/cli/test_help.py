"""The examples of every help text can be copied into a shell, however wide the terminal is."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rlguard.cli.app import build_app
from rlguard.cli.commands import COMMANDS
from rlguard.cli.epilog import epilog

WIDTHS = (60, 200)
EVERY = [
    [],
    *([name] for name in COMMANDS if name != "split"),
    ["split", "check"],
    ["split", "make"],
]


def help_of(words: Sequence[str], columns: int) -> str:
    app = build_app(words[0] if words else None)
    done = CliRunner().invoke(app, [*words, "--help"], prog_name="rlguard", env={"COLUMNS": str(columns)})
    assert done.exit_code == 0, done.output
    return done.output


def block(text: str) -> str:
    """What a reader selects: the indented lines below "Example:"."""
    found = re.search(r"^  Examples?:\n\n((?: {4}.+\n)+)", text, re.MULTILINE)
    assert found, f"no example in:\n{text}"
    return found[1]


def commands(selected: str) -> list[list[str]]:
    """The words of each command, as a shell reads them: joined at backslashes, divided at pipes, no file."""
    lines = selected.replace("\\\n", "").splitlines()
    words = [shlex.split(part.partition(" > ")[0]) for line in lines for part in line.split(" | ")]
    return [one for one in words if one[0] == "rlguard"]


def parse(words: Sequence[str]) -> None:
    """Parse a call without making it; an unknown option or a wrong value is an error."""
    name, *rest = words
    command: Any = typer.main.get_command(build_app(name)).commands[name]  # type: ignore[attr-defined]
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    command.make_context(name, rest)


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_examples_can_be_copied_at_any_width_and_exit_codes_are_explained(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").touch()  # it is opened when the line is parsed
    narrow, wide = (block(help_of(words, columns)) for columns in WIDTHS)
    assert narrow == wide and max(map(len, narrow.splitlines())) <= min(WIDTHS)
    called = commands(narrow)
    assert ["rlguard", *words] in [one[: 1 + len(words)] for one in called]
    for one in called:
        parse(one[1:])
    codes = " ".join(help_of(words, 200).partition("Exit codes:")[2].split())
    assert not words or codes.startswith("0 ")


def test_an_example_with_a_wrong_option_is_found() -> None:
    with pytest.raises(Exception, match="--no-such"):
        parse(["run", "--heldout", "h", "--no-such", "1", "--", "true"])


def test_a_long_command_is_continued_before_an_option() -> None:
    long = "rlguard run --heldout a-rather-long-name-of-a-held-out-split.jsonl --follow - -- python train.py"
    assert epilog(long, "rlguard demo", note="That is all.") == textwrap.dedent(
        """\
        Examples:

        \b
          rlguard run \\
              --heldout a-rather-long-name-of-a-held-out-split.jsonl \\
              --follow - -- python train.py
          rlguard demo

        That is all."""
    )
