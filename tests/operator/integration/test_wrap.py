"""What `rlguard wrap` prints, on a real API server: the CRD takes it, and the operator makes its workload.

The jobs were in the cluster before, so they are wrapped as `kubectl get -o yaml` shows them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from guard_operator.runtime.client import Client, Resource
from guard_operator.runtime.errors import ApiError

from .waiting import eventually
from .world import JOBS, PYTORCHJOBS, World

pytestmark = pytest.mark.nightly

Json = dict[str, Any]
BATCH = Resource("batch", "v1", "jobs", "Job")
POD = {
    "securityContext": {"runAsNonRoot": True},
    "restartPolicy": "Never",
    "containers": [
        {"name": "pytorch", "image": "trainer:1", "volumeMounts": [{"name": "ck", "mountPath": "/ck"}]}
    ],
    "volumes": [{"name": "ck", "persistentVolumeClaim": {"claimName": "saved"}}],
}
SPECS: dict[str, Json] = {
    "PyTorchJob": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": {"spec": POD}}}},
    "Job": {"backoffLimit": 3, "template": {"spec": POD}},
}
#: Everything that an option can set, to be read by the CRD.
OPTIONS = (
    "--scorer=math",
    "--train-prompts=t.jsonl",
    "--max-new-tokens=9",
    "--temperature=1",
    "--device=cpu",
)


def wrap(manifest: Json, directory: Path, heldout: str = "claim:heldout/a/b.jsonl", *more: str) -> Json:
    file, policy = directory / "job.yaml", directory / "policy.yaml"
    file.write_text(yaml.safe_dump(manifest))
    policy.write_text("detector: both\nkl: {hard_stop: 0.5, warn_above: null}\nsilent: {action: stop}\n")
    command = ["wrap", "-f", str(file), "--heldout", heldout, "--checkpoints=ck", f"--policy={policy}"]
    done = subprocess.run(
        [sys.executable, "-m", "guard_cli.main", *command, *OPTIONS, *more],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    wrapped: Json = yaml.safe_load(done.stdout)
    return wrapped


@pytest.mark.parametrize("resource", [PYTORCHJOBS, BATCH], ids=lambda resource: resource.kind)
def test_a_job_that_ran_before_is_made_again_with_its_guard(
    here: World, tmp_path: Path, resource: Resource
) -> None:
    client, namespace = here.client, here.namespace
    meta = {"name": "run", "labels": {"team": "a"}, "annotations": {"b": "c"}}
    before = here.put(resource, {"metadata": meta, "spec": SPECS[resource.kind]})
    made = wrap(before, tmp_path)
    client.request("DELETE", resource.path(namespace, "run"), query={"propagationPolicy": "Background"})
    eventually(lambda: client.get(resource, namespace, "run") is None, "the job of before is gone")
    for claim in ("heldout", "saved"):
        here.claim(claim)
    here.submit(made)
    stored = client.get(JOBS, namespace, "run")
    assert stored is not None
    assert stored["spec"]["template"] == made["spec"]["template"], "nothing of it was dropped"
    policy = stored["spec"]["guard"]["policy"]
    assert (policy["detector"], policy["kl"]["hardStop"]) == ("Both", 0.5)
    assert policy["kl"].get("warnAbove") is None and policy["silent"]["action"] == "Stop"
    here.operator()
    eventually(
        lambda: client.get(resource, namespace, "run") is not None, "the operator has made the workload"
    )
    workload = client.get(resource, namespace, "run")
    assert workload is not None and workload["metadata"]["uid"] != before["metadata"]["uid"]
    assert workload["metadata"]["labels"]["team"] == "a" and workload["metadata"]["annotations"]["b"] == "c"
    assert "rlguard-guard" in str(workload["spec"])
    if resource is BATCH:
        assert before["spec"]["podReplacementPolicy"] == "TerminatingOrFailed", "the API server's default"
        assert workload["spec"]["podReplacementPolicy"] == "Failed", "the operator's own"


def test_the_rules_of_the_crd_are_the_commands_own(client: Client, namespace: str, tmp_path: Path) -> None:
    """What `wrap` refuses by a rule that it has itself, the API server refuses by the same words."""
    manifest = {
        **{"apiVersion": "batch/v1", "kind": "Job", "spec": SPECS["Job"]},
        "metadata": {"name": "run", "namespace": namespace},
    }
    made = wrap(manifest, tmp_path)
    client.create(JOBS, namespace, made, "test")
    made["metadata"]["name"] = "1run"
    with pytest.raises(ApiError, match=r"metadata\.name must be a DNS-1035 label of at most 50 characters"):
        client.create(JOBS, namespace, made, "test")
    made["metadata"]["name"], made["spec"]["guard"]["heldout"]["split"] = "other", "a/../../b"
    with pytest.raises(ApiError, match=r"must be a path inside the volume: relative and without '\.\.'"):
        client.create(JOBS, namespace, made, "test")
