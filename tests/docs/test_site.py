"""The documentation site: all pages are in it and read as on a git host, nothing comes from elsewhere."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt
from playwright.sync_api import Locator, Page, Route, TimeoutError, sync_playwright

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), *options],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(folder)
    assert built.returncode == 0, built.stderr
    return folder


def pages(hooks: ModuleType) -> dict[Path, str]:
    """Every page in the repository, and where it is on the site."""
    inside = {page: str(page.relative_to(ROOT / "docs")) for page in sorted((ROOT / "docs").rglob("*.md"))}
    outside = {ROOT / repository: place for repository, place in hooks.OUTSIDE.items()}
    return {page: place.removesuffix(".md") + ".html" for page, place in (inside | outside).items()}


def test_the_front_page_names_every_page(hooks: ModuleType) -> None:
    """Decisions have a page of their own that names them."""
    front = (ROOT / "docs" / "index.md").read_text()
    linked = {(ROOT / "docs" / link).resolve() for link in re.findall(r"\]\(([^)#:]+)\)", front)}
    decisions = ROOT / "docs" / "decisions"
    listed = {page for page in pages(hooks) if page.parent != decisions or page.name == "index.md"}
    assert listed - linked - {ROOT / "docs" / "index.md"} == set()


# Both must show the same: the site's Markdown asks for a blank line before a list, for example.
SHOWN = ("h1", "h2", "h3", "li", "tr", "pre", "img")


class Counting(HTMLParser):
    """Counts the elements of a page's article."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self._depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "article":
            self._depth += 1
        if self._depth:
            self.found[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "article"


def count(html: str) -> dict[str, int]:
    counting = Counting()
    counting.feed(html)
    return {tag: counting.found[tag] for tag in SHOWN}


@pytest.mark.nightly
def test_the_site_shows_what_a_git_host_shows(site: Path, hooks: ModuleType) -> None:
    markdown = MarkdownIt("commonmark").enable("table")
    different = {}
    for page, place in pages(hooks).items():
        here = count("<article>" + markdown.render(page.read_text("utf-8")) + "</article>")
        there = count((site / place).read_text("utf-8"))
        if here != there:
            different[page.name] = {t: (here[t], there[t]) for t in SHOWN if here[t] != there[t]}
    assert different == {}


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    loading = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*(?:src|href)="?(https?:)?//""")
    assert [
        str(page.relative_to(site)) for page in site.rglob("*.html") if loading.search(page.read_text())
    ] == []


def test_no_program_is_published(site: Path) -> None:
    assert list(site.rglob("*.py")) == []


def test_a_dead_link_fails_the_build(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "mkdocs.yml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "charts/rlguard").mkdir(parents=True)
    shutil.copy(ROOT / "charts/rlguard/README.md", tmp_path / "charts/rlguard")
    with (tmp_path / "docs/quickstart.md").open("a") as page:
        page.write("\n[nowhere](index.md#no-such-heading)\n")
    built = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert built.returncode != 0
    assert "#no-such-heading" in built.stderr


# -- in a browser ------------------------------------------------------------------------------------------


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def search_until_found(page: Page, words: str, found: Locator) -> None:
    """Type again until it is found: what is typed before the index is loaded is searched for by nobody.

    Each time with more patience: a search that a busy machine takes long for would be begun anew for ever.
    The page hears keys, and no value that is filled in.
    """
    for seconds in (5, 10, 20, 40):
        page.get_by_role("textbox").fill("")
        page.get_by_role("textbox").press_sequentially(words)
        with contextlib.suppress(TimeoutError):
            found.wait_for(timeout=1000 * seconds)
            return
    found.wait_for(timeout=1)


@pytest.mark.nightly
@pytest.mark.browser
def test_a_reader_finds_a_page_by_searching_and_no_other_host_is_asked(served: str) -> None:
    asked: list[str] = []

    def only_here(route: Route) -> None:
        asked.append(route.request.url)
        if route.request.url.startswith((served, "data:", "blob:")):
            route.continue_()
        else:
            route.abort()

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        page.route("**/*", only_here)
        page.goto(f"{served}/index.html")
        found = page.locator(".md-search-result__link[href*='troubleshooting.html']").first
        search_until_found(page, "NOT JUDGED", found)
        found.click()
        page.wait_for_url("**/troubleshooting.html*")
        browser.close()
    assert len(asked) > 3
    assert [url for url in asked if not url.startswith((served, "data:", "blob:"))] == []
