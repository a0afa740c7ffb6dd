"""A JobSet under its real controller: rank 0 with its guard, and a worker beside it."""

from __future__ import annotations

from rlguard.operator.runtime.client import BATCH_JOBS
from tests.e2e import given, jobs, then, timeouts
from tests.e2e.kube import Namespace
from tests.e2e.workloads import JobSetRun, as_jobset


def test_a_hacking_jobset_fails_and_is_not_restarted(namespace: Namespace) -> None:
    """Its trainer does not obey, and its policy would start it three times more."""
    *others, job = jobs.scripted("run", namespace.cluster.images["trainer"], ("steps 8", "fire"), deaf=True)
    given.objects(namespace, [*others, as_jobset(job)])
    run = JobSetRun(namespace, "run")

    then.the_job_has_fired(run, "KlHardStop", within=timeouts.START)
    then.the_job_is_stopped(run)

    assert run.workload is None
    assert run.everything == [], [pod["metadata"]["name"] for pod in run.everything]
    assert not run.client.list(BATCH_JOBS, namespace.name, {})["items"]
    assert "attempt 0" in then.evidence(run)["trainer.log"]
    assert "StopBlocked" not in then.events(run)
