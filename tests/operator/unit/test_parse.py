"""Reading a job: what does not validate is refused, and no time that is none hides a latch."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from guard_operator.reconcile.parse import parse_job
from guard_operator.reconcile.snapshot import guard_of

Json = dict[str, Any]

WHEN = "2026-01-01T00:00:00Z"
LATCH = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 4, "at": WHEN}


def raw_job(**status: Any) -> Json:
    spec = {
        "template": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {"x": 1}},
        "guard": {
            "heldout": {"volume": {"claimName": "h"}, "evaluator": {"hf": {}}},
            "checkpoints": {"volume": "c"},
        },
    }
    metadata = {"name": "run", "namespace": "ns", "uid": "u", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": spec, "status": status}


def test_a_field_of_a_status_that_another_version_wrote_is_left_out() -> None:
    job = parse_job(raw_job(guard={"step": 3, "novelty": 1}, another={"x": 1}))
    assert job.status.guard is not None and job.status.guard.step == 3


def test_a_spec_that_does_not_validate_names_the_field() -> None:
    raw = raw_job()
    raw["spec"]["guard"]["policy"] = {"heldoutGuard": {"emaAlpha": 2}}
    with pytest.raises(ValidationError, match="ema_alpha"):
        parse_job(raw)


@pytest.mark.parametrize(
    "time", ["2026-02-30T00:00:00Z", "0000-01-01T00:00:00Z", "2026-01-01T00:00:00+99:99"]
)
@pytest.mark.parametrize("latch", ["fire", "halt"])
def test_a_time_that_only_the_api_server_takes_hides_no_latch(latch: str, time: str) -> None:
    """Whoever may write a status chooses what is in it."""
    job = parse_job(raw_job(guard={latch: LATCH | {"at": time}}, stop={"requestedAt": time}))
    found = getattr(guard_of(job), latch)
    assert found is not None and found.code == "hacking_gap"
