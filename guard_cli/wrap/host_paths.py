"""Host paths of local disks that cover a directory of the node: a folder below them does as well. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from guard_cli.wrap.manifest import TrainingJob, pairs, scalar_text, value_of
from guard_operator.config import NODE_DIRECTORIES

#: Where nodes mount local disks. Elsewhere a folder of another name would not be what its author meant.
LOCAL_DISKS = "/mnt/"


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The text of a file with the changed paths, and a sentence for each of them."""

    text: str
    changes: tuple[str, ...]


def narrow_host_paths(job: TrainingJob, name: str) -> Narrowed:
    """Replace each path of a local disk that covers a directory of the node by a folder of the job's.

    Args:
        job: as it was found in its file.
        name: of the folder.
    """
    document = job.document
    # Marks count from the document's marker, which was parsed with it.
    before = 0 if document.marker == "..." else len(document.marker)
    text, changes = document.text, list[str]()
    for node in sorted(_host_paths(job.root), key=lambda one: -one.start_mark.index):
        path = (scalar_text(node) or "").rstrip("/")
        covered = next((one for one in NODE_DIRECTORIES if one.startswith(f"{path}/")), None)
        if path.startswith(LOCAL_DISKS) and covered is not None:
            start, end = (mark.index - before for mark in (node.start_mark, node.end_mark))
            text = f"{text[:start]}{path}/{name}{text[end:]}"
            changes.append(f"hostPath {path}: now {path}/{name}, because it covers {covered}")
    parts = (f"{one.marker}{text if one is document else one.text}" for one in job.documents)
    return Narrowed("".join(parts), tuple(dict.fromkeys(changes)))


def _host_paths(root: yaml.Node) -> Iterator[yaml.Node]:
    """The value of each `hostPath.path`, once each if an alias repeats it."""
    found, open_nodes = dict[int, yaml.Node](), [root]
    while open_nodes:
        node = open_nodes.pop()
        if (path := value_of(node, "hostPath", "path")) is not None:
            found[path.start_mark.index] = path
        open_nodes += [value for _, value in pairs(node).values()]
        if isinstance(node, yaml.SequenceNode):
            open_nodes += node.value
    yield from found.values()
