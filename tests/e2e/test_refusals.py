"""What scheduler, kubelet and admission keep from starting, and how a user reads why."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import given, jobs, then, timeouts
from .kube import Json, Namespace


@dataclass(frozen=True)
class Refused:
    """A change of a job that cannot start then, with the reason of the condition and what its message has."""

    name: str
    change: Callable[[Json], Any]
    reason: str
    says: str


# -- what Kubernetes cannot start: the operator says why -------------------------------------------------


CANNOT_START = [
    Refused(
        "no-node",
        lambda j: jobs.pod_spec_of(j).update(nodeSelector={"gpu": "none"}),
        "Unschedulable",
        "pod no-node-master-0: 0/1 nodes are available",
    ),
    Refused(
        "no-image",
        lambda j: j["spec"]["guard"].update(image="rlguard.invalid/guard:none", imagePullPolicy="Always"),
        "ContainerWaiting",
        "pod no-image-master-0: container rlguard-guard: ",
    ),
    Refused(
        "no-secret",
        lambda j: j["spec"]["guard"]["heldout"].update(volume={"secretName": "no-such-secret"}),
        "VolumeUnavailable",
        "no-such-secret",
    ),
    Refused(
        "no-split",
        lambda j: j["spec"]["guard"]["heldout"].update(split="no-such-file.jsonl"),
        "GuardCrashed",
        "no-such-file.jsonl",
    ),
]


def test_a_run_that_cannot_start_says_what_it_waits_for(namespace: Namespace) -> None:
    for case in CANNOT_START:
        *parts, job = jobs.scripted(case.name, namespace.cluster.images["trainer"])
        case.change(job)
        given.objects(namespace, [*parts, job])

    for case in CANNOT_START:
        run = namespace.job(case.name)
        # What a kubelet says first may be of something that passes, such as a cache that is not filled yet.
        then.the_condition_is(run, "Waiting", "True", case.reason, within=timeouts.START, says=case.says)
        assert run.conditions["Guarded"]["status"] == "True", case.name
        assert run.status["phase"] == "Pending", case.name


# -- behind the operator's back: the admission policies --------------------------------------------------


def test_what_is_changed_behind_the_operators_back_is_refused(namespace: Namespace) -> None:
    job = given.a_scripted_run(namespace, restart="ExitCode")  # a lost pod is made again
    pod = job.pod_name

    unlabelled = namespace.try_kubectl("label", "pod", pod, "rlguard.dev/job-uid-")
    assert unlabelled.returncode != 0
    assert "by them the operator finds the pods that it must stop" in unlabelled.stderr

    # The workload may be edited; a pod that would break the isolation is not made of it.
    leak = {"name": "leak", "secret": {"secretName": f"{job.name}-heldout"}}
    patch = [{"op": "add", "path": "/spec/pytorchReplicaSpecs/Master/template/spec/volumes/-", "value": leak}]
    namespace.kubectl("patch", "pytorchjob", job.name, "--type=json", f"--patch={json.dumps(patch)}")
    namespace.kubectl("delete", "pod", pod)
    then.eventually(
        lambda: "must not be run-heldout" in namespace.kubectl("events", f"--for=pytorchjob/{job.name}"),
        "an Event of the workload says why no pod is made",
        timeouts.STOP,
    )
    assert job.pods == []
    then.the_phase_is(job, "Pending")
