"""What the operator makes of a pod as the API server has it. Pure.

Anyone who may create a pod can give it the operator's labels and have it end with any words: only the chain
of controllers counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rlguard.core.wire import Verdict
from rlguard.operator.adapters import WorkloadAdapter
from rlguard.operator.api import names
from rlguard.operator.api.reasons import Reason
from rlguard.operator.guards.reading import error_of, last_word
from rlguard.operator.reconcile import layout
from rlguard.operator.reconcile.snapshot import GRACE_SECONDS, Disruption, Pod, Waiting, finalizers_of
from rlguard.operator.runtime.client import Json, controller_of

#: The reasons for which every container waits for a moment.
_STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
#: How much of a container's last words is repeated, characters.
LAST_WORDS = 600

_TARGET_REASONS = {
    "PreemptionByScheduler": Disruption.PREEMPTED,
    "EvictionByEvictionAPI": Disruption.EVICTED,
    "TerminationByKubelet": Disruption.EVICTED,
    "DeletionByTaintManager": Disruption.NODE_LOST,
    "DeletionByPodGC": Disruption.NODE_LOST,
}
_POD_REASONS = {
    "Evicted": Disruption.EVICTED,
    "Preempting": Disruption.PREEMPTED,
    "NodeLost": Disruption.NODE_LOST,
    "NodeShutdown": Disruption.NODE_LOST,
    "Terminated": Disruption.NODE_LOST,
}


def time_of(text: str | None) -> datetime | None:
    """A time of the API server; None: there is none."""
    return None if text is None else datetime.fromisoformat(text)


@dataclass(frozen=True, slots=True)
class PodOwner:
    """The workload of pods: its UID (None: there is none), its spec, and what is between it and its pods.

    `guard`: UID of the StatefulSet of a guard in a pod of its own.
    """

    uid: str | None
    spec: Mapping[str, Any]
    between: frozenset[str]
    guard: str | None


def pod_of(adapter: WorkloadAdapter, raw: Json, workload: PodOwner) -> Pod:
    """The pod, of which only name and end count unless the workload, or what that controls, controls it.

    Anyone who may create a pod can give it our labels and have it end with any words.
    """
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    grace = metadata.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds"))
    bare = Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        guarded=False,
        phase=status.get("phase", "Unknown"),
        terminating="deletionTimestamp" in metadata,
        grace=GRACE_SECONDS if grace is None else grace,
        due=time_of(metadata.get("deletionTimestamp")),
        finalizers=tuple(finalizers_of(metadata)),
        created=time_of(metadata.get("creationTimestamp")),
        node=spec.get("nodeName", ""),
    )
    if workload.guard is not None and controller_of(raw) == workload.guard:
        alone = [one for one in spec.get("containers") or [] if _is_guard(one)]
        return _with_guard(replace(bare, guarded=bool(alone)), raw)
    if workload.uid is None or controller_of(raw) not in {workload.uid, *workload.between}:
        return bare
    guards = [one for one in spec.get("initContainers") or [] if _is_guard(one)]
    rank0 = adapter.holds_rank0(raw, workload.spec)
    failure, failed_at = _failure(status)
    pod = replace(
        bare,
        rank0=rank0,
        guarded=rank0 and bool(guards),
        failure=failure,
        failed_at=failed_at,
        gave_up=_gave_up(status) if rank0 else "",
        disruption=_disruption(status),
    )
    return _with_guard(pod, raw)


def _with_guard(pod: Pod, raw: Json) -> Pod:
    """The pod, with what is known of its containers and of the guard in it."""
    status = raw.get("status") or {}
    return replace(
        pod,
        cut_off=_cut_off(status),
        guard_since=_guard_since(status),
        waiting=_waiting(status),
        ready=_is_ready(status),
        address=str(status.get("podIP") or "") if _guard_since(status) is not None else "",
        last_word=_last_word(status),
    )


def _guards(status: Mapping[str, Any]) -> list[Json]:
    """The guard's status, as a sidecar or as the container of its own pod."""
    all_ = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return [one for one in all_ if _is_guard(one)]


