"""A message names the option that was written, once, and ends in one mark."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlguard.cli.app import build_app

BASELINE = "baseline.jsonl"


def said(words: list[str]) -> str:
    return str(CliRunner().invoke(build_app(words[0]), words).exception)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["replay", BASELINE, "--policy", "none.yaml"], "--policy none.yaml cannot be read: No such file"),
        (["check", "--policy", "/none.yaml"], "--policy /none.yaml cannot be read: No such file"),
        (
            ["check", "--heldout", "x", "--device", "tpu"],
            "--device: String should match pattern",
        ),
        (["replay", BASELINE, "--detector", "heldot_guard"], "no such detector: did you mean heldout_guard?"),
        (["follow", "--metrics", "-", "--format", "verk"], "--format verk: did you mean verl?"),
    ],
)
def test_what_was_written_is_named(
    words: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(BASELINE).write_text('{"itms": [0, 1]}\n')
    message = said(words)
    assert expected in message
    assert not message.endswith("?.") and "Value error" not in message
