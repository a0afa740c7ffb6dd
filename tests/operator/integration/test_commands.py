"""`rlguard status`, `report`, `resume` and `wrap` as an administrator types them, on a real API server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rlguard.operator.runtime.client import BATCH_JOBS, CONFIG_MAPS, EVENTS, Resource

from .waiting import eventually
from .world import JOBS, PYTORCHJOBS, Json, World, is_deleted

pytestmark = pytest.mark.nightly

MakeJob = Callable[..., Json]
Command = Callable[..., subprocess.CompletedProcess[str]]


def rlguard(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rlguard.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def command(namespace: str, kubeconfig: Path) -> Command:
    """Runs a command in this namespace."""
    return lambda *given: rlguard(*given, f"--namespace={namespace}", f"--kubeconfig={kubeconfig}")


@pytest.mark.always
def test_status_of_a_job_and_of_all_jobs(here: World, make_job: MakeJob, command: Command) -> None:
    for name in ("first", "second"):
        here.submit(make_job(name))
    here.another("first").noted(level="warning", code="stale", reason="old", step=7)
    one = command("status", "first")
    assert "warning (stale): old" in one.stdout and "step: 7" in one.stdout, one.stderr
    every = json.loads(command("status", "--json").stdout)
    assert [job["name"] for job in every] == ["first", "second"] and every[1]["verdict"] == {}
    absent = command("status", "third")
    assert absent.returncode == 1 and "has no GuardedTrainingJob 'third'" in absent.stderr


@pytest.mark.always
def test_a_report_is_of_the_newest_evidence_also_when_the_job_is_gone(
    running: World, command: Command, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    absent = command("report", "run", f"--out={page}")
    assert absent.returncode == 1 and "has no evidence of a job 'run'" in absent.stderr
    running.fire()
    running.expect_workload(is_deleted, "the workload is deleted")
    running.ends()
    data = running.evidence()
    assert command("report", "run", f"--out={page}").returncode == 0
    assert "Fired at step 40" in page.read_text() and "/ckpt/20" in page.read_text()

    newer = data["last-good-checkpoint.json"].replace("/ckpt/20", "/ckpt/21")
    data |= {"collected-at": "2999-01-01T00:00:00.000+00:00", "last-good-checkpoint.json": newer}
    metadata = {"name": "newer", "labels": {"rlguard.dev/job": "run"}}
    running.put(CONFIG_MAPS, {"metadata": metadata, "data": data})
    running.client.request("DELETE", JOBS.path(running.namespace, "run"))
    page.unlink()
    assert command("report", "run", f"--out={page}").returncode == 0
    assert "/ckpt/21" in page.read_text()


def told(world: World, name: str) -> list[str]:
    """Messages of the Events `Resumed` about the job of this name."""
    items = world.client.list(EVENTS, world.namespace, {}).get("items") or []
    found = (one for one in items if one["reason"] == "Resumed")
    return [one["message"] for one in found if one["involvedObject"]["name"] == name]


def test_a_run_that_fired_goes_on_as_another_job(running: World, command: Command) -> None:
    here = running
    early = command("resume", "run")
    assert early.returncode == 2 and "run has not ended: its phase is Running" in early.stderr
    here.fire()
    here.expect_workload(is_deleted, "the workload is deleted")
    here.ends()

    before = here.job()
    done = command("resume", "run")
    assert done.returncode == 0, done.stderr
    here.submit(yaml.safe_load(done.stdout))
    second = here.another("run-2")
    second.expect("Guarded", "True", "WorkloadCreated")
    pod = second.start_pod()
    env = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    uid = second.job()["metadata"]["uid"]
    assert (env["RLGUARD_RESUME_FROM"], env["RLGUARD_RUN"]) == ("/ckpt/20", f"run-2-{uid[:8]}")
    origin = {"name": "run", "uid": before["metadata"]["uid"], "step": 20, "checkpoint": "/ckpt/20"}
    assert second.job()["spec"]["resumedFrom"] == origin
    eventually(lambda: told(here, "run") and told(here, "run-2"), "both are told")
    assert told(here, "run") == ["job run-2 starts from /ckpt/20 (step 20) of this one"]
    assert told(here, "run-2") == ["starts from /ckpt/20 (step 20) of job run, which stays as it is"]
    assert here.job()["spec"] == before["spec"] and here.phase() == "Stopped"

    again = yaml.safe_load(command("resume", "run").stdout)
    assert again["metadata"]["name"] == "run-3", "run-2 is taken"


POD = {
    "securityContext": {"runAsNonRoot": True},
    "restartPolicy": "Never",
    "containers": [
        {"name": "pytorch", "image": "trainer:1", "volumeMounts": [{"name": "ck", "mountPath": "/ck"}]}
    ],
    "volumes": [{"name": "ck", "persistentVolumeClaim": {"claimName": "saved"}}],
}
SPECS: dict[str, Json] = {
    "PyTorchJob": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": {"spec": POD}}}},
    "Job": {"backoffLimit": 3, "template": {"spec": POD}},
}
#: Everything that an option can set, to be read by the CRD.
OPTIONS = (
    "--scorer=math",
    "--train-prompts=t.jsonl",
    "--max-new-tokens=9",
    "--temperature=1",
    "--device=cpu",
)


@pytest.mark.parametrize("resource", [PYTORCHJOBS, BATCH_JOBS], ids=lambda resource: resource.kind)
def test_a_job_that_ran_before_is_wrapped_and_made_again_with_its_guard(
    here: World, tmp_path: Path, resource: Resource
) -> None:
    """It was in the cluster before, so it is wrapped as `kubectl get -o yaml` shows it."""
    client, namespace = here.client, here.namespace
    meta = {"name": "run", "labels": {"team": "a"}, "annotations": {"b": "c"}}
    before = here.put(resource, {"metadata": meta, "spec": SPECS[resource.kind]})
    file, policy = tmp_path / "job.yaml", tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(before))
    policy.write_text(
        "detector: heldout_guard\nkl: {hard_stop: 0.5, warn_above: null}\nsilent: {action: stop}\n"
    )
    what = ("--heldout=claim:heldout/a/b.jsonl", "--checkpoints=ck", f"--policy={policy}", *OPTIONS)
    done = rlguard("wrap", "-f", file, *what)
    assert done.returncode == 0, done.stderr
    made = yaml.safe_load(done.stdout)
    client.request("DELETE", resource.path(namespace, "run"), query={"propagationPolicy": "Background"})
    eventually(lambda: client.get(resource, namespace, "run") is None, "the job of before is gone")
    for claim in ("heldout", "saved"):
        here.claim(claim)
    here.submit(made)
    stored = here.job()
    assert stored["spec"]["template"] == made["spec"]["template"], "nothing of it was dropped"
    found = stored["spec"]["guard"]["policy"]
    assert (found["detector"], found["kl"]["hardStop"], found["silent"]["action"]) == (
        "HeldoutGuard",
        0.5,
        "Stop",
    )
    assert found["kl"].get("warnAbove") is None
    here.operator()
    here.expect("Guarded", "True", "WorkloadCreated")
    workload = client.get(resource, namespace, "run")
    assert workload is not None and workload["metadata"]["uid"] != before["metadata"]["uid"]
    assert workload["metadata"]["labels"]["team"] == "a" and workload["metadata"]["annotations"]["b"] == "c"
    assert "rlguard-guard" in str(workload["spec"])
