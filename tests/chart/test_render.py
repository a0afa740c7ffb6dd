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
from guard_operator.api.schema import crd
from guard_operator.config import NODE_DIRECTORIES, TOKEN_AUDIENCES, default_guard_resources
from guard_operator.reconcile.gauges import JobGauges
from guard_operator.runtime.health import HealthServer
from guard_operator.runtime.metrics import OperatorMetrics, QueueGauges

from .conftest import CHART, CRDS, KUBE_VERSION, NAMESPACE, RELEASE, ROOT, VALUES, Helm, Json, Render, find

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
        told = given.get("isolation", {})
        assert options.node_directory == told.get("nodeDirectories", [*NODE_DIRECTORIES])
        assert options.token_audience == told.get("tokenAudiences", [*TOKEN_AUDIENCES])
        assert options.port == given.get("port", 8080)
        assert options.guard_pull_policy == given.get("guardImage", {}).get("pullPolicy", "IfNotPresent")
        assert options.guard_resources == given.get("guardResources", default_guard_resources())
        assert options.lease_seconds == given.get("leaseSeconds", 15)

    def test_names_of_objects_are_unique(self, render: Render, values: Path) -> None:
        keys = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in render(values)]
        assert len(keys) == len(set(keys))

    def test_every_selector_finds_the_operators_pods(self, render: Render, values: Path) -> None:
        objects = render(values)
        labels = find(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
        selectors = [o["spec"]["selector"] for o in objects if o["kind"] == "Service"]
        selectors += [
            o["spec"]["selector"]["matchLabels"]
            for o in objects
            if o["kind"] in {"Deployment", "PodDisruptionBudget"}
        ]
        selectors += [
            o["spec"]["podSelector"]["matchLabels"]
            for o in objects
            if o["kind"] == "NetworkPolicy" and o["metadata"]["namespace"] == NAMESPACE
        ]
        for selector in selectors:
            assert selector.items() >= OPERATOR.items()
            assert selector.items() <= labels.items()


class TestContent:
    def test_rights_are_the_generated_ones(self, render: Render) -> None:
        objects = render()
        assert find(objects, "ClusterRole", "rlguard-system-rlguard")["rules"] == rbac.rules()
        assert find(objects, "Role", "rlguard-own-namespace")["rules"] == rbac.own_namespace_rules()

    def test_the_operator_grants_nobody_anything_and_reads_no_secret_of_a_job(self, render: Render) -> None:
        rules = find(render(), "ClusterRole", "rlguard-system-rlguard")["rules"]
        kinds = {kind for rule in rules for kind in rule["resources"]}
        assert not kinds & {"roles", "rolebindings", "serviceaccounts", "networkpolicies"}
        (verbs,) = (rule["verbs"] for rule in rules if "secrets" in rule["resources"])
        assert verbs == ["create"]

    def test_rights_are_those_of_the_kinds_that_are_switched_on(self, render: Render) -> None:
        every = {adapter.resource.kind: adapter for adapter in ADAPTERS}
        assert yaml.safe_load((CHART / "values.yaml").read_text())["kinds"] == [*every]
        for kind, adapter in every.items():
            objects = render({"kinds": json.dumps([kind])})
            assert find(objects, "ClusterRole", "rlguard-system-rlguard")["rules"] == rbac.rules([adapter])
            container = find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
            assert [flag for flag in container["args"] if flag.startswith("--kind=")] == [f"--kind={kind}"]

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
        assert not definition["metadata"].get("annotations")

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
                {"global.imageRegistry": '"all.example.com/"'},
                f"all.example.com/rlguard/operator:{__version__}",
            ),
            (
                {"global.imageRegistry": '"all.example.com"', "image.registry": '"own.example.com"'},
                f"own.example.com/rlguard/operator:{__version__}",
            ),
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
            assert pod["securityContext"]["runAsNonRoot"] and security["readOnlyRootFilesystem"]
            assert not security["allowPrivilegeEscalation"] and security["capabilities"] == {"drop": ["ALL"]}

    def test_the_pods_name_no_user_so_that_openshift_gives_them_one(self, render: Render) -> None:
        objects = render()
        for pod in (find(objects, "Deployment")["spec"]["template"]["spec"], find(objects, "Pod")["spec"]):
            for security in (pod["securityContext"], pod["containers"][0]["securityContext"]):
                assert not security.keys() & {"runAsUser", "runAsGroup", "fsGroup", "seLinuxOptions"}

    def test_what_lets_operator_and_trainers_reach_guards_comes_where_it_is_asked_for(
        self, render: Render
    ) -> None:
        asked = {"guards.networkPolicy.create": "true", "networkPolicy.enabled": "true"}
        objects = render(asked | {"watchNamespaces": '["team-a", "team-b"]'})
        labels = find(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
        of_runs = {"matchExpressions": [{"key": "rlguard.dev/job-uid", "operator": "Exists"}]}
        for namespace in ("team-a", "team-b"):
            operator, trainers = (
                one["spec"]
                for one in objects
                if one["kind"] == "NetworkPolicy" and one["metadata"]["namespace"] == namespace
            )
            assert operator["podSelector"] == of_runs
            ((peer,),) = (rule["from"] for rule in operator["ingress"])
            assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": NAMESPACE}
            assert peer["podSelector"]["matchLabels"].items() <= labels.items()
            assert trainers["podSelector"] == {"matchLabels": {"rlguard.dev/part": "guard"}}
            assert trainers["ingress"] == [{"from": [{"podSelector": of_runs}]}]
        own = find(objects, "NetworkPolicy", "rlguard")["spec"]["egress"]
        assert {"to": [{"namespaceSelector": {}, "podSelector": of_runs}]} in own
        only = render(asked | {"guards.networkPolicy.namespaces": '["team-c"]'})
        found = [o["metadata"]["namespace"] for o in only if o["kind"] == "NetworkPolicy"]
        assert found == [NAMESPACE, "team-c", "team-c"]
        assert not [one for one in render() if one["kind"] == "NetworkPolicy"]

    def test_scheduling_and_extras_arrive(self, render: Render) -> None:
        objects = render(VALUES / "everything.yaml")
        given = yaml.safe_load((VALUES / "everything.yaml").read_text())
        pod = find(objects, "Deployment")["spec"]["template"]["spec"]
        assert pod["nodeSelector"] == given["nodeSelector"]
        assert pod["tolerations"] == given["tolerations"]
        assert pod["affinity"] == given["affinity"]
        assert pod["volumes"] == given["extraVolumes"]
        names = ["registry", "by-name", "by-reference"]
        for one in (pod, find(objects, "Pod")["spec"]):
            assert one["imagePullSecrets"] == [{"name": name} for name in names]
            assert one["securityContext"] == given["podSecurityContext"]
        assert pod["priorityClassName"] == "system-cluster-critical"
        (spread,) = pod["topologySpreadConstraints"]
        assert spread.items() > given["topologySpreadConstraints"][0].items()
        assert spread["labelSelector"]["matchLabels"].items() >= OPERATOR.items()
        assert pod["hostNetwork"] and pod["dnsPolicy"] == given["dnsPolicy"]
        assert container(objects)["ports"] == [{"name": "http", "containerPort": given["port"]}]
        monitor = find(objects, "ServiceMonitor")["spec"]["endpoints"][0]
        wanted = given["metrics"]["serviceMonitor"]
        assert monitor["relabelings"] == wanted["relabelings"]
        assert monitor["metricRelabelings"] == wanted["metricRelabelings"]
        assert container(objects)["volumeMounts"] == given["extraVolumeMounts"]
        assert given["extraEnv"][0] in container(objects)["env"]
        assert parser().parse_args(container(objects)["args"]).bind == "0.0.0.0"
        extra = [one for one in objects if one["metadata"]["name"] in {"ca", f"{RELEASE}-more"}]
        assert len(extra) == len(given["extraObjects"])
        assert {one["metadata"]["namespace"] for one in extra} == {NAMESPACE}
        for one in (one for one in objects if one not in extra):
            labels, annotations = one["metadata"]["labels"], one["metadata"]["annotations"]
            assert labels["team"] == "platform", one["kind"]
            assert labels["app.kubernetes.io/name"] != "mine", "the chart's own go before"
            assert annotations["owner"] == "platform", one["kind"]
        account = find(objects, "ServiceAccount")["metadata"]["annotations"]
        assert account.items() >= given["serviceAccount"]["annotations"].items()
        board = find(objects, "ConfigMap", "guard-operator-dashboard")["metadata"]["annotations"]
        assert board["grafana_folder"] == given["metrics"]["dashboard"]["annotations"]["grafana_folder"]

    def test_a_label_of_one_object_goes_before_those_of_all(self, render: Render) -> None:
        kinds = {"serviceMonitor": "ServiceMonitor", "prometheusRule": "PrometheusRule"}
        kinds["dashboard"] = "ConfigMap"
        values: Json = {"commonLabels": '{"release": "platform"}'}
        for value in kinds:
            values[f"metrics.{value}.enabled"] = "true"
            values[f"metrics.{value}.labels"] = '{"release": "prometheus"}'
        values["podLabels"] = '{"app.kubernetes.io/component": "other", "team": "a"}'
        objects = render(values)
        for kind in kinds.values():
            assert find(objects, kind)["metadata"]["labels"]["release"] == "prometheus"
        deployment = find(objects, "Deployment")
        assert deployment["metadata"]["labels"]["release"] == "platform"
        pod = deployment["spec"]["template"]["metadata"]["labels"]
        assert pod["app.kubernetes.io/component"] == "operator" and pod["team"] == "a"

    def test_a_spread_with_a_selector_of_its_own_keeps_it(self, render: Render) -> None:
        own = [
            {"topologyKey": "rack", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ]
        pod = find(render({"topologySpreadConstraints": json.dumps(own)}), "Deployment")["spec"]["template"][
            "spec"
        ]
        assert pod["topologySpreadConstraints"] == own

    def test_dashboard_and_alerts_ask_for_metrics_that_exist(self, render: Render) -> None:
        metrics = OperatorMetrics()
        metrics.registry.register(QueueGauges(lambda: 0, list))
        metrics.registry.register(JobGauges(list, list, list, lambda _uid: None))
        known: set[str] = set()
        for family in metrics.registry.collect():
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(
                family.type, [""]
            )
            known |= {family.name + suffix for suffix in suffixes}
        objects = render(VALUES / "everything.yaml")
        dashboard = json.loads(find(objects, "ConfigMap", "guard-operator-dashboard")["data"]["rlguard.json"])
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

    @pytest.mark.parametrize("site", ["", "https://docs.example.com/troubleshooting.html"])
    def test_an_alert_links_only_where_its_page_is_served(self, render: Render, site: str) -> None:
        values = {"enabled": "true", "runbooks": json.dumps(site)}
        objects = render({f"metrics.prometheusRule.{key}": value for key, value in values.items()})
        for rule in find(objects, "PrometheusRule")["spec"]["groups"][0]["rules"]:
            section = rule["alert"].lower()
            assert rule["annotations"]["runbook"] == f"docs/tasks/troubleshooting.md#{section}"
            assert rule["annotations"].get("runbook_url", "") == (f"{site}#{section}" if site else "")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("replica=2", ["replica", "not allowed"]),
        ("image.tagg=1", ["/image", "tagg", "not allowed"]),
        ("metrics.serviceMonitor.enable=true", ["/metrics/serviceMonitor", "enable", "not allowed"]),
        ("replicas=0", ["/replicas", "minimum"]),
        (
            "metrics.prometheusRule.runbooks=docs/tasks/troubleshooting.md",
            ["/prometheusRule/runbooks", "https?://"],
        ),
        ("replicas=two", ["/replicas", "integer"]),
        ("image.digest=sha256:abc", ["/image/digest", "sha256:[0-9a-f]{64}"]),
        ("guardImage.pullPolicy=Sometimes", ["/guardImage/pullPolicy", "IfNotPresent"]),
        ("global.imageRegistry=1", ["/global/imageRegistry", "string"]),
        ("dnsPolicy=None", ["/dnsPolicy", "ClusterFirst"]),
        ("port=80", ["/port", "minimum"]),
        ("topologySpread.enabled=false", ["topologySpread", "not allowed"]),
        ("image.pullPolicy=Sometimes", ["/image/pullPolicy", "IfNotPresent"]),
        ("logLevel=trace", ["/logLevel", "warning"]),
        ("isolation.nodeDirectories={/mnt/}", ["/isolation/nodeDirectories/0", "pattern"]),
        ("isolation.nodeDirectories={/mnt/../etc}", ["/isolation/nodeDirectories/0", "pattern"]),
        ("isolation.nodeDirectories={/}", ["/isolation/nodeDirectories/0", "pattern"]),
        ("isolation.nodeDirectories={/mnt/a'b}", ["/isolation/nodeDirectories/0", "pattern"]),
        ("admissionPolicy.guardImages={a'b}", ["/admissionPolicy/guardImages/0", "pattern"]),
        ("isolation.tokenAudiences={a b}", ["/isolation/tokenAudiences/0", "pattern"]),
        ("watchNamespaces={Team_A}", ["/watchNamespaces/0", "pattern"]),
        ("watchNamespaces={a,a}", ["/watchNamespaces", "items at 0 and 1 are equal"]),
        ("admissionPolicy.actions={Block}", ["/admissionPolicy/actions/0", "Deny"]),
        ("guards.networkPolicy.create=true", ["guards.networkPolicy.create needs namespaces"]),
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


@pytest.mark.parametrize(
    "value",
    ["global", "commonAnnotations", "guardResources", "securityContext", "topologySpreadConstraints",
     "imagePullSecrets", "global.imagePullSecrets"],
)  # fmt: skip
def test_a_value_that_is_taken_away_is_none(render: Render, value: str) -> None:
    """Helm drops a default that is set to null."""
    options = parser().parse_args(container(render({value: "null"}))["args"])
    assert options.guard_resources == ({} if value == "guardResources" else default_guard_resources())


MONITORED = ("PrometheusRule", "ServiceMonitor")


@pytest.mark.parametrize("known", [(), ("ServiceMonitor",), MONITORED], ids=["no CRD", "one CRD", "all CRDs"])
@pytest.mark.parametrize("enabled", ["auto", "true", "false"])
def test_what_the_prometheus_operator_reads_is_there_where_its_crds_are(
    helm: Helm, enabled: str, known: tuple[str, ...]
) -> None:
    flags = [f"--api-versions=monitoring.coreos.com/v1/{kind}" for kind in known]
    for section in ("prometheusRule", "serviceMonitor"):
        flags += ["--set", f"metrics.{section}.enabled={enabled}"]
    done = helm("template", "rlguard", CHART, "--kube-version", KUBE_VERSION, *flags)
    assert done.returncode == 0, done.stderr
    kinds = {document["kind"] for document in yaml.safe_load_all(done.stdout) if document}
    expected = {"auto": known, "true": MONITORED, "false": ()}[enabled]
    assert kinds & set(MONITORED) == set(expected)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_chart_that_includes_this_one(helm: Helm, tmp_path: Path, enabled: bool) -> None:
    """Under a condition, with global values of its own and a chart for the CRD beside it."""
    dependency = {"version": __version__, "repository": ""}
    about = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [
        {"name": "rlguard", "condition": "rlguard.enabled", **dependency},
        {"name": "rlguard-crds", "condition": "rlguard-crds.enabled", **dependency},
    ]}  # fmt: skip
    values = {
        "rlguard": {"enabled": enabled, "crds": {"install": False}},
        "rlguard-crds": {"enabled": enabled},
        "global": {"imageRegistry": "all.example.com", "theirs": {"anything": [1]}},
    }
    (tmp_path / "charts").mkdir()
    for chart in (CHART, CRDS):
        (tmp_path / "charts" / chart.name).symlink_to(chart)
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(about))
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    done = helm("template", "platform", tmp_path, "--kube-version", KUBE_VERSION)
    assert done.returncode == 0, done.stderr
    objects = [document for document in yaml.safe_load_all(done.stdout) if document]
    assert bool(objects) == enabled
    if enabled:
        assert find(objects, "CustomResourceDefinition")["spec"] == crd()["spec"]
        assert container(objects)["image"] == f"all.example.com/rlguard/operator:{__version__}"
        assert find(objects, "Deployment")["metadata"]["name"] == "platform-rlguard"


