"""What is told of a run is what holds now."""

from __future__ import annotations

from . import faults, given, then, timeouts
from .kube import GUARD_CONTAINER, Namespace


def test_a_run_whose_pods_a_real_cluster_has_made_is_guarded(namespace: Namespace) -> None:
    job = given.a_scripted_run(namespace)
    then.the_condition_is(job, "Guarded", "True", "WorkloadCreated")
    then.the_condition_is(job, "Fired", "False", "NotFired")


def test_no_verdict_is_told_while_the_guards_container_is_down(namespace: Namespace) -> None:
    """Killed twice, so that the kubelet waits before it starts it again."""
    job = given.a_scripted_run(namespace, deaf=True)
    then.the_condition_is(job, "Fired", "False", "NotFired")
    for _ in range(2):
        namespace.cluster.signal(job.pod, GUARD_CONTAINER, "SIGKILL")
        message = then.the_condition_is(job, "Fired", "Unknown", "GuardNotRunning", timeouts.REPORT)
        assert "its last verdict, of " in message
        then.eventually(
            lambda: len(faults.running_on_the_node(namespace.cluster, job.pod)) == 2,
            "the guard runs again",
            timeouts.RESTART,
        )
    then.the_condition_is(job, "Fired", "False", "NotFired", timeouts.RESTART)
