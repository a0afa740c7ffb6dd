"""A file of manifests: its documents, and the one of them that is a training job. Pure.

The file is anybody's: whatever is wrong with it is one sentence, with the line where there is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import yaml

from rlguard.core.wording import not_yaml
from rlguard.operator.adapters import ADAPTERS, WorkloadAdapter, find_adapter

#: No API server takes an object that is larger.
MAX_BYTES = 1 << 20

_MARKER = re.compile(r"^---[ \t]*(?:#[^\n]*)?(?:\n|\Z)", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\$[A-Za-z_]\w*|\$\{[A-Za-z_][^}]*\}|\{\{[^}]*\}\}|<[A-Z][A-Z0-9_-]*>")
#: Fields that a container's shell, or the kubelet, fills in.
_SHELL_FIELDS = ("command", "args", "value")
#: Fields in which the operator needs a number.
_NUMBER_FIELDS = ("parallelism", "completions")


class ManifestError(ValueError):
    """The file cannot be used; the message says where and why."""


class Loader(yaml.SafeLoader):
    """Reads plain scalars as kubectl does: 1e-6 is a number, 1:30 and 2026-01-02 are texts."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (as in the class above)


for _type, _pattern in {
    "merge": r"<<",
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|yes|Yes|YES|on|On|ON|false|False|FALSE|no|No|NO|off|Off|OFF",
    "int": r"[-+]?(?:0|0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|[1-9][0-9_]*)",
    "float": r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
}.items():
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_type}", re.compile(rf"(?:{_pattern})\Z"), None)


@dataclass(frozen=True, slots=True)
class Document:
    """The `---` line before a document or "", its text, that text's first line from 0, and what it means."""

    marker: str
    text: str
    line: int
    content: Any


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """The training job of a file: all documents, its own, and the adapter of its kind."""

    documents: tuple[Document, ...]
    document: Document
    adapter: WorkloadAdapter


def read_documents(content: bytes) -> tuple[Document, ...]:
    """Split a file at its `---` lines and read each document.

    Raises:
        ManifestError: it is too large, not UTF-8 or not YAML.
    """
    if len(content) > MAX_BYTES:
        raise ManifestError(f"it is larger than {MAX_BYTES >> 20} MiB, which no API server takes")
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ManifestError(f"it is not UTF-8 at byte {error.start}") from None
    spans = [(0, 0), *(match.span() for match in _MARKER.finditer(text)), (len(text), len(text))]
    found = []
    for (start, end), (following, _) in pairwise(spans):
        line, own = text.count("\n", 0, end), text[end:following]
        found.append(Document(text[start:end], own, line, load(own, line)))
    return tuple(found)


def load(text: str, line: int = 0) -> Any:
    """Read one document as kubectl does; `line` is its first one in the file, from 0.

    Raises:
        ManifestError: it is not YAML.
    """
    if text.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            return json.loads(text)  # in which tabs are fine, and surrogates stand in pairs
    try:
        return yaml.load(text, Loader)  # noqa: S506 (a SafeLoader)
    except RecursionError:
        raise ManifestError(f"the document at line {line + 1} is nested too deeply") from None
    except yaml.YAMLError as error:
        raise not_yaml_error(error, line) from None
    except ValueError as error:  # such as a hexadecimal number without digits
        raise ManifestError(f"a number in it is none: {str(error)[:80]}") from None


def not_yaml_error(error: Exception, line: int) -> ManifestError:
    """Why a document is not YAML, from the error of a parser; `line` is its first one in the file, from 0."""
    if (mark := getattr(error, "problem_mark", None)) is not None:
        mark.line += line
    return ManifestError(f"it is {not_yaml(error)}")


def find_job(documents: tuple[Document, ...]) -> TrainingJob:
    """Find the one training job of a file.

    Raises:
        ManifestError: there is none, or several; or the job is no object of an API server.
    """
    found = [(one, adapter) for one in documents if (adapter := _adapter_of(one.content))]
    if not found:
        raise ManifestError(_no_job([one.content for one in documents if one.content is not None]))
    if len(found) > 1:
        where = ", ".join(f"{adapter.resource.kind} at line {one.line + 1}" for one, adapter in found)
        raise ManifestError(f"it has {len(found)} training jobs ({where}): give them one at a time")
    [(document, adapter)] = found
    job = document.content
    check_values(job)
    for field in ("metadata", "spec"):
        if not isinstance(job.get(field), dict):
            raise ManifestError(f"{field} {'must be a mapping' if field in job else 'is missing'}")
    return TrainingJob(documents, document, adapter)


def kind_of(content: Any) -> tuple[str, str]:
    """The apiVersion and the kind of an object; "" where there is none."""
    fields = content if isinstance(content, dict) else {}
    version, kind = fields.get("apiVersion"), fields.get("kind")
    return version if isinstance(version, str) else "", kind if isinstance(kind, str) else ""


def _adapter_of(content: Any) -> WorkloadAdapter | None:
    adapter = find_adapter(*kind_of(content))
    return None if adapter is None or adapter.only_attached else adapter


def _no_job(contents: list[Any]) -> str:
    *others, last = (one.resource for one in ADAPTERS if not one.only_attached)
    made = ", ".join(f"{one.kind} ({one.api_version})" for one in others)
    kinds = [kind_of(content) for content in contents]
    found = ", ".join(
        [*dict.fromkeys(f"{kind[:60]} ({version[:60]})" for version, kind in kinds if kind)][:5]
    )
    existing = {one.resource.kind for one in ADAPTERS if one.only_attached}
    attached = next((kind for _, kind in kinds if kind in existing), None)
    return (
        f"it has no {made} or {last.kind} ({last.api_version}): it has {found or 'no object of Kubernetes'}"
        + (f"; a {attached} is guarded where it exists: docs/tasks/attach.md" if attached else "")
    )


def check_values(content: Any) -> None:
    """Refuse what JSON cannot hold, and what is too large once its aliases are written out.

    Raises:
        ManifestError: it is one of these.
    """
    size = 0
    try:
        for part in json.JSONEncoder(ensure_ascii=False).iterencode(content):
            size += len(part.encode())
            if size > MAX_BYTES:
                break
    except (TypeError, ValueError, RecursionError) as error:
        raise ManifestError(f"JSON cannot hold it: {str(error)[:120]}") from None
    if size > MAX_BYTES:
        raise ManifestError(f"with its aliases written out it is larger than {MAX_BYTES >> 20} MiB")


def placeholders(content: Any) -> Iterator[str]:
    """Find the values that a template fills in later, such as $NUM_NODES."""
    if isinstance(content, str):
        yield from [content] if _PLACEHOLDER.fullmatch(content) else []
    elif isinstance(content, list):
        for item in content:
            yield from placeholders(item)
    elif isinstance(content, Mapping):
        for key, value in content.items():
            if key not in _SHELL_FIELDS:
                yield from placeholders(value)


def filled_in(content: Any, field: str = "") -> Any:
    """Put a number in the place of each placeholder where the operator needs one, for its review."""
    if isinstance(content, Mapping):
        return {key: filled_in(value, key) for key, value in content.items()}
    if isinstance(content, list):
        return [filled_in(item) for item in content]
    return 2 if field in _NUMBER_FIELDS and any(placeholders(content)) else content
