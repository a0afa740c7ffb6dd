"""What the chart renders, and what it refuses. No cluster is needed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from guard_core import __version__
from guard_operator import rbac
from guard_operator.__main__ import parser
from guard_operator.adapters import ADAPTERS
from guard_operator.api.names import KIND
from guard_operator.api.schema import crd
from guard_operator.api.types import Spec, Status
from guard_operator.config import OperatorConfig
from guard_operator.reconcile.inject import build_workload
from guard_operator.reconcile.snapshot import Job
from guard_operator.runtime.health import HealthServer
from guard_operator.runtime.metrics import Metrics

from .conftest import CHART, KUBE_VERSION, ROOT, VALUES, Helm, Json, Render, find

FILES = sorted([*VALUES.glob("*.yaml"), *ROOT.glob("k8s/overlays/*/values.yaml")])
OPERATOR = {"app.kubernetes.io/name": "rlguard", "app.kubernetes.io/component": "operator"}


def container(objects: list[Json]) -> Json:
    found: Json = find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return found


@pytest.mark.parametrize("values", FILES, ids=lambda p: f"{p.parent.name}-{p.stem}")
class TestEveryValueFile:
    def test_lints(self, helm: Helm, values: Path) -> None:
        done = helm("lint", CHART, "--strict", "--values", values)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_the_operator_takes_its_arguments(self, render: Render, values: Path) -> None:
        given = yaml.safe_load(values.read_text()) or {}
        options = parser().parse_args(container(render(values))["args"])
        assert options.namespace == given.get("watchNamespaces", [])
        assert options.relaxed_host_path == given.get("relaxed", {}).get("hostPaths", [])
        assert options.port == 8080
        assert options.lease_seconds == given.get("leaseSeconds", 15)

    def test_names_of_objects_are_unique(self, render: Render, values: Path) -> None:
        keys = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in render(values)]
        assert len(keys) == len(set(keys))

    def test_every_selector_finds_the_operators_pods(self, render: Render, values: Path) -> None:
        objects = render(values)
        labels = find(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
        selectors = [find(objects, "Service")["spec"]["selector"]]
        selectors += [
            o["spec"]["selector"]["matchLabels"]
            for o in objects
            if o["kind"] in {"Deployment", "PodDisruptionBudget"}
        ]
        selectors += [
            o["spec"]["podSelector"]["matchLabels"] for o in objects if o["kind"] == "NetworkPolicy"
        ]
        for selector in selectors:
            assert selector.items() >= OPERATOR.items()
            assert selector.items() <= labels.items()


class TestContent:
    def test_rights_are_the_generated_ones(self, render: Render) -> None:
        objects = render()
        assert find(objects, "ClusterRole", "rlguard-system-rlguard")["rules"] == rbac.rules()
        assert find(objects, "Role", "rlguard-lease")["rules"] == rbac.lease_rules()

    def test_rights_in_namespaces_are_the_generated_ones_and_no_more(self, render: Render) -> None:
        objects = render(VALUES / "namespaced.yaml")
        roles = [
            o for o in objects if o["kind"] == "Role" and o["metadata"]["name"] == "rlguard-system-rlguard"
        ]
        assert {role["metadata"]["namespace"] for role in roles} == {"team-a", "team-b"}
        assert all(role["rules"] == rbac.rules() for role in roles)
        assert not [o for o in objects if o["kind"] == "ClusterRoleBinding"]

    def test_every_binding_is_for_the_operators_account(self, render: Render) -> None:
        for values in FILES:
            objects = render(values)
            account = find(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
            for binding in [o for o in objects if o["kind"].endswith("Binding") and "subjects" in o]:
                assert [s["name"] for s in binding["subjects"]] == [account]

    def test_the_crd_is_the_generated_one_kept_and_upgraded(self, render: Render) -> None:
        objects = render()
        definition = find(objects, "CustomResourceDefinition")
        assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert definition["spec"] == crd()["spec"]
        assert not (CHART / "crds").exists(), "Helm would install it from there first, and never upgrade it"

    def test_the_crd_goes_when_it_is_not_to_be_kept(self, render: Render) -> None:
        definition = find(render({"crds.keep": "false"}), "CustomResourceDefinition")
        assert "annotations" not in definition["metadata"]

    def test_nothing_optional_is_rendered_when_it_is_off(self, render: Render) -> None:
        kinds = {o["kind"] for o in render(VALUES / "nothing.yaml")}
        assert kinds == {"Deployment", "Service", "Pod"}  # the pod is `helm test`

    @pytest.mark.parametrize(
        ("values", "image"),
        [
            ({}, f"rlguard/operator:{__version__}"),
            ({"image.tag": '"9"'}, "rlguard/operator:9"),
            ({"image.registry": '"r.example.com/a"'}, f"r.example.com/a/rlguard/operator:{__version__}"),
            (
                {"image.tag": '"9"', "image.digest": f'"sha256:{"a" * 64}"'},
                f"rlguard/operator@sha256:{'a' * 64}",
            ),
        ],
    )
    def test_image(self, render: Render, values: Json, image: str) -> None:
        objects = render(values)
        assert container(objects)["image"] == image
        assert find(objects, "Pod")["spec"]["containers"][0]["image"] == image

    def test_the_pods_are_confined(self, render: Render) -> None:
        objects = render(VALUES / "everything.yaml")
        for pod in (find(objects, "Deployment")["spec"]["template"]["spec"], find(objects, "Pod")["spec"]):
            security = pod["containers"][0]["securityContext"]
            assert security["runAsUser"] == 10001 and security["readOnlyRootFilesystem"]
            assert not security["allowPrivilegeEscalation"] and security["capabilities"] == {"drop": ["ALL"]}

    def test_scheduling_and_extras_arrive(self, render: Render) -> None:
        objects = render(VALUES / "everything.yaml")
        given = yaml.safe_load((VALUES / "everything.yaml").read_text())
        pod = find(objects, "Deployment")["spec"]["template"]["spec"]
        assert pod["nodeSelector"] == given["nodeSelector"]
        assert pod["tolerations"] == given["tolerations"]
        assert pod["affinity"] == given["affinity"]
        assert pod["volumes"] == given["extraVolumes"]
        assert pod["imagePullSecrets"] == given["imagePullSecrets"]
        assert pod["priorityClassName"] == "system-cluster-critical"
        assert {c["whenUnsatisfiable"] for c in pod["topologySpreadConstraints"]} == {"DoNotSchedule"}
        assert container(objects)["volumeMounts"] == given["extraVolumeMounts"]
        assert given["extraEnv"][0] in container(objects)["env"]
        account = find(objects, "ServiceAccount")
        assert account["metadata"]["annotations"] == given["serviceAccount"]["annotations"]

    def test_the_pod_monitor_finds_the_port_of_a_guard(self, render: Render) -> None:
        sample = ROOT / "k8s" / "samples" / "single-gpu.yaml"
        raw = next(d for d in yaml.safe_load_all(sample.read_text()) if d["kind"] == KIND)
        job = Job("job", "ns", "uid", 1, "1", {}, Spec.model_validate(raw["spec"]), Status())
        workload = build_workload(job, ADAPTERS[0], OperatorConfig("guard"))
        template = workload["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
        monitor = find(render(VALUES / "everything.yaml"), "PodMonitor")["spec"]
        (endpoint,) = monitor["podMetricsEndpoints"]
        (wanted,) = monitor["selector"]["matchExpressions"]
        assert wanted["key"] in template["metadata"]["labels"] and wanted["operator"] == "Exists"
        assert set(monitor["podTargetLabels"]) <= template["metadata"]["labels"].keys()
        containers = template["spec"]["containers"] + template["spec"]["initContainers"]
        ports = [port for container in containers for port in container.get("ports", [])]
        assert [p["containerPort"] for p in ports if p["name"] == endpoint["port"]] == [8471]

    def test_dashboard_and_alerts_ask_for_metrics_that_exist(self, render: Render) -> None:
        metrics = Metrics()
        metrics.collect_live(lambda: 0, list, list)
        known: set[str] = set()
        for family in metrics.registry.collect():
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(
                family.type, [""]
            )
            known |= {family.name + suffix for suffix in suffixes}
        objects = render(VALUES / "everything.yaml")
        dashboard = json.loads(find(objects, "ConfigMap")["data"]["rlguard.json"])
        asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        groups = find(objects, "PrometheusRule")["spec"]["groups"]
        asked += [rule["expr"] for group in groups for rule in group["rules"]]
        names = set(
            re.findall(
                r"\b(?:rlguard|workqueue|controller_runtime|rest_client|leader_election)_\w+", " ".join(asked)
            )
        )
        assert len(asked) > 10 and names
        assert names <= known


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("replica=2", ["replica", "not allowed"]),
        ("image.tagg=1", ["/image", "tagg", "not allowed"]),
        ("metrics.serviceMonitor.enable=true", ["/metrics/serviceMonitor", "enable", "not allowed"]),
        ("replicas=0", ["/replicas", "minimum"]),
        ("replicas=two", ["/replicas", "integer"]),
        ("image.digest=sha256:abc", ["/image/digest", "sha256:[0-9a-f]{64}"]),
        ("image.pullPolicy=Sometimes", ["/image/pullPolicy", "IfNotPresent"]),
        ("logLevel=trace", ["/logLevel", "warning"]),
        ("relaxed.hostPaths={/mnt/}", ["/relaxed/hostPaths/0", "pattern"]),
        ("relaxed.hostPaths={/mnt/../etc}", ["/relaxed/hostPaths/0", "pattern"]),
        ("relaxed.hostPaths={/}", ["/relaxed/hostPaths/0", "pattern"]),
        ("watchNamespaces={Team_A}", ["/watchNamespaces/0", "pattern"]),
        ("admissionPolicy.actions={Block}", ["/admissionPolicy/actions/0", "Deny"]),
        (
            "serviceAccount.create=false",
            ["serviceAccount.name must be set when serviceAccount.create is false"],
        ),
    ],
)
def test_a_refused_value_is_named(helm: Helm, setting: str, said: list[str]) -> None:
    done = helm("template", "rlguard", CHART, "--kube-version", KUBE_VERSION, "--set", setting)
    assert done.returncode != 0
    for words in said:
        assert words in done.stderr, done.stderr


def test_an_old_cluster_is_refused(helm: Helm) -> None:
    done = helm("template", "rlguard", CHART, "--kube-version", "1.29.0")
    assert done.returncode != 0
    assert "1.30.0" in done.stderr


@pytest.mark.parametrize(("ready", "words"), [(True, "is ready"), (False, "does not answer as it should")])
def test_what_helm_test_runs_tells_a_ready_operator(render: Render, ready: bool, words: str) -> None:
    script = find(render(), "Pod")["spec"]["containers"][0]["args"][0]
    assert "monotonic() + 60" in script
    server = HealthServer(("127.0.0.1", 0), lambda: True, lambda: ready, Metrics().registry)
    try:
        command = [sys.executable, "-c", script.replace("monotonic() + 60", "monotonic()")]
        command.append(f"http://127.0.0.1:{server.port}")
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    finally:
        server.close()
    assert (done.returncode == 0) == ready
    assert words in done.stdout + done.stderr
