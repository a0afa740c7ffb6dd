"""What the chart renders, and what it refuses. No cluster is needed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlguard.core import __version__
from rlguard.operator import rbac
from rlguard.operator.__main__ import parser
from rlguard.operator.adapters import ADAPTERS
from rlguard.operator.api.schema import crd
from rlguard.operator.config import NODE_DIRECTORIES, TOKEN_AUDIENCES, default_guard_resources

from .conftest import CHART, KUBE_VERSION, NAMESPACE, ROOT, VALUES, Helm, Json, Render, find

FILES = sorted([*VALUES.glob("*.yaml"), *ROOT.glob("k8s/overlays/*/values.yaml")])
EVERYTHING = VALUES / "everything.yaml"
OPERATOR = {"app.kubernetes.io/name": "rlguard", "app.kubernetes.io/component": "operator"}
CLUSTER_ROLE = ("ClusterRole", "rlguard-system-rlguard")


def pods(objects: list[Json]) -> tuple[Json, Json]:
    """The operator's pod, and that of `helm test`."""
    return find(objects, "Deployment")["spec"]["template"]["spec"], find(objects, "Pod")["spec"]


def container(objects: list[Json]) -> Json:
    found: Json = pods(objects)[0]["containers"][0]
    return found


@pytest.mark.parametrize("values", FILES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_file_of_values_makes_a_release_that_fits_together(
    helm: Helm, render: Render, values: Path
) -> None:
    lint = helm("lint", CHART, "--strict", "--values", values)
    assert lint.returncode == 0, lint.stdout + lint.stderr
    objects, given = render(values), yaml.safe_load(values.read_text()) or {}

    options = parser().parse_args(container(objects)["args"])
    told = given.get("isolation", {})
    assert options.namespace == given.get("watchNamespaces", [])
    assert options.node_directory == told.get("nodeDirectories", [*NODE_DIRECTORIES])
    assert options.token_audience == told.get("tokenAudiences", [*TOKEN_AUDIENCES])
    assert options.guard_pull_policy == given.get("guardImage", {}).get("pullPolicy", "IfNotPresent")
    assert options.guard_resources == given.get("guardResources", default_guard_resources())
    assert options.lease_seconds == given.get("leaseSeconds", 15)
    assert container(objects)["ports"] == [{"name": "http", "containerPort": options.port}]

    keys = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(keys) == len(set(keys))
    labels = find(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    account = pods(objects)[0]["serviceAccountName"]
    for one in objects:
        spec = one.get("spec", {})
        if one["kind"] == "Service":
            selector = spec["selector"]
        elif one["kind"] in {"Deployment", "PodDisruptionBudget"}:
            selector = spec["selector"]["matchLabels"]
        elif one["kind"] == "NetworkPolicy" and one["metadata"]["namespace"] == NAMESPACE:
            selector = spec["podSelector"]["matchLabels"]
        else:
            assert [s["name"] for s in one.get("subjects", [])] in ([], [account])
            continue
        assert OPERATOR.items() <= selector.items() <= labels.items(), one["kind"]


# -- rights ----------------------------------------------------------------------------------------------


def test_rights_are_the_generated_ones_of_the_kinds_that_are_switched_on(render: Render) -> None:
    objects = render()
    assert find(objects, *CLUSTER_ROLE)["rules"] == rbac.rules()
    assert find(objects, "Role", "rlguard-own-namespace")["rules"] == rbac.own_namespace_rules()
    for adapter in ADAPTERS:
        kind = adapter.resource.kind
        objects = render({"kinds": json.dumps([kind])})
        assert find(objects, *CLUSTER_ROLE)["rules"] == rbac.rules([adapter])
        assert [flag for flag in container(objects)["args"] if "--kind" in flag] == [f"--kind={kind}"]


def test_the_operator_grants_nobody_anything_and_reads_no_secret_of_a_job(render: Render) -> None:
    rules = find(render(), *CLUSTER_ROLE)["rules"]
    kinds = {kind for rule in rules for kind in rule["resources"]}
    assert not kinds & {"roles", "rolebindings", "serviceaccounts", "networkpolicies"}
    (verbs,) = (rule["verbs"] for rule in rules if "secrets" in rule["resources"])
    assert verbs == ["create"]


def test_rights_in_namespaces_are_no_more(render: Render) -> None:
    objects = render(VALUES / "namespaced.yaml")
    roles = [o for o in objects if o["kind"] == "Role" and o["metadata"]["name"] == CLUSTER_ROLE[1]]
    assert {role["metadata"]["namespace"] for role in roles} == {"team-a", "team-b"}
    assert all(role["rules"] == rbac.rules() for role in roles)
    assert not [o for o in objects if o["kind"] == "ClusterRoleBinding"]


# -- objects ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [True, False])
def test_the_crd_is_the_generated_one_and_kept_unless_it_is_not_to_be(render: Render, keep: bool) -> None:
    definition = find(render({"crds.keep": json.dumps(keep)}), "CustomResourceDefinition")
    assert definition["spec"] == crd()["spec"]
    kept = {"helm.sh/resource-policy": "keep"} if keep else None
    assert definition["metadata"].get("annotations") == kept
    assert not (CHART / "crds").exists(), "Helm would install it from there first, and never upgrade it"


def test_nothing_optional_is_rendered_when_it_is_off(render: Render) -> None:
    kinds = {o["kind"] for o in render(VALUES / "nothing.yaml")}
    rights = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    assert kinds == {"Deployment", "Service", "Pod"} | rights  # the pod is `helm test`


DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({}, f"rlguard/operator:{__version__}"),
        ({"image.tag": '"9"'}, "rlguard/operator:9"),
        ({"global.imageRegistry": '"r.example.com/"'}, f"r.example.com/rlguard/operator:{__version__}"),
        ({"image.tag": '"9"', "image.digest": f'"{DIGEST}"'}, f"rlguard/operator@{DIGEST}"),
    ],
)
def test_image(render: Render, values: Json, image: str) -> None:
    assert [pod["containers"][0]["image"] for pod in pods(render(values))] == [image, image]


