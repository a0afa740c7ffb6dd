"""What `rlguard wrap` says beside the object: what went where, what is default, what is still to be done."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from guard_cli.wrap.guard import Volume
from guard_cli.wrap.manifest import TrainingJob
from guard_cli.wrap.rewrite import Wrapped
from guard_core.terminal import plain
from guard_operator.adapters import ComposedAdapter, WorkloadState
from guard_operator.api.names import KIND, QUEUE_LABEL
from guard_operator.api.types import Spec
from guard_operator.reconcile.layout import GUARD_UID
from guard_operator.reconcile.review import Review

SCRIPT_PAGE = "docs/guard-a-script.md"
FOLLOW_PAGE = "docs/follow.md"
#: Kinds that Kueue v0.11.9 does not know, so that it neither suspends nor counts them.
UNQUEUED = frozenset({"TrainJob"})
#: Comments that are told of those that were left out.
MOST_COMMENTS = 5
#: Names that an object of a cluster can have. A command with any other could be taken for options.
_OF_A_CLUSTER = re.compile(r"[a-z0-9][a-z0-9.-]*")


def refusal(said: Review, wrong: str) -> str:
    """The operator's own words, each finding on a line of its own; then what `wrong` says, if anything."""
    composed = any(one.startswith("spec.template.spec.runtime.") for one in said.findings)
    return "\n".join(
        [
            f"the operator would refuse it ({said.reason}), so nothing is printed. `spec.template.spec` is "
            f"the job's `spec`{', and `runtime` there its runtime with its patches' if composed else ''}:",
            *(f"  {plain(one)}" for one in (*said.findings, *filter(None, [wrong]))),
            *(["  --name gives it another"] if said.findings[0].startswith("metadata.name must") else []),
        ]
    )


def told(
    wrapped: Wrapped, job: TrainingJob, volume: Volume | None, broken: Sequence[str], *, whole: bool
) -> Iterator[str]:
    """What was decided, in lines for people.

    `broken`: rows of the isolation table that are broken; `whole`: nothing is to be filled in.
    """
    return map(plain, _told(wrapped, job, volume, broken, whole))


def _told(
    wrapped: Wrapped, job: TrainingJob, volume: Volume | None, broken: Sequence[str], whole: bool
) -> Iterator[str]:
    spec = Spec.model_validate(wrapped.manifest["spec"])
    namespace, kind = wrapped.manifest["metadata"].get("namespace"), job.adapter.resource.kind
    where = f" in namespace {namespace}" if namespace else ""
    yield f"{KIND} {wrapped.name}{where}; the operator makes a {kind} of the same name from it"
    if spec.guard.placement == "Pod":
        yield "the guard: in a pod of its own, which outlives the trainer's"
    elif volume is not None:
        yield f"the guard: in {volume.pods}, beside the container {volume.container}"
    yield from _made_of(job, spec)
    yield from _guard(spec)
    if volume is not None:
        yield f"checkpoints: volume {spec.guard.checkpoints.volume}, {volume.says}"
    carried = " and ".join(key for key in ("labels", "annotations") if getattr(spec.made_from.metadata, key))
    if carried:
        yield f"{carried}: as before, of the {kind}"
    yield from _left_out(wrapped)
    yield from (f"warning: not isolated: {one}" for one in broken)
    if job.adapter.state({"spec": spec.made_from.spec})[0] is WorkloadState.SUSPENDED:
        yield "warning: its spec says suspend, so that it starts once that is taken out"
    if kind in UNQUEUED and QUEUE_LABEL in spec.made_from.metadata.labels:
        yield (
            f"warning: Kueue v0.11.9, with which this is tested, knows no {kind}: the label {QUEUE_LABEL} "
            "does nothing there, and the run starts outside of the quota"
        )
    if volume is not None and volume.warning:
        yield f"warning: {volume.warning}"
    if wrapped.uncommented:
        yield f"warning: the lines of {wrapped.uncommented} could not be moved: written anew, no comments"
    checked = [
        "the operator refuses nothing of it; the cluster was not asked (claims, admission, its schema)"
    ]
    yield from [*(checked if whole else []), "still yours:"]
    if (feed := spec.guard.metrics) is None:
        yield f"  report reward and checkpoints from the trainer: {SCRIPT_PAGE}"
        yield f"  let user {GUARD_UID}, the guard, read the split and the checkpoints"
    else:
        place = f"{feed.follow.path} in the volume {spec.guard.checkpoints.volume}"
        folder = feed.checkpoints.path
        where = "directly in that volume" if folder == "." else f"in its folder {folder}"
        layout = "" if feed.layout is None else f", as {feed.layout} does"
        yield f"  let the trainer write its log to {place}, and save {where}{layout}: {FOLLOW_PAGE}"
        yield f"  let user {GUARD_UID}, the guard, read the split, that log and the checkpoints"
    if spec.guard.heldout.evaluator.vllm is not None:
        yield "  give the guard an image with vLLM (rlguard/guard-vllm), and a GPU (spec.guard.resources)"
    if wrapped.was is not None and _OF_A_CLUSTER.fullmatch(wrapped.was):
        words = ["kubectl", "delete", kind.lower(), wrapped.was, *(["-n", namespace] if namespace else [])]
        yield f"  end the {kind} if it runs: {shlex.join([*words, '--ignore-not-found'])}"


def _left_out(wrapped: Wrapped) -> Iterator[str]:
    """Paths of what the job had and the object has not, and the comments that stood there."""
    if wrapped.left_out:
        yield f"left out: {', '.join(wrapped.left_out)}"
    if wrapped.lost:
        said = "; ".join(comment[:60].rstrip() for comment in wrapped.lost[:MOST_COMMENTS])
        more = f" and {len(wrapped.lost) - MOST_COMMENTS} more" if len(wrapped.lost) > MOST_COMMENTS else ""
        yield f"left out with it, as comments at it: {said}{more}"


def _made_of(job: TrainingJob, spec: Spec) -> Iterator[str]:
    """What the job's pods are made of, where its own spec does not have it."""
    if isinstance(job.adapter, ComposedAdapter):
        source, kind = job.adapter.source(spec.made_from.spec), job.adapter.resource.kind
        yield (
            f"its pods: of {source.resource.kind} {source.name} as that is when the job is created; the "
            f"operator makes a copy of it with the job's changes and the guard, and the {kind} names that"
        )


def _guard(spec: Spec) -> Iterator[str]:
    heldout, guard = spec.guard.heldout, spec.guard
    volume = heldout.volume
    source = next(
        f"{kind} {name}"
        for kind, name in (
            ("claim", volume.claim_name),
            ("Secret", volume.secret_name),
            ("ConfigMap", volume.config_map_name),
        )
        if name is not None
    )
    how = "loads each checkpoint" + (" into vLLM" if heldout.evaluator.vllm is not None else "")
    default = "" if "scorer" in heldout.model_fields_set else " by default: a completion must be the answer"
    yield f"held-out split: {heldout.split} in {source}; scorer {heldout.scorer}{default}; the guard {how}"
    policy = "" if "policy" in guard.model_fields_set else " by default"
    silence = f"a guard silent for {spec.on_silence.after_seconds} s: {spec.on_silence.action}"
    yield f"detector {guard.policy.detector}{policy}; on a fire: {spec.on_fire}; {silence}"
    yield f"isolation {guard.isolation}; the guard's image and resources: the operator's defaults"
