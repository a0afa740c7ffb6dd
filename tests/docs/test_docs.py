"""Nothing that a user sets or reads is undocumented."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from rlguard.client.settings import variable_of
from rlguard.core.codes import Code, Level
from tools import references
from trainer_image.config import CallbackSettings

ROOT = Path(__file__).resolve().parents[2]


def reference(name: str) -> str:
    return (ROOT / "docs" / "reference" / name).read_text("utf-8")


class TestNothingIsUndocumented:
    def test_every_level_and_code(self) -> None:
        page = reference("codes.md") + (ROOT / "docs/concepts/how-it-decides.md").read_text("utf-8")
        assert [value for value in [*Level, *Code] if f"| `{value.value}` |" not in page] == []

    def test_every_variable_of_the_trainer(self) -> None:
        sources = (
            path for name in ("rlguard/client", "trainer_image") for path in (ROOT / name).rglob("*.py")
        )
        found = re.compile(r'environ\.get\(\s*"(RLGUARD_\w+)"')
        names = {name for source in sources for name in found.findall(source.read_text("utf-8"))}
        names |= {variable_of((name,)) for name in CallbackSettings.model_fields}
        assert names == references.TRAINER_ENVIRONMENT.keys()


def test_pre_commit_needs_no_git_host_and_its_tools_are_in_the_lock_file() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    assert {repository["repo"] for repository in config["repos"]} == {"local"}
    pinned = (ROOT / "requirements.lock").read_text("utf-8")
    for hook in config["repos"][0]["hooks"]:
        program = hook["entry"].split()[0].removeprefix(".venv/bin/")
        package = {"lint-imports": "import-linter"}.get(program, program)
        assert program == "python" or f"\n{package}==" in pinned, f"{package} is not locked"
