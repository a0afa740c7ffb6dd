"""Why a pod does not come or does not start, from the Events that its controller and its kubelet write. Pure.

A pod that a quota or an admission policy refuses, and a volume whose Secret or ConfigMap is missing, are in
no status: only Events tell of them. They are words for people; nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rlguard.operator.adapters import WorkloadState
from rlguard.operator.api.reasons import Reason
from rlguard.operator.reconcile.snapshot import Between, Pod, Waiting, Workload
from rlguard.operator.runtime.client import Json

#: For how long nobody asks, seconds: every pod takes a moment to be made and to be started.
SOON_SECONDS = 10.0
#: How much of an Event is repeated, characters.
MESSAGE_LENGTH = 600
_OF_VOLUMES = {"FailedMount", "FailedAttachVolume", "FailedMapVolume"}


#: While the workload is in one of these, its pods and its guard are there, or are to come.
EXPECTED = frozenset({WorkloadState.PENDING, WorkloadState.RUNNING})


@dataclass(frozen=True, slots=True)
class Late:
    """What has not come yet: the start of `pod`, or ("") a pod. `uid`: of the object whose Events say why."""

    uid: str
    since: datetime | None
    pod: str = ""

    def lasts(self, now: datetime) -> float:
        """Seconds for which it has been waited for. A clock that is off is a little wrong."""
        return 0.0 if self.since is None else (now - self.since).total_seconds()


def what_is_late(
    workload: Workload | None, pods: Iterable[Pod], wanted: int, maker: Between | None = None
) -> tuple[Late, ...]:
    """Find what a run waits for of which no status says why.

    Args:
        workload: of the run.
        pods: of the run, and of its guard.
        wanted: how many pods the workload makes at once.
        maker: what makes the guard's own pod, for which rank 0 waits.
    """
    if workload is None or not workload.ours or workload.terminating or workload.state not in EXPECTED:
        return ()
    left = [pod for pod in pods if not pod.terminating]
    if maker is None:
        found = [_late(workload, left, wanted)]
    else:
        guards, others = ([pod for pod in left if pod.guarded is own] for own in (True, False))
        of_guard = None if maker.terminating else _late(maker, guards, 1)
        found = [of_guard, _late(workload, others, wanted)]
    return tuple(one for one in found if one is not None)


def _late(maker: Workload | Between, pods: Sequence[Pod], wanted: int) -> Late | None:
    starting = [pod for pod in pods if pod.phase == "Pending" and pod.waiting is None]
    if starting:
        first = min(starting, key=lambda pod: (not pod.guarded, pod.name))
        return Late(first.uid, first.created, first.name)
    if len(pods) >= wanted or any(pod.waiting for pod in pods):
        return None
    return Late(maker.uid, max((pod.created for pod in pods if pod.created), default=maker.created))


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
