"""Real GRPO runs: TRL in the trainer image, the guard beside it scoring real checkpoints, and what users see.

Nothing is scripted here: whether a run hacks its reward is decided by its grader, and the guard finds it out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from . import artefacts, given, jobs, then, timeouts, walk
from .kube import GUARD_CONTAINER, ROOT, Job, Namespace

pytestmark = pytest.mark.slow

#: An evidence ConfigMap must stay far below etcd's limit of 1.5 MiB for one object.
EVIDENCE_BYTES = 256 * 1024


def test_a_run_that_hacks_its_reward_is_stopped(demo: Namespace, tmp_path: Path) -> None:
    """The README's walk as printed, to the end: evidence, Events, a latch that nobody opens, clearing up."""
    cluster, job = demo.cluster, demo.job(jobs.DEMO_NAME)

    walk.takes(cluster, "kubectl apply -k")
    cluster.kubectl("label", "namespace", demo.name, f"{artefacts.LABEL}=test")
    with walk.watches(cluster, "get gtj cpu-demo -w", tmp_path / "watched"):
        then.the_condition_is(job, "Guarded", "True", "WorkloadCreated")
        fire = then.the_job_has_fired(job, within=timeouts.GRPO)
        then.it_fired_for_its_score(fire)
        then.the_job_is_stopped(job)
    assert job.workload is None, "it is deleted"
    then.it_was_told_once(
        job, job.conditions["Fired"]["reason"], "StopRequested", "EvidenceCaptured", "NoPodsLeft"
    )
    the_evidence_holds_what_happened(job)
    the_plugin_of_kubectl_makes_the_report(job, tmp_path)
    the_plugin_of_kubectl_goes_on_from_the_last_good_checkpoint(job)
    walk.takes(cluster, "describe gtj", "last-good-checkpoint")
    walk.takes(cluster, "patch gtj", fails=True)
    the_latch_cannot_be_opened(job)
    the_best_checkpoint_outlives_the_run(job)
    walk.deletes_all(cluster)


def test_an_honest_run_succeeds(namespace: Namespace) -> None:
    """The same demo with the strict grader: it finishes, the sidecar ends with it, and nothing fires."""
    job = given.the_demo_with(namespace, "--grader=strict", "--steps=24", "--save-steps=4")

    message = then.the_condition_is(job, "Succeeded", "True", "WorkloadSucceeded", within=timeouts.GRPO)
    assert "NOT JUDGED" not in message
    assert job.guard["evaluated"] == job.guard["announced"] >= 6, "a checkpoint every 4 steps, and the start"
    then.the_phase_is(job, "Succeeded")
    assert job.pod["status"]["phase"] == "Succeeded", "the sidecar does not keep a finished job alive"
    then.the_job_never_fired(job)
    assert job.guard["steps"] == 24
    assert job.guard["lastEvaluation"]["step"] == 24, "the trainer has waited for the last checkpoint's score"


def test_a_fire_stops_a_run_on_two_nodes(namespace: Namespace) -> None:
    """torchrun, gloo, a Master and a Worker: one guard, beside rank 0, and both pods go."""
    job = given.a_grpo_run_that_fires(namespace, nodes=2)

    assert guards_by_pod(job) == {"run-master-0": 1, "run-worker-0": 0}
    then.the_job_has_fired(job, "KlHardStop", within=timeouts.TWO_NODES)
    then.the_job_is_stopped(job)
    assert job.guard["steps"] >= 5, "the step that fired was one of a training that both ranks took part in"


# -- then, in the words of these tests -------------------------------------------------------------------


def guards_by_pod(job: Job) -> dict[str, int]:
    """How many guards each pod of the run has."""
    return {
        pod["metadata"]["name"]: sum(
            one["name"] == GUARD_CONTAINER for one in pod["spec"].get("initContainers") or []
        )
        for pod in job.pods
    }


