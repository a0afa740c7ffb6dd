"""From a training job to the `GuardedTrainingJob` around it. Pure.

The job is changed twice in the same way: as kubectl reads it, which is what the object must mean, and as it
was written, which is what is printed. What is printed is read again and compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any

from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError

from rlguard.cli.wrap.as_written import as_yaml, in_quotes, read_as_written, write
from rlguard.cli.wrap.manifest import ManifestError, TrainingJob, load, not_yaml_error
from rlguard.operator.adapters import at
from rlguard.operator.api.names import API_VERSION, KIND
from rlguard.operator.config import NODE_DIRECTORIES

#: Of an object's metadata: what stays with the job, and what the workload gets.
OWN, CARRIED = ("name", "namespace"), ("labels", "annotations")
#: What kubectl notes for itself; it holds the whole manifest as it was.
_NOTED = ("metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration")
#: Where nodes mount local disks. Elsewhere a folder of another name would not be what its author meant.
LOCAL_DISKS = "/mnt/"
_NOT_THE_SAME = "it cannot be written so that it means the same: write out its anchors and `<<`"

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Wrapped:
    """The file with the job wrapped, the wrapped object alone, and what was done on the way.

    `old_name`: the job's own, if it had one. `left_out`: paths of what the job had and the object has not.
    `narrowed`: host paths that were changed, and what to.
    """

    text: str
    manifest: Mapping[str, Any]
    old_name: str | None
    left_out: tuple[str, ...]
    narrowed: Mapping[str, str]


def wrap_job(job: TrainingJob, guard: Mapping[str, Any], name: str | None) -> Wrapped:
    """Put the training job of a file under guard.

    Args:
        job: as it was found.
        guard: what `spec.guard` is to be.
        name: another name for the job; None: its own.

    Raises:
        ManifestError: the job has no name, or cannot be written so that it means the same.
    """
    content, text = job.document.content, job.document.text
    own_name = content["metadata"].get("name")
    old_name = own_name if isinstance(own_name, str) else None
    if (name or old_name) is None:
        why = "is no text" if "name" in content["metadata"] else "is not set"
        raise ManifestError(f"metadata.name {why}: give the job a name with --name")
    dropped = tuple(_dropped(content, job))
    if text.lstrip().startswith("{"):  # one long line
        text = as_yaml(content)
    try:
        template = read_as_written(text)
        _narrow(template, name or old_name or "")
        head = _taken_apart(template, CommentedMap, dropped, name)
        made = (
            f"{write(head)}spec:\n  template:\n{indent(write(template, text), '    ')}"
            f"{indent(as_yaml({'guard': guard}), '  ')}"
        )
    except YAMLError as error:  # such as a key that stands twice
        raise not_yaml_error(error, job.document.line) from None
    except KeyError:  # what `<<` brings cannot be taken out
        raise ManifestError(_NOT_THE_SAME) from None
    except RecursionError:
        raise ManifestError("the job is nested too deeply") from None
    workload = _without_aliases(content)
    narrowed = _narrow(workload, name or old_name or "")
    own = _taken_apart(workload, dict, dropped, name)
    manifest = {**own, "spec": {"template": workload, "guard": guard}}
    if load(made) != manifest:
        raise ManifestError(_NOT_THE_SAME)
    texts = [made if one is job.document else one.text for one in job.documents]
    return Wrapped(
        "".join(f"{one.marker}{text}" for one, text in zip(job.documents, texts, strict=True)),
        manifest,
        old_name,
        tuple(".".join(map(str, path)) for path in dropped),
        narrowed,
    )


def _without_aliases(node: Any) -> Any:
    """Copy a tree so that what one alias names can be changed in one place alone."""
    if isinstance(node, dict):
        return {key: _without_aliases(value) for key, value in node.items()}
    return [_without_aliases(value) for value in node] if isinstance(node, list) else node


def _dropped(content: Mapping[str, Any], job: TrainingJob) -> Iterator[Path]:
    """The paths of what belongs to a cluster, or to no new object."""
    metadata = content["metadata"]
    yield from ((key,) for key in content if key not in ("apiVersion", "kind", "metadata", "spec"))
    yield from (("metadata", key) for key in metadata if key not in (*OWN, *CARRIED))
    yield from (("metadata", key) for key in CARRIED if key in metadata and metadata[key] is None)
    for path in (_NOTED, *job.adapter.assigned(content)):
        steps = tuple(int(step) if step.isdigit() else step for step in path)
        if steps[-1] in (at(content, *steps[:-1]) or {}):
            yield steps


def _taken_apart(job: Any, mapping: type[dict[str, Any]], dropped: Sequence[Path], name: str | None) -> Any:
    """Change a job to the template of its workload; return the object around it, without its spec."""
    for path in dropped:
        _drop(job, path)
    metadata = job["metadata"]
    if name is not None:
        metadata["name"] = in_quotes(name)
    own = mapping()
    for key in (one for one in OWN if one in metadata):
        own[key] = metadata[key]
        _move_comments(metadata, own, key)
        del metadata[key]
    if not metadata:
        del job["metadata"]
    head = mapping(apiVersion=API_VERSION, kind=KIND, metadata=own)
    if isinstance(job, CommentedMap) and isinstance(head, CommentedMap):  # what is above it all
        head.ca.comment, job.ca.comment = job.ca.comment, None
    return head


def _move_comments(old: Any, new: Any, key: str) -> None:
    if isinstance(old, CommentedMap) and key in old.ca.items:
        new.ca.items[key] = old.ca.items.pop(key)


def _drop(tree: Any, path: Path) -> None:
    """Delete what stands at a path, and each mapping below metadata or spec that is empty then."""
    *parents, last = path
    node = at(tree, *parents)
    del node[last]
    if not node and len(parents) > 1 and isinstance(parents[-1], str):
        _drop(tree, tuple(parents))


def _narrow(node: Any, folder: str) -> dict[str, str]:
    """Replace host paths of local disks that cover directories of the node by folders below them."""
    narrowed: dict[str, str] = {}
    if isinstance(path := at(node, "hostPath", "path"), str):
        disk = path.rstrip("/")
        if disk.startswith(LOCAL_DISKS) and any(one.startswith(f"{disk}/") for one in NODE_DIRECTORIES):
            narrowed[path] = node["hostPath"]["path"] = type(path)(f"{disk}/{folder}")
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        narrowed |= _narrow(value, folder)
    return narrowed
