"""The `rlguard` command in this process, for tests of what a user sees."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rlguard.cli.main import main

Invoke = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def rlguard(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Invoke:
    """Runs `rlguard` with these arguments; the result is that of a process."""
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        if cwd is not None:
            monkeypatch.chdir(cwd)
        with pytest.raises(SystemExit) as ended:
            main(words)
        code = ended.value.code
        assert isinstance(code, int)
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return invoke
