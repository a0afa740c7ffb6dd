"""YAML by ruamel.yaml, which keeps order, quotes, anchors and comments of what it reads. Pure."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import CommentMark
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.scalarstring import DoubleQuotedScalarString
from ruamel.yaml.tokens import CommentToken

#: Texts that every reader of YAML takes for texts, if they are none of its words for true, false and null.
_PLAIN = re.compile(r"(?!(?:y|yes|n|no|on|off|true|false|null)\Z)[a-z][a-z0-9._/-]*", re.IGNORECASE)
#: A key with a block below it, up to the indentation of that block.
_KEY = r"^( *)[^\s#-][^\n]*:[ \t]*(?:#[^\n]*)?\n(?:[ \t]*#[^\n]*\n)*\1"
_MAPPING = re.compile(rf"{_KEY}( +)[^\s#-]", re.MULTILINE)
_LIST = re.compile(rf"{_KEY}( *)-( +)", re.MULTILINE)


class _AsWritten(VersionedResolver):
    """Takes every plain scalar for a text, so that 0o17, 1e-6 and True are written as they were."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """The tag of a scalar; nothing and `<<` keep their own."""
        if kind is ScalarNode and value not in ("", "<<"):
            implicit = (False, implicit[1])
        return super().resolve(kind, value, implicit)


class _Dumper(yaml.SafeDumper):
    """Writes out aliases, and puts in quotes what some reader could take for something else than a text."""

    def ignore_aliases(self, _data: Any) -> bool:
        """All of them."""
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, None if _PLAIN.fullmatch(text) else '"'
    ),
)


def as_yaml(content: Any) -> str:
    """Write what we made ourselves, for any program that reads YAML."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=float("inf"), allow_unicode=True)


def in_quotes(text: str) -> str:
    """Mark a text to be written in quotes where some reader could take it for something else."""
    return text if _PLAIN.fullmatch(text) else DoubleQuotedScalarString(text)


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
        slots = (tree if at_top else tree["metadata"]).ca.items.setdefault(key, [None] * 4)
        slots[1] = [_comment(lines[number]) for number in numbers] or None
    return tree


def write(tree: CommentedMap, like: str = "") -> str:
    """Write a tree of `read_as_written`, indented as this text is."""
    yaml, stream = _round_trip(), StringIO()
    mapping, items = _MAPPING.search(like), _LIST.search(like)
    offset, gap = (len(items[2]), len(items[3])) if items else (0, 1)
    yaml.indent(mapping=len(mapping[2]) if mapping else 2, sequence=offset + 1 + gap, offset=offset)
    yaml.dump(tree, stream)
    return stream.getvalue()


def _comment(line: str) -> CommentToken:
    text = line.lstrip()
    return CommentToken(f"{text}\n", CommentMark(len(line) - len(text)))


def _round_trip() -> YAML:
    yaml = YAML()
    yaml.Resolver = _AsWritten
    yaml.preserve_quotes = True
    yaml.width = 1 << 20
    return yaml
