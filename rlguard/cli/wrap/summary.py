"""What `rlguard wrap` says on stderr: what was decided, what is default, what is still to be done."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlguard.cli.wrap.manifest import filled_in
from rlguard.cli.wrap.rewrite import Wrapped
from rlguard.core.terminal import plain
from rlguard.operator.adapters import WorkloadAdapter, WorkloadState, at, dotted
from rlguard.operator.api.names import KIND
from rlguard.operator.api.types import Spec
from rlguard.operator.reconcile.layout import GUARD_UID
from rlguard.operator.reconcile.review import Review
from rlguard.operator.reconcile.templates import rank0_of

#: Names that an object of a cluster can have. A command with any other could be taken for options.
_CLUSTER_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
#: Volumes that go with their pod.
_TEMPORARY = ("emptyDir", "ephemeral")


def refusal(review: Review) -> str:
    """The operator's own words, each finding on a line of its own."""
    lines = [
        f"the operator would refuse it ({review.reason}), so nothing is printed. `spec.template.spec` is "
        "the job's `spec`:",
        *(f"  {plain(one)}" for one in review.findings),
    ]
    if review.findings[0].startswith("metadata.name must"):
        lines.append("  --name gives it another")
    return "\n".join(lines)


def decided(wrapped: Wrapped, adapter: WorkloadAdapter, review: Review) -> Iterator[str]:
    """What was decided, and what to know of it; of a job that the operator would not refuse."""
    spec, metadata = Spec.model_validate(filled_in(wrapped.manifest)["spec"]), wrapped.manifest["metadata"]
    guard, template, kind = spec.guard, spec.made_from, adapter.resource.kind
    rank0, pod = rank0_of(adapter, template.spec)
    volume = guard.checkpoints.volume
    source = next(one for one in pod["volumes"] if one.get("name") == volume)
    saved_in = next((key for key, value in source.items() if key != "name" and value is not None), "no kind")
    for path, folder in wrapped.narrowed.items():
        yield f"hostPath {path}: now {folder}, because it covers directories of the node"
    where = f" in namespace {metadata['namespace']}" if metadata.get("namespace") else ""
    yield f"{KIND} {metadata['name']}{where}; the operator makes a {kind} of the same name from it"
    place = f"in {f'the pods of {dotted(owner)}' if (owner := rank0.path[:-1]) else 'its pods'}, beside the "
    beside = f"{place}container {rank0.container}"
    in_own_pod = guard.placement == "Pod"
    yield f"the guard: {'in a pod of its own, which outlives the trainer' if in_own_pod else beside}"
    if "scorer" not in guard.heldout.model_fields_set:
        yield f"the scorer is {guard.heldout.scorer}: a completion must be the answer; --scorer names another"
    claim = at(source, "persistentVolumeClaim", "claimName")
    yield f"checkpoints: volume {volume}, {f'claim {claim}' if claim else saved_in}"
    if wrapped.left_out:
        yield f"left out: {', '.join(wrapped.left_out)}"
    yield from (f"warning: not isolated: {one}" for one in review.broken)
    if adapter.state({"spec": template.spec})[0] is WorkloadState.SUSPENDED:
        yield "warning: its spec says suspend, so that it starts once that is taken out"
    if saved_in in _TEMPORARY:
        yield f"warning: the volume {volume} is temporary ({saved_in}): its checkpoints go with the pod"
    if rank0.limit and not in_own_pod:
        yield (
            f"warning: {dotted(rank0.limit)} counts restarts of every container, the guard's too: a guard "
            "that runs out of memory may fail a healthy run (docs/reference/kinds.md)"
        )


def to_do(wrapped: Wrapped, kind: str) -> Iterator[str]:
    """What is still to be done by the user."""
    guard = Spec.model_validate(wrapped.manifest["spec"]).guard
    namespace = wrapped.manifest["metadata"].get("namespace")
    yield "still yours:"
    if (feed := guard.metrics) is None:
        yield "  report reward and checkpoints from the trainer: docs/tasks/guard-a-script.md"
        yield f"  let user {GUARD_UID}, the guard, read the split and the checkpoints"
    else:
        folder = "its root" if feed.checkpoints.path == "." else feed.checkpoints.path
        layout = "" if feed.layout is None else f" as {feed.layout} does"
        yield (
            f"  in the volume {guard.checkpoints.volume}, let the trainer write its log to {feed.follow.path}"
            f" and save in {folder}{layout}: docs/tasks/follow-a-log.md"
        )
        yield f"  let user {GUARD_UID}, the guard, read the split, that log and the checkpoints"
    if guard.heldout.evaluator.vllm is not None:
        yield "  give the guard an image with vLLM (rlguard/guard-vllm), and a GPU (spec.guard.resources)"
    if wrapped.old_name is not None and _CLUSTER_NAME.fullmatch(wrapped.old_name):
        command = f"kubectl delete {kind.lower()} {wrapped.old_name}{f' -n {namespace}' if namespace else ''}"
        yield f"  end the {kind} if it runs: {command} --ignore-not-found"
