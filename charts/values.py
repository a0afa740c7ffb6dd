"""The chart's values, typed once. Its values.yaml, values.schema.json and README.md are generated from here.

Every field has a default and a description. Unknown keys are refused, so that a misspelt value is an error
and not a silent default. Run `make generate` after a change.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
#: Absolute, without a trailing slash and without `.` or `..`.
Directory = Annotated[str, Field(pattern=r"^(/(\.?[^/.][^/]*|\.\.[^/]+))+$")]
Digest = Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")]
#: What Prometheus takes for a duration.
Duration = Annotated[str, Field(pattern=r"^[0-9]+(ms|s|m|h)$")]
StringMap = dict[str, str]
Port = Annotated[int, Field(ge=1, le=65535)]
#: An object of the Kubernetes API, checked by the API server.
Raw = dict[str, Any]


class Section(BaseModel):
    """Base of everything below: camelCase outside, closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)


def section(kind: type[Section], description: str, **changed: Any) -> Any:
    """A field that holds a section with its defaults."""
    return Field(default_factory=lambda: kind(**changed), description=description)


class Image(Section):
    """Where an image comes from."""

    registry: str = Field(
        "", description="Registry, such as an ECR's host name; the runtime's default if empty."
    )
    repository: str = Field(min_length=1, description="Repository in that registry.")
    tag: str = Field("", description="Tag; the chart's appVersion if empty.")
    digest: Digest = Field("", description="sha256:…; takes precedence over the tag.")


class OperatorImage(Image):
    """The operator's own image."""

    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        "IfNotPresent", description="Pull policy."
    )


class LocalReference(Section):
    """The name of an object in the same namespace."""

    name: str = Field(min_length=1, description="Name.")


class ServiceAccount(Section):
    """The operator's service account."""

    create: bool = Field(True, description="Create it.")
    name: str = Field("", description="Its name; the release's full name if empty.")
    annotations: StringMap = Field(
        default_factory=dict,
        description="Annotations. For IRSA: eks.amazonaws.com/role-arn. EKS Pod Identity needs none. The "
        "operator itself calls no cloud API.",
    )


class Rbac(Section):
    """Rights."""

    create: bool = Field(
        True,
        description="Create the operator's roles: cluster-wide, or one in each of watchNamespaces. Generated "
        "from guard_operator/rbac.py.",
    )
    aggregate_to_users: bool = Field(
        True,
        description="Let everybody with the built-in ClusterRoles admin, edit or view use "
        "GuardedTrainingJobs accordingly.",
    )


class Crds(Section):
    """The CustomResourceDefinition."""

    install: bool = Field(True, description="Install and upgrade the CRD with the release.")
    keep: bool = Field(
        True,
        description="Leave the CRD behind on uninstall. Without it every GuardedTrainingJob goes with it.",
    )


class Relaxed(Section):
    """What jobs with `isolation: Relaxed` may have."""

    host_network: bool = Field(
        False, description="Whether the admission policy lets guarded pods use the host's network."
    )
    host_paths: list[Directory] = Field(
        default_factory=list,
        description="Directories of the node under which guarded pods may mount host paths.",
        examples=[["/mnt/k8s-disks"]],
    )


class AdmissionPolicy(Section):
    """The ValidatingAdmissionPolicies."""

    enabled: bool = Field(
        True, description="Refuse pods of guarded jobs that were changed behind the operator's back."
    )
    actions: list[Literal["Deny", "Warn", "Audit"]] = Field(
        default_factory=lambda: ["Deny"], min_length=1, description="What a violation does."
    )
    token_audiences: list[str] = Field(
        default_factory=lambda: ["sts.amazonaws.com", "pods.eks.amazonaws.com"],
        description="Audiences of projected service-account tokens that webhooks may add to guarded pods: "
        "those of IRSA and of EKS Pod Identity. Never one that the API server accepts.",
    )


class PodDisruptionBudget(Section):
    """Voluntary disruptions."""

    enabled: bool = Field(True, description="At most one operator pod is evicted at a time.")


class TopologySpread(Section):
    """Where the replicas run."""

    enabled: bool = Field(True, description="Spread the replicas over nodes and zones.")
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = Field(
        "ScheduleAnyway", description="Whether a replica waits for a node that keeps the spread."
    )


class Monitor(Section):
    """A monitor of the Prometheus operator."""

    enabled: bool = Field(False, description="Create it; needs the Prometheus operator's CRDs.")
    interval: Duration = Field("30s", description="Time between two scrapes.")
    labels: StringMap = Field(default_factory=dict, description="Labels by which Prometheus selects it.")


class PrometheusRule(Section):
    """Alerts."""

    enabled: bool = Field(False, description="Create it; needs the Prometheus operator's CRDs.")
    labels: StringMap = Field(default_factory=dict, description="Labels by which Prometheus selects it.")
    evaluation_age_seconds: int = Field(
        7200, ge=60, description="Age of a running job's last held-out evaluation that alerts."
    )
    teardown_seconds: int = Field(60, ge=1, description="Seconds from fire to last pod gone that alert.")


