"""An operator whose CRD is older is not ready, and says what is missing."""

from __future__ import annotations

import copy
import logging
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
        ("spec.guard.policy.calibrated.maxDecline", "status.guardDigest"),
        ("status.phase=Judging",),
        ("status.conditions.observedGeneration",),
        ("spec.onFire=Suspend",),
    ],
)
def test_what_is_missing_is_named(parts: tuple[str, ...]) -> None:
    assert lacking(without(*parts)) == parts


def test_a_newer_one_lacks_nothing() -> None:
    newer = root_schema()
    newer["properties"]["spec"]["properties"]["novelty"] = {"type": "string"}
    newer["properties"]["status"]["properties"]["phase"]["enum"].append("Draining")
    assert lacking(newer) == ()


class Server:
    """Answers with a schema, with none, or with an error."""

    def __init__(self, answer: Json | ClusterError | None) -> None:
        self.answer = answer

    def request(self, method: str, path: str) -> Json:
        assert (method, path) == ("GET", "/openapi/v3/apis/rlguard.dev/v1alpha1")
        if isinstance(self.answer, ClusterError):
            raise self.answer
        ours = (
            {} if self.answer is None else {"ours": self.answer | {"x-kubernetes-group-version-kind": [KIND]}}
        )
        return {"components": {"schemas": {"other": {"type": "object"}, **ours}}}


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
    assert Watched(root_schema()).watch.is_new_enough()


def test_an_older_one_is_said_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    parts = [
        f"status.{name}" for name in ("evidence", "guardDigest", "notified", "phase", "stop", "workloadRef")
    ]
    older = without(*parts)
    watched = Watched(older)
    assert not watched.then(older).is_new_enough()
    assert watched.watch.lacks == tuple(parts)
    assert watched.registry.get_sample_value(METRIC) == 6.0
    (said,) = [record.getMessage() for record in caplog.records]
    assert (
        "lacks status.evidence, status.guardDigest, status.notified, status.phase, status.stop and 1 more"
        in said
    )
    assert watched.then(root_schema()).is_new_enough()
    assert watched.registry.get_sample_value(METRIC) == 0.0


@pytest.mark.parametrize(
    "nothing", [None, TransportError("refused"), ApiError(503, "", "later"), ApiError(404, "NotFound", "no")]
)
def test_what_is_not_known_is_not_new_enough_and_changes_nothing(nothing: ClusterError | None) -> None:
    assert not Watched(nothing).watch.is_new_enough()
    assert Watched(root_schema()).then(nothing).is_new_enough()
    assert not Watched(without("status.stop")).then(nothing).is_new_enough()


def test_where_nobody_may_know_it_nothing_waits_for_it(caplog: pytest.LogCaptureFixture) -> None:
    refused = ApiError(403, "Forbidden", "no")
    watched = Watched(refused)
    assert watched.then(refused).is_new_enough()
    (said,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "cannot be known" in said.getMessage()
    assert not Watched(without("status.stop")).then(refused).is_new_enough()


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
