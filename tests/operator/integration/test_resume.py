"""`rlguard resume` on a real API server: a run that fired goes on as another job."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from guard_operator.runtime.client import EVENTS

from .waiting import eventually
from .world import JOBS, Json, World, is_deleted

pytestmark = pytest.mark.nightly


@pytest.fixture
def resume(here: World, kubeconfig: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command as an administrator types it."""

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        place = [f"--namespace={here.namespace}", f"--kubeconfig={kubeconfig}"]
        command = [sys.executable, "-m", "guard_cli.main", "resume", *options, *place]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def told(world: World, name: str) -> list[str]:
    """Messages of the Events `Resumed` about the job of this name."""
    items = world.client.list(EVENTS, world.namespace, {}).get("items") or []
    return [
        one["message"]
        for one in items
        if one["reason"] == "Resumed" and one["involvedObject"]["name"] == name
    ]


def test_a_run_that_fired_goes_on_as_another_job(
    here: World, make_job: Callable[..., Json], resume: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    here.claim()
    here.submit(make_job())
    here.operator()
    here.start()
    early = resume("run")
    assert early.returncode == 2 and "run has not ended: its phase is Running" in early.stderr
    here.fire()
    here.expect_workload(is_deleted, "the workload is deleted")
    here.ends()

    before = here.job()
    done = resume("run")
    assert done.returncode == 0, done.stderr
    here.client.create(JOBS, here.namespace, yaml.safe_load(done.stdout), "test")
    second = here.another("run-2")
    second.expect("Guarded", "True", "WorkloadCreated")
    pod = second.start_pod()
    env = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    uid = second.job()["metadata"]["uid"]
    assert (env["RLGUARD_RESUME_FROM"], env["RLGUARD_RUN"]) == ("/ckpt/20", f"run-2-{uid[:8]}")
    assert second.job()["spec"]["resumedFrom"] == {
        "name": "run",
        "uid": before["metadata"]["uid"],
        "step": 20,
        "checkpoint": "/ckpt/20",
    }
    eventually(lambda: told(here, "run") and told(here, "run-2"), "both are told")
    assert told(here, "run") == ["job run-2 starts from /ckpt/20 (step 20) of this one"]
    assert told(here, "run-2") == ["starts from /ckpt/20 (step 20) of job run, which stays as it is"]
    assert here.job()["spec"] == before["spec"] and here.phase() == "Stopped"

    absent = resume("other")
    assert absent.returncode == 1 and "has no GuardedTrainingJob 'other'" in absent.stderr
