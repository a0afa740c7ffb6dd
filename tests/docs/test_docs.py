"""The docs say what the code does: generated pages are fresh, nothing is undocumented, no link is dead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from guard_client.settings import variable_of
from guard_core.codes import Code, Level
from tools import references
from trainer_image.config import CallbackSettings

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"])


def reference(name: str) -> str:
    return (ROOT / "docs" / "reference" / name).read_text("utf-8")


def empty_cells(page: str) -> list[str]:
    """Rows of a page's tables whose last cell, the meaning, is empty."""
    return [line for line in page.splitlines() if line.startswith("|") and re.search(r"\|\s*\|$", line)]


class TestNothingIsUndocumented:
    @pytest.mark.parametrize("name", ["codes.md", "metrics.md", "settings.md"])
    def test_every_row_has_a_meaning(self, name: str) -> None:
        assert empty_cells(reference(name)) == []

    def test_an_empty_meaning_would_be_seen(self) -> None:
        assert empty_cells("| a | b |\n|---|---|\n| `x` |  |") == ["| `x` |  |"]

    def test_every_level_and_code(self) -> None:
        page = reference("codes.md") + (ROOT / "docs/concepts/how-it-decides.md").read_text("utf-8")
        assert [value for value in [*Level, *Code] if f"| `{value.value}` |" not in page] == []

    def test_every_variable_of_the_trainer(self) -> None:
        sources = (path for name in ("guard_client", "trainer_image") for path in (ROOT / name).rglob("*.py"))
        found = re.compile(r'environ\.get\(\s*"(RLGUARD_\w+)"')
        names = {name for source in sources for name in found.findall(source.read_text("utf-8"))}
        names |= {variable_of((name,)) for name in CallbackSettings.model_fields}
        assert names == references.TRAINER_ENVIRONMENT.keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_files_lead_somewhere(page: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            dead.append(target)
    assert not dead


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, by the rule that the usual renderers follow."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


class TestTestsNamedInTheArchitecture:
    def test_exist(self) -> None:
        page = (ROOT / "docs" / "concepts" / "architecture.md").read_text("utf-8")
        named = set(re.findall(r"`(tests/[\w/.]+?)(?:::[\w:]+)?`", page))
        assert named
        assert [path for path in named if not (ROOT / path).exists()] == []

    def test_and_their_parts_exist(self) -> None:
        page = (ROOT / "docs" / "concepts" / "architecture.md").read_text("utf-8")
        for path, parts in re.findall(r"`(tests/[\w/.]+?)::([\w:]+)`", page):
            source = (ROOT / path).read_text("utf-8")
            for part in parts.split("::"):
                assert re.search(rf"(?:class|def) {part}\b", source), f"{path} has no {part}"


def test_pre_commit_needs_no_git_host_and_its_tools_are_in_the_lock_file() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    assert {repository["repo"] for repository in config["repos"]} == {"local"}
    pinned = (ROOT / "requirements.lock").read_text("utf-8")
    for hook in config["repos"][0]["hooks"]:
        program = hook["entry"].split()[0].removeprefix(".venv/bin/")
        package = {"lint-imports": "import-linter"}.get(program, program)
        assert program == "python" or f"\n{package}==" in pinned, f"{package} is not locked"
