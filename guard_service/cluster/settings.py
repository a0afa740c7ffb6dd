"""Which job the guard reports to, and how it reaches the API server. The operator sets these."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

DnsName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]


def _url(value: str) -> str:
    """A base URL to which a token may be sent."""
    parts = urlsplit(value)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{value!r} is not the URL of a server, such as https://10.96.0.1:443")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise ValueError(f"{value!r} would carry the token in clear: use https")
    return value.rstrip("/")


class ClusterSettings(BaseModel):
    """The job whose `status.guard` this guard writes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: DnsName = Field(description="Namespace of the GuardedTrainingJob.")
    name: DnsName = Field(description="Name of the GuardedTrainingJob.")
    uid: str = Field(
        min_length=1, max_length=63, description="Its UID: another job of the same name is never written."
    )
    replica_index: int = Field(
        0, ge=0, description="Replica of the pod this guard is in. Only the guard of replica 0 reports."
    )
    url: Annotated[str, AfterValidator(_url)] | None = Field(
        None,
        description="URL of the API server; without it KUBERNETES_SERVICE_HOST and _PORT, as in every pod.",
    )
    token_file: Path = Field(
        SERVICE_ACCOUNT / "token",
        description="File with the service account's token. It is read again for every request.",
    )
    last_word_file: Path = Field(
        Path("/dev/termination-log"),
        description="Where a latch is also left, in case the guard ends while the API server is away: the "
        "kubelet puts it into the pod's status. It is written only if it exists.",
    )
    ca_file: Path = Field(
        SERVICE_ACCOUNT / "ca.crt", description="Certificate authority of the API server, PEM."
    )
