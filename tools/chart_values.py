"""The chart's values, typed once. Its values.yaml, values.schema.json and README.md are generated from here.

Every field has a default and a description. Unknown keys are refused, so that a misspelt value is an error
and not a silent default. Run `make generate` after a change.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from guard_operator.config import NODE_DIRECTORIES, TOKEN_AUDIENCES, default_guard_resources

Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
#: Absolute, without a trailing slash and without `.` or `..`, nor what ends a string of CEL.
Directory = Annotated[str, Field(pattern=r"^(/(\.?[^/.'\"\\][^/'\"\\]*|\.\.[^/'\"\\]+))+$")]
#: What may stand in a string of CEL as it is.
Word = Annotated[str, Field(pattern=r"^[^\s'\"\\]+$")]
Digest = Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")]
#: What Prometheus takes for a duration.
Duration = Annotated[str, Field(pattern=r"^[0-9]+(ms|s|m|h)$")]
StringMap = dict[str, str]
NEEDS_CRDS = (
    "Create it; needs the Prometheus operator's CRDs. auto: where the cluster has them, which "
    "`helm template` knows only from `--api-versions`."
)
PortNumber = Annotated[int, Field(ge=1, le=65535)]
#: An object of the Kubernetes API, checked by the API server.
Raw = dict[str, Any]


class ValuesSection(BaseModel):
    """Base of everything below: camelCase outside, closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)


def section(kind: type[ValuesSection], description: str, **changed: Any) -> Any:
    """A field that holds a section with its defaults."""
    return Field(default_factory=lambda: kind(**changed), description=description)


class Image(ValuesSection):
    """Where an image comes from."""

    registry: str = Field(
        "",
        description="Registry, such as an ECR's host name; global.imageRegistry if empty, and without that "
        "the node's default, where these images are not.",
    )
    repository: str = Field(min_length=1, description="Repository in that registry.")
    tag: str = Field("", description="Tag; the chart's appVersion if empty.")
    digest: Digest = Field("", description="sha256:…; takes precedence over the tag.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        "IfNotPresent", description="Pull policy."
    )


class LocalReference(ValuesSection):
    """The name of an object in the same namespace."""

    name: str = Field(min_length=1, description="Name.")


class Global(ValuesSection):
    """What Helm hands to a chart and to every chart that it includes."""

    model_config = ConfigDict(extra="allow")  # values of other charts

    image_registry: str = Field(
        "", description="Registry of the images that name none, such as an ECR's host name."
    )
    image_pull_secrets: list[str | LocalReference] = Field(
        default_factory=list,
        description="Pull secrets beside those of imagePullSecrets, as names or as references.",
        examples=[[{"name": "registry"}]],
    )


class ServiceAccount(ValuesSection):
    """The operator's service account."""

    create: bool = Field(True, description="Create it.")
    name: str = Field("", description="Its name; the release's full name if empty.")
    annotations: StringMap = Field(
        default_factory=dict,
        description="Annotations. For IRSA: eks.amazonaws.com/role-arn. EKS Pod Identity needs none. The "
        "operator itself calls no cloud API.",
    )


class Rbac(ValuesSection):
    """RBAC."""

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


class Crds(ValuesSection):
    """The CustomResourceDefinition."""

    install: bool = Field(True, description="Install and upgrade the CRD with the release.")
    keep: bool = Field(
        True,
        description="Leave the CRD behind on uninstall. If false, every GuardedTrainingJob goes with it.",
    )


class IsolationValues(ValuesSection):
    """What the isolation table is told of this cluster."""

    node_directories: list[Directory] = Field(
        default_factory=lambda: [*NODE_DIRECTORIES],
        min_length=1,
        description="Directories of the node that no host path of a run may cover or lie below: those of the "
        "kubelet and the runtime, wherever they are here, and what the node runs as root.",
    )
    token_audiences: list[Word] = Field(
        default_factory=lambda: [*TOKEN_AUDIENCES],
        description="Audiences of projected service-account tokens that pods of a run may have: those of "
        "IRSA and of EKS Pod Identity. Never one that the API server accepts.",
    )


class AdmissionPolicy(ValuesSection):
    """The ValidatingAdmissionPolicies."""

    enabled: bool = Field(
        True,
        description="Create them. Without them the operator checks a template once, and what docs/threats.md "
        "names is lost.",
    )
    actions: list[Literal["Deny", "Warn", "Audit"]] = Field(
        ["Deny"], min_length=1, description="What a violation does."
    )
    guard_images: list[Word] = Field(
        default_factory=list,
        description="Images that spec.guard.image may name; one that ends with / : or @ admits all that "
        "begin so. Empty: any. The guard has the held-out data and says when a run stops.",
        examples=[["registry.example.com/rlguard/guard:", "registry.example.com/rlguard/guard-hf:"]],
    )


