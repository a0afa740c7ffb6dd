"""Typos are found among the fields that a real API server knows."""

from __future__ import annotations

import pytest

from guard_operator.reconcile.pod_fields import FIELDS
from guard_operator.runtime.client import Client

pytestmark = pytest.mark.nightly

#: The minor version of Kubernetes whose fields are listed.
MINOR = 34
SCHEMAS = {
    "": "PodSpec",
    "securityContext": "PodSecurityContext",
    "volumes[]": "Volume",
    "containers[]": "Container",
    "containers[].securityContext": "SecurityContext",
    "containers[].resources": "ResourceRequirements",
    "containers[].env[]": "EnvVar",
    "containers[].env[].valueFrom": "EnvVarSource",
    "containers[].envFrom[]": "EnvFromSource",
    "containers[].volumeMounts[]": "VolumeMount",
    "containers[].volumeDevices[]": "VolumeDevice",
    "containers[].ports[]": "ContainerPort",
}


@pytest.mark.parametrize("place", FIELDS)
def test_every_field_of_the_api_is_known(client: Client, place: str) -> None:
    schemas = client.request("GET", "/openapi/v3/api/v1")["components"]["schemas"]
    fields = set(schemas[f"io.k8s.api.core.v1.{SCHEMAS[place]}"]["properties"])
    known, minor = set(FIELDS[place].split()), int(client.request("GET", "/version")["minor"])
    if minor >= MINOR:
        assert known <= fields
    if minor <= MINOR:
        assert fields <= known
