"""The OpenAPI document is what the guard does: schemathesis drives a real process from it.

Every answer must have a documented status, content type and schema; no input may give a 5xx other than the
503 of a broken store, which does not happen here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

OPERATIONS = [
    *(("post", f"/v1/{name}") for name in ("steps", "checkpoints", "evaluations", "end")),
    *(("get", f"/v1/{name}") for name in ("verdict", "run", "history", "rollouts", "figures")),
    *(("get", "/v1/state"), ("put", "/v1/state"), ("get", "/v1/evidence")),
    *(("get", "/healthz"), ("get", "/readyz")),
]
TOKENS = {"/v1/evaluations": "evaluations", "/v1/state": "supervisor", "/v1/evidence": "supervisor"}


@pytest.fixture(scope="module")
def running_guard(zygote: Any, tmp_path_factory: Any, guard_type: Any) -> Iterator[Any]:
    settings = {f"{role.upper()}_TOKEN": f"{role}-token-0123456789" for role in ("evaluations", "supervisor")}
    guard = guard_type(zygote, tmp_path_factory.mktemp("openapi"), settings).start()
    with guard.client("supervisor-token-0123456789") as client:
        assert client.put("/v1/state", json={}).is_success
    yield guard
    assert "Traceback" not in guard.log
    assert guard.end() == 0


@pytest.fixture(scope="module")
def document(running_guard: Any) -> dict[str, Any]:
    with running_guard.client(None) as client:
        return dict(client.get("/openapi.json").json())


@pytest.fixture(scope="module")
def api(running_guard: Any) -> Any:
    return schemathesis.openapi.from_url(f"{running_guard.url}/openapi.json")


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_the_guard_does_what_its_document_says(api: Any, method: str, path: str) -> None:
    token = f"{TOKENS.get(path, 'read' if method == 'get' else 'ingest')}-token-0123456789"

    @given(case=api[path][method].as_strategy())
    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    def check(case: Any) -> None:
        # What a schema cannot say: a path must exist, and a KL needs its kind.
        excluded = [positive_data_acceptance] if method != "get" else []
        case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, excluded_checks=excluded)

    check()


def test_every_operation_is_driven_described_and_has_its_token(document: dict[str, Any]) -> None:
    documented = [(m, path) for path, operations in document["paths"].items() for m in operations]
    assert sorted(documented) == sorted(OPERATIONS)
    for method, path in OPERATIONS:
        operation = document["paths"][path][method]
        assert operation["summary"] and operation["description"]
        assert path.startswith("/v1/") is ("security" in operation)
        for status, answer in operation["responses"].items():
            assert int(status) < 400 or list(answer["content"]) == ["application/problem+json"]
    steps = document["paths"]["/v1/steps"]["post"]
    assert steps["security"] == [{"ingestToken": []}]
    assert steps["responses"].keys() == {
        *("200", "400", "401", "403", "409", "413", "415", "422", "429", "500", "503", "507")
    }


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["attempt", "step", "reward", "kl", "kl_kind", "path", "x"]), inner)
    ),
    max_leaves=12,
)


@given(
    content=JSON_VALUES.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=200),
    path=st.sampled_from(["/v1/steps", "/v1/checkpoints", "/v1/end"]),
)
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_body_gives_a_5xx(running_guard: Any, content: bytes, path: str) -> None:
    response = running_guard.post_bytes(path, content)
    assert response.status_code < 500
    if response.status_code != 200:
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["status"] == response.status_code