def the_evidence_holds_what_happened(job: Job) -> None:
    """Verdict, history, both logs and the last good checkpoint, in a bounded size."""
    evidence = then.evidence(job)
    fire = job.guard["fire"]
    verdict = json.loads(evidence["verdict.json"])
    assert verdict["fire"]["code"] == fire["code"]
    assert verdict["fire"]["step"] == fire["step"]
    rounds = [json.loads(line) for line in evidence["history.jsonl"].splitlines()]
    assert rounds[-1]["step"] == fire["step"]
    gained = {key: fmean(r[key] for r in rounds[-3:]) - rounds[0][key] for key in ("reward", "heldout")}
    assert gained["reward"] > gained["heldout"] + 0.1, "what was rewarded rose, and what was wanted did not"
    best = json.loads(evidence["last-good-checkpoint.json"])
    assert best["step"] < fire["step"]
    assert best["path"] == f"/checkpoints/checkpoint-{best['step']}"
    written = json.loads(evidence["rollouts.json"])
    assert "start" in written[0]["moments"] and written[0]["prompt"] and written[-1]["completion"]
    assert "'reward': " in evidence["trainer.log"], "what TRL logs"
    assert evidence["guard.log"].strip(), "the log of the guard"
    assert sum(map(len, evidence.values())) < EVIDENCE_BYTES


def the_plugin_of_kubectl_makes_the_report(job: Job, folder: Path) -> None:
    """`kubectl rlguard report`."""
    page = folder / "report.html"
    said = kubectl_rlguard(job, "report", "--out", str(page))
    assert f"Fired at step {job.guard['fire']['step']}" in said
    assert job.guard["bestCheckpoint"]["path"] in page.read_text()


def the_plugin_of_kubectl_goes_on_from_the_last_good_checkpoint(job: Job) -> None:
    """`kubectl rlguard resume | kubectl create -f -`: the API server says what it would create."""
    printed = kubectl_rlguard(job, "resume")
    made = job.namespace.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", give=printed)
    again = json.loads(made)
    assert again["metadata"]["name"] == f"{job.name}-2"
    assert again["spec"]["resumedFrom"]["checkpoint"] == job.guard["bestCheckpoint"]["path"]
    assert again["spec"]["template"] == job.raw["spec"]["template"]


def kubectl_rlguard(job: Job, command: str, *options: str) -> str:
    """What a command of the plugin prints, as whoever has the package in a virtual environment types it."""
    cluster = job.namespace.cluster
    where = ["-n", job.namespace.name, f"--kubeconfig={cluster.kubeconfig}"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [cluster.programs["kubectl"], "rlguard", command, job.name, *options, *where],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=timeouts.COMMAND,
        check=True,
    ).stdout


def the_best_checkpoint_outlives_the_run(job: Job) -> None:
    """In its claim, as the pod lists it that the README names; its run has no pod left."""
    pod = "pod/cpu-demo-checkpoints"
    job.namespace.kubectl("apply", "-f", str(ROOT / "k8s/overlays/kind/checkpoints.yaml"))
    wait = ("wait", "--for=jsonpath={.status.phase}=Succeeded", f"--timeout={timeouts.COMMAND}s")
    job.namespace.kubectl(*wait, pod)
    best = job.guard["bestCheckpoint"]["path"].removeprefix("/checkpoints/")
    assert best in job.namespace.kubectl("logs", pod).splitlines()


def the_latch_cannot_be_opened(job: Job) -> None:
    """The API server itself refuses what a user might try with kubectl."""
    fire = job.guard["fire"]
    attempts = {
        "merge": '{"status": {"guard": {"fire": null}}}',
        "json": '[{"op": "remove", "path": "/status/guard/fire"}]',
        "merge of all": '{"status": null}',
        "json of another reason": '[{"op": "replace", "path": "/status/guard/fire/reason", "value": "fine"}]',
    }
    for how, patch in attempts.items():
        kind = how.split()[0]
        refused = job.namespace.try_kubectl(
            "patch", "gtj", job.name, "--subresource=status", f"--type={kind}", "--patch", patch
        )
        assert refused.returncode != 0, how
        assert "status.guard.fire is latched: it can be neither changed nor removed" in refused.stderr, how
    assert job.guard["fire"] == fire
