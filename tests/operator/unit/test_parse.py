"""Reading a job: strictly before anything is created for it, and whatever is in it afterwards.

Aspects: a spec that does not validate names the field; a run is read with unknown fields and enums, and every
part that can be read is; no fire and no halt is lost, whatever its shape; what is stored is left as it is.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import ValidationError

from guard_core.policy import Policy
from guard_operator.api.reasons import ConditionType
from guard_operator.api.types import OnFire, Phase
from guard_operator.reconcile.parse import UNREADABLE, parse_job, read_policy
from guard_operator.reconcile.snapshot import condition_of, guard_of

Json = dict[str, Any]

WHEN = "2026-01-01T00:00:00Z"
LATCH = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 4, "at": WHEN}
FIRED = {"type": "Fired", "status": "True", "reason": "HackingGap", "lastTransitionTime": WHEN}


def raw_job(**status: Any) -> Json:
    spec = {
        "template": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {"x": 1}},
        "guard": {
            "heldout": {"volume": {"claimName": "h"}, "evaluator": {"hf": {}}},
            "checkpoints": {"volume": "c"},
        },
        "onFire": "Report",
        "onSilence": {"afterSeconds": 60, "action": "Stop"},
    }
    metadata = {"name": "run", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": spec, "status": status}


def run(**status: Any) -> Json:
    """A job that a workload was created for."""
    ref = {"apiVersion": "batch/v1", "kind": "Job", "name": "run", "uid": "w"}
    return raw_job(workloadRef=ref, **status)


def test_a_status_of_a_newer_version_is_read() -> None:
    job = parse_job(raw_job(guard={"step": 3, "novelty": 1}, another={"x": 1}))
    assert job.status.guard is not None and job.status.guard.step == 3


@pytest.mark.parametrize(
    "field", ["stopGraceSeconds", "onFire", "onSilence", "keepEvidence", "guard", "template"]
)
@pytest.mark.parametrize("value", [-1, 7200, "ofTomorrow", None, [], {}, {"afterSeconds": -1}])
def test_nothing_in_the_spec_of_a_run_keeps_it_from_being_stopped(field: str, value: Any) -> None:
    """Another release may allow more: an operator that was rolled back, or two that share a CRD."""
    raw = run()
    raw["spec"][field] = value
    job = parse_job(raw)
    assert job.status.workload_ref is not None and 1 <= job.spec.stop_grace_seconds <= 3600


def test_a_spec_that_does_not_validate_names_the_field() -> None:
    raw = raw_job()
    raw["spec"]["guard"]["policy"] = {"heldoutGuard": {"emaAlpha": 2}}
    with pytest.raises(ValidationError, match="ema_alpha"):
        parse_job(raw)


def test_a_policy_is_read_or_is_not_known() -> None:
    raw = run()
    assert read_policy(raw) == Policy(), "no word about it is the default"
    raw["spec"]["guard"]["policy"] = {"detector": "heldoutGuard"}
    assert read_policy(raw) == Policy.model_validate({"detector": "heldout_guard"})
    for odd in ({"novelty": 1}, {"detector": "ofTomorrow"}):
        raw["spec"]["guard"]["policy"] = odd
        assert read_policy(raw) is None


def change(raw: Json, path: str, value: Any) -> None:
    *way, last = path.split(".")
    for key in way:
        raw = raw[key]
    raw[last] = value


#: What another version may have put there, and what this one makes of `onFire`, `onSilence` and the kind.
AS_IT_IS = (OnFire.REPORT, 60, "Stop", "PyTorchJob")
CHANGES: dict[str, tuple[str, Any, tuple[Any, ...]]] = {
    "a policy of the future": ("guard.policy", {"from": "the future"}, AS_IT_IS),
    "a field of the spec": ("placement", {"x": 1}, AS_IT_IS),
    "a field of the guard": ("guard.novelty", 1, AS_IT_IS),
    "a field deep in the guard": ("guard.heldout.evaluator.hf.novelty", 1, AS_IT_IS),
    "an enum of the guard": ("guard.isolation", "Airtight", AS_IT_IS),
    "an evaluator": ("guard.heldout.evaluator", {"vllm": {"x": 1}}, AS_IT_IS),
    "another shape of the held-out split": ("guard.heldout", ["a"], AS_IT_IS),
    "no checkpoints": ("guard.checkpoints", {"claimName": "c"}, AS_IT_IS),
    "no guard at all": ("guard", None, AS_IT_IS),
    "a key of the template": ("template.novelty", 1, AS_IT_IS),
    "a template of another shape": ("template", "run", (OnFire.REPORT, 60, "Stop", "Job")),
    "a way to stop": ("onFire", "Drain", (OnFire.STOP, 60, "Stop", "PyTorchJob")),
    "an action for silence": ("onSilence.action", "Page", AS_IT_IS),
    "a field for silence": ("onSilence.novelty", 1, AS_IT_IS),
    "a limit in words": ("onSilence.afterSeconds", "5m", (OnFire.REPORT, 600, "Stop", "PyTorchJob")),
    "silence of another shape": ("onSilence", 60, (OnFire.REPORT, 600, "Stop", "PyTorchJob")),
}


@pytest.mark.parametrize(("path", "value", "expected"), CHANGES.values(), ids=CHANGES.keys())
def test_a_run_can_be_stopped_whatever_is_in_its_spec(
    path: str, value: Any, expected: tuple[Any, ...]
) -> None:
    raw = run(guard={"fire": LATCH}, conditions=[FIRED], phase="Running")
    change(raw["spec"], path, value)
    before = copy.deepcopy(raw)
    job = parse_job(raw)
    silence = job.spec.on_silence
    assert (job.spec.on_fire, silence.after_seconds, silence.action, job.spec.template.kind) == expected
    assert guard_of(job).fire is not None
    assert raw == before, "the cache is left as it is"


def test_what_stays_of_a_run_is_read_from_its_spec() -> None:
    raw = run()
    assert not parse_job(raw).spec.keep_evidence
    change(raw["spec"], "keepEvidence", True)
    assert parse_job(raw).spec.keep_evidence


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Draining"},
        {"conditions": [{**FIRED, "type": "Odd", "status": "Maybe"}, FIRED]},
        {"conditions": [{"type": "Odd"}, FIRED, 7]},
        {"stop": {"requestedAt": WHEN, "method": "Evict"}},
        {"stop": "now"},
        {"guard": {"fire": LATCH, "step": "four", "lastEvaluation": {}, "readAt": "never"}},
        {"observedGeneration": "x"},
    ],
)
def test_what_can_be_read_of_a_status_is(status: Json) -> None:
    given = {"phase": "Running", "conditions": [FIRED], "guard": {"fire": LATCH}, **status}
    job = parse_job(run(**given))
    fired = condition_of(job.status, ConditionType.FIRED)
    assert fired is not None and fired.status == "True"
    fire = guard_of(job).fire
    assert fire is not None and fire.code == "hacking_gap"
    assert job.status.phase is (None if status.get("phase") else Phase.RUNNING)
    assert job.status.workload_ref is not None


@pytest.mark.parametrize("latch", ["fire", "halt"])
@pytest.mark.parametrize(
    "shape",
    [{}, {"code": "x"}, {**LATCH, "step": "four"}, {**LATCH, "at": 0.5e300}, "fire", ["x"], True],
    ids=["empty", "half", "a wrong type", "a wrong time", "a text", "a list", "a truth"],
)
def test_a_latch_of_any_shape_is_a_latch(latch: str, shape: Any) -> None:
    for raw in (run(guard={latch: shape, "step": 3}), raw_job(guard={latch: shape, "step": 3})):
        guard = guard_of(parse_job(raw))
        found = getattr(guard, latch)
        assert found is not None and found.code == UNREADABLE
        assert guard.step == 3


def test_no_latch_is_no_latch() -> None:
    for guard in ({"fire": None}, {"step": 3}, "gone", None):
        assert guard_of(parse_job(run(guard=guard))).fire is None
