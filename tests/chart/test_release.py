"""The life of a release, as far as it needs no kubelet, against a real API server.

Not here: pods that start, a rolling upgrade, and `helm test`.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlguard.operator.api.schema import crd
from rlguard.operator.runtime.client import MERGE
from rlguard.operator.runtime.errors import ApiError

from .conftest import CHART, NAMESPACE, ROOT, VALUES, Cluster, Helm, Json, Render, find

pytestmark = pytest.mark.nightly

FILES = sorted([*VALUES.glob("*.yaml"), *ROOT.glob("k8s/overlays/*/values.yaml")])
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/guardedtrainingjobs.rlguard.dev"


@pytest.mark.parametrize("values", FILES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_rendered_object_is_accepted(monitored: Cluster, render: Render, values: Path) -> None:
    monitored.namespaces(NAMESPACE, "team-a", "team-b")
    for obj in render(values):
        monitored.apply(obj)


def test_an_object_that_is_wrong_would_be_refused(cluster: Cluster, render: Render) -> None:
    cluster.namespaces(NAMESPACE)
    deployment = find(render(), "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["imagePullPolicies"] = "Never"
    with pytest.raises(ApiError, match="imagePullPolicies"):
        cluster.apply(deployment)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ("replicas=1", ["rlguard/operator", "rlguard/guard-hf"]),
        ("image.pullPolicy=Never,guardImage.repository=r.example.com/guard", []),
        ("global.imageRegistry=r.example.com", []),
    ],
)
def test_notes_say_what_is_missing(
    cluster: Cluster, helm: Helm, kubeconfig: Path, settings: str, named: list[str]
) -> None:
    where = (f"--kubeconfig={kubeconfig}", "--namespace", "x", "--set", f"crds.install=false,{settings}")
    done = helm("install", "rlguard", CHART, "--dry-run=server", *where)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.split("NOTES:")[1]
    assert "watches all namespaces" in notes
    assert "guardedtrainingjobs.rlguard.dev must be of this version" in notes
    assert ("There is one replica" in notes) == (settings == "replicas=1")
    assert re.findall(r"(\S+) names no registry", notes) == named


def test_install_upgrade_and_uninstall_keep_the_crd_and_the_jobs(
    cluster: Cluster, helm: Helm, kubeconfig: Path
) -> None:
    client = cluster.client
    cluster.namespaces(NAMESPACE, "team-kept")

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return helm(*arguments, f"--kubeconfig={kubeconfig}", "--namespace", NAMESPACE)

    def objects() -> list[Json]:
        done = run("get", "manifest", "rlguard")
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    def exists(obj: Json) -> bool:
        try:
            client.request("GET", cluster.path(obj))
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    # A CRD that was applied by hand is not Helm's; docs/tasks/run-on-kubernetes.md says how it becomes so.
    done = run("install", "rlguard", CHART)
    assert done.returncode != 0 and "cannot be imported into the current release" in done.stderr
    owner = {"meta.helm.sh/release-name": "rlguard", "meta.helm.sh/release-namespace": NAMESPACE}
    adoption = {"labels": {"app.kubernetes.io/managed-by": "Helm"}, "annotations": owner}
    client.request("PATCH", CRD, body={"metadata": adoption}, content_type=MERGE)

    done = run("install", "rlguard", CHART)
    assert done.returncode == 0, done.stderr
    installed = objects()
    assert all(map(exists, installed))
    samples = yaml.safe_load_all((ROOT / "k8s" / "samples" / "single-gpu.yaml").read_text())
    job = next(d for d in samples if d["kind"] == "GuardedTrainingJob")
    job["metadata"] = {"name": "kept", "namespace": "team-kept"}
    cluster.apply(job, dry_run=False)

    # An upgrade brings a lost part of the CRD back.
    columns: Any = [{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns"}]
    client.request("PATCH", CRD, body=columns, content_type="application/json-patch+json")
    done = run("upgrade", "rlguard", CHART, "--set", "replicas=3,podDisruptionBudget.enabled=false")
    assert done.returncode == 0, done.stderr
    version = client.request("GET", CRD)["spec"]["versions"][0]
    assert version["additionalPrinterColumns"] == crd()["spec"]["versions"][0]["additionalPrinterColumns"]
    assert find(objects(), "Deployment")["spec"]["replicas"] == 3
    assert [o["kind"] for o in installed if not exists(o)] == ["PodDisruptionBudget"]

    done = run("uninstall", "rlguard")
    assert done.returncode == 0, done.stderr
    assert [o["kind"] for o in installed if exists(o)] == ["CustomResourceDefinition"]
    assert exists(job)