def _is_guard(container: Mapping[str, Any]) -> bool:
    return container.get("name") == names.GUARD_CONTAINER


def _guard_since(status: Mapping[str, Any]) -> datetime | None:
    """When the guard that runs now was started; None if none runs."""
    for guard in _guards(status):
        if started := ((guard.get("state") or {}).get("running") or {}).get("startedAt"):
            return datetime.fromisoformat(started)
    return None


def _failure(status: Mapping[str, Any]) -> tuple[str, datetime | None]:
    """Exit code and last line of the first container that failed, and when it did; "" if none did."""
    for one in status.get("containerStatuses") or []:
        ended = (one.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            last = f": {line}" if (line := _last_line(ended)) else ""
            words = f"container {one['name']} ended with exit code {ended['exitCode']}{last}"
            return words, time_of(ended.get("finishedAt"))
    return "", None


def _gave_up(status: Mapping[str, Any]) -> str:
    """What was said when a guard elsewhere was not ready in time; "" if it was, or still may be."""
    for one in status.get("initContainerStatuses") or []:
        states = (one.get("state") or {}, one.get("lastState") or {})
        ended: Json = next((state["terminated"] for state in states if state.get("terminated")), {})
        if one.get("name") == names.WAITING_CONTAINER and ended.get("exitCode") == layout.GAVE_UP:
            return _last_line(ended) or "the guard was not ready in time"
    return ""


def _last_line(ended: Mapping[str, Any]) -> str:
    """The last line of the message of a container that ended."""
    lines = [line.strip() for line in (ended.get("message") or "").splitlines() if line.strip()]
    return lines[-1][:LAST_WORDS] if lines else ""


def _last_word(status: Mapping[str, Any]) -> Verdict | None:
    """What the guard left in its termination message; None if it did not end or left nothing of the kind."""
    for guard in _guards(status):
        for state in (guard.get("state") or {}, guard.get("lastState") or {}):
            if message := (state.get("terminated") or {}).get("message"):
                return last_word(message)
    return None


def _is_ready(status: Mapping[str, Any]) -> bool:
    """Whether the kubelet calls the guard ready."""
    return any(bool(one.get("ready")) for one in _guards(status))


def _waiting(status: Mapping[str, Any]) -> Waiting | None:
    """What keeps the pod from running; None for what every pod passes through."""
    if status.get("phase") in {"Succeeded", "Failed"}:
        return None
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return Waiting(Reason.UNSCHEDULABLE, condition.get("message") or condition.get("reason", ""))
    for one in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        if (waiting := _container_waiting(one)) is not None:
            return waiting
    return None


def _container_waiting(status: Mapping[str, Any]) -> Waiting | None:
    state, before = status.get("state") or {}, status.get("lastState") or {}
    ended = state.get("terminated") or before.get("terminated") or {}
    # A guard that the kubelet ends because it does not get ready has code 0, as one at the end of its pod.
    failed = ended.get("exitCode") or (ended and "terminated" not in state)
    if status["name"] == names.GUARD_CONTAINER and not status.get("started") and failed:
        last = error_of(ended.get("message") or "").strip()[-LAST_WORDS:]
        how = f"exit code {ended['exitCode']} ({status.get('restartCount', 0)} restarts)"
        return Waiting(Reason.GUARD_CRASHED, f"the guard ended with {how}: {last}".removesuffix(": "))
    waits = state.get("waiting") or {}
    if (reason := waits.get("reason", "")) in _STARTING:
        return None
    message = f"container {status['name']}: {reason}: {waits.get('message', '')}"
    return Waiting(Reason.CONTAINER_WAITING, message.removesuffix(": "))


def _cut_off(status: Mapping[str, Any]) -> bool:
    """Whether the control plane has lost the node: the kubelet itself never gives this reason."""
    ready = (c for c in status.get("conditions") or [] if c.get("type") == "Ready")
    return any(c.get("status") != "True" and c.get("reason") == "NodeNotReady" for c in ready)


def _disruption(status: Mapping[str, Any]) -> Disruption | None:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return _TARGET_REASONS.get(condition.get("reason", ""), Disruption.EVICTED)
    return _POD_REASONS.get(status.get("reason", ""))
