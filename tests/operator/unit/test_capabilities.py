"""Which capabilities no isolation admits, told apart from those that Relaxed admits for what they cost."""

from __future__ import annotations

import pytest

from guard_operator.adapters import ADAPTERS
from guard_operator.api.types import GuardSpec
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.refusals import find_violations

#: Each opens the host or the guard's processes and files; written out here so that none goes unnoticed.
OPENING = (
    *("ALL", "BPF", "DAC_READ_SEARCH", "PERFMON", "SYS_ADMIN", "SYS_MODULE", "SYS_PTRACE", "SYS_RAWIO"),
)


def costs(added: list[str]) -> list[tuple[str, bool]]:
    """Of each finding its field, and whether Relaxed would admit it."""
    trainer = {
        "name": "pytorch",
        "image": "trainer",
        "securityContext": {"capabilities": {"add": added}},
        "volumeMounts": [{"name": "saved", "mountPath": "/saved"}],
    }
    pod = {
        "securityContext": {"runAsNonRoot": True},
        "containers": [trainer],
        "volumes": [{"name": "saved", "persistentVolumeClaim": {"claimName": "saved"}}],
    }
    spec = {"pytorchReplicaSpecs": {"Master": {"template": {"spec": pod}}}}
    heldout = {"volume": {"claimName": "heldout"}, "evaluator": {"checkpoint": {}}}
    own = {"heldout": heldout, "checkpoints": {"volume": "saved"}, "isolation": "Relaxed"}
    found = find_violations(ADAPTERS[0], spec, GuardSpec.model_validate(own), OperatorConfig("guard:1"))
    return [(one.field.rpartition("containers[0].")[2], one.cost is not None) for one in found]


@pytest.mark.parametrize("capability", OPENING)
def test_what_opens_the_host_is_refused_under_relaxed_too(capability: str) -> None:
    for name in (capability, f"CAP_{capability}", capability.lower()):
        assert costs(["IPC_LOCK", name]) == [("securityContext.capabilities.add", False)]


def test_others_are_admitted_for_what_they_cost() -> None:
    assert costs(["IPC_LOCK"]) == [("securityContext.capabilities.add", True)]