class Dashboard(Section):
    """Grafana."""

    enabled: bool = Field(False, description="Create a ConfigMap with the dashboard.")
    labels: StringMap = Field(
        default_factory=lambda: {"grafana_dashboard": "1"},
        description="Labels by which Grafana's sidecar finds it.",
    )
    annotations: StringMap = Field(default_factory=dict, description="Annotations, such as grafana_folder.")


class Metrics(Section):
    """What Prometheus and Grafana get."""

    service_monitor: Monitor = section(Monitor, "ServiceMonitor of the operator.")
    pod_monitor: Monitor = section(Monitor, "PodMonitor of the guards' port rlguard-metrics.")
    prometheus_rule: PrometheusRule = section(PrometheusRule, "PrometheusRule with alerts.")
    dashboard: Dashboard = section(Dashboard, "Grafana dashboard.")


class NetworkPolicy(Section):
    """What may talk to the operator, and to whom it may talk."""

    enabled: bool = Field(False, description="Create it; needs a network plug-in that enforces it.")
    metrics_from: list[Raw] = Field(
        default_factory=list,
        description="NetworkPolicyPeers that may read the metrics; everybody if empty.",
        examples=[[{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]],
    )
    api_server_ports: list[Port] = Field(
        default_factory=lambda: [443, 6443], min_length=1, description="Ports of the API server."
    )


class Values(Section):
    """All values."""

    name_override: str = Field(
        "", max_length=63, description="Replaces the chart's name in the names of objects."
    )
    fullname_override: str = Field("", max_length=53, description="Replaces the whole name of objects.")
    image: OperatorImage = section(OperatorImage, "Image of the operator.", repository="rlguard/operator")
    guard_image: Image = section(
        Image,
        "Image of the guards of jobs that name none: rlguard/guard-hf scores local checkpoints, "
        "rlguard/guard only asks a model server. It is pulled in the namespace of the job.",
        repository="rlguard/guard-hf",
    )
    image_pull_secrets: list[LocalReference] = Field(
        default_factory=list,
        description="Pull secrets of the operator's pods. Jobs name theirs in their own template.",
        examples=[[{"name": "registry"}]],
    )
    replicas: int = Field(
        2, ge=1, le=5, description="Operator pods. One leads, the others wait for its Lease."
    )
    watch_namespaces: list[Namespace] = Field(
        default_factory=list,
        description="Namespaces of the jobs. Empty: all of them, with a ClusterRole. Otherwise a Role in "
        "each; the namespaces must exist.",
        examples=[["team-a", "team-b"]],
    )
    workers: int = Field(4, ge=1, le=64, description="Jobs reconciled at once.")
    lease_seconds: int = Field(15, ge=5, le=120, description="How long a lost leader blocks its successor.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Log level.")
    relaxed: Relaxed = section(
        Relaxed,
        "What jobs with `isolation: Relaxed` may have. The admission policy admits it in all guarded pods.",
    )
    admission_policy: AdmissionPolicy = section(
        AdmissionPolicy, "ValidatingAdmissionPolicies with the operator's own refusals, for pods."
    )
    crds: Crds = section(Crds, "The CustomResourceDefinition.")
    service_account: ServiceAccount = section(ServiceAccount, "The operator's service account.")
    rbac: Rbac = section(Rbac, "Rights.")
    resources: Raw = Field(
        default_factory=lambda: {
            "requests": {"cpu": "100m", "memory": "128Mi"},
            "limits": {"memory": "512Mi"},
        },
        description="Resources of an operator pod.",
    )
    priority_class_name: str = Field(
        "system-cluster-critical",
        description="Priority class: what stops a run must not be the first to be evicted.",
    )
    node_selector: StringMap = Field(default_factory=dict, description="Node selector.")
    tolerations: list[Raw] = Field(default_factory=list, description="Tolerations.")
    affinity: Raw = Field(default_factory=dict, description="Affinity.")
    topology_spread: TopologySpread = section(TopologySpread, "Where the replicas run.")
    pod_disruption_budget: PodDisruptionBudget = section(PodDisruptionBudget, "Voluntary disruptions.")
    pod_labels: StringMap = Field(default_factory=dict, description="Further labels of the operator's pods.")
    pod_annotations: StringMap = Field(
        default_factory=dict, description="Annotations of the operator's pods."
    )
    extra_env: list[Raw] = Field(
        default_factory=list,
        description="Further environment of the operator, such as HTTPS_PROXY.",
        examples=[[{"name": "NO_PROXY", "value": "10.0.0.0/8"}]],
    )
    extra_volumes: list[Raw] = Field(
        default_factory=list, description="Further volumes of the operator's pods."
    )
    extra_volume_mounts: list[Raw] = Field(
        default_factory=list, description="Where the operator mounts them."
    )
    metrics: Metrics = section(
        Metrics, "What Prometheus and Grafana get. The metrics Service is always there."
    )
    network_policy: NetworkPolicy = section(
        NetworkPolicy, "What may talk to the operator, and to whom it may talk."
    )
    global_: Raw = Field(
        default_factory=dict,
        alias="global",
        description="Helm's own, for charts that include this one; not read.",
    )