def test_the_pods_are_confined_and_name_no_user_so_that_openshift_gives_them_one(render: Render) -> None:
    for pod in pods(render()):
        security = pod["containers"][0]["securityContext"]
        assert pod["securityContext"]["runAsNonRoot"] and security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"] and security["capabilities"] == {"drop": ["ALL"]}
        users = {"runAsUser", "runAsGroup", "fsGroup", "seLinuxOptions"}
        assert not users & (security.keys() | pod["securityContext"].keys())


def test_what_is_set_for_the_pods_arrives(render: Render) -> None:
    objects, given = render(EVERYTHING), yaml.safe_load(EVERYTHING.read_text())
    pod, tested = pods(objects)
    for key in ("nodeSelector", "tolerations", "affinity"):
        assert pod[key] == given[key], key
    assert pod["priorityClassName"] == "system-cluster-critical"
    (spread,) = pod["topologySpreadConstraints"]
    assert spread.items() > given["topologySpreadConstraints"][0].items()
    assert spread["labelSelector"]["matchLabels"].items() >= OPERATOR.items()
    for one in (pod, tested):
        assert one["imagePullSecrets"] == [{"name": "by-name"}, {"name": "by-reference"}]
    assert given["extraEnv"][0] in container(objects)["env"]
    for kind in ("ServiceMonitor", "PrometheusRule"):
        assert find(objects, kind)["metadata"]["labels"]["release"] == "prometheus"


def test_a_spread_with_a_selector_of_its_own_keeps_it(render: Render) -> None:
    own = [{"topologyKey": "rack", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}]
    pod, _ = pods(render({"topologySpreadConstraints": json.dumps(own)}))
    assert pod["topologySpreadConstraints"] == own


def test_what_lets_operator_and_trainers_reach_guards_comes_where_it_is_asked_for(render: Render) -> None:
    objects = render(EVERYTHING)
    labels = find(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    of_runs = {"matchExpressions": [{"key": "rlguard.dev/job-uid", "operator": "Exists"}]}
    policies = [one for one in objects if one["kind"] == "NetworkPolicy"]
    for namespace in ("team-a", "team-b"):
        operator, trainers = (o["spec"] for o in policies if o["metadata"]["namespace"] == namespace)
        assert operator["podSelector"] == of_runs
        ((peer,),) = (rule["from"] for rule in operator["ingress"])
        assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": NAMESPACE}
        assert peer["podSelector"]["matchLabels"].items() <= labels.items()
        assert trainers["podSelector"] == {"matchLabels": {"rlguard.dev/part": "guard"}}
        assert trainers["ingress"] == [{"from": [{"podSelector": of_runs}]}]
    (own,) = (one["spec"]["egress"] for one in policies if one["metadata"]["namespace"] == NAMESPACE)
    assert {"to": [{"namespaceSelector": {}, "podSelector": of_runs}]} in own
    watched = render({"guards.networkPolicy.create": "true", "watchNamespaces": '["team-c"]'})
    found = [o["metadata"]["namespace"] for o in watched if o["kind"] == "NetworkPolicy"]
    assert found == ["team-c", "team-c"]


@pytest.mark.parametrize("site", ["", "https://docs.example.com/troubleshooting.html"])
def test_an_alert_links_only_where_its_page_is_served(render: Render, site: str) -> None:
    values = {"enabled": "true", "runbooks": json.dumps(site)}
    objects = render({f"metrics.prometheusRule.{key}": value for key, value in values.items()})
    for rule in find(objects, "PrometheusRule")["spec"]["groups"][0]["rules"]:
        section = rule["alert"].lower()
        assert rule["annotations"]["runbook"] == f"docs/tasks/troubleshooting.md#{section}"
        assert rule["annotations"].get("runbook_url", "") == (f"{site}#{section}" if site else "")


# -- values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("replica=2", ["replica", "not allowed"]),
        ("metrics.serviceMonitor.enable=true", ["/metrics/serviceMonitor", "enable", "not allowed"]),
        ("replicas=0", ["/replicas", "minimum"]),
        ("metrics.prometheusRule.runbooks=troubleshooting.md", ["/prometheusRule/runbooks", "https?://"]),
        ("image.digest=sha256:abc", ["/image/digest", "sha256:[0-9a-f]{64}"]),
        ("guardImage.pullPolicy=Sometimes", ["/guardImage/pullPolicy", "IfNotPresent"]),
        ("logLevel=trace", ["/logLevel", "warning"]),
        ("isolation.nodeDirectories={/mnt/}", ["/isolation/nodeDirectories/0", "pattern"]),
        ("isolation.nodeDirectories={/mnt/../etc}", ["/isolation/nodeDirectories/0", "pattern"]),
        ("isolation.nodeDirectories={/}", ["/isolation/nodeDirectories/0", "pattern"]),
        ("isolation.nodeDirectories={/mnt/a'b}", ["/isolation/nodeDirectories/0", "pattern"]),
        ("admissionPolicy.guardImages={a'b}", ["/admissionPolicy/guardImages/0", "pattern"]),
        ("isolation.tokenAudiences={a b}", ["/isolation/tokenAudiences/0", "pattern"]),
        ("watchNamespaces={Team_A}", ["/watchNamespaces/0", "pattern"]),
        ("watchNamespaces={a,a}", ["/watchNamespaces", "items at 0 and 1 are equal"]),
        ("guards.networkPolicy.create=true", ["guards.networkPolicy.create needs namespaces"]),
    ],
)
def test_a_refused_value_is_named(helm: Helm, setting: str, said: list[str]) -> None:
    done = helm("template", "rlguard", CHART, "--kube-version", KUBE_VERSION, "--set", setting)
    assert done.returncode != 0
    for words in said:
        assert words in done.stderr, done.stderr


