"""What runs a guard in a pod of its own, as the operator renders it: a real API server takes every object.

A server-side dry run, as before a workload is created. Strict: a field that the API does not know is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from guard_operator.adapters import find_adapter
from guard_operator.api.types import GuardPod
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.guard_pod import guard_objects, let_report
from guard_operator.reconcile.parse import parse_job
from guard_operator.reconcile.refusals import pod_spec
from guard_operator.runtime.client import PODS, STATEFUL_SETS, Client, Resource

Json = dict[str, Any]
OWN = GuardPod.model_validate(
    {
        "serviceAccountName": "reads-the-split",
        "nodeSelector": {"gpu": "l4"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
        "priorityClassName": "system-cluster-critical",
    }
)
SCRAPERS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


@pytest.fixture
def objects(namespace: str, make_job: Callable[..., Json]) -> list[tuple[Resource, Json]]:
    raw = make_job("a" * 50, state={"claimName": "state"}, resources={"limits": {"nvidia.com/gpu": 1}})
    master = raw["spec"]["template"]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    master["volumes"] = [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "c"}}]
    raw["metadata"] |= {"uid": "01234567-89ab-cdef-0123-456789abcdef", "resourceVersion": "1"}
    job, adapter = parse_job(raw), find_adapter("kubeflow.org/v1", "PyTorchJob")
    assert adapter is not None
    config = OperatorConfig(guard_image="guard:1")
    made = list(guard_objects(job, OWN, adapter, config, SCRAPERS))
    (template,) = adapter.pod_templates(job.spec.template.spec)
    pod = json.loads(json.dumps(pod_spec(job.spec.template.spec, template)))
    let_report(job, OWN, template, pod, config)
    trainer = {"metadata": {"name": "trainer", "namespace": namespace}, "spec": pod}
    return [*made, (PODS, {"apiVersion": "v1", "kind": "Pod", **trainer})]


def test_the_api_server_takes_all_of_it(objects: list[tuple[Resource, Json]], client: Client) -> None:
    assert [resource.kind for resource, _ in objects] == ["Service", "NetworkPolicy", "StatefulSet", "Pod"]
    for resource, body in objects:
        taken = dry_run(client, resource, body)
        assert taken["metadata"]["name"] == body["metadata"]["name"]


def test_a_pod_of_the_stateful_set_is_taken_with_the_labels_that_its_controller_adds(
    objects: list[tuple[Resource, Json]], client: Client
) -> None:
    """kube-controller-manager does not run here: this is the pod that it would make."""
    (body,) = (body for resource, body in objects if resource is STATEFUL_SETS)
    name, template = body["metadata"]["name"], body["spec"]["template"]
    labels = template["metadata"]["labels"] | {
        "controller-revision-hash": f"{name}-5d8cf7b9d9",
        "statefulset.kubernetes.io/pod-name": f"{name}-0",
        "apps.kubernetes.io/pod-index": "0",
    }
    metadata = template["metadata"] | {"name": f"{name}-0", "labels": labels}
    metadata |= {"namespace": body["metadata"]["namespace"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    assert dry_run(client, PODS, pod)["spec"]["priority"] > 0


def dry_run(client: Client, resource: Resource, body: Json) -> Json:
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    taken: Json = client.request("POST", resource.path(body["metadata"]["namespace"]), query=query, body=body)
    return taken
