"""From a training job to the `GuardedTrainingJob` around it, in the user's own lines. Pure.

What the object must be is made of nodes. Its text is made of the lines of the file, moved to the right, so
that comments, order and spelling stay. That text is read again: if it is not that object (an anchor was left
behind, the job was one long line), the nodes are written anew, without the comments.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from guard_cli.wrap.manifest import (
    Document,
    Loader,
    ManifestError,
    TrainingJob,
    comments,
    meaning,
    pairs,
    scalar_text,
    value_of,
    walk,
)
from guard_operator.api.names import API_VERSION, KIND

#: Of an object's metadata: what stays with the job, and what the workload gets.
OWN, CARRIED = ("name", "namespace"), ("labels", "annotations")
#: What kubectl notes for itself; it holds the whole manifest as it was.
_NOTED = ("annotations", "kubectl.kubernetes.io/last-applied-configuration")
_SHIFT = 4
_OTHER_ENDS = re.compile("[\x85\u2028\u2029]")
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._/-]+")

Path = tuple[str, ...]
Pair = tuple[yaml.Node, yaml.Node]


@dataclass(frozen=True, slots=True)
class Wrapped:
    """The file with the job wrapped, the wrapped object alone, and what was done on the way.

    `was`: the job's name before, if it had one. `left_out`: paths of what the job had and the object has not.
    `uncommented`: what was written anew of lines that had comments; "" is nothing. `lost`: comments that
    stood at what was left out.
    """

    text: str
    manifest: Mapping[str, Any]
    name: str
    was: str | None
    left_out: tuple[str, ...]
    uncommented: str
    lost: tuple[str, ...]


def wrap_job(job: TrainingJob, guard: Mapping[str, Any], name: str | None) -> Wrapped:
    """The file with its training job under guard.

    Args:
        job: as it was found.
        guard: what `spec.guard` is to be.
        name: another name for the job; None: its own.

    Raises:
        ManifestError: metadata or spec is missing, is no mapping, or has no name; or what it says cannot be
            written.
    """
    parts = _parts(job, name)
    guard_text = as_yaml(guard)
    written = yaml.compose(guard_text, Loader)
    assert written is not None
    tree = _tree(parts, written)
    lines = _lines_of(job.document.text)
    text, unused = ("", "") if lines is None else _moved(lines, parts, guard_text)
    what = "metadata"
    if not _means(text, tree):
        what, unused = "the job", job.document.text
        text = f"\n{_serialized(tree)}" if job.document.marker else _serialized(tree)
        if not _means(text, tree):
            raise ManifestError("it cannot be written anew so that it means the same")
    anew = Counter(comments(unused))
    lost = Counter(comments(job.document.text)) - Counter(comments(text)) - anew
    before, after = job.documents[: job.place], job.documents[job.place + 1 :]
    own = Document(job.document.marker, text, 0)
    return Wrapped(
        "".join(f"{one.marker}{one.text}" for one in (*before, own, *after)),
        meaning(text),
        parts.name,
        scalar_text(value_of(parts.metadata, "name")),
        parts.left_out,
        what if anew else "",
        tuple(lost.elements()),
    )


# -- what goes where -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Parts:
    """The job taken apart. `dropped`: the keys of what is left out, by the identity of their nodes."""

    root: yaml.MappingNode
    metadata: yaml.MappingNode
    name: str
    renamed: bool
    dropped: frozenset[int]
    left_out: tuple[str, ...]


def _parts(job: TrainingJob, name: str | None) -> _Parts:
    metadata, _ = (_mapping(job.root, key) for key in ("metadata", "spec"))
    own = scalar_text(value_of(metadata, "name"))
    if (name or own) is None:
        why = "metadata.name is no text" if "name" in pairs(metadata) else "metadata.name is not set"
        raise ManifestError(f"{why}: give the job a name with --name")
    if "namespace" in pairs(metadata) and scalar_text(value_of(metadata, "namespace")) is None:
        raise ManifestError("metadata.namespace must be a text")
    kept = {"apiVersion", "kind", "metadata", "spec"}
    paths: list[Path] = [(key,) for key in pairs(job.root) if key not in kept]
    paths += [("metadata", key) for key in pairs(metadata) if key not in (*OWN, *CARRIED)]
    paths += [("metadata", key) for key in CARRIED if _is_null(value_of(metadata, key))]
    paths += [("metadata", *_NOTED), *job.adapter.assigned(meaning(job.document.text))]
    dropped, left_out = _drop(job.root, paths)
    return _Parts(job.root, metadata, name or own or "", name is not None, dropped, left_out)


def _is_null(node: yaml.Node | None) -> bool:
    return node is not None and node.tag == "tag:yaml.org,2002:null"


def _mapping(root: yaml.MappingNode, key: str) -> yaml.MappingNode:
    node = value_of(root, key)
    if not isinstance(node, yaml.MappingNode):
        raise ManifestError(f"{key} {'must be a mapping' if node is not None else 'is missing'}")
    return node


def _drop(root: yaml.MappingNode, paths: Iterable[Path]) -> tuple[frozenset[int], tuple[str, ...]]:
    """What is dropped, with what nothing would be left of then."""
    dropped: set[int] = set()
    told = []
    for path in paths:
        chain = _chain(root, path)
        if len(chain) < len(path):
            continue
        told.append(".".join(path))
        for found in reversed(chain[1:] or chain):
            key, value = found
            if found is not chain[-1] and any(
                id(inner) not in dropped for inner, _ in _entries(value).values()
            ):
                break
            dropped.add(id(key))
    return frozenset(dropped), tuple(told)


def _entries(node: yaml.Node) -> dict[str, Pair]:
    """What a mapping has by its keys, and a list by the places, where an item stands for its key, too."""
    if isinstance(node, yaml.SequenceNode):
        return {str(place): (item, item) for place, item in enumerate(node.value)}
    return pairs(node)


def _chain(root: yaml.Node, path: Path) -> list[Pair]:
    """The entries on the way along a path, as far as it goes."""
    chain: list[Pair] = []
    for key in path:
        found = _entries(chain[-1][1] if chain else root).get(key)
        if found is None:
            break
        chain.append(found)
    return chain


def _without(node: yaml.Node, dropped: frozenset[int]) -> yaml.Node:
    """The tree without the dropped entries; what has none stays the very same node. No item is one."""
    if isinstance(node, yaml.SequenceNode):
        items = [_without(item, dropped) for item in node.value]
        same = all(a is b for a, b in zip(items, node.value, strict=True))
        return node if same else yaml.SequenceNode(node.tag, items, flow_style=False)
    if not isinstance(node, yaml.MappingNode):
        return node
    left = [(key, _without(value, dropped)) for key, value in node.value if id(key) not in dropped]
    if len(left) == len(node.value) and all(a[1] is b[1] for a, b in zip(left, node.value, strict=True)):
        return node
    return yaml.MappingNode(node.tag, left, flow_style=False)


def _entry(key: str, value: yaml.Node | str) -> Pair:
    return _scalar(key), _scalar(value) if isinstance(value, str) else value


def _scalar(text: str) -> yaml.ScalarNode:
    return yaml.ScalarNode("tag:yaml.org,2002:str", text)


def _map(entries: Iterable[Pair]) -> yaml.MappingNode:
    return yaml.MappingNode("tag:yaml.org,2002:map", list(entries), flow_style=False)


def _tree(parts: _Parts, guard: yaml.Node) -> yaml.MappingNode:
    """The object as nodes."""
    own, carried = _metadata(parts)
    template = []
    for key, pair in pairs(_without(parts.root, parts.dropped)).items():
        if key != "metadata":
            template.append(pair)
        elif carried:
            template.append(_entry(key, _map(carried)))
    entries = [
        _entry("apiVersion", API_VERSION),
        _entry("kind", KIND),
        _entry("metadata", _map(own)),
        _entry("spec", _map([_entry("template", _map(template)), _entry("guard", guard)])),
    ]
    return _map(entries)


def _metadata(parts: _Parts) -> tuple[list[Pair], list[Pair]]:
    """What the object keeps of the metadata, and what the workload gets."""
    found = pairs(_without(parts.metadata, parts.dropped))
    own = [found[key] for key in found if key in OWN and not (key == "name" and parts.renamed)]
    if parts.renamed:
        own.insert(0, _entry("name", parts.name))
    return own, [found[key] for key in found if key in CARRIED]


# -- the text --------------------------------------------------------------------------------------------


def _means(text: str, tree: yaml.Node) -> bool:
    """Whether the text is this tree."""
    try:
        made = yaml.compose(text, Loader)
    except (yaml.YAMLError, RecursionError):
        return False
    return made is not None and [*walk(made)] == [*walk(tree)]


def _lines_of(text: str) -> list[str] | None:
    """The lines of a text; None if YAML counts other ends of lines in it than an editor does."""
    return None if _OTHER_ENDS.search(text) else text.removesuffix("\n").split("\n")


def _moved(lines: Sequence[str], parts: _Parts, guard_text: str) -> tuple[str, str]:
    """The object in the lines of the file, as far as it can be made of them; and lines that were not used.

    Those are of metadata that stands in braces and has more than the object keeps.
    """
    segments = _segments(parts.root, lines, len(lines))
    first = min(start for start, _ in segments.values())
    template: list[str] = []
    own: list[str] = []
    unused: list[str] = []
    for key, span in segments.items():
        own_key = pairs(parts.root)[key][0]
        if id(own_key) in parts.dropped:  # what stands above a status need not be of it
            template += _shifted(lines[span[0] : own_key.start_mark.line])
        elif key == "metadata":
            own, carried, unused = _metadata_lines(parts, lines, span)
            template += carried
        else:
            template += _shifted(_lines(pairs(parts.root)[key][1], lines, span, parts.dropped))
    text = "\n".join(
        [
            *lines[:first],
            f"apiVersion: {API_VERSION}",
            f"kind: {KIND}",
            *own,
            "spec:",
            "  template:",
            *template,
            "  guard:",
            *_shifted(guard_text.splitlines()),
            "",
        ]
    )
    return text, "\n".join(unused)


Span = tuple[int, int]


def _segments(node: yaml.Node, lines: Sequence[str], end: int) -> dict[str, Span]:
    """The lines of each entry of a block mapping or list, with the comments right above it."""
    entries = _entries(node)
    starts: list[int] = []
    for mark in (own.start_mark for own, _ in entries.values()):
        start = mark.line
        # A comment that is further to the right may be the end of a text above.
        while starts and start - 1 > starts[-1] and _is_comment(lines[start - 1], mark.column):
            start -= 1
        starts.append(start)
    spans = zip(starts, [*starts[1:], end], strict=True)
    return dict(zip(entries, spans, strict=True))


def _is_comment(line: str, column: int) -> bool:
    bare = line.lstrip(" ")
    return bare.startswith("#") and len(line) - len(bare) <= column


def _lines(node: yaml.Node, lines: Sequence[str], span: Span, dropped: frozenset[int]) -> list[str]:
    """The lines of an entry with this value, without the lines of what is dropped in it."""
    if _without(node, dropped) is node:
        return list(lines[slice(*span)])
    inner = _segments(node, lines, span[1])
    kept = list(lines[span[0] : min(start for start, _ in inner.values())])
    for key, place in inner.items():
        own, value = _entries(node)[key]
        if id(own) not in dropped:
            kept += _lines(value, lines, place, dropped)
    return kept


def _metadata_lines(
    parts: _Parts, lines: Sequence[str], span: Span
) -> tuple[list[str], list[str], list[str]]:
    """The lines of the object's metadata, those of the template's, and those that neither is made of."""
    own, carried = _metadata(parts)
    unused: list[str] = []
    if not parts.metadata.flow_style:
        inner = _segments(parts.metadata, lines, span[1])
        column = min(key.start_mark.column for key, _ in parts.metadata.value)
        head = list(lines[span[0] : min(start for start, _ in inner.values())])
        found = {
            key: _lines(pairs(parts.metadata)[key][1], lines, place, parts.dropped)
            for key, place in inner.items()
        }
        if parts.renamed:
            found["name"] = _renamed(parts, lines, inner.get("name"), column)
        head += [line for key, _ in own for line in found[key.value]]
        moved = [line for key, _ in carried for line in _shifted(found[key.value])]
    elif {*pairs(parts.metadata)} <= {*OWN} and not parts.renamed:
        head, moved = list(lines[slice(*span)]), []
    else:
        start = pairs(parts.root)["metadata"][0].start_mark.line
        unused = list(lines[start : span[1]])
        head = [*lines[span[0] : start], *_serialized(_map([_entry("metadata", _map(own))])).splitlines()]
        moved = _shifted(_shifted(_serialized(_map(carried)).splitlines(), 2)) if carried else []
    return head, [f"{' ' * _SHIFT}metadata:", *moved] if moved else [], unused


def _renamed(parts: _Parts, lines: Sequence[str], span: Span | None, column: int) -> list[str]:
    """The entry of the new name, with the comments of the old one."""
    (line,) = _shifted(as_yaml({"name": parts.name}).splitlines(), column)
    if span is None:
        return [line]
    key, value = pairs(parts.metadata)["name"]
    beside = lines[value.end_mark.line][value.end_mark.column :]
    return [*lines[span[0] : key.start_mark.line], line + (beside if beside.lstrip().startswith("#") else "")]


def _shifted(lines: Iterable[str], by: int = _SHIFT) -> list[str]:
    return [f"{' ' * by}{line}" if line else line for line in lines]


class _Dumper(yaml.SafeDumper):
    """Writes what we say ourselves: nothing is an alias, and what is not a plain word is in quotes."""

    yaml_implicit_resolvers = Loader.yaml_implicit_resolvers

    def ignore_aliases(self, _data: Any) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if _PLAIN.fullmatch(text) else '"'
    ),
)


def as_yaml(content: Mapping[str, Any]) -> str:
    """What we write ourselves, for any program that reads YAML."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=4096, allow_unicode=True)


def _serialized(tree: yaml.Node) -> str:
    """Nodes anew, each scalar as it was written."""
    text: str = yaml.serialize(tree, Dumper=_Dumper, width=4096, allow_unicode=True)
    return text