class PodDisruptionBudget(ValuesSection):
    """Voluntary disruptions."""

    enabled: bool = Field(True, description="At most one operator pod is evicted at a time.")


class Monitor(ValuesSection):
    """A monitor of the Prometheus operator."""

    enabled: bool | Literal["auto"] = Field(False, description=NEEDS_CRDS)
    interval: Duration = Field("30s", description="Time between two scrapes.")
    labels: StringMap = Field(default_factory=dict, description="Labels by which Prometheus selects it.")
    relabelings: list[Raw] = Field(default_factory=list, description="Relabelings of the targets.")
    metric_relabelings: list[Raw] = Field(
        default_factory=list, description="Relabelings of what was scraped."
    )


class PrometheusRule(ValuesSection):
    """Alerts."""

    enabled: bool | Literal["auto"] = Field(False, description=NEEDS_CRDS)
    labels: StringMap = Field(default_factory=dict, description="Labels by which Prometheus selects it.")
    evaluation_age_seconds: int = Field(
        7200, ge=60, description="Alert when a running job's last held-out evaluation is this old, seconds."
    )
    runbooks: str = Field(
        "",
        pattern=r"^(https?://[!-~]+)?$",
        description="URL of the page `troubleshooting.html` of the site that `make site` builds, where you "
        "serve it: each alert has it, with its section, as `runbook_url`. Empty: alerts have no link, and "
        "only name page and section of these docs (`runbook`).",
    )
    teardown_seconds: int = Field(
        60, ge=1, description="Alert when a run that must stop has not stopped after this long, seconds."
    )
    waiting_seconds: int = Field(
        900,
        ge=60,
        description="Alert when a run has not been able to start for this long, seconds; GPU nodes may take "
        "a while to come.",
    )


class Dashboard(ValuesSection):
    """Grafana."""

    enabled: bool = Field(False, description="Create a ConfigMap with the dashboard.")
    labels: StringMap = Field(
        default_factory=lambda: {"grafana_dashboard": "1"},
        description="Labels by which Grafana's sidecar finds it.",
    )
    annotations: StringMap = Field(default_factory=dict, description="Annotations, such as grafana_folder.")


class MetricsValues(ValuesSection):
    """What Prometheus and Grafana get."""

    service_monitor: Monitor = section(Monitor, "ServiceMonitor of the operator.")
    prometheus_rule: PrometheusRule = section(PrometheusRule, "PrometheusRule with alerts.")
    dashboard: Dashboard = section(Dashboard, "Grafana dashboard.")


