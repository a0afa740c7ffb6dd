"""What is refused or cannot start, and how a user reads why: in a condition, or on a pod.

A refused run has no pod, so the many cases of one test cost little.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import given, jobs, then, timeouts
from .kube import Json, Namespace

MASTER = "spec.template.spec.pytorchReplicaSpecs.Master"
POD = f"{MASTER}.template.spec"


# -- as a condition: the operator ------------------------------------------------------------------------


@dataclass(frozen=True)
class Refused:
    """A change of a job that does not run then, with the reason of the condition and what its message has."""

    name: str
    change: Callable[[Json], Any]
    reason: str
    says: str


def volume(job: Json, **source: Any) -> None:
    jobs.pod_spec_of(job)["volumes"].append({"name": "extra", **source})


REFUSED = [
    Refused(
        "privileged",
        lambda j: jobs.trainer_of(j)["securityContext"].update(privileged=True),
        "TemplateRefused",
        f"{POD}.containers[0].securityContext.privileged must not be true",
    ),
    Refused(
        "host-path",
        lambda j: volume(j, hostPath={"path": "/var/lib"}),
        "TemplateRefused",
        f"{POD}.volumes[3].hostPath.path must not be /var/lib, which reaches /var/lib/",
    ),
    Refused(
        "heldout-mounted",
        lambda j: volume(j, secret={"secretName": "run-heldout"}),
        "TemplateRefused",
        f"{POD}.volumes[3].secret.secretName must not be run-heldout: the trainer could read",
    ),
    Refused(
        "no-checkpoints",
        lambda j: j["spec"]["guard"]["checkpoints"].update(volume="elsewhere"),
        "TemplateRefused",
        f"{POD}.volumes must have the volume elsewhere",
    ),
    Refused(
        "elastic",
        lambda j: j["spec"]["template"]["spec"].update(elasticPolicy={"minReplicas": 1}),
        "TemplateRefused",
        "spec.template.spec.elasticPolicy needs guard.placement: Pod",
    ),
    Refused(
        "unknown-field",
        lambda j: master(j).update(replica=1),
        "WorkloadRefused",
        'unknown field "spec.pytorchReplicaSpecs.Master.replica"',
    ),
    Refused("webhook", lambda j: jobs.trainer_of(j).update(image=""), "WorkloadRefused", "image"),
    Refused(
        "other-kind",
        lambda j: j["spec"]["template"].update(kind="MPIJob"),
        "UnsupportedKind",
        "kubeflow.org/v1 MPIJob cannot be guarded",
    ),
]


def master(job: Json) -> Json:
    found: Json = job["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]
    return found


def test_a_bad_template_is_a_condition_that_names_the_field(namespace: Namespace) -> None:
    manifests = []
    for case in REFUSED:
        *_, job = jobs.scripted(case.name, "none", heldout={"secretName": "run-heldout"})
        case.change(job)
        manifests.append(job)
    given.objects(namespace, manifests)

    for case in REFUSED:
        job = namespace.job(case.name)
        message = then.the_condition_is(job, "Guarded", "False", case.reason)
        assert case.says in message, (case.name, message)
        assert job.status["phase"] == "Refused", case.name
        assert job.workload is None, case.name
        then.it_was_told_once(job, case.reason)
    assert namespace.kubectl("get", "pods", "--output=name") == ""


def test_a_missing_claim_is_a_condition_until_it_is_there(namespace: Namespace) -> None:
    job = given.a_submitted_run(namespace, "steps 8", heldout={"claimName": "heldout"})

    message = then.the_condition_is(job, "Guarded", "False", "ClaimMissing")
    assert message.startswith(
        "spec.guard.heldout.volume.claimName: PersistentVolumeClaim heldout does not exist"
    )

    given.a_claim_with_the_heldout_split(namespace)
    then.the_guard_has_counted(job, 8, within=timeouts.START)


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
