"""A conflict is a cache that is behind, and says nothing; one that lasts is said: a run may hang on it."""

from __future__ import annotations

import logging
from typing import cast

import pytest

from guard_operator.runtime.errors import ApiError
from guard_operator.runtime.lease import LeaderElector
from guard_operator.runtime.manager import Manager
from guard_operator.runtime.metrics import OperatorMetrics
from guard_operator.runtime.queue import WorkQueue

KEY = ("ns", "run")


class Unobserved:
    def added(self) -> None: ...
    def taken(self, waited: float) -> None: ...
    def finished(self, worked: float) -> None: ...
    def retried(self) -> None: ...


def test_a_conflict_that_lasts_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def reconcile(_: object) -> None:
        raise ApiError(409, "AlreadyExists", "it is there")

    queue: WorkQueue[tuple[str, str]] = WorkQueue(Unobserved())
    none = cast(LeaderElector, None)
    manager = Manager([], queue, reconcile, none, OperatorMetrics(), None, lambda: True, lambda: None)
    with caplog.at_level(logging.WARNING):
        assert [manager._one(KEY) for _ in range(3)] == ["requeue"] * 3
        assert not caplog.records, "after a tenth of a second a cache may be behind"
        assert [manager._one(KEY) for _ in range(7)] == ["requeue"] * 7
    assert "ns/run: again in" in caplog.text and "it is there" in caplog.text
