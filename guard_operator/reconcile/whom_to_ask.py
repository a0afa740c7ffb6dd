"""Which guard of a run is asked, and what is known of those before it. Pure."""

from __future__ import annotations

from guard_operator.guards.adoption import latches_of
from guard_operator.guards.polls import PolledGuard
from guard_operator.reconcile.owned import host_of
from guard_operator.reconcile.snapshot import Snapshot, guard_of


def guard_to_ask(snapshot: Snapshot) -> PolledGuard | None:
    """The guard that runs, in the newest pod that has one; None: none does, or it may not be asked yet."""
    job, guards = snapshot.job, [pod for pod in snapshot.pods if pod.guarded]
    running = [pod for pod in guards if pod.address]
    if not running or snapshot.not_admitted:
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
        words={one.uid: one.last_word for one in guards if one.last_word is not None},
        heard=said.level is not None,
    )
