"""A file of manifests: its documents as they stand, and the one of them that is a training job. Pure.

The file is anybody's: what is too large, too deep or not YAML is one sentence with the line. It is read as
YAML 1.1, as kubectl does. Nodes are kept, not what they mean, so that a scalar stays what it was written as.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from guard_core.wording import not_yaml
from guard_operator.adapters import ADAPTERS, WorkloadAdapter, find_adapter
from guard_operator.api.names import KIND

#: No API server takes an object that is larger.
MAX_BYTES = 1 << 20
#: Of a job, with what aliases repeat.
MAX_NODES = 50_000
MAX_DEPTH = 64

_MARKER = re.compile(r"^(?:---|\.\.\.)(?=\s|\Z)", re.MULTILINE)
_COMMENT = re.compile(r"#[^\n]*")
_MARK = re.compile("^\ufeff(?=---)|^(---[^\n]*\n)\ufeff", re.MULTILINE)
_NOTHING = re.compile(r"(?:[ \t]*(?:[#%].*)?(?:\n|\Z))*")
_TAGS = {
    kind: {f"tag:yaml.org,2002:{name}" for name in names.split()}
    for kind, names in (
        (yaml.MappingNode, "map"),
        (yaml.SequenceNode, "seq"),
        (yaml.ScalarNode, "str int float bool null"),
    )
}
_PLACEHOLDER = re.compile(r"\$[A-Za-z_]\w*|\$\{[A-Za-z_][^}]*\}|\{\{[^}]*\}\}|<[A-Z][A-Z0-9_-]*>")
_OF_A_SHELL = ("command", "args", "value")
_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


class ManifestError(ValueError):
    """The file cannot be used; the message says where and why."""


_OTHERWISE = {f"tag:yaml.org,2002:{name}" for name in ("timestamp", "value", "int", "float")}


class Loader(yaml.SafeLoader):
    """Reads plain scalars as kubectl does: 1e-6 is a number, 1:30 and 2026-01-02 are texts."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (as in the class above)
        first: [pair for pair in pairs if pair[0] not in _OTHERWISE]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"[-+]?(?:0[bB][01_]+|0[xX][0-9a-fA-F_]+|0[oO]?[0-7_]+|0|[1-9][0-9_]*)\Z"),
    list("-+0123456789"),
)


def _whole(loader: Loader, node: yaml.ScalarNode) -> int:
    value: int = loader.construct_yaml_int(yaml.ScalarNode(node.tag, node.value.lower()))
    return value


Loader.add_constructor("tag:yaml.org,2002:int", _whole)
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)\Z"),
    list("-+0123456789."),
)


@dataclass(frozen=True, slots=True)
class Document:
    """Text of a document, what stands before it (`---`, `...` or nothing), and its first line, from 0."""

    marker: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """The training job of a file: which document it is, its node, and the adapter of its kind."""

    documents: tuple[Document, ...]
    place: int
    root: yaml.MappingNode
    adapter: WorkloadAdapter

    @property
    def document(self) -> Document:
        """Its document."""
        return self.documents[self.place]


