"""The Secret and the ConfigMap of a job, and the credentials in the Secret.

The guard mounts the whole Secret. The trainer has two of its keys in its environment: the certificate, by
which it knows the guard, and the token for reports.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from datetime import datetime

import yaml

from rlguard.core.policy import Policy
from rlguard.operator.api import names
from rlguard.operator.reconcile import layout
from rlguard.operator.reconcile.certificate import own_certificate
from rlguard.operator.reconcile.owned import host_of, owned
from rlguard.operator.reconcile.snapshot import Job
from rlguard.operator.runtime.client import CONFIG_MAPS, SECRETS, Json, Resource

TOKEN_KEYS = (names.INGEST_TOKEN_KEY, names.READ_TOKEN_KEY, names.SUPERVISOR_TOKEN_KEY)


def new_credentials(job: Job, now: datetime) -> dict[str, str]:
    """Make a certificate, its private key and three tokens: the content of the job's Secret.

    Args:
        job: the job.
        now: the time, UTC.
    """
    certificate, private_key = own_certificate(host_of(job), now)
    tokens = {key: secrets.token_urlsafe(32) for key in TOKEN_KEYS}
    return {names.CERTIFICATE_KEY: certificate, names.PRIVATE_KEY_KEY: private_key, **tokens}


def support_objects(job: Job, credentials: Mapping[str, str]) -> Iterator[tuple[Resource, Json]]:
    """Build the Secret and the ConfigMap of a job, both immutable and owned by it.

    Args:
        job: the job.
        credentials: as `new_credentials` makes them.
    """
    name = names.support_name(job.name, job.uid)
    yield SECRETS, owned(job, SECRETS, name, immutable=True, type="Opaque", stringData=dict(credentials))
    data = {layout.POLICY_KEY: policy_file(job.spec.guard.policy)}
    yield CONFIG_MAPS, owned(job, CONFIG_MAPS, name, immutable=True, data=data)


def policy_file(policy: Policy) -> str:
    """The policy as the guard reads it: YAML with the names of `rlguard.core.policy`."""
    return yaml.safe_dump(policy.model_dump(mode="json"), sort_keys=False)
