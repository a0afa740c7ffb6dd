"""Hooks of mkdocs: the pages that lie outside `docs/`, and links as they are written for the repository.

Every link in the Markdown is relative to its own file, so that it works in a checkout and on a git host. On
the site a page of `OUTSIDE` has another place; links to and from it are turned round here.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs/"

#: Pages outside `docs/`: where they are in the repository, and on the site.
OUTSIDE = {
    "README.md": "repository/readme.md",
    "CHANGELOG.md": "repository/changelog.md",
    "CONTRIBUTING.md": "repository/contributing.md",
    "SECURITY.md": "repository/security.md",
    "charts/rlguard/README.md": "repository/chart.md",
}
_INSIDE = {site: repository for repository, site in OUTSIDE.items()}

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of `OUTSIDE`."""
    for repository, site in OUTSIDE.items():
        files.append(File.generated(config, site, content=(ROOT / repository).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - mkdocs names them
    """Turn the links of one page into links of the site."""
    return links_of_the_site(markdown, page.file.src_uri)


def links_of_the_site(markdown: str, site: str) -> str:
    """The page at `site`, with its links as they lead on the site. A dead link stays as it is."""
    folder = posixpath.dirname(_INSIDE.get(site, DOCS + site))

    def turned(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        place = OUTSIDE.get(target, target.removeprefix(DOCS) if target.startswith(DOCS) else None)
        return link[1] if place is None else posixpath.relpath(place, posixpath.dirname(site) or ".")

    return _LINK.sub(turned, markdown)