@pytest.mark.parametrize(
    "value", ["global", "guardResources", "topologySpreadConstraints", "global.imagePullSecrets"]
)
def test_a_value_that_is_taken_away_is_none(render: Render, value: str) -> None:
    """Helm drops a default that is set to null."""
    options = parser().parse_args(container(render({value: "null"}))["args"])
    assert options.guard_resources == ({} if value == "guardResources" else default_guard_resources())


@pytest.mark.parametrize("enabled", [True, False])
def test_a_chart_that_includes_this_one(helm: Helm, tmp_path: Path, enabled: bool) -> None:
    """Under a condition, with global values of its own."""
    dependency = {"name": "rlguard", "condition": "rlguard.enabled", "version": __version__, "repository": ""}
    about = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [dependency]}
    shared = {"imageRegistry": "all.example.com", "theirs": {"anything": [1]}}
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / CHART.name).symlink_to(CHART)
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(about))
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"rlguard": {"enabled": enabled}, "global": shared}))
    done = helm("template", "platform", tmp_path, "--kube-version", KUBE_VERSION)
    assert done.returncode == 0, done.stderr
    objects = [document for document in yaml.safe_load_all(done.stdout) if document]
    assert bool(objects) == enabled
    if enabled:
        assert container(objects)["image"] == f"all.example.com/rlguard/operator:{__version__}"
        assert find(objects, "Deployment")["metadata"]["name"] == "platform-rlguard"


def test_an_old_cluster_is_refused(helm: Helm) -> None:
    done = helm("template", "rlguard", CHART, "--kube-version", "1.29.0")
    assert done.returncode != 0
    assert "1.30.0" in done.stderr


# -- what generates, or is generated from, something else --------------------------------------------------


def test_every_value_has_a_meaning_and_the_schema_is_closed() -> None:
    """A comment above each key of values.yaml; `global` is open to the values of other charts."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    tops = [n for n, line in enumerate(lines) if re.match(r"[a-z]\w*:", line)]
    assert tops and [lines[n] for n in tops if not lines[n - 1].startswith("# ")] == []
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert not schema["additionalProperties"]
    assert schema["properties"].keys() == yaml.safe_load((CHART / "values.yaml").read_text()).keys()


def test_the_chart_has_the_version_and_the_kinds_of_the_operator() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["kinds"] == [one.resource.kind for one in ADAPTERS]
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == __version__


def test_what_helm_test_runs_asks_a_ready_operator(render: Render, tmp_path: Path) -> None:
    """A file server stands for an operator: it has the pages, or lacks one."""
    script = find(render(), "Pod")["spec"]["containers"][0]["args"][0]
    assert "monotonic() + 60" in script
    (tmp_path / "readyz").write_text("ok")
    command = [sys.executable, "-m", "http.server", "0", "--bind=127.0.0.1", f"--directory={tmp_path}"]
    with subprocess.Popen([command[0], "-u", *command[1:]], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = re.findall(r"port (\d+)", server.stdout.readline())[0]
        check = [sys.executable, "-c", script.replace("() + 60", "()"), f"http://127.0.0.1:{port}"]
        try:
            missing = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
            (tmp_path / "metrics").write_text("leader_election_master_status 1")
            ready = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
        finally:
            server.kill()
    assert missing.returncode == 1 and "does not respond as it should" in missing.stderr
    assert ready.returncode == 0 and "is ready" in ready.stdout
