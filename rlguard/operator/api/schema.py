"""From the pydantic types to a structural OpenAPI v3 schema and the CRD around it. Pure.

A structural schema knows no references, no null type and no closed objects, spells an exclusive bound as a
flag, and defaults an absent object only where the object itself has a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.alias_generators import to_camel, to_pascal

from rlguard.core.frameworks import FILE_FORMATS, FORMATS, LAYOUTS
from rlguard.operator.api.models import CAMEL_CHOICES, UNDECLARED, cel
from rlguard.operator.api.names import GROUP, KIND, PLURAL, VERSION
from rlguard.operator.api.types import GuardedTrainingJob

#: (name, JSON path, type, description) in the order of `kubectl get gtj`.
PRINTER_COLUMNS = (
    ("Phase", ".status.phase", "string", "A summary of the conditions."),
    ("Step", ".status.guard.step", "integer", "Newest training step that the guard saw."),
    ("Reward", ".status.guard.inLoopEma", "number", "EMA of the in-loop reward."),
    ("Held-out", ".status.guard.heldoutEma", "number", "EMA of the held-out score."),
    ("KL", ".status.guard.klEma", "number", "EMA of the KL to the reference, nats/token."),
    ("Gap", ".status.guard.proxyRealGap", "number", "The Hacking Gap, reward units."),
    ("Fired", '.status.conditions[?(@.type=="Fired")].status', "string", "Whether the guard fired."),
    ("Age", ".metadata.creationTimestamp", "date", "Age of the object."),
)
#: The same, shown with `-o wide` only.
WIDE_COLUMNS = (
    ("Level", ".status.guard.level", "string", "Level of the guard's last verdict."),
    ("Reason", ".status.guard.code", "string", "The most severe condition of that verdict."),
    ("Read", ".status.guard.readAt", "date", "When that verdict was read."),
)

_KEPT = (
    "description",
    "type",
    "format",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "maxProperties",
    "enum",
)


#: Frameworks whose checkpoints no guard would find, as a list in CEL.
_WITHOUT_LAYOUT = sorted(set(FORMATS) - {*FILE_FORMATS, *LAYOUTS})
#: Rules of models that know nothing of CEL, by the name of the model.
_RULES = {
    "Feed": cel(
        (
            f"has(self.checkpoints.layout) || !(self.follow.format in {_WITHOUT_LAYOUT})",
            "no layout of its checkpoints is known of this format: set checkpoints.layout",
        ),
    ),
}

#: A value of any kind. Of a map, not the map itself: so its keys are compared, and CEL sees a renamed one.
_ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}


def structural(
    node: Mapping[str, Any], definitions: Mapping[str, Any], camel_choices: bool = False
) -> dict[str, Any]:
    """One node of pydantic's JSON schema as a structural schema.

    Args:
        node: the node.
        definitions: what its references refer to.
        camel_choices: whether choices below are written in CamelCase.

    Raises:
        ValueError: the node has a union that no structural schema can express.
    """
    may_be_null = any(option.get("type") == "null" for option in node.get("anyOf", ()))
    node = _resolved(node, definitions)
    camel_choices = camel_choices or CAMEL_CHOICES in node
    if node.get("x-kubernetes-int-or-string"):
        return {key: node[key] for key in ("description", "x-kubernetes-int-or-string") if key in node}
    out: dict[str, Any] = {key: node[key] for key in _KEPT if key in node}
    out |= {key: value for key, value in node.items() if key.startswith("x-kubernetes-")}
    out |= _RULES.get(node.get("title", ""), {})
    if "const" in node:
        out["enum"] = [node["const"]]
    for bound, flag in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if flag in node:
            out |= {bound: node[flag], flag: True}
    if "properties" in node:
        out["properties"] = {
            to_camel(name): structural(inner, definitions, camel_choices)
            for name, inner in node["properties"].items()
            if UNDECLARED not in inner
        }
        if node.get("required"):
            out["required"] = [to_camel(name) for name in node["required"]]
    elif values := node.get("additionalProperties"):
        out["additionalProperties"] = _ANYTHING if values is True else structural(values, definitions)
    if "items" in node:
        out["items"] = structural(node["items"], definitions)
    if (default := _default(node, out)) is not None:
        out["default"] = default
        if may_be_null:
            out["nullable"] = True  # or the API server would put the default where null is written
    if camel_choices and "enum" in out:
        out |= {"enum": [to_pascal(choice) for choice in out["enum"]], "default": to_pascal(out["default"])}
    return out


def _resolved(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The node without its `$ref` and without `| None`; what stands at the node itself wins."""
    merged = dict(node)
    if options := merged.pop("anyOf", None):
        if merged.get("x-kubernetes-int-or-string"):
            return merged
        real = [option for option in options if option.get("type") != "null"]
        if len(real) != 1:
            raise ValueError(f"a union of {len(real)} types has no structural schema: {options}")
        merged = _resolved(real[0], definitions) | merged
    if reference := merged.pop("$ref", None):
        merged = _resolved(definitions[reference.rsplit("/", 1)[1]], definitions) | merged
    return merged


def _default(node: Mapping[str, Any], out: Mapping[str, Any]) -> Any:
    """The default to write; for an object all of whose fields may be absent, that of its fields.

    It is written in full, because the API server checks a default against the object's rules as it stands.
    """
    if "default" in node:
        return _without_absent(node["default"], out)
    if out.get("type") != "object" or "required" in out:
        return None
    inner = {
        name: field["default"] for name, field in out.get("properties", {}).items() if "default" in field
    }
    return inner or None


def _without_absent(value: Any, out: Mapping[str, Any]) -> Any:
    """A default without the fields that are absent by default: an API server refuses their null."""
    if not isinstance(value, dict):
        return value
    fields = out.get("properties", {})
    return {
        name: _without_absent(inner, fields.get(name, {}))
        for name, inner in value.items()
        if inner is not None or fields.get(name, {}).get("nullable")
    }


def root_schema() -> dict[str, Any]:
    """The structural schema of the whole object."""
    schema = GuardedTrainingJob.model_json_schema(by_alias=True, mode="validation")
    root = structural(schema, schema["$defs"])
    plain = {"type": "string"}
    root["properties"] = {
        "apiVersion": plain,
        "kind": plain,
        "metadata": {"type": "object"},
        **root["properties"],
    }
    return root


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition."""
    columns = [
        {"name": name, "jsonPath": path, "type": type_, "description": description}
        | ({"priority": priority} if priority else {})  # 0 is the default, which an API server leaves out
        for priority, shown in enumerate((PRINTER_COLUMNS, WIDE_COLUMNS))
        for name, path, type_, description in shown
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["gtj"],
                "categories": ["rlguard"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": root_schema()},
                }
            ],
        },
    }
