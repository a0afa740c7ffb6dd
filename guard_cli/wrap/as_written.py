"""YAML by ruamel.yaml, which keeps order, quotes, anchors and comments of what it reads. Pure."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import CommentMark
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import RoundTripRepresenter
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, ScalarString
from ruamel.yaml.tokens import CommentToken

#: Texts that every reader of YAML takes for texts, if they are none of its words for true, false and null.
_PLAIN = re.compile(r"(?!(?:y|yes|n|no|on|off|true|false|null)\Z)[a-z][a-z0-9._/-]*", re.IGNORECASE)


class _AsWritten(VersionedResolver):
    """Takes every plain scalar for a text, so that 0o17, 1e-6 and True are written as they were."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """The tag of a scalar; nothing and `<<` keep their own."""
        if kind is ScalarNode and value not in ("", "<<"):
            implicit = (False, implicit[1])
        return super().resolve(kind, value, implicit)


def read_as_written(text: str) -> CommentedMap:
    """Read an object of Kubernetes for `write`. Its plain scalars are texts.

    ruamel.yaml keeps a comment line with the value above it. One above a key of the object or of its metadata
    has to go where that key goes, so it is read apart.
    """
    tree: CommentedMap = _round_trip().load(text)
    lines = text.split("\n")
    above: list[tuple[bool, str, range]] = []
    for mapping in (tree, tree["metadata"]):
        for key in () if mapping.fa.flow_style() else mapping:
            line, column = mapping.lc.key(key)
            first = line
            # What is further to the right may be the end of a text above.
            while first and re.fullmatch(rf" {{0,{column}}}#.*", lines[first - 1]):
                first -= 1
            if mapping is not tree or first > 0:  # what is above it all stays there
                above.append((mapping is tree, key, range(first, line)))
    taken = {number for *_, numbers in above for number in numbers}
    tree = _round_trip().load("\n".join(line for number, line in enumerate(lines) if number not in taken))
    for at_top, key, numbers in above:
        columns = [len(lines[number]) - len(lines[number].lstrip()) for number in numbers]
        slots = (tree if at_top else tree["metadata"]).ca.items.setdefault(key, [None] * 4)
        slots[1] = [
            CommentToken(f"{lines[number].lstrip()}\n", CommentMark(column))
            for number, column in zip(numbers, columns, strict=True)
        ] or None
    return tree


def write(tree: CommentedMap) -> str:
    """Write a tree of `read_as_written`, with the indentation that it had."""
    yaml, stream = _round_trip(), StringIO()
    blocks = [one for one in tree.values() if isinstance(one, CommentedMap) and not one.fa.flow_style()]
    columns = [one.lc.col - tree.lc.col for one in blocks]
    yaml.indent(mapping=[2, *columns][-1], **_list_indent(tree))
    yaml.dump(tree, stream)
    return stream.getvalue()


def as_yaml(content: Any) -> str:
    """Write what we made ourselves, for any program that reads YAML."""
    yaml, stream = YAML(), StringIO()
    yaml.Representer, yaml.width = _Representer, 4096
    yaml.dump(in_quotes(content), stream)
    return stream.getvalue()


class _Representer(RoundTripRepresenter):
    """Numbers with a dot: 1e-05 is a text for many readers."""

    def represent_number(self, value: float) -> ScalarNode:
        text = repr(value)
        text = text if "." in text else text.replace("e", ".0e")
        return self.represent_scalar("tag:yaml.org,2002:float", text)


_Representer.add_representer(float, _Representer.represent_number)


def in_quotes(content: Any) -> Any:
    """Mark the texts that some reader could take for something else, to be written in quotes."""
    if isinstance(content, dict):
        return {in_quotes(key): in_quotes(value) for key, value in content.items()}
    if isinstance(content, list):
        return [in_quotes(item) for item in content]
    if isinstance(content, str) and not _PLAIN.fullmatch(content):
        return DoubleQuotedScalarString(content)
    return content


def _round_trip() -> YAML:
    yaml = YAML()
    yaml.Resolver = _AsWritten
    yaml.preserve_quotes = True
    yaml.width = 1 << 20
    return yaml


def _list_indent(node: Any) -> dict[str, int]:
    """How the first list of block style is indented; {}: there is none."""
    entries = node.items() if isinstance(node, CommentedMap) else enumerate(node)
    for key, value in entries:
        block = isinstance(value, CommentedSeq) and value and not value.fa.flow_style()
        if block and isinstance(node, CommentedMap):
            column = node.lc.key(key)[1]
            return {"sequence": value.lc.item(0)[1] - column, "offset": value.lc.col - column}
        if isinstance(value, CommentedMap | CommentedSeq) and (found := _list_indent(value)):
            return found
    return {}


def part_copies(head: CommentedMap, template: CommentedMap) -> None:
    """Remove comments and anchors that two copies of an object have both.

    `head` keeps the comments above it all and beside `metadata`, `template` everything else.
    """
    for value in head["metadata"].values():
        if isinstance(value, ScalarString):
            value.anchor.value = None
    for key in ("apiVersion", "kind"):
        head.ca.items.pop(key, None)
    template.ca.items.pop("metadata", None)
    template.ca.comment = None
    if "metadata" in template:
        template["metadata"].ca.comment = None
