"""What is read of a job's object without parsing it: whether it is latched, over, or only reported on.

A wrong "over" or "only a report" would leave a run unwatched, so every near miss has a row.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from guard_operator.reconcile.glance import heartbeat, is_latched, is_only_a_report, is_over

Json = dict[str, Any]
LATCH = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 4, "at": "2026-01-01T00:00:00Z"}


def said(**conditions: str) -> list[Json]:
    return [{"type": kind, "status": status} for kind, status in conditions.items()]


def job(**status: Any) -> Json:
    return {"metadata": {"name": "run", "uid": "u", "resourceVersion": "1"}, "spec": {}, "status": status}


LEFT = {"evidence": "run-evidence"}


@pytest.mark.parametrize(
    ("status", "over"),
    [
        ({}, False),
        ({"conditions": said(Succeeded="True")}, False),  # its evidence is still to be written
        ({"conditions": said(Succeeded="True"), **LEFT}, True),
        ({"conditions": said(Failed="True"), **LEFT}, True),
        ({"conditions": said(Disrupted="True"), **LEFT}, True),
        ({"conditions": said(Disrupted="False"), **LEFT}, False),
        ({"conditions": said(Succeeded="Unknown"), **LEFT}, False),  # its guard still judges
        ({"conditions": said(Stopped="True", Fired="True"), **LEFT}, True),
        ({"conditions": said(Stopped="True", Halted="True"), **LEFT}, True),
        ({"conditions": said(Stopped="False", Fired="True"), **LEFT}, False),
        ({"conditions": said(Succeeded="True", Fired="True"), **LEFT}, False),
        ({"conditions": said(Succeeded="True"), "guard": {"fire": LATCH}, **LEFT}, False),
        ({"conditions": said(Succeeded="True"), "guard": {"halt": LATCH}, **LEFT}, False),
        ({"conditions": said(Stopped="True"), **LEFT}, False),
    ],
    ids=str,
)
def test_what_is_over(status: Json, over: bool) -> None:
    assert is_over(job(**status)) is over


@pytest.mark.parametrize("guard", [{"fire": LATCH}, {"halt": LATCH}])
def test_a_latch_that_is_not_written_down_yet_is_a_latch(guard: Json) -> None:
    assert is_latched(job(guard=guard)) and not is_latched(job(guard={"step": 1}))


def running(**guard: Any) -> Json:
    beat = {"heartbeat": "2026-01-01T00:00:00Z", "step": 4, "level": "healthy"}
    conditions = said(Fired="False", GuardSilent="False", Guarded="True")
    return job(phase="Running", conditions=conditions, guard=beat | guard)


def later(change: Callable[[Json], object] = lambda _raw: None) -> Json:
    raw = running(
        heartbeat="2026-01-01T00:00:15Z", step=5, level="warning", inLoopEma=0.5, trend=[[1.0, 0.5]]
    )
    raw["metadata"]["resourceVersion"] = "2"
    change(raw)
    return raw


def test_a_report_of_a_run_that_goes_on_is_only_a_report() -> None:
    assert is_only_a_report(running(), later())


#: What else may come with a report, and must be looked at.
MORE: dict[str, Callable[[Json], object]] = {
    "a fire": lambda raw: raw["status"]["guard"].update(fire=LATCH),
    "a halt": lambda raw: raw["status"]["guard"].update(halt=LATCH),
    "a fire in words": lambda raw: raw["status"]["conditions"][0].update(status="True"),
    "no verdict now": lambda raw: raw["status"]["conditions"][0].update(status="Unknown"),
    "a silence": lambda raw: raw["status"]["conditions"][1].update(status="True"),
    "another phase": lambda raw: raw["status"].update(phase="Starting"),
    "a stop": lambda raw: raw["status"].update(stop={"method": "Stop"}),
    "another generation": lambda raw: raw["metadata"].update(generation=2),
    "another spec": lambda raw: raw["spec"].update(onFire="Delete"),
    "another job": lambda raw: raw["metadata"].update(uid="v"),
    "a deletion": lambda raw: raw["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
    "no heartbeat": lambda raw: raw["status"]["guard"].pop("heartbeat"),
    "no step": lambda raw: raw["status"]["guard"].pop("step"),
    "one condition more": lambda raw: raw["status"]["conditions"].append(said(Waiting="True")[0]),
}


@pytest.mark.parametrize("change", MORE.values(), ids=MORE.keys())
def test_what_is_more_than_a_report(change: Callable[[Json], object]) -> None:
    assert not is_only_a_report(running(), later(change))
    before = copy.deepcopy(later(change))
    assert not is_only_a_report(before, later()), "nor is what comes after it"


@pytest.mark.parametrize(
    "what", [*list(MORE)[:6], "no heartbeat", "no step"], ids=lambda what: str(what).replace(" ", "-")
)
def test_every_report_of_a_run_that_does_not_go_on_well_is_looked_at(what: str) -> None:
    before, after = running(), later(MORE[what])
    MORE[what](before)
    assert not is_only_a_report(before, after)


def test_what_is_new_or_gone_is_no_report() -> None:
    assert not is_only_a_report(None, later()) and not is_only_a_report(running(), None)


def test_a_heartbeat_is_a_text() -> None:
    assert heartbeat(running()) == "2026-01-01T00:00:00Z"
    assert heartbeat(job(guard={"heartbeat": 3})) is None and heartbeat(job()) is None
