"""A guard with vLLM in a pod of its own, beside TRL with a LoRA adapter: vLLM's build for CPUs.

The same runs as those of `test_adapter.py`, but for the base model: vLLM's kernels must know the size of its
heads, and an adapter is loaded over the one before only where output and input embeddings are two.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e import then, timeouts
from tests.e2e.kube import Json, Namespace
from tests.e2e.test_adapter import an_adapter_run

BASE = Path(__file__).parents[2] / "vllm" / "untied_base.py"


@pytest.fixture
def with_vllm(namespace: Namespace) -> dict[str, object]:
    """What makes such a run one that vLLM judges."""
    image = namespace.cluster.images.get("guard-vllm")
    if image is None:
        pytest.fail("the cluster has no guard with vLLM: make kind-up KINDS=vllm")

    def change(guard: Json) -> None:
        evaluator = {"baseModel": "base", "dtype": "float32", "enforceEager": True}
        guard["heldout"]["evaluator"] = {"vllm": evaluator}
        guard["image"] = image
        guard["resources"] = {"requests": {"cpu": "100m", "memory": "2Gi"}, "limits": {"memory": "8Gi"}}

    return {"change": change, "base": BASE.read_text()}


def test_a_hack_is_stopped(namespace: Namespace, shared: list[Json], with_vllm: dict[str, object]) -> None:
    job = an_adapter_run(namespace, shared, "flawed", 200, **with_vllm)  # type: ignore[arg-type]

    fire = then.the_job_has_fired(job, within=timeouts.GRPO)

    then.it_fired_for_its_score(fire)
    then.the_job_is_stopped(job)
    assert job.guard["failed"] == job.guard["refused"] == 0, "each adapter was applied"
    rounds = [json.loads(line) for line in then.evidence(job)["history.jsonl"].splitlines()]
    assert rounds[0]["heldout"] > 0.2, "the base model could do some of it"
    assert rounds[-1]["step"] == fire["step"] < 200


def test_its_honest_twin_succeeds(
    namespace: Namespace, shared: list[Json], with_vllm: dict[str, object]
) -> None:
    job = an_adapter_run(namespace, shared, "strict", 100, **with_vllm)  # type: ignore[arg-type]

    then.the_condition_is(job, "Succeeded", "True", "WorkloadSucceeded", within=timeouts.GRPO)

    assert job.guard["steps"] == 100 and job.guard["rounds"] == 50
    assert job.guard["failed"] == job.guard["refused"] == 0
    then.the_job_never_fired(job)
