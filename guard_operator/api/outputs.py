"""What every generator of files does with what it made: write it, or check that it is there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path


def write_or_check(
    outputs: Mapping[Path, str], root: Path, target: str, arguments: list[str] | None = None
) -> int:
    """Write the files that differ, or with `--check` name them and fail.

    Args:
        outputs: text of every file; paths are absolute, or relative to `root`.
        root: of the project.
        target: of `make`, which runs the generator.
        arguments: of the command line; those of the process if None.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(description=f"What `make {target}` runs.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on a difference")
    check = parser.parse_args(arguments).check
    texts = {root / path: text for path, text in outputs.items()}
    stale = [p for p, text in texts.items() if not p.is_file() or p.read_text(encoding="utf-8") != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(root)} is stale: run `make {target}` and commit it", file=sys.stderr)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path], encoding="utf-8")
        print(f"wrote {path.relative_to(root)}")
    return 1 if check and stale else 0
