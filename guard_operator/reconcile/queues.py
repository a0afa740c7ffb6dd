"""What a queue (Kueue) says of a workload. Pure.

Kueue suspends a workload that has its label, makes a Workload of its own for it, and resumes it once that
is admitted. So a run that is to stay stopped must leave the queue: a Workload that is not active is never
admitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from guard_operator.adapters import WorkloadState, at
from guard_operator.api.reasons import Reason
from guard_operator.api.types import StopMethod
from guard_operator.reconcile.snapshot import Queued, Waiting, Workload
from guard_operator.runtime.client import Json, controller_of

#: Kueue's own label, with the UID of what it is for. Anybody may write one, so the owner counts.
OWNER_LABEL = "kueue.x-k8s.io/job-uid"
#: How much of a condition is repeated, characters: its message can have 32 KiB.
REASON_LENGTH, MESSAGE_LENGTH = 100, 600
#: The conditions that are read.
RESERVED, ADMITTED, EVICTED, FINISHED = "QuotaReserved", "Admitted", "Evicted", "Finished"
TELLING = (RESERVED, ADMITTED, EVICTED, FINISHED)
#: Who has the pods of a workload if Kueue's webhook says so of it as it is created: nobody here.
_ELSEWHERE = "kueue.x-k8s.io/multikueue"
GIVEN_AWAY = (
    f"spec.template: a webhook sets managedBy to {_ELSEWHERE} for the queue that the job names: pods in "
    "another cluster are not stopped. Name a queue without MultiKueue"
)


def is_given_away(made: Mapping[str, Any]) -> bool:
    """Whether a workload, as the API server would make it, is for another cluster (MultiKueue)."""
    spec = made.get("spec")
    return _ELSEWHERE in (at(spec, "managedBy"), at(spec, "runPolicy", "managedBy"))


def queued_of(found: Iterable[Json], workload_uid: str) -> Queued | None:
    """What of these belongs to the workload of this UID; None: the queue knows nothing of it.

    Where there are several, as for a moment after a change, the one that could resume it counts.
    """
    own = [raw for raw in found if controller_of(raw) == workload_uid and not _going(raw)]
    return min(map(_queued, own), key=lambda one: (not one.may_resume, one.name), default=None)


def _going(raw: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in raw["metadata"]


def _queued(raw: Json) -> Queued:
    conditions = at(raw, "status", "conditions")
    true, words = set[str](), dict[str, str]()
    for one in conditions if isinstance(conditions, list) else []:
        kind = str(at(one, "type"))
        if at(one, "status") == "True":
            true.add(kind)
        parts = (str(at(one, "reason") or ""), REASON_LENGTH), (str(at(one, "message") or ""), MESSAGE_LENGTH)
        words[kind] = ": ".join(text[:most] for text, most in parts if text)
    return Queued(
        name=raw["metadata"]["name"],
        uid=raw["metadata"]["uid"],
        queue=str(at(raw, "spec", "queueName") or "")[:REASON_LENGTH],
        active=at(raw, "spec", "active") is not False,
        finished=FINISHED in true,
        evicted=EVICTED in true,
        message=_why(true, words),
    )


def _why(true: set[str], words: Mapping[str, str]) -> str:
    """Why it waits, in Kueue's own words; "" where Kueue has said nothing yet."""
    if FINISHED in true:
        return f"the queue has ended it: {words[FINISHED]}"
    if RESERVED in true and ADMITTED not in true:
        return "quota is reserved for it, and an admission check is not through"
    taken = f"its quota was taken back ({words[EVICTED]})" if EVICTED in true else ""
    # After an eviction Kueue repeats its words as the reason why it waits again.
    waits = "" if taken and words.get(RESERVED, "").endswith(words[EVICTED].partition(": ")[2]) else RESERVED
    return "; ".join(filter(None, (taken, words.get(waits, ""))))


def may_undo(queued: Queued | None, workload: Workload | None, method: StopMethod) -> bool:
    """Whether the queue could resume what a stop by this method has ended, or is about to.

    A deadline ends a run for good, and the queue finishes with it; but it counts only while the run is not
    suspended.
    """
    if queued is None or workload is None or not queued.may_resume:
        return False
    return method is StopMethod.SUSPEND or workload.state is WorkloadState.SUSPENDED or queued.evicted


def waits_in(queued: Queued | None, label: str | None) -> Waiting | None:
    """What is to be said of a suspended run; `label`: of the queue that its author named."""
    if queued is None:
        if label is None:
            return None
        return Waiting(Reason.QUEUED, f"waits in queue {label[:REASON_LENGTH]}: nothing is known of its turn")
    why = f": {queued.message}" if queued.message else ""
    if not queued.active:
        why = f", which admits it no more: Workload {queued.name} is not active (spec.active){why}"
    return Waiting(Reason.QUEUED, f"waits in queue {queued.queue}{why}")
