"""Paths, names and environment variables that the pods of a run share with the guard and the trainer."""

from __future__ import annotations

#: User and group of the guard's container.
GUARD_UID = 64532

STATE_DIR = "/var/lib/rlguard"
#: Where the guard mounts the claim of a workload that exists (`targetRef`): its own mount path is not known.
CHECKPOINTS_VOLUME, CHECKPOINTS_DIR = "checkpoints", "/checkpoints"
HELDOUT_DIR = "/var/run/rlguard/heldout"
POLICY_DIR = "/var/run/rlguard/policy"
SECRET_DIR = "/var/run/rlguard/secrets"
SHARED_MEMORY_DIR = "/dev/shm"  # noqa: S108 - the guard's own volume
TMP_DIR = "/tmp"  # noqa: S108 - the guard's own volume, on a read-only root
#: Read by the kubelet, and by the operator if the pod ended while nobody polled its guard.
TERMINATION_MESSAGE = "/dev/termination-log"

STATE_VOLUME = "rlguard-state"

#: What the checkpoint volume must not cover: the guard's own directories, and the programs that it runs.
GUARD_DIRECTORIES = (
    STATE_DIR, "/var/run/rlguard", TMP_DIR,
    "/run", "/opt/rlguard", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/dev", "/proc", "/sys",
)  # fmt: skip

#: In the guard's environment, where one template makes several pods that each have a guard.
REPLICA_INDEX_ENV = "RLGUARD_GUARD_REPLICA_INDEX"

#: In the trainer's environment: address of the guard, its certificate, and the token for reports.
URL_ENV = "RLGUARD_URL"
CA_ENV = "RLGUARD_CA"
TOKEN_ENV = "RLGUARD_TOKEN"
TRAINER_ENV = (URL_ENV, TOKEN_ENV, CA_ENV)
#: Exit code of the container that waits for a guard in another pod, when its time is over.
GAVE_UP = 75
#: A sidecar ends with its trainer, so the trainer waits for the last evaluations, unless its template says
#: otherwise; for less than the ten minutes after which a collective of the other ranks fails.
DRAIN_ENV, DRAIN_SECONDS = "RLGUARD_DRAIN_SECONDS", "300"

#: For how long a trainer goes on without its guard, seconds, unless more is said; the client's own default.
MAX_LAG_ENV = "RLGUARD_MAX_LAG"
ON_UNREACHABLE_ENV = "RLGUARD_ON_UNREACHABLE"
UNREACHABLE_ENV, UNREACHABLE_SECONDS = "RLGUARD_UNREACHABLE_SECONDS", 300

#: In every container that trains, in a run that resumes another one: the checkpoint, and a name that no other
#: run has, so that it writes beside the others.
RESUME_ENV, RUN_ENV = "RLGUARD_RESUME_FROM", "RLGUARD_RUN"

#: Of the job's ConfigMap.
POLICY_KEY = "policy.yaml"
