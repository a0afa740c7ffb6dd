"""Which guard of a run is asked, and what it has to know of the one before it. Pure."""

from __future__ import annotations

import time

from guard_operator.guards.adoption import Former, latches_of
from guard_operator.guards.polls import FOLLOWED_SECONDS, PolledGuard
from guard_operator.guards.reading import Reading
from guard_operator.reconcile.owned import host_of
from guard_operator.reconcile.snapshot import Pod, Snapshot, guard_of


def guard_to_ask(snapshot: Snapshot, reading: Reading | None) -> PolledGuard | None:
    """The guard that runs, in the newest pod that has one; None: none does, or nobody knows where.

    `reading`: what was read of the guard of this run so far.
    """
    job, guards = snapshot.job, [pod for pod in snapshot.pods if pod.guarded]
    running = [pod for pod in guards if pod.address]
    if not running:
        return None
    pod, said = running[-1], guard_of(job)
    return PolledGuard(
        job=(job.namespace, job.name),
        uid=job.uid,
        pod=pod.uid,
        pod_name=pod.name,
        address=pod.address,
        port=job.spec.guard.port,
        host=host_of(job),
        latches=tuple(latches_of(said.fire, said.halt)),
        former=_former(pod, guards, reading, said.level is not None),
    )


def _former(pod: Pod, guards: list[Pod], reading: Reading | None, was_heard: bool) -> Former | None:
    """The guard before that in this pod; None: there was none.

    `was_heard`: whether the status says that a guard of this run was heard.
    """
    others = [one for one in guards if one.uid != pod.uid]
    if reading is not None and reading.pod != pod.uid and reading.verdict is not None:
        # The last word of one before that says nothing of it; a latch of any stands in the status.
        word = next((one.last_word for one in others if one.uid == reading.pod), None)
        return Former(word, followed=_was_followed(reading))
    if others or (was_heard and reading is None):
        word = next((one.last_word for one in reversed(others) if one.last_word is not None), None)
        return Former(word, heard=was_heard)
    return None


def _was_followed(reading: Reading) -> bool:
    """Whether a guard that is gone was heard until it ended, as far as that can be told."""
    since = reading.unreached_since
    return since is None or time.monotonic() - since < FOLLOWED_SECONDS
