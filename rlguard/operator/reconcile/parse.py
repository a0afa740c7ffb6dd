"""From an object of the API server to a `Job`. What does not validate is refused, and what runs goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from rlguard.core.wire import Verdict
from rlguard.core.wording import Place, format_errors
from rlguard.operator.api import names
from rlguard.operator.api.reasons import ConditionType
from rlguard.operator.api.status import GuardStatus, Status
from rlguard.operator.api.types import OnFire, Spec
from rlguard.operator.guards.reading import Reading, differs, differs_at_once, guard_status
from rlguard.operator.reconcile.snapshot import OVER, Job, Unsaid
from rlguard.operator.runtime.client import Json, Resource

JOBS = Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND)


def parse_job(raw: Mapping[str, Any], reading: Reading | None = None) -> Job:
    """The job of an object of the API server, with what was read of its guard since.

    Raises:
        pydantic.ValidationError: this version of the operator cannot read it.
    """
    metadata, former = raw["metadata"], (raw.get("status") or {}).get("guard") or {}
    guard, unsaid = _with_reading(former, reading)
    return Job(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        resource_version=metadata["resourceVersion"],
        labels=metadata.get("labels") or {},
        spec=Spec.model_validate(raw["spec"]),
        status=read_status({"status": {**(raw.get("status") or {}), "guard": guard or None}}),
        deleting="deletionTimestamp" in metadata,
        guard=guard,
        unsaid=unsaid,
    )


#: Below this the models are those of the guard, whose names are snake_case.
_POLICY = ("guard", "policy")


def invalid_spec(error: ValidationError) -> str:
    """Every mistake in a spec, each with its path."""
    return format_errors(error, _named)


def _named(place: Place) -> str:
    inside = map(to_camel, place[2:]) if place[:2] == _POLICY else place[2:]
    return ".".join(["spec", *place[:2], *inside])


def _with_reading(former: Json, reading: Reading | None) -> tuple[Json, Unsaid]:
    """`status.guard` with what was read since, and what of it the status lacks."""
    if reading is None or reading.verdict is None or reading.heard_at is None:
        return former, Unsaid.NOTHING
    if not reading.verdict.stop and (former.get("fire") or former.get("halt")):
        return former, Unsaid.NOTHING  # it is older than the latch, which a last word may have brought
    guard = guard_status(reading.verdict, former, reading.heard_at)
    if not differs(guard, former):
        return former, Unsaid.NOTHING
    return guard, Unsaid.VERDICT if differs_at_once(guard, former) else Unsaid.FIGURES


def with_last_word(job: Job, said: Verdict, at: datetime) -> Job:
    """The job with what its guard left when it ended, `at` this time, where the status knows less."""
    known = job.status.guard or GuardStatus()
    counts = said.steps > (known.steps or 0) or said.evaluated > (known.evaluated or 0)
    latched = (said.fire and known.fire is None) or (said.halt and known.halt is None)
    if not (counts or latched or (said.ended and known.ended is None)):
        return job
    guard = {**job.guard, **guard_status(said, job.guard, at)}
    status = job.status.model_copy(update={"guard": GuardStatus.model_validate(guard)})
    return replace(job, status=status, guard=guard, unsaid=Unsaid.VERDICT)


def read_status(raw: Mapping[str, Any]) -> Status:
    """The status of an object of the API server."""
    return Status.model_validate(raw.get("status") or {})


# -- at a glance: before anything is parsed, of any shape -------------------------------------------------


def is_latched(raw: Json) -> bool:
    """Whether this job must stop: its guard has latched, or it is written down that it fired or halted."""
    guard, spec = _guard(raw), raw.get("spec") or {}
    halted = bool(guard.get("halt")) or _holds(raw, ConditionType.HALTED)
    fired = bool(guard.get("fire")) or _holds(raw, ConditionType.FIRED)
    return halted or (fired and spec.get("onFire") != OnFire.REPORT)


def is_over(raw: Json) -> bool:
    """Whether the run has ended and what is left of it stands in its status, so that it is only shown.

    A run that must stop is over once it is stopped; a pod that comes back is an event of its own.
    """
    if not _status(raw).get("evidence"):
        return False
    if is_latched(raw):
        return _holds(raw, ConditionType.STOPPED)
    return any(_holds(raw, kind) for kind in OVER)


def is_only_a_report(old: Json | None, new: Json | None) -> bool:
    """Whether nothing has changed but figures of the guard, by which nobody decides anything."""
    return old is not None and new is not None and _without_report(old) == _without_report(new)


def _without_report(raw: Json) -> tuple[Any, ...]:
    metadata = {key: value for key, value in raw["metadata"].items() if key != "resourceVersion"}
    latches = _guard(raw).get("fire"), _guard(raw).get("halt")
    return metadata, raw.get("spec"), {**_status(raw), "guard": None}, latches


def _holds(raw: Json, kind: ConditionType) -> bool:
    conditions = _status(raw).get("conditions") or []
    return any(one.get("type") == kind and one.get("status") == "True" for one in conditions)


def _status(raw: Json) -> Mapping[str, Any]:
    return raw.get("status") or {}


def _guard(raw: Json) -> Mapping[str, Any]:
    return _status(raw).get("guard") or {}
