"""What this process remembers of each run beside its status: pods seen, and how far a teardown is.

A run is stopped only when every pod that was ever seen is gone, also one that lost its labels and its owner.
And whoever changes a job faster than a cache follows, or may write its status, must not hold up its stop.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from guard_operator.api.types import MAX_NOTED_PODS, StopStatus
from guard_operator.reconcile.snapshot import Job, Snapshot

#: Pods as (name, UID).
PodNames = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Remembered:
    """Of one run: the pods that are not known to be gone, the teardown, and why a delete was refused."""

    pods: PodNames = ()
    stop: StopStatus | None = None
    refusal: str = ""


#: Of a run that was never looked at.
NOTHING = Remembered()


class RunMemory:
    """See the module. Safe for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, Remembered] = {}

    def of(self, job: Job) -> Remembered:
        """What is remembered of this run, with the pods that its status notes."""
        with self._lock:
            known = self._runs.get(job.uid, Remembered())
        noted = job.status.stop.pods if job.status.stop is not None else []
        pods = {uid: name for name, uid in known.pods} | {pod.uid: pod.name for pod in noted}
        return Remembered(tuple((name, uid) for uid, name in pods.items()), known.stop, known.refusal)

    def note(self, snapshot: Snapshot, stop: StopStatus | None, known: Remembered) -> None:
        """Remember what was seen and decided. Of a teardown every pod was looked for, so others are gone.

        `stop`: of a teardown under way, else None.
        """
        pods = {pod.uid: pod.name for pod in snapshot.pods}
        if not snapshot.all_pods_read:
            pods = {uid: name for name, uid in known.pods} | pods
        kept = tuple((name, uid) for uid, name in pods.items())[-MAX_NOTED_PODS:]
        self._put(snapshot.job.uid, Remembered(kept, stop, known.refusal))

    def note_refusal(self, job: Job, refusal: str) -> None:
        """Remember why a delete was refused; "": none was."""
        with self._lock:
            known = self._runs.get(job.uid, Remembered())
        self._put(job.uid, Remembered(known.pods, known.stop, refusal))

    def forget(self, job_uid: str) -> None:
        """The job is gone."""
        with self._lock:
            self._runs.pop(job_uid, None)

    def _put(self, job_uid: str, known: Remembered) -> None:
        with self._lock:
            if known == Remembered():
                self._runs.pop(job_uid, None)
            else:
                self._runs[job_uid] = known
