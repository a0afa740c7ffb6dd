"""Why a pod does not come or does not start, from the Events that its controller and its kubelet write. Pure.

A pod that a quota or an admission policy refuses, and a volume whose Secret or ConfigMap is missing, are in
no status: only Events tell of them. They are words for people; nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from guard_operator.adapters import WorkloadState
from guard_operator.api.reasons import Reason
from guard_operator.reconcile.snapshot import Between, Pod, Waiting, Workload
from guard_operator.runtime.client import Json

#: For how long nobody asks, seconds: every pod takes a moment to be made and to be started.
SOON_SECONDS = 10.0
#: How much of an Event is repeated, characters.
MESSAGE_LENGTH = 600
_OF_VOLUMES = {"FailedMount", "FailedAttachVolume", "FailedMapVolume"}


@dataclass(frozen=True, slots=True)
class Late:
    """What has not come yet: the start of `pod`, or ("") a pod. `uid`: of the object whose Events say why."""

    uid: str
    since: datetime | None
    pod: str = ""

    def is_due(self, now: datetime) -> bool:
        """Whether it is time to ask. A clock that is off asks a little sooner or later."""
        return self.since is not None and (now - self.since).total_seconds() > SOON_SECONDS


def what_is_late(workload: Workload | None, pods: Iterable[Pod], wanted: int) -> Late | None:
    """What the run, which has `wanted` pods, waits for; None: for nothing, or it is known why."""
    if workload is None or not workload.ours or workload.terminating:
        return None
    if workload.state not in {WorkloadState.PENDING, WorkloadState.RUNNING}:
        return None
    left = [pod for pod in pods if not pod.terminating]
    starting = [pod for pod in left if pod.phase == "Pending" and pod.waiting is None]
    if starting:
        first = min(starting, key=lambda pod: (not pod.guarded, pod.name))
        return Late(first.uid, first.created, first.name)
    if len(left) >= wanted or any(pod.waiting for pod in left):
        return None
    return Late(workload.uid, max((pod.created for pod in left if pod.created), default=workload.created))


def guard_is_late(made: Between | None, workload: Workload | None, pods: Iterable[Pod]) -> Late | None:
    """The same of a guard in a pod of its own, which `made` makes: its trainer waits for it."""
    if made is None or made.terminating or workload is None:
        return None
    if workload.state not in {WorkloadState.PENDING, WorkloadState.RUNNING}:
        return None
    guards = [pod for pod in pods if pod.guarded]
    if not guards:
        return Late(made.uid, made.created)
    starting = (
        pod for pod in guards if pod.phase == "Pending" and pod.waiting is None and not pod.terminating
    )
    return next((Late(pod.uid, pod.created, pod.name) for pod in starting), None)


def reason_for(late: Late, events: Iterable[Json], pods: Iterable[Pod]) -> Waiting | None:
    """What the Events say of it; None: nothing that would keep it."""
    if late.pod:
        newest = max(events, key=_when, default=None)
        if newest is None or newest.get("type") != "Warning":
            return None
        of_volume = newest.get("reason") in _OF_VOLUMES
        reason = Reason.VOLUME_UNAVAILABLE if of_volume else Reason.CONTAINER_WAITING
        return Waiting(reason, f"pod {late.pod}: {_words(newest)}")
    made = max((f"{pod.created:%Y-%m-%dT%H:%M:%S}" for pod in pods if pod.created), default="")
    # One from before the newest pod tells of what is over.
    refused = [event for event in events if event.get("type") == "Warning" and _seconds(event) > made]
    if refused:
        return Waiting(Reason.PODS_MISSING, _words(max(refused, key=_when)))
    if not made:
        return Waiting(Reason.PODS_MISSING, "no pod was made and no Event says why: does its controller run?")
    return None


def _words(event: Json) -> str:
    return f"{event.get('reason', '')}: {event.get('message', '')}".strip()[:MESSAGE_LENGTH]


def _when(event: Json) -> tuple[str, bool]:
    """Sorts the newest last; of two in one second the warning."""
    return _seconds(event), event.get("type") == "Warning"


def _seconds(event: Json) -> str:
    """When it was last seen, to the second; RFC 3339 times of one zone sort as text."""
    series = event.get("series") or {}
    at = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(at or event["metadata"].get("creationTimestamp") or "")[:19]
