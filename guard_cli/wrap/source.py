"""Manifest files, and the object in them that a job's pods are made of, such as the runtime of a TrainJob."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from guard_cli.errors import CliError
from guard_cli.wrap.manifest import MAX_BYTES, Document, ManifestError, check_values, kind_of, read_documents
from guard_core.terminal import plain
from guard_operator.adapters import ComposedAdapter, TemplateError, TemplateSource, WorkloadAdapter, at


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


def named_by(adapter: WorkloadAdapter | None, spec: Mapping[str, Any]) -> TemplateSource | None:
    """The object that a spec names; None: of this kind none is needed, or it names none."""
    if not isinstance(adapter, ComposedAdapter):
        return None
    try:
        return adapter.source(spec)
    except TemplateError:
        return None  # the operator's own words follow


def find_source(documents: Iterable[Document], source: TemplateSource) -> Mapping[str, Any] | None:
    """Find that object among these; None: none of them is it.

    Raises:
        CliError: it is no object of an API server.
    """
    wanted = (source.resource.api_version, source.resource.kind)
    for document in documents:
        content: Mapping[str, Any] = document.content
        if kind_of(content) == wanted and at(content, "metadata", "name") == source.name:
            try:
                check_values(content)
            except ManifestError as error:
                raise CliError(f"{source.resource.kind} {plain(source.name)}: {error}") from None
            return content
    return None


def needed(source: TemplateSource) -> str:
    """That the object is needed, and how to give it."""
    kind, name = source.resource.kind, plain(source.name)
    command = f"kubectl get {kind.lower()} {shlex.quote(name)} -o yaml"
    return f"its pods are made of the {kind} {name}: give it with --runtime (`{command}`)"
