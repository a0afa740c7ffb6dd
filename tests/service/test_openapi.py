"""The OpenAPI document is what the guard does: schemathesis drives a real process from it.

Every answer must have a documented status, content type and schema; no input may give a 5xx other than the
503 of a broken store, which does not happen here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from guard_core.policy import Policy
from guard_service.app import Tokens, create_app
from guard_service.engine import Engine


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
def api(running_guard: Any) -> Any:
    return schemathesis.openapi.from_url(f"{running_guard.url}/openapi.json")


@pytest.fixture(scope="module")
def app() -> FastAPI:
    engine = Engine(state_dir=Path("unused"), checkpoint_root=Path("unused"), policy=Policy())
    return create_app(engine, Tokens("a", "b"))


@pytest.fixture(scope="module")
def document(app: FastAPI) -> dict[str, Any]:
    return app.openapi()


OPERATIONS = [
    ("post", "/v1/steps"),
    ("post", "/v1/checkpoints"),
    ("post", "/v1/evaluations"),
    ("get", "/v1/state"),
    ("put", "/v1/state"),
    ("get", "/v1/evidence"),
    ("post", "/v1/end"),
    ("get", "/v1/rollouts"),
    ("get", "/v1/figures"),
    ("get", "/v1/run"),
    ("get", "/v1/verdict"),
    ("get", "/v1/history"),
    ("get", "/healthz"),
    ("get", "/readyz"),
    ("get", "/metrics"),
]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_the_guard_does_what_its_document_says(api: Any, method: str, path: str) -> None:
    special = {"/v1/evaluations": "evaluations"} | dict.fromkeys(("/v1/state", "/v1/evidence"), "supervisor")
    token = f"{special.get(path, 'read' if method == 'get' else 'ingest')}-token-0123456789"

    @given(case=api[path][method].as_strategy())
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    def check(case: Any) -> None:
        # What a schema cannot say: a path must exist, and a KL needs its kind.
        excluded = [positive_data_acceptance] if method != "get" else []
        case.call_and_validate(headers={"Authorization": f"Bearer {token}"}, excluded_checks=excluded)

    check()


def test_every_operation_is_driven(document: dict[str, Any]) -> None:
    documented = [(m, path) for path, operations in document["paths"].items() for m in operations]
    assert sorted(documented) == sorted(OPERATIONS)


def test_every_operation_has_a_description(document: dict[str, Any]) -> None:
    assert all(document["paths"][path][method]["description"] for method, path in OPERATIONS)


def test_every_route_is_in_the_document_or_is_the_page(app: FastAPI) -> None:
    served = {
        (method.lower(), route.path)
        for route in app.routes
        for method in (getattr(route, "methods", None) or ())
        if method != "HEAD"
    }
    page = {("get", path) for _, path in served if path == "/" or path.startswith("/dashboard/")}
    assert served - page - {("get", "/openapi.json")} == set(OPERATIONS)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["attempt", "step", "reward", "kl", "kl_kind", "path", "entropy", "reward_std", "x"]
            ),
            inner,
            max_size=7,
        )
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def client(running_guard: Any) -> Iterator[Any]:
    with running_guard.client() as client:
        yield client


@given(
    content=JSON_VALUES.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=200),
    path=st.sampled_from(["/v1/steps", "/v1/checkpoints", "/v1/end"]),
)
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_body_gives_a_5xx(client: Any, content: bytes, path: str) -> None:
    response = client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code < 500
    if response.status_code != 200:
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["status"] == response.status_code


def test_every_operation_documents_its_problems(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"] and operation["description"], (method, path)
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    assert list(answer["content"]) == ["application/problem+json"], (method, path, status)


def test_ingest_documents_its_body_and_its_token(document: dict[str, Any]) -> None:
    steps = document["paths"]["/v1/steps"]["post"]
    assert steps["security"] == [{"ingestToken": []}]
    body = steps["requestBody"]["content"]["application/json"]["schema"]
    assert body["anyOf"][0] == {"$ref": "#/components/schemas/PostedStep"}
    assert body["anyOf"][1]["maxItems"] == 1000
    assert set(steps["responses"]) == {
        "200",
        "400",
        "401",
        "403",
        "409",
        "413",
        "415",
        "422",
        "429",
        "500",
        "503",
        "507",
    }
    verdict = document["paths"]["/v1/verdict"]["get"]
    assert {"ingestToken": []} in verdict["security"] and {"readToken": []} in verdict["security"]
    assert "security" not in document["paths"]["/healthz"]["get"]


def test_every_reference_of_the_document_resolves(document: dict[str, Any]) -> None:
    def references(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            if "$ref" in node:
                yield node["$ref"]
            for value in node.values():
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    schemas = document["components"]["schemas"]
    named = {reference.removeprefix("#/components/schemas/") for reference in references(document)}
    assert named <= schemas.keys()
    assert "HTTPValidationError" not in schemas
    assert {"PostedStep", "CheckpointReport", "ProblemDetails"} <= schemas.keys()


def test_the_document_needs_no_token(new_guard: Callable[..., Any]) -> None:
    guard = new_guard().start()
    with guard.client(None) as client:
        assert client.get("/openapi.json").json()["info"]["title"] == "RLGuard guard"
