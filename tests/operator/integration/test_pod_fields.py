"""The operator has decided about every field that a real API server knows in a pod, and about no other."""

from __future__ import annotations

import pytest

from guard_operator.reconcile.isolation import TABLES
from guard_operator.runtime.client import Client

pytestmark = pytest.mark.nightly

#: The minor version of Kubernetes whose fields the tables are of.
MINOR = 34


@pytest.mark.parametrize("schema", TABLES)
def test_every_field_of_the_api_is_decided(client: Client, schema: str) -> None:
    schemas = client.request("GET", "/openapi/v3/api/v1")["components"]["schemas"]
    kinds = [kind for kind in TABLES if TABLES[kind] is TABLES[schema]]  # the kinds of mounts have one table
    fields = set().union(*(schemas[f"io.k8s.api.core.v1.{kind}"]["properties"] for kind in kinds))
    if schema == "Volume":
        fields.remove("name")
    decided, minor = TABLES[schema].keys(), int(client.request("GET", "/version")["minor"])
    if minor > MINOR:  # what came later is refused, because nobody decided about it
        assert fields >= decided
    elif minor < MINOR:
        assert fields <= decided
    else:
        assert fields == decided
