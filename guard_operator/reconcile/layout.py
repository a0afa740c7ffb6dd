"""Where things lie in a guarded pod, and what the trainer is told. Shared by injection and refusals."""

from __future__ import annotations

#: User and group of the guard container; no container of a template may be the same user.
GUARD_UID = 64532

STATE_DIR = "/var/lib/rlguard"
#: The claim that the trainer of a workload saves in which exists: nobody asks how that mounts it.
CHECKPOINTS_VOLUME, CHECKPOINTS_DIR = "checkpoints", "/checkpoints"
HELDOUT_DIR = "/var/run/rlguard/heldout"
POLICY_DIR = "/var/run/rlguard/policy"
SECRET_DIR = "/var/run/rlguard/secrets"
#: Where every Kubernetes client looks for its service account.
TOKEN_DIR = "/var/run/secrets/kubernetes.io/serviceaccount"
SHARED_MEMORY_DIR = "/dev/shm"  # noqa: S108 - the guard's own, too
TMP_DIR = "/tmp"  # noqa: S108 - the guard's own emptyDir, on a read-only root

STATE_VOLUME = "rlguard-state"
#: Where the trainer reports: in the guard writable, in the trainer read-only. While no guard runs nobody else
#: can listen there, as containers of a pod can on one another's ports.
SOCKET_VOLUME = "rlguard-socket"
SOCKET_DIR = "/var/run/rlguard/socket"
SOCKET = f"{SOCKET_DIR}/guard.sock"
REPLICA_INDEX_ENV = "RLGUARD_GUARD_CLUSTER__REPLICA_INDEX"

#: What the checkpoint volume must not cover: the guard's own directories, and the programs that it runs.
GUARD_DIRECTORIES = (
    STATE_DIR, "/var/run/rlguard", TOKEN_DIR, TMP_DIR,
    "/run", "/opt/rlguard", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/dev", "/proc", "/sys",
)  # fmt: skip

#: Name of the guard's port for Prometheus; the chart's PodMonitor asks for it.
METRICS_PORT_NAME = "rlguard-metrics"

#: Environment that the trainer containers of the rank-0 pod get.
URL_ENV = "RLGUARD_URL"
TOKEN_ENV = "RLGUARD_TOKEN"
#: Of a guard at the network: the certificate by which it is known.
CA_ENV = "RLGUARD_CA"
TRAINER_ENV = (URL_ENV, TOKEN_ENV, CA_ENV)
#: Exit code of who waited for such a guard as long as it may; it may have others when its node ends it.
GAVE_UP = 75
#: The guard ends with the trainer, so the trainer waits for the last evaluations, unless its template says
#: otherwise; for less than the ten minutes after which a collective of the other ranks fails.
DRAIN_ENV, DRAIN_SECONDS = "RLGUARD_DRAIN_SECONDS", "300"

#: For how long a trainer goes on without its guard, seconds, unless more is said; the client's own default.
MAX_LAG_ENV = "RLGUARD_MAX_LAG"
ON_UNREACHABLE_ENV = "RLGUARD_ON_UNREACHABLE"
UNREACHABLE_ENV, UNREACHABLE_SECONDS = "RLGUARD_UNREACHABLE_SECONDS", 300

#: Environment of every container that trains, in a run that goes on from a checkpoint of another one: which
#: one, and a name that no other run has, so that it writes beside the others and goes on from none of them.
RESUME_ENV, RUN_ENV = "RLGUARD_RESUME_FROM", "RLGUARD_RUN"

#: Keys of the Secret with the guard's tokens, and of the ConfigMap with its policy.
INGEST_TOKEN_KEY = "ingest-token"
READ_TOKEN_KEY = "read-token"
POLICY_KEY = "policy.yaml"
CERTIFICATE_KEY, PRIVATE_KEY_KEY = "tls.crt", "tls.key"