def read_text(content: bytes) -> str:
    """The text of a file, with plain line ends and without a byte order mark before any of its documents.

    Raises:
        ManifestError: it is too large, or not UTF-8.
    """
    if len(content) > MAX_BYTES:
        raise ManifestError(f"it is larger than {MAX_BYTES >> 20} MiB, which no API server takes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(f"it is not UTF-8 at byte {error.start}") from None
    return _MARK.sub(r"\1", text.replace("\r\n", "\n").replace("\r", "\n"))


def documents(text: str) -> tuple[Document, ...]:
    """The documents of a text; put together again they are the text, but for tabs between values of JSON."""
    cuts = [match.span() for match in _MARKER.finditer(text)]
    starts, ends = [(0, 0), *cuts], [*(start for start, _ in cuts), len(text)]
    found, line = [], 0
    for (start, after), end in zip(starts, ends, strict=True):
        found.append(Document(text[start:after], _spaced(text[after:end]), line))
        line += text.count("\n", start, end)
    return tuple(found)


def _spaced(text: str) -> str:
    """JSON with spaces for tabs, so that it is YAML, too; any other text as it is."""
    if "\t" not in text or not text.lstrip().startswith("{"):
        return text
    try:
        json.loads(text)  # then there is no tab in a text of it
    except (ValueError, RecursionError):
        return text
    return text.replace("\t", " ")


def find_job(text: str) -> TrainingJob:
    """The one training job in a text.

    Raises:
        ManifestError: there is none, or several; or the text cannot be read, or the job is no object.
    """
    parts = documents(text)
    nodes = [compose(part) for part in parts]
    jobs = [(place, *found) for place, node in enumerate(nodes) if (found := _as_job(node)) is not None]
    if not jobs:
        raise ManifestError(_no_job([node for node in nodes if node is not None]))
    if len(jobs) > 1:
        where = ", ".join(f"{one[2].resource.kind} at line {parts[one[0]].line + 1}" for one in jobs)
        raise ManifestError(f"it has {len(jobs)} training jobs ({where}): give them one at a time")
    [(place, root, adapter)] = jobs
    check(root, parts[place].line)
    return TrainingJob(parts, place, root, adapter)


def pairs(node: yaml.Node | None) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Key and value of a mapping's entries, by the text of the key; of anything else none."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {key.value: (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def value_of(node: yaml.Node | None, *path: str) -> yaml.Node | None:
    """The value at a path of keys; None if there is none."""
    for key in path:
        node = pairs(node).get(key, (None, None))[1]
    return node


def scalar_text(node: yaml.Node | None) -> str | None:
    """A text; None if it is something else."""
    return node.value if isinstance(node, yaml.ScalarNode) and node.tag == _TEXT else None


def meaning(text: str) -> Mapping[str, Any]:
    """What the text of a checked object means.

    Raises:
        ManifestError: a value is none.
    """
    try:
        content: Mapping[str, Any] = yaml.load(text, Loader)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:  # such as a `<<` that is no mapping
        raise ManifestError(f"it is {not_yaml(error)}") from None
    except ValueError as error:  # such as a hexadecimal number without digits
        raise ManifestError(f"a number in it is none: {str(error)[:80]}") from None
    return content


def compose(part: Document) -> yaml.Node | None:
    """The node of a document; None: there is nothing in it.

    Raises:
        ManifestError: it is not YAML; it names the line.
    """
    if _NOTHING.fullmatch(part.text):
        return None
    try:
        return yaml.compose(part.text if part.marker == "..." else part.marker + part.text, Loader)
    except RecursionError:
        raise ManifestError(f"the document at line {part.line + 1} is nested too deeply") from None
    except yaml.YAMLError as error:
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            error.problem_mark.line += part.line
        # The parser of kubectl takes some tabs between values.
        tab = ". kubectl may take it: replace the tab by spaces" if "'\\t'" in str(error) else ""
        raise ManifestError(f"it is {not_yaml(error)}{tab}") from None


def kind_of(node: yaml.Node) -> tuple[str, str]:
    """Its apiVersion and kind; "" is none."""
    return scalar_text(value_of(node, "apiVersion")) or "", scalar_text(value_of(node, "kind")) or ""


def _as_job(node: yaml.Node | None) -> tuple[yaml.MappingNode, WorkloadAdapter] | None:
    if not isinstance(node, yaml.MappingNode) or (adapter := find_adapter(*kind_of(node))) is None:
        return None
    return None if adapter.only_attached else (node, adapter)


def _no_job(nodes: list[yaml.Node]) -> str:
    made = (one.resource for one in ADAPTERS if not one.only_attached)
    *others, last = (f"{one.kind} ({one.api_version})" for one in made)
    wanted = f"{', '.join(others)} or {last}"
    kinds = [kind_of(node) for node in nodes]
    named = dict.fromkeys(f"{kind[:60]} ({version[:60]})" for version, kind in kinds if kind)
    found = ", ".join([*named][:5]) or "no object of Kubernetes"
    if any(kind == KIND for _, kind in kinds):
        return f"it has no {wanted}, and a {KIND}, which is guarded already"
    groups = {(one.resource.kind, one.resource.api_version.partition("/")[0]) for one in ADAPTERS}
    for version, kind in kinds:
        if (kind, version.partition("/")[0]) in groups:
            other = "" if find_adapter(version, kind) else f" of {version}"
            return (
                f"it has no {wanted}, and a {kind}{other}, which is guarded where it exists: a {KIND} names "
                "it in spec.targetRef (docs/attach.md)"
            )
    if any(kind.endswith("List") for _, kind in kinds):
        return f"it has no {wanted}, and a list: give one object, `kubectl get KIND NAME -o yaml`"
    return f"it has no {wanted}: it has {found}"


def check(root: yaml.MappingNode, line: int) -> None:
    """Refuse what an API server would not take for an object, and what nobody could walk; join split texts.

    Raises:
        ManifestError: naming the line.
    """
    open_nodes, seen = [(root, 1)], 0
    while open_nodes:
        node, depth = open_nodes.pop()
        at = f"line {node.start_mark.line + line + 1}"
        seen += 1
        if seen > MAX_NODES:
            raise ManifestError(f"the job has more than {MAX_NODES} values, counting what aliases repeat")
        if depth > MAX_DEPTH:
            raise ManifestError(f"{at}: the job is nested more than {MAX_DEPTH} levels deep")
        if node.tag not in _TAGS[type(node)]:
            raise ManifestError(f"{at}: the tag {node.tag[:60]} is none of JSON's types, or of another value")
        if isinstance(node, yaml.ScalarNode):
            node.value = _joined(node.value, at)
        elif isinstance(node, yaml.MappingNode):
            _check_keys(node, line)
            open_nodes += [(value, depth + 1) for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            open_nodes += [(value, depth + 1) for value in node.value]
    for one in (root, value_of(root, "metadata")):
        if "<<" in pairs(one):
            at = f"line {pairs(one)['<<'][0].start_mark.line + line + 1}"
            raise ManifestError(f"{at}: `<<` can only be used inside spec: write its keys out here")


def _joined(text: str, at: str) -> str:
    """A text with the characters that JSON writes as two escapes, the halves of a surrogate pair.

    Raises:
        ManifestError: there is half of a pair, which no text has.
    """
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise ManifestError(f"{at}: a text has half of a surrogate pair, which no API server takes") from None


def _check_keys(node: yaml.MappingNode, line: int) -> None:
    known: set[str] = set()
    for key, _ in node.value:
        at = f"line {key.start_mark.line + line + 1}"
        if key.tag not in (_TEXT, _MERGE) or not isinstance(key, yaml.ScalarNode):
            raise ManifestError(f"{at}: a key must be a text: put it in quotes")
        key.value = _joined(key.value, at)
        if key.value in known:
            raise ManifestError(f"{at}: the key {key.value[:60]!r} stands twice in one mapping")
        known.add(key.value)


def comments(text: str) -> Iterator[str]:
    """The comments of a document that was read, in their order; `#` in its texts is none."""
    end = 0
    for token in yaml.scan(text, Loader):
        start = token.start_mark.index
        yield from _COMMENT.findall(text[end:start])
        end = token.end_mark.index
        if isinstance(token, yaml.ScalarToken) and token.style in ("|", ">"):
            yield from _COMMENT.findall(text[start:end].partition("\n")[0])


def placeholders(node: yaml.Node | None) -> Iterator[str]:
    """Values that a template fills in later, such as $NUM_NODES; what a container's shell reads is none."""
    if isinstance(node, yaml.ScalarNode):
        yield from [node.value] if _PLACEHOLDER.fullmatch(node.value) else []
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from placeholders(item)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not (isinstance(key, yaml.ScalarNode) and key.value in _OF_A_SHELL):
                yield from placeholders(value)


def walk(node: yaml.Node) -> Iterator[Any]:
    """What a checked tree holds, in its order: for comparing two of them, without marks and styles."""
    yield node.tag
    if isinstance(node, yaml.ScalarNode):
        yield node.value
        return
    yield len(node.value)
    for item in node.value:
        for inner in item if isinstance(item, tuple) else (item,):
            yield from walk(inner)
