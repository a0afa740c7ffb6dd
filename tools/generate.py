"""Write every generated file, or check that each is what the code gives now.

    python -m tools.generate [--check]

`--check` writes nothing, names the files that differ, and exits 1 if there is one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from tools import ROOT, chart, cluster_demo, references


def outputs() -> dict[Path, str]:
    """Every generated file, relative to the root of the project, with its text."""
    makers = (chart, cluster_demo, references)
    return {path: text for maker in makers for path, text in maker.outputs().items()}


def write_or_check(texts: Mapping[Path, str], root: Path, check: bool) -> int:
    """Write the files that differ, or name them and fail.

    Args:
        texts: of every file; paths are relative to `root`.
        root: of the project.
        check: only name them.

    Returns:
        The exit code.
    """
    stale = [
        path
        for path, text in texts.items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != text
    ]
    for path in stale:
        if check:
            print(f"{path} is stale: run `make generate` and commit it", file=sys.stderr)
            continue
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(texts[path], encoding="utf-8")
        print(f"wrote {path}")
    return 1 if check and stale else 0


def main(arguments: list[str] | None = None) -> int:
    """Write or check every output; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description=outputs.__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on a difference")
    return write_or_check(outputs(), ROOT, parser.parse_args(arguments).check)


if __name__ == "__main__":
    sys.exit(main())