def test_the_chart_of_the_crd_alone(helm: Helm) -> None:
    settings = "labels.team=platform,annotations.owner=platform"
    assert helm("lint", "--strict", CRDS, "--set", settings).returncode == 0
    done = helm("template", "crds", CRDS, "--kube-version", KUBE_VERSION, "--set", settings)
    (definition,) = yaml.safe_load_all(done.stdout)
    assert definition["spec"] == crd()["spec"]
    assert definition["metadata"]["labels"]["team"] == "platform"
    assert definition["metadata"]["annotations"] == {
        "helm.sh/resource-policy": "keep", "owner": "platform",
    }  # fmt: skip
    done = helm("template", "crds", CRDS, "--kube-version", KUBE_VERSION, "--set", "keep=false")
    assert not next(yaml.safe_load_all(done.stdout))["metadata"]["annotations"]


def test_the_documented_values_for_eks_need_no_crd_of_others(render: Render) -> None:
    objects = render(ROOT / "k8s" / "overlays" / "eks" / "values.yaml")
    assert not [one["kind"] for one in objects if one["apiVersion"].startswith("monitoring.coreos.com")]


def test_an_old_cluster_is_refused(helm: Helm) -> None:
    done = helm("template", "rlguard", CHART, "--kube-version", "1.29.0")
    assert done.returncode != 0
    assert "1.30.0" in done.stderr


@pytest.mark.parametrize(("ready", "words"), [(True, "is ready"), (False, "does not respond as it should")])
def test_what_helm_test_runs_tells_a_ready_operator(render: Render, ready: bool, words: str) -> None:
    script = find(render(), "Pod")["spec"]["containers"][0]["args"][0]
    assert "monotonic() + 60" in script
    server = HealthServer(("127.0.0.1", 0), lambda: True, lambda: ready, OperatorMetrics().registry)
    try:
        command = [sys.executable, "-c", script.replace("monotonic() + 60", "monotonic()")]
        command.append(f"http://127.0.0.1:{server.port}")
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    finally:
        server.close()
    assert (done.returncode == 0) == ready
    assert words in done.stdout + done.stderr
