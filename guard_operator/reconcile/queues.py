"""What a queue (Kueue) says of a workload. Pure.

Kueue suspends a workload that has its label, makes a Workload of its own for it, and resumes it once that
is admitted. What is deleted no queue can admit again, so the operator only reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from guard_operator.adapters import at
from guard_operator.api.reasons import Reason
from guard_operator.reconcile.snapshot import Queued, Waiting
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
    """What of these belongs to the workload of this UID; None: the queue knows nothing of it."""
    own = [raw for raw in found if controller_of(raw) == workload_uid]
    there = [raw for raw in own if "deletionTimestamp" not in raw["metadata"]]
    return _queued(min(there, key=lambda raw: str(raw["metadata"]["name"]))) if there else None


def _queued(raw: Json) -> Queued:
    conditions = at(raw, "status", "conditions")
    true, words = set[str](), dict[str, str]()
    for one in conditions if isinstance(conditions, list) else []:
        kind = str(at(one, "type"))
        if at(one, "status") == "True":
            true.add(kind)
        parts = (str(at(one, "reason") or ""), REASON_LENGTH), (str(at(one, "message") or ""), MESSAGE_LENGTH)
        words[kind] = ": ".join(text[:most] for text, most in parts if text)
    why = _why(true, words)
    if at(raw, "spec", "active") is False:
        why = "; ".join(
            filter(None, (f"Workload {raw['metadata']['name']} is not active (spec.active)", why))
        )
    return Queued(queue=str(at(raw, "spec", "queueName") or "")[:REASON_LENGTH], message=why)


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


def waits_in(queued: Queued | None, label: str | None) -> Waiting | None:
    """What is to be said of a suspended run; `label`: of the queue that its author named."""
    if queued is not None:
        why = f": {queued.message}" if queued.message else ""
        return Waiting(Reason.QUEUED, f"waits in queue {queued.queue}{why}")
    if label is None:
        return None
    return Waiting(Reason.QUEUED, f"waits in queue {label[:REASON_LENGTH]}: nothing is known of its turn")
