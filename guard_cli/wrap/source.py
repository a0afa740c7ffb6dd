"""Read the documents of a manifest file, or of stdin."""

from __future__ import annotations

import sys
from pathlib import Path

from guard_cli.errors import CliError
from guard_cli.wrap.manifest import MAX_BYTES, Document, ManifestError, read_documents


def read_manifests(file: str) -> tuple[Document, ...]:
    """Read the documents of a file; - is stdin.

    Raises:
        CliError: it cannot be used.
    """
    try:
        if file == "-":
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                content = opened.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise CliError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        return read_documents(content)
    except ManifestError as error:
        raise CliError(f"{'stdin' if file == '-' else file}: {error}") from None