class NetworkPolicy(ValuesSection):
    """What may talk to the operator, and to whom it may talk."""

    enabled: bool = Field(False, description="Create it; needs a network plug-in that enforces it.")
    metrics_from: list[Raw] = Field(
        default_factory=list,
        description="NetworkPolicyPeers that may read the metrics. Empty: everybody.",
        examples=[[{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]],
    )
    api_server_ports: list[PortNumber] = Field(
        default_factory=lambda: [443, 6443], min_length=1, description="Ports of the API server."
    )


class GuardNetworkPolicy(ValuesSection):
    """NetworkPolicies that let the operator and the trainers reach guards."""

    create: bool = Field(
        False,
        description="Create two in each of these namespaces: the operator may reach the pods of runs, and "
        "these may reach guards with placement Pod. Only for namespaces whose own policies deny "
        "incoming traffic: elsewhere the first would cut the ranks of a run off from each other.",
    )
    namespaces: list[Namespace] = Field(
        default_factory=list,
        description="Where to create them; watchNamespaces if empty.",
        json_schema_extra={"uniqueItems": True},
    )


class GuardsValues(ValuesSection):
    """Guards."""

    network_policy: GuardNetworkPolicy = section(
        GuardNetworkPolicy,
        "What may reach guards. Without a way to its guard the operator starts no run, and the job says so.",
    )


class Values(ValuesSection):
    """All values."""

    enabled: bool = Field(
        True,
        description="For a chart that includes this one with the condition rlguard.enabled; not read.",
    )
    name_override: str = Field(
        "", max_length=63, description="Replaces the chart's name in the names of objects."
    )
    fullname_override: str = Field("", max_length=53, description="Replaces the whole name of objects.")
    image: Image = section(Image, "Image of the operator.", repository="rlguard/operator")
    guard_image: Image = section(
        Image,
        "Image of the guards of jobs that name none: rlguard/guard-hf scores local checkpoints, "
        "rlguard/guard-vllm does with vLLM, rlguard/guard evaluates nothing itself. It is pulled in the "
        "namespace of the job.",
        repository="rlguard/guard-hf",
    )
    guard_resources: Raw = Field(
        default_factory=default_guard_resources,
        description="Resources of the guards of jobs that name none.",
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
        json_schema_extra={"uniqueItems": True},
    )
    kinds: list[Literal["PyTorchJob", "Job", "RayJob", "RayCluster", "JobSet", "TrainJob"]] = Field(
        default=["PyTorchJob", "Job", "RayJob", "RayCluster", "JobSet", "TrainJob"],
        min_length=1,
        description="Kinds of workload that are guarded. The operator has the permissions for these alone. "
        "A kind that the cluster has not yet is found when its CRD comes.",
    )
    workers: int = Field(4, ge=1, le=64, description="Jobs reconciled at once.")
    lease_seconds: int = Field(15, ge=5, le=120, description="How long a lost leader blocks its successor.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Log level.")
    log_format: Literal["text", "json"] = Field(
        "text", description="Form of the operator's log lines: text, or one JSON object a line."
    )
    isolation: IsolationValues = section(
        IsolationValues, "What the isolation table is told of this cluster (docs/reference/isolation.md)."
    )
    admission_policy: AdmissionPolicy = section(
        AdmissionPolicy,
        "ValidatingAdmissionPolicies: the isolation table for pods, who may create jobs, and what the "
        "operator may create.",
    )
    crds: Crds = section(Crds, "The CustomResourceDefinition.")
    service_account: ServiceAccount = section(ServiceAccount, "The operator's service account.")
    rbac: Rbac = section(Rbac, "RBAC.")
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
    topology_spread_constraints: list[Raw] = Field(
        default_factory=lambda: [
            {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
            for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
        ],
        description="How the replicas are spread: over nodes and zones. One without a labelSelector gets "
        "that of the operator's pods.",
    )
    pod_disruption_budget: PodDisruptionBudget = section(PodDisruptionBudget, "Voluntary disruptions.")
    pod_labels: StringMap = Field(default_factory=dict, description="Further labels of the operator's pods.")
    pod_annotations: StringMap = Field(
        default_factory=dict, description="Annotations of the operator's pods."
    )
    pod_security_context: Raw = Field(
        default_factory=lambda: {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        description="Security context of the operator's pods. It names no user: the image does, and "
        "OpenShift gives each namespace its own.",
    )
    security_context: Raw = Field(
        default_factory=lambda: {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        description="Security context of their container.",
    )
    host_network: bool = Field(
        False,
        description="Whether the operator is on its node's network. Two replicas need two nodes then, and an "
        "update a third.",
    )
    dns_policy: Literal["", "ClusterFirst", "ClusterFirstWithHostNet", "Default"] = Field(
        "", description="DNS policy of the operator's pods; that of Kubernetes if empty."
    )
    port: int = Field(
        8080,
        ge=1024,
        le=65535,
        description="Port of the operator's probes and metrics in its pod; change it where hostNetwork is on "
        "and the node's is taken.",
    )
    common_labels: StringMap = Field(
        default_factory=dict,
        description="Labels of every object of the chart; its own labels take precedence.",
        examples=[{"team": "platform"}],
    )
    common_annotations: StringMap = Field(
        default_factory=dict,
        description="Annotations of every object of the chart; its own take precedence.",
        examples=[{"owner": "platform"}],
    )
    extra_args: list[str] = Field(
        default_factory=list,
        description="Further flags of the operator, after those that the chart sets.",
        examples=[["--bind=0.0.0.0"]],
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
    metrics: MetricsValues = section(
        MetricsValues, "What Prometheus and Grafana get. The metrics Service is always there."
    )
    network_policy: NetworkPolicy = section(
        NetworkPolicy, "What may talk to the operator, and to whom it may talk."
    )
    guards: GuardsValues = section(GuardsValues, "Guards, in the namespaces of the jobs.")
    extra_objects: list[Raw | str] = Field(
        default_factory=list,
        description="Further objects of the release, as manifests or as templates of manifests.",
        examples=[
            [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-ca"}}]
        ],
    )
    global_: Global = Field(
        default_factory=Global,
        alias="global",
        description="What Helm hands on to every chart that a chart includes.",
    )


class CrdValues(ValuesSection):
    """The values of the chart that holds nothing but the CRD."""

    keep: bool = Field(
        True,
        description="Leave the CRD behind on uninstall. If false, every GuardedTrainingJob goes with it.",
    )
    labels: StringMap = Field(default_factory=dict, description="Further labels of the CRD.")
    annotations: StringMap = Field(default_factory=dict, description="Further annotations of the CRD.")
    enabled: bool = Field(
        True,
        description="For a chart that includes this one with a condition; not read here.",
    )
    global_: Raw = Field(
        default_factory=dict,
        alias="global",
        description="Helm's own, for charts that include this one; not read.",
    )
