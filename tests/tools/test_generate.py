"""What is generated is what the code gives now, and a stale file fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import ROOT, generate

OUTPUTS = generate.outputs()


@pytest.mark.parametrize("path", OUTPUTS, ids=str)
def test_a_generated_file_is_what_the_code_gives_now(path: Path) -> None:
    assert (ROOT / path).read_text("utf-8") == OUTPUTS[path], "run `make generate`"


def test_a_stale_file_is_named_and_then_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {Path("a/stale.md"): "new", Path("fresh.md"): "fresh", Path("b/missing.md"): "made"}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "stale.md").write_text("old")
    (tmp_path / "fresh.md").write_text("fresh")

    assert generate.write_or_check(texts, tmp_path, check=True) == 1
    said = capsys.readouterr().err
    assert "a/stale.md" in said and "b/missing.md" in said and "fresh.md" not in said
    assert (tmp_path / "a" / "stale.md").read_text() == "old"

    assert generate.write_or_check(texts, tmp_path, check=False) == 0
    assert {path: (tmp_path / path).read_text() for path in texts} == texts
    assert generate.write_or_check(texts, tmp_path, check=True) == 0


def test_the_command_of_make_verify_works() -> None:
    subprocess.run([sys.executable, "-m", "tools.generate", "--check"], cwd=ROOT, check=True)
