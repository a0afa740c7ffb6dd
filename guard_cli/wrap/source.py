"""What a job's pods are made of beside its own spec, such as the runtime of a TrainJob. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

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
from guard_operator.adapters import ComposedAdapter, TemplateError, WorkloadAdapter


def source_in(
    texts: Iterable[str], adapter: WorkloadAdapter, spec: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """The object that a spec names, from manifests; None: of this kind none is needed, or it names none.

    Raises:
        ManifestError: it is in none of them, or cannot be read.
    """
    if not isinstance(adapter, ComposedAdapter):
        return None
    try:
        source = adapter.source(spec)
    except TemplateError:
        return None  # the operator's own words follow
    kind = source.resource.kind
    for part in (part for text in texts for part in documents(text)):
        node = compose(part)
        named = scalar_text(value_of(node, "metadata", "name")) == source.name
        if (
            isinstance(node, yaml.MappingNode)
            and named
            and kind_of(node) == (source.resource.api_version, kind)
        ):
            check(node, part.line)
            return meaning(part.text)
    raise ManifestError(
        f"its pods are made of the {kind} {source.name}, which is not in it: add it, or give it with "
        f"--runtime (`kubectl get {kind.lower()} {source.name} -o yaml`)"
    )


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
