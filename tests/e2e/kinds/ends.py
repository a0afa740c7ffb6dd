"""Then, for kinds whose controllers make further objects before there is a pod."""

from __future__ import annotations

from rlguard.operator.runtime.client import Resource
from tests.e2e import then
from tests.e2e.workloads import OtherRun


def nothing_is_left(job: OtherRun, *makers: Resource) -> None:
    """No pod of the run, nothing of these kinds, which would make one, and nothing was in the way."""
    then.the_job_is_stopped(job)
    assert job.everything == [], [pod["metadata"]["name"] for pod in job.everything]
    for resource in makers:
        assert not job.client.list(resource, job.namespace.name, {})["items"], resource.kind
    assert job.workload is None
    assert "StopBlocked" not in then.events(job)
