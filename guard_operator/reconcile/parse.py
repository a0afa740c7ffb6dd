"""From an object of the API server to a `Job`.

A job that nothing was created for must validate. A job with a workload is read whatever is in it: an operator
that was rolled back, or two releases on one CRD, must not take the kill switch away. What this version does
not know is left out there, so that its default holds; a latch that it cannot read is a latch all the same.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from guard_core.policy import Policy
from guard_operator.api import names
from guard_operator.api.types import (
    ApiModel,
    ApiPolicy,
    GraceSeconds,
    GuardSpec,
    GuardStatus,
    Latched,
    OnFire,
    OnSilence,
    ResumedFrom,
    Spec,
    Status,
    TargetRef,
    WorkloadTemplate,
)
from guard_operator.guards.reading import LastWord, Reading, differs, differs_at_once, guard_status
from guard_operator.reconcile.snapshot import Job, Unsaid
from guard_operator.runtime.client import Json, Resource

JOBS = Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND)

M = TypeVar("M", bound=BaseModel)

#: The code of a latch that this version cannot read.
UNREADABLE = "unreadable"
#: In the place of a guard that cannot be read: the guard runs already, so nothing here is used any more.
_SOME_GUARD = GuardSpec.model_validate(
    {
        "heldout": {"volume": {"claimName": UNREADABLE}, "evaluator": {"hf": {}}},
        "checkpoints": {"volume": UNREADABLE},
    }
)

_POLICY: TypeAdapter[Policy] = TypeAdapter(ApiPolicy)

_STOPPING_KEYS = ("onFire", "onSilence", "stopGraceSeconds", "keepEvidence")


class _Stopping(ApiModel):
    """The part of a spec that says how a run is stopped, and what stays of it."""

    on_fire: OnFire = OnFire.STOP
    stop_grace_seconds: GraceSeconds = 30
    keep_evidence: bool = False
    on_silence: OnSilence = OnSilence()


def parse_job(raw: Mapping[str, Any], reading: Reading | None = None) -> Job:
    """The job of an object of the API server, with what was read of its guard since.

    Raises:
        pydantic.ValidationError: there is no workload yet, and the spec does not validate.
    """
    metadata, former = raw["metadata"], _object(_object(raw.get("status")).get("guard"))
    guard, unsaid = _told(former, reading)
    status = read_status({"status": {**_object(raw.get("status")), "guard": guard}})
    return Job(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        resource_version=metadata["resourceVersion"],
        labels=metadata.get("labels") or {},
        spec=Spec.model_validate(raw["spec"]) if status.workload_ref is None else _spec(raw["spec"], status),
        status=status,
        deleting="deletionTimestamp" in metadata,
        guard_known=status.workload_ref is None or _is_known(raw["spec"]),
        guard=guard,
        unsaid=unsaid,
    )


def _told(former: Json, reading: Reading | None) -> tuple[Json, Unsaid]:
    """`status.guard` with what was read since, and what of it the status lacks."""
    if reading is None or reading.verdict is None or reading.heard_at is None:
        return former, Unsaid.NOTHING
    guard = guard_status(reading.verdict, former, reading.heard_at)
    if not differs(guard, former):
        return former, Unsaid.NOTHING
    return guard, Unsaid.VERDICT if differs_at_once(guard, former) else Unsaid.FIGURES


def with_last_word(job: Job, word: LastWord, at: datetime) -> Job:
    """The job with what its guard left when it ended, `at` this time, where the status knows less."""
    known, said = job.status.guard or GuardStatus(), word.verdict
    counts = said.steps > (known.steps or 0) or said.evaluated > (known.evaluated or 0)
    latched = (said.fire and known.fire is None) or (said.halt and known.halt is None)
    if not (counts or latched or (said.ended and known.ended is None)):
        return job
    guard = {**job.guard, **guard_status(said, job.guard, at)}
    status = job.status.model_copy(update={"guard": read_status({"status": {"guard": guard}}).guard})
    return replace(job, status=status, guard=guard, unsaid=Unsaid.VERDICT)


def salvage(model: type[M], value: Any) -> M | None:
    """The model of what validates in `value`; None if a part is missing that has no default."""
    with suppress(ValidationError):
        return model.model_validate(value)
    value = copy.deepcopy(value)
    while True:
        try:
            return model.model_validate(value)
        except ValidationError as error:
            if not _drop(value, error.errors()[0]["loc"]):
                return None


def _drop(value: Any, path: tuple[Any, ...]) -> bool:
    """Remove the innermost part of `value` that `path` leads to; False if that is all of it."""
    inner: Any = None
    last: Any = None
    for key in path:
        # The rest of the path may name what is missing, or a branch of a type.
        item = isinstance(value, list) and isinstance(key, int)
        if not item and not (isinstance(value, dict) and key in value):
            break
        inner, last, value = value, key, value[key]
    if inner is None:
        return False
    del inner[last]
    return True


def read_status(raw: Mapping[str, Any]) -> Status:
    """The status of an object of the API server, as far as it can be read; a latch is never lost."""
    given = _object(raw.get("status"))
    status = salvage(Status, given) or Status()
    reported = given.get("guard")
    if not isinstance(reported, dict):
        return status
    guard = status.guard or GuardStatus()
    latches = {
        name: _unreadable(reported[name])
        for name in ("fire", "halt")
        if reported.get(name) is not None and getattr(guard, name) is None
    }
    return status.model_copy(update={"guard": guard.model_copy(update=latches)})


def read_policy(raw: Mapping[str, Any]) -> Policy | None:
    """The policy of an object of the API server; None if this version cannot read it."""
    with suppress(ValidationError):
        return _POLICY.validate_python(_object(_object(raw.get("spec")).get("guard")).get("policy") or {})
    return None


def _unreadable(latch: Any) -> Latched:
    """A latch of another shape than this version knows."""
    return Latched(
        code=UNREADABLE,
        reason=f"not readable by this version of the operator: {latch}"[:4096],
        attempt=0,
        step=0,
        at=datetime.now(UTC),
    )


def _spec(raw: Json, status: Status) -> Spec:
    """The spec of a run. The policy is the guard's business alone by now, so it is left out."""
    ref = status.workload_ref
    assert ref is not None
    kind = {"apiVersion": ref.api_version, "kind": ref.kind}
    target, template = None, None
    if raw.get("targetRef") is None:
        template = salvage(WorkloadTemplate, raw.get("template"))
        template = template or WorkloadTemplate.model_validate(kind | {"spec": {}})
    else:
        target = salvage(TargetRef, raw["targetRef"]) or TargetRef.model_validate(kind | {"name": ref.name})
    guard = _guard(raw)
    stopping = salvage(_Stopping, {key: raw[key] for key in _STOPPING_KEYS if key in raw})
    assert stopping is not None, "each of its parts has a default"
    return Spec(
        template=template,
        target_ref=target,
        guard=salvage(GuardSpec, guard) or _some_guard(guard),
        resumed_from=salvage(ResumedFrom, raw.get("resumedFrom")),
        on_fire=stopping.on_fire,
        stop_grace_seconds=stopping.stop_grace_seconds,
        keep_evidence=stopping.keep_evidence,
        on_silence=stopping.on_silence,
    )


def _guard(raw: Json) -> Json:
    """What is said of the guard, but for its policy, which was written down for it before the run began."""
    return {key: value for key, value in _object(raw.get("guard")).items() if key != "policy"}


def _is_known(raw: Json) -> bool:
    """Whether this version knows all that is said of the guard: else it would start another one."""
    with suppress(ValidationError):
        return GuardSpec.model_validate(_guard(raw)) is not None
    return False


def _some_guard(given: Json) -> GuardSpec:
    """In the place of a guard that cannot be read. Where it runs must be known, to see and to end it."""
    placement = "Pod" if given.get("placement") == "Pod" else "Sidecar"
    return _SOME_GUARD.model_copy(update={"placement": placement})


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
