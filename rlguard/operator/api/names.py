"""Every name that the operator shares with the cluster: groups, labels, field managers, object names."""

from __future__ import annotations

GROUP = "rlguard.dev"
VERSION = "v1alpha1"
KIND = "GuardedTrainingJob"
PLURAL = "guardedtrainingjobs"
API_VERSION = f"{GROUP}/{VERSION}"

#: Field manager of everything the operator applies.
OPERATOR_MANAGER = "rlguard-operator"

#: A permission that only operators have; no request needs it. The chart's admission policy knows them by it.
OPERATOR_VERB = "operate"

#: How the names of labels begin that nobody else sets.
OWN_LABELS = "rlguard.dev/"
#: On every pod of a guarded workload, so that one watch and one list find them all.
JOB_LABEL = "rlguard.dev/job"
UID_LABEL = "rlguard.dev/job-uid"

#: On what is kept of a run in the operator's own namespace: that of its job.
NAMESPACE_LABEL = "rlguard.dev/namespace"

#: On a guard's own pod, and on no other of its job: by it the Service knows that pod.
PART_LABEL, GUARD_PART = "rlguard.dev/part", "guard"

#: On all pods of a job whose guard has a pod of its own, so that nobody looks for it beside the trainer.
PLACEMENT_LABEL, IN_A_POD = "rlguard.dev/placement", "Pod"

#: Containers and volumes that start with this belong to the operator.
RESERVED_PREFIX = "rlguard-"
GUARD_CONTAINER = "rlguard-guard"
#: In a trainer's pod whose guard has its own, and with nothing that is the guard's: so it has no name of it.
WAITING_CONTAINER = "wait-for-guard"

#: KubeRay fails a RayJob with a longer name after it was made. And names of pods are longer still, and must
#: stay DNS labels (63 characters).
MAX_JOB_NAME = 47
JOB_NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
JOB_NAME_RULE = f"metadata.name must be a DNS-1035 label of at most {MAX_JOB_NAME} characters"

#: What Kueue is told by labels: the queue, and such as the priority.
QUEUE_PREFIX = "kueue.x-k8s.io/"
QUEUE_LABEL = f"{QUEUE_PREFIX}queue-name"

#: Keys of the Secrets with what a guard is known by.
CERTIFICATE_KEY, PRIVATE_KEY_KEY = "tls.crt", "tls.key"
INGEST_TOKEN_KEY, READ_TOKEN_KEY, SUPERVISOR_TOKEN_KEY = "ingest-token", "read-token", "supervisor-token"

#: A StatefulSet gives its pods a label of its name and up to eleven characters more, of 63.
MAX_GUARD_NAME = 52


def guard_name(job_name: str, job_uid: str) -> str:
    """Name of a guard's own StatefulSet and Service."""
    return f"{job_name[: MAX_GUARD_NAME - 9]}-{job_uid[:8]}"


def support_name(job_name: str, job_uid: str) -> str:
    """Name of the objects made for one job. The UID keeps a job from meeting its predecessor's leftovers."""
    return f"{job_name}-{job_uid[:8]}"
