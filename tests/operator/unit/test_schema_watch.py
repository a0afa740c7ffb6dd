"""An operator whose CRD is older is not ready, and says what is missing."""

from __future__ import annotations

import copy
import logging
import math
from typing import Any, cast

import pytest

from guard_operator.api.fields import lacking
from guard_operator.api.schema import root_schema
from guard_operator.reconcile import schema_watch
from guard_operator.reconcile.schema_watch import SchemaWatch
from guard_operator.runtime.client import Client
from guard_operator.runtime.errors import ApiError, ClusterError, TransportError
from guard_operator.runtime.metrics import OperatorMetrics

Json = dict[str, Any]
KIND = {"group": "rlguard.dev", "version": "v1alpha1", "kind": "GuardedTrainingJob"}
METRIC = "rlguard_crd_fields_missing"


def without(*parts: str) -> Json:
    """Our schema without these fields and choices."""
    schema = copy.deepcopy(root_schema())
    for part in parts:
        path, _, choice = part.partition("=")
        *outer, name = path.split(".")
        inside = schema
        for key in outer:
            inside = inside["properties"][key]
            inside = inside.get("items", inside)
        if choice:
            inside["properties"][name]["enum"].remove(choice)
        else:
            del inside["properties"][name]
    return schema


@pytest.mark.parametrize(
    "parts",
    [
        (),
        ("status.stop",),
        ("status.stop.emptySince",),
        ("status.guard.lastEvaluation", "status.guardDigest"),
        ("status.phase=Judging",),
        ("status.conditions.observedGeneration",),
    ],
)
def test_what_is_missing_is_named(parts: tuple[str, ...]) -> None:
    assert lacking(without(*parts)) == parts


def test_a_newer_one_lacks_nothing() -> None:
    newer = without("spec.onFire=Suspend", "spec.guard.placement")
    newer["properties"]["spec"]["properties"]["novelty"] = {"type": "string"}
    newer["properties"]["status"]["properties"]["phase"]["enum"].append("Draining")
    assert lacking(newer) == ()


def test_what_is_open_has_every_field_and_choice() -> None:
    newer = without("status.stop.emptySince")
    status = newer["properties"]["status"]["properties"]
    status["stop"]["x-kubernetes-preserve-unknown-fields"] = True
    del status["phase"]["enum"]
    assert lacking(newer) == ()
    del newer["properties"]["status"]
    assert "status.phase" in lacking(newer)


class Server:
    """Answers with a schema, with none, or with an error."""

    def __init__(self, answer: Json | ClusterError | None) -> None:
        self.answer = answer

    def request(self, method: str, path: str) -> Json:
        assert (method, path) == ("GET", "/openapi/v3/apis/rlguard.dev/v1alpha1")
        if isinstance(self.answer, ClusterError):
            raise self.answer
        if self.answer is None or "properties" not in self.answer:
            return self.answer or {"components": {"schemas": {"other": {"type": "object"}}}}
        ours = self.answer | {"x-kubernetes-group-version-kind": [KIND]}
        return {"components": {"schemas": {"other": {"type": "object"}, "ours": ours}}}


class Watched:
    """A watch of such a server, which looks when it is told to."""

    def __init__(self, answer: Json | ClusterError | None) -> None:
        self.server, metrics = Server(answer), OperatorMetrics()
        self.watch = SchemaWatch(cast(Client, self.server), metrics.crd_lacks)
        self.registry = metrics.registry
        self.watch._look()

    def then(self, answer: Json | ClusterError | None) -> SchemaWatch:
        self.server.answer = answer
        self.watch._look()
        return self.watch


def test_one_of_this_version_is_new_enough() -> None:
    assert Watched(root_schema()).watch.lacks == ()


def test_an_older_one_is_said_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    parts = [
        f"status.{name}" for name in ("conditions", "evidence", "guardDigest", "phase", "stop", "workloadRef")
    ]
    older = without(*parts)
    watched = Watched(older)
    assert watched.then(older).lacks == tuple(parts)
    assert watched.registry.get_sample_value(METRIC) == 6.0
    (said,) = [record.getMessage() for record in caplog.records]
    assert (
        "lacks status.conditions, status.evidence, status.guardDigest, status.phase, status.stop and 1 more"
        in said
    )
    assert watched.then(root_schema()).lacks == ()
    assert watched.registry.get_sample_value(METRIC) == 0.0


@pytest.mark.parametrize(
    "nothing",
    [
        None,
        TransportError("refused"),
        ApiError(503, "", "later"),
        ApiError(404, "NotFound", "no"),
        ApiError(403, "Forbidden", "no"),
        {"components": None},
        {"components": {"schemas": {"x": None}}},
        {"components": {"schemas": {"x": {"properties": None, "x-kubernetes-group-version-kind": [KIND]}}}},
    ],
)
def test_what_is_not_known_is_said_once_and_changes_nothing(
    nothing: Json | ClusterError | None, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(nothing)
    assert watched.then(nothing).lacks is None
    assert math.isnan(watched.registry.get_sample_value(METRIC) or 0.0)
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "not known whether the CRD has what this operator notes" in said
    assert Watched(root_schema()).then(nothing).lacks == ()
    assert Watched(without("status.stop")).then(nothing).lacks == ("status.stop",)


def test_one_that_is_upgraded_is_seen_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(without("status.stop"))
    waits = list[float]()

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        watched.server.answer = root_schema()
        return len(waits) == 2

    monkeypatch.setattr(watched.watch._stop, "wait", wait)
    watched.watch.run()
    assert waits == [schema_watch.WAITING_SECONDS, schema_watch.SECONDS]
