"""What a job's pods are made of beside its own spec, such as the runtime of a TrainJob. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from guard_cli.errors import CliError
from guard_cli.wrap.manifest import (
    ManifestError,
    check,
    compose,
    documents,
    kind_of,
    meaning,
    scalar_text,
    value_of,
)
from guard_core.terminal import plain
from guard_operator.adapters import ComposedAdapter, TemplateError, TemplateSource, WorkloadAdapter


def source_in(
    texts: Mapping[str, str], adapter: WorkloadAdapter, spec: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """The object that a spec names, from manifests; None: of this kind none is needed, or it names none.

    Args:
        texts: each under the name of its file; the first one has the job.
        adapter: of the job's kind.
        spec: of the job.

    Raises:
        CliError: it is in none of them, or one cannot be read.
    """
    source = named_by(adapter, spec)
    if source is None:
        return None
    found = found_in(texts, source)
    if found is None:
        said = f"{next(iter(texts))}: {pods_of(source)}, which is not in it: add it, or {given_by(source)}"
        raise CliError(said)
    return found


def named_by(adapter: WorkloadAdapter | None, spec: Mapping[str, Any]) -> TemplateSource | None:
    """The object that a spec names; None: of this kind none is needed, or it names none."""
    if not isinstance(adapter, ComposedAdapter):
        return None
    try:
        return adapter.source(spec)
    except TemplateError:
        return None  # the operator's own words follow


def found_in(texts: Mapping[str, str], source: TemplateSource) -> Mapping[str, Any] | None:
    """That object, from manifests, each under the name of its file; None: it is in none of them.

    Raises:
        CliError: one cannot be read.
    """
    for name, text in texts.items():
        try:
            if (found := _find(text, source)) is not None:
                return found
        except ManifestError as error:
            raise CliError(f"{name}: {error}") from None
    return None


def pods_of(source: TemplateSource) -> str:
    """For people."""
    return f"its pods are made of the {source.resource.kind} {plain(source.name)}"


def given_by(source: TemplateSource) -> str:
    """How to give that object to a command."""
    kind, name = source.resource.kind.lower(), shlex.quote(plain(source.name))
    return f"give it with --runtime (`kubectl get {kind} {name} -o yaml`)"


def _find(text: str, source: TemplateSource) -> Mapping[str, Any] | None:
    wanted = (source.resource.api_version, source.resource.kind)
    for part in documents(text):
        node = compose(part)
        named = scalar_text(value_of(node, "metadata", "name")) == source.name
        if isinstance(node, yaml.MappingNode) and named and kind_of(node) == wanted:
            check(node, part.line)
            return meaning(part.text)
    return None


def composed_spec(
    adapter: WorkloadAdapter, spec: Mapping[str, Any], source: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """The spec with that in it; as it is where the two do not go together, which the operator says."""
    if not isinstance(adapter, ComposedAdapter) or source is None:
        return spec
    try:
        return adapter.composed(spec, source)
    except TemplateError:
        return spec
