"""`GuardedTrainingJob`, typed once. The CRD, its copy in the chart and the reference page come from here.

Python names are snake_case, the API is camelCase. Nothing here talks to a cluster. CEL rules sit in
`json_schema_extra` of the model they belong to, next to the fields they are about.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)
from pydantic.alias_generators import to_camel, to_pascal, to_snake

from guard_core.evaluation import HfEvaluation, Scoring, VllmEvaluation
from guard_core.feed import Feed
from guard_core.policy import KlPolicy, Policy
from guard_operator.api.names import JOB_NAME_PATTERN, JOB_NAME_RULE, MAX_JOB_NAME
from guard_operator.runtime.decoding import depth_of


def cel(*rules: tuple[str, str]) -> dict[str, Any]:
    """`x-kubernetes-validations` from (rule, message) pairs."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


#: How many objects and lists of a spec may be in one another; a pod template has about fifteen.
MAX_NESTED = 100

#: Marks a field that is required but has no schema of its own.
UNDECLARED = "rlguard-undeclared"
#: Marks a field under which choices are CamelCase here and snake_case in Python.
CAMEL_CHOICES = "rlguard-camel-choices"


class ApiModel(BaseModel):
    """Base of everything below: camelCase outside, frozen, closed to unknown fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )


class StatusModel(ApiModel):
    """Base of what is read from a status: fields of a newer version are ignored, not refused."""

    model_config = ConfigDict(extra="ignore")


ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
#: What JSON, or the kubelet in a variable, writes otherwise; as it stands in a regular expression.
ESCAPED = r'"\\$\x00-\x1f\x7f'
PLAIN = "must have no quotation mark, backslash, dollar sign or control character"
_IN_VOLUME = "must be a path inside the volume: relative and without '..'"


def _in_volume(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(_IN_VOLUME)
    if re.search(f"[{ESCAPED}]", path):
        raise ValueError(PLAIN)
    return path


#: A path inside a volume: relative, and it does not climb out. The guard is told it in JSON in a variable,
#: where the admission policy looks for it as it stands here: so nothing in it is written otherwise there.
InVolume = Annotated[
    str,
    Field(min_length=1, max_length=512),
    AfterValidator(_in_volume),
    Field(
        json_schema_extra=cel(
            ("!self.startsWith('/') && !self.matches('(^|/)[.][.](/|$)')", _IN_VOLUME),
            (f"!self.matches(r'[{ESCAPED}]')", PLAIN),
        )
    ),
]
Quantity = Annotated[
    int | str,
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]


def _readable(value: Any) -> Any:
    """What the API server takes for a time and is none, such as 30 February, hides no latch: 1970."""
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return datetime.fromtimestamp(0, UTC)


Timestamp = Annotated[
    datetime,
    BeforeValidator(_readable),
    PlainSerializer(lambda t: t.isoformat(timespec="microseconds").replace("+00:00", "Z"), return_type=str),
]


def _policy_from_api(value: Any) -> Any:
    """Camel case to what `guard_core.policy.Policy` reads: keys, and strings, which are all choices."""
    if isinstance(value, dict):
        return {to_snake(key): _policy_from_api(inner) for key, inner in value.items()}
    # A number that came as text is none of the choices: "1e-5" must not become 1e_5, which reads as 100000.
    return to_snake(value) if isinstance(value, str) and value[:1].isalpha() else value


ApiPolicy = Annotated[Policy, BeforeValidator(_policy_from_api)]


def policy_to_api(policy: Policy) -> dict[str, Any]:
    """What `spec.guard.policy` holds for this policy: the fields that its writer set, and no default."""
    written: dict[str, Any] = _camel(policy.model_dump(mode="json", exclude_unset=True))
    return written


def _camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {to_camel(key): _camel(inner) for key, inner in value.items()}
    if isinstance(value, float) and value.is_integer():
        return int(value)  # as a person writes it
    return to_pascal(value) if isinstance(value, str) else value


# -- spec ------------------------------------------------------------------------------------------------


class TemplateMeta(ApiModel):
    """Labels and annotations that the workload gets."""

    labels: dict[str, str] = Field(default_factory=dict, description="Labels of the workload object.")
    annotations: dict[str, str] = Field(
        default_factory=dict, description="Annotations of the workload object."
    )


class WorkloadTemplate(ApiModel):
    """The workload, verbatim: apiVersion, kind, metadata and the spec exactly as its own API takes it.

    Its own schema is checked by a server-side dry run before it is created.
    """

    # Of fields that are not declared only `spec` is wanted. With `metadata` always there, four are all that
    # can be, and none can be renamed, which CEL would not see (below).
    model_config = ConfigDict(
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True, "maxProperties": 4}
    )

    api_version: str = Field(
        min_length=1,
        max_length=253,
        description="API version of the workload, such as batch/v1 or ray.io/v1.",
    )
    kind: str = Field(
        min_length=1,
        max_length=63,
        description="Kind of the workload: PyTorchJob, Job, RayJob or JobSet.",
    )
    metadata: TemplateMeta = Field(
        default_factory=TemplateMeta,
        description="Labels and annotations of the workload object.",
        json_schema_extra={"default": {}},
    )
    # Required but not declared: CEL takes two objects for equal whose unknown fields are as many but have
    # other names, so renaming a key directly under a declared `spec` would pass as "unchanged". Undeclared,
    # it is compared as a whole. tests/operator/integration/test_crd.py proves it.
    spec: dict[str, Any] = Field(
        description="Spec of the workload, exactly as its own API takes it.",
        json_schema_extra={UNDECLARED: True},
    )


class TargetRef(ApiModel):
    """A workload in the job's namespace that exists already, or will. A fire deletes it."""

    api_version: str = Field(min_length=1, max_length=253, description="Its API version, such as ray.io/v1.")
    kind: str = Field(
        min_length=1,
        max_length=63,
        description="Its kind: PyTorchJob, Job, RayJob, RayCluster, JobSet or TrainJob.",
    )
    name: str = Field(
        min_length=1,
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description="Its name, by which its pods are found: as long as a label may be.",
    )


class HeldoutVolume(ApiModel):
    """Where the held-out split lies. Mounted read-only, in the guard alone."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "[has(self.claimName), has(self.secretName), has(self.configMapName)].exists_one(x, x)",
                "exactly one of claimName, secretName and configMapName must be set",
            )
        )
    )

    claim_name: ObjectName | None = Field(None, description="A PersistentVolumeClaim in the job's namespace.")
    secret_name: ObjectName | None = Field(None, description="A Secret in the job's namespace.")
    config_map_name: ObjectName | None = Field(None, description="A ConfigMap in the job's namespace.")


class EvaluatorModel(ApiModel):
    """What all evaluators have beside the settings of `guard_core.evaluation`: their rule, for CEL."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.samples == 1 || !has(self.temperature) || self.temperature > 0.0",
                "samples above 1 need a temperature above 0: greedy completions are all the same",
            )
        )
    )


class LocalEvaluatorModel(EvaluatorModel):
    """And those that load checkpoints: a base model that no trainer can reach."""

    base_model: InVolume | None = Field(
        None,
        description="Directory of the base model, for a run that trains a LoRA adapter (PEFT): a whole model "
        "in safetensors with its tokenizer, in the volume of the split, which the trainer cannot mount. "
        "Relative to the directory of the split. Its last part must be the name that the adapter gives its "
        "base.",
    )


class HfEvaluatorSpec(LocalEvaluatorModel, HfEvaluation):
    """Loads each checkpoint in the guard and generates there. Needs the `guard-hf` image."""


class VllmEvaluatorSpec(LocalEvaluatorModel, VllmEvaluation):
    """Loads each checkpoint in the guard and generates with vLLM. Needs the `guard-vllm` image."""


class EvaluatorSpec(ApiModel):
    """What turns a checkpoint into completions. Exactly one."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("has(self.hf) != has(self.vllm)", "exactly one evaluator must be set: hf or vllm")
        )
    )

    hf: HfEvaluatorSpec | None = Field(
        None, description="Load the checkpoint in the guard and generate there."
    )
    vllm: VllmEvaluatorSpec | None = Field(
        None, description="Load the checkpoint in the guard and generate with vLLM."
    )

    @property
    def timeout_seconds(self) -> float:
        """The limit of one evaluation."""
        chosen = (one for one in (self.hf, self.vllm) if one is not None)
        return max((one.timeout_seconds for one in chosen), default=0.0)


class Heldout(ApiModel, Scoring):
    """The held-out split and how it is scored."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.onScorerTimeout != 'wrong' || has(self.scorerTimeoutSeconds)",
                "onScorerTimeout: wrong without a limit means nothing: set scorerTimeoutSeconds, too",
            )
        )
    )

    volume: HeldoutVolume = Field(description="Where the split lies; the trainer must not mount it.")
    split: InVolume = Field(
        "heldout.jsonl", description="The split in that volume: JSONL with id, prompt, answer."
    )
    train_prompts: InVolume | None = Field(
        None,
        description="Training prompts in that volume; the guard refuses to start if the split overlaps them.",
    )
    evaluator: EvaluatorSpec = Field(description="What turns a checkpoint into completions. Exactly one.")


class Checkpoints(ApiModel):
    """Where the checkpoints are: in a volume of the template, or in a claim that a target mounts."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.volume) != has(self.claimName)",
                "exactly one of volume and claimName must be set",
            )
        )
    )

    volume: str | None = Field(
        None,
        min_length=1,
        max_length=63,
        description="Name of a volume in the rank-0 pod of the template. The guard mounts it read-only, "
        "at the path at which the trainer container mounts it.",
    )
    claim_name: ObjectName | None = Field(
        None,
        description="With targetRef: the PersistentVolumeClaim that its trainer saves in. The guard mounts "
        "all of it read-only at /checkpoints.",
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.volume is None) == (self.claim_name is None):
            raise ValueError("exactly one of volume and claimName must be set")
        return self


class GuardState(ApiModel):
    """Where the guard keeps what it knows of the run."""

    claim_name: ObjectName | None = Field(
        None,
        description="A PersistentVolumeClaim in the job's namespace, which only guards may mount. Each job "
        "has a folder of its own in it, named by its UID. Without it the log goes with the pod, and a new "
        "pod starts from the run's compact state, which the operator keeps.",
    )
    keep_best: bool = Field(
        False,
        description="Keep a copy of the weights with the best held-out score in the folder `best` beside the "
        "store, whatever the trainer deletes. The claim needs room for two copies of what is scored, for "
        "three where its file system has no hard links.",
    )


class Resources(ApiModel):
    """Compute resources of the guard container."""

    requests: dict[str, Quantity] = Field(default_factory=dict, description="What is reserved.")
    limits: dict[str, Quantity] = Field(default_factory=dict, description="What may be used at most.")


class Toleration(ApiModel):
    """Of a taint of a node, as in a pod."""

    key: str | None = Field(None, max_length=316, description="Key of the taint; any if absent.")
    operator: Literal["Equal", "Exists"] | None = Field(None, description="Equal unless it says Exists.")
    value: str | None = Field(None, max_length=63, description="Value of the taint, for Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect of the taint; any if absent."
    )
    toleration_seconds: int | None = Field(
        None, ge=0, description="For how long a taint of the effect NoExecute is tolerated, seconds."
    )


class GuardPod(ApiModel):
    """The pod of a guard that does not share one with its trainer."""

    service_account_name: ObjectName | None = Field(
        None,
        description="ServiceAccount of the guard's pod, such as one with a cloud role or with pull secrets. "
        "The template must not use it. The guard needs none.",
    )
    node_selector: dict[str, str] = Field(default_factory=dict, description="Labels of the guard's node.")
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=50, description="Taints that the guard's node may have."
    )
    priority_class_name: ObjectName | None = Field(None, description="PriorityClass of the pod.")
    ready_seconds: int = Field(
        1800,
        ge=30,
        le=86400,
        description="How long the rank-0 pod waits for a ready guard before its trainer starts, seconds. "
        "Then the run is stopped, unless `onSilence.action` is `Warn`.",
    )


class Isolation(StrEnum):
    """What the template may have beside the guard."""

    STRICT = "Strict"
    RELAXED = "Relaxed"


#: Containers of a pod share the loopback interface.
VLLM_NEEDS_POD = (
    "the evaluator vllm needs placement: Pod: it opens local sockets, which other containers of the guard's "
    "pod could reach"
)


class GuardSpec(ApiModel):
    """The guard: image, held-out split, thresholds. Immutable: a changed guard is a new run."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.state) || !has(self.state.claimName) || !has(self.heldout.volume.claimName) || "
                "self.state.claimName != self.heldout.volume.claimName",
                "state.claimName must not be the claim of the held-out split, which is mounted read-only",
            ),
            (
                "!has(self.state) || !self.state.keepBest || has(self.state.claimName)",
                "state.keepBest needs state.claimName: without a claim the copy would go with the pod",
            ),
            ("self.placement == 'Pod' || !has(self.pod)", "pod means nothing without placement: Pod"),
            ("self.placement == 'Pod' || !has(self.heldout.evaluator.vllm)", VLLM_NEEDS_POD),
        )
    )

    image: str | None = Field(
        None, min_length=1, max_length=512, description="Guard image; the operator's default if absent."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None, description="Pull policy of the guard image."
    )
    resources: Resources = Field(
        default_factory=Resources,
        description="Resources of the guard container; the operator's default if absent.",
    )
    placement: Literal["Sidecar", "Pod"] = Field(
        "Sidecar",
        description="Where the guard runs: as a native sidecar of the rank-0 pod, or in a pod of its own, "
        "with its own node and GPU. Pod needs checkpoints on a claim with ReadWriteMany, and is needed for "
        "hostNetwork and for the evaluator vllm.",
    )
    pod: GuardPod | None = Field(None, description="The guard's own pod, with placement Pod.")
    isolation: Isolation = Field(
        Isolation.STRICT,
        description="Strict refuses what docs/reference/isolation.md lists. Relaxed admits everything; the "
        "condition Isolated then lists what the pods have of it.",
    )
    max_lag: Annotated[int, Field(ge=0)] | Literal["off"] | None = Field(
        None,
        json_schema_extra={"x-kubernetes-int-or-string": True},
        description="Checkpoints that may be unscored while the trainer goes on; 1 if absent. With off it "
        "never waits for its guard, and a fire may come late.",
    )
    port: int = Field(
        8470,
        ge=1024,
        le=65535,
        description="Port of the guard, over TLS. Change it where the template uses it.",
    )
    heldout: Heldout = Field(
        description="The held-out split, which the trainer cannot read, and how the policy is scored on it."
    )
    checkpoints: Checkpoints = Field(
        description="Where the checkpoints are: in a volume of the template, or in a claim that a target "
        "mounts."
    )
    metrics: Feed | None = Field(
        None,
        description="What the guard itself reads of a trainer that does not report: its log and its "
        "checkpoints, in the checkpoint volume. The trainer then gets neither the guard's address nor its "
        "token.",
    )
    state: GuardState = Field(
        default_factory=GuardState, description="Where the guard keeps what it knows of the run."
    )
    policy: ApiPolicy = Field(
        default_factory=Policy,
        description="All thresholds of the guard.",
        json_schema_extra={CAMEL_CHOICES: True},
    )

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.state.claim_name is not None and self.state.claim_name == self.heldout.volume.claim_name:
            raise ValueError(
                "state.claimName must not be the claim of the held-out split, which is mounted read-only"
            )
        if self.state.keep_best and self.state.claim_name is None:
            raise ValueError(
                "state.keepBest needs state.claimName: without a claim the copy would go with the pod"
            )
        if self.placement != "Pod" and self.heldout.evaluator.vllm is not None:
            raise ValueError(VLLM_NEEDS_POD)
        return self

    @property
    def own_pod(self) -> GuardPod | None:
        """What is said of the guard's own pod; None: it has none."""
        return (self.pod or GuardPod()) if self.placement == "Pod" else None


#: What a guard needs that stands beside a workload which nobody prepared for it.
NEEDED_BY_TARGET = (
    "targetRef needs guard.placement: Pod, guard.metrics (the log that the guard follows) and "
    "guard.checkpoints.claimName: nothing is put into the pods of a workload that exists"
)
CLAIM_OF_TARGET = "guard.checkpoints.claimName is for targetRef: name a volume of the template"
RESUMED_BY_TEMPLATE = "resumedFrom needs a template: nobody tells a workload that exists where to start"


class OnFire(StrEnum):
    """What follows a fire."""

    STOP = "Stop"
    REPORT = "Report"


class OnSilence(ApiModel):
    """What to do when the guard itself cannot be heard."""

    # Twice the longest wait of a kubelet before it starts a container again (5 minutes): a guard that is only
    # being restarted is not silent. And it stops: a warning is no guard for a run whose guard is gone.
    after_seconds: int = Field(
        600,
        ge=30,
        le=86400,
        description="Seconds for which the guard of a running rank 0 is not heard before GuardSilent holds.",
    )
    action: Literal["Warn", "Stop"] = Field("Stop", description="Whether that only warns or stops the run.")


#: Control characters, ends of lines, and what no program prints: kubectl could not show the object again.
_UNPRINTABLE = r"\x00-\x1f\x7f-\x9f\x{2028}\x{2029}\x{feff}\x{fffe}\x{ffff}"


class ResumedFrom(ApiModel):
    """The run from whose checkpoint this one starts."""

    name: ObjectName = Field(description="Job whose checkpoint it is, in the same namespace.")
    uid: str | None = Field(
        None,
        min_length=1,
        max_length=63,
        description="Its UID: jobs that follow each other may have one name.",
    )
    step: int | None = Field(None, ge=0, description="Training step of the checkpoint, in that run.")
    checkpoint: str = Field(
        min_length=2,
        max_length=4096,
        pattern=rf"^/[^/{_UNPRINTABLE}][^{_UNPRINTABLE}]*$",
        description="Directory of the checkpoint as the trainer sees it, in the checkpoint volume. The "
        "containers that train get it as RLGUARD_RESUME_FROM, and as RLGUARD_RUN a name of their own.",
    )
    sha256: str | None = Field(
        None, pattern="^[0-9a-f]{64}$", description="Digest of the weights that were scored there."
    )


def _same(*paths: str) -> str:
    """CEL: none of these fields differs from what it was."""
    both = [(f"self.{path}", f"oldSelf.{path}") for path in paths]
    return " && ".join(f"has({a}) == has({b}) && (!has({a}) || {a} == {b})" for a, b in both)


def _same_guard() -> str:
    """CEL: `spec.guard` is what it was.

    Not `self.guard == oldSelf.guard`: an API server of 1.32 finds two objects different that have null in the
    same field, and then refuses every status of such a job. By itself a field that is null counts as absent.
    """
    with_null: dict[str, type[BaseModel]] = {
        "guard": GuardSpec,
        "guard.heldout": Heldout,
        "guard.policy": Policy,
        "guard.policy.kl": KlPolicy,
    }
    fields = [f"{path}.{to_camel(name)}" for path, model in with_null.items() for name in model.model_fields]
    return _same(*(path for path in fields if path not in with_null))


GraceSeconds = Annotated[int, Field(ge=1, le=3600)]


class Spec(ApiModel):
    """What is wanted: a workload, and a guard over it."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.template) != has(self.targetRef)",
                "exactly one of template and targetRef must be set",
            ),
            (
                "!has(self.targetRef) || (self.guard.placement == 'Pod' && has(self.guard.metrics) && "
                "has(self.guard.checkpoints.claimName))",
                NEEDED_BY_TARGET,
            ),
            ("has(self.targetRef) || !has(self.guard.checkpoints.claimName)", CLAIM_OF_TARGET),
            ("!has(self.targetRef) || !has(self.resumedFrom)", RESUMED_BY_TEMPLATE),
            (
                _same("targetRef"),
                "spec.targetRef is immutable: another workload is guarded by a new GuardedTrainingJob",
            ),
            (
                _same("template"),
                "spec.template is immutable: a changed workload is a new GuardedTrainingJob. Delete this one "
                "first, or give the new one another name",
            ),
            (
                _same_guard(),
                "spec.guard is immutable: a changed guard is a new GuardedTrainingJob. Delete this one "
                "first, or give the new one another name",
            ),
            (
                _same("resumedFrom"),
                "spec.resumedFrom is immutable: a run begins once. Give a new job another name",
            ),
        )
    )

    template: WorkloadTemplate | None = Field(
        None,
        description="The workload to run, verbatim: apiVersion, kind, metadata and, unchecked here, the spec "
        "that its own API takes. Immutable.",
    )
    target_ref: TargetRef | None = Field(
        None,
        description="In place of template: a workload that exists, or will, and that this job does not own. "
        "It is guarded as it is, by a guard in a pod of its own that follows its log. If the guard fires, "
        "the workload is deleted, and deleted again if somebody recreates it. Immutable.",
    )
    guard: GuardSpec = Field(description="The guard over it. Immutable.")
    resumed_from: ResumedFrom | None = Field(
        None,
        description="Where this run starts, if it goes on from a checkpoint of another one; "
        "`rlguard resume` writes it. Immutable.",
    )
    on_fire: OnFire = Field(
        OnFire.STOP,
        description="Stop deletes the workload and all of its pods. Report says that the guard fired, in the "
        "status, in an Event and in the metrics, and deletes nothing: a trainer that asks the guard still "
        "stops by itself, and a halt still stops the run.",
    )
    keep_evidence: bool = Field(
        False,
        description="Whether the ConfigMap with the evidence stays when the job is deleted. Somebody must "
        "delete it then. What is set here when the evidence is written counts, at the fire or at the end of "
        "the run; set later, it changes nothing.",
    )
    stop_grace_seconds: GraceSeconds = Field(
        30,
        description="Longest that a pod may take to end once the run is to stop, seconds. A pod whose "
        "terminationGracePeriodSeconds is longer is deleted with this one before its workload is; a shorter "
        "one stays. If something else, such as a node drain, began deleting the pod before the fire, the pod "
        "keeps its full grace period.",
    )
    on_silence: OnSilence = Field(
        default_factory=OnSilence, description="What to do when the guard itself stops reporting."
    )

    @model_validator(mode="before")
    @classmethod
    def _can_be_read(cls, given: Any) -> Any:
        """What nests deeper may be cut already (`runtime/decoding.py`), and would be made as it is here."""
        if depth_of(given, MAX_NESTED) > MAX_NESTED:
            raise ValueError(
                f"more than {MAX_NESTED} objects and lists are in one another, and no kind of workload has "
                "so many: write it flatter"
            )
        return given

    @model_validator(mode="after")
    def _one_workload(self) -> Self:
        if (self.template is None) == (self.target_ref is None):
            raise ValueError("exactly one of template and targetRef must be set")
        return self

    @property
    def workload(self) -> WorkloadTemplate | TargetRef:
        """What says of which kind the workload is."""
        return self.made_from if self.target_ref is None else self.target_ref

    @property
    def made_from(self) -> WorkloadTemplate:
        """The template of a workload that the operator makes: nobody asks for that of a target."""
        assert self.template is not None
        return self.template


# -- status ----------------------------------------------------------------------------------------------

Text = Annotated[str, Field(max_length=4096)]


class Latched(StatusModel):
    """Why the guard says that the run must stop. Written once."""

    code: str = Field(max_length=63, description="The rule or condition, as in the guard's verdict.")
    reason: Text = Field(description="A sentence with the numbers.")
    attempt: int = Field(description="Attempt in which it happened.")
    step: int = Field(description="Training step at which it happened.")
    at: Timestamp = Field(description="When the guard latched it, or first said so here.")


class EndedStatus(StatusModel):
    """The trainer said that it had finished its training."""

    attempt: int = Field(description="Attempt that finished.")
    step: int = Field(description="Its last training step.")


class SamplingStatus(StatusModel):
    """How the completions of an evaluation were sampled."""

    temperature: float = Field(description="Temperature; 0 is greedy.")
    top_p: float | None = Field(None, description="Nucleus, where there is one.")
    top_k: int | None = Field(None, description="The likeliest tokens, where they are limited.")
    min_p: float | None = Field(None, description="Least share of the likeliest token's probability.")
    repetition_penalty: float | None = Field(None, description="Penalty of repetitions, where there is one.")
    max_new_tokens: int = Field(description="Longest completion, tokens.")
    stop: list[str] | None = Field(None, max_length=16, description="Texts that end a completion.")
    samples: int = Field(description="Completions of each item.")
    source: str = Field(max_length=63, description="trainer, settings or default: who says so.")


class EvaluationStatus(StatusModel):
    """One held-out evaluation: means only, never per-item scores."""

    attempt: int = Field(description="Attempt of the checkpoint.")
    step: int = Field(description="Step of the checkpoint.")
    score: float = Field(description="Mean score over the held-out split, in [0, 1].")
    items: int = Field(description="How many held-out items were scored.")
    truncated: float | None = Field(
        None, description="Share of completions that were cut off at the length limit, in [0, 1]."
    )
    unanswered: float | None = Field(
        None,
        description="Share of completions without an answer, of those whose answer begins after a mark, in "
        "[0, 1].",
    )
    timed_out: float | None = Field(
        None,
        description="Share of completions that count as wrong because a scorer, or the training grader, did "
        "not end within its limit, in [0, 1].",
    )
    proxy_score: float | None = Field(
        None, description="Mean score of the same completions by the training grader."
    )
    path: str = Field(max_length=4096, description="Directory of the checkpoint.")
    sha256: str | None = Field(None, max_length=64, description="Digest of the scored weights.")
    sampling: SamplingStatus | None = Field(None, description="How the completions were sampled.")


class GuardStatus(StatusModel):
    """What the guard says, as the operator read it when something of it had changed."""

    read_at: Timestamp | None = Field(None, description="When this was read.")
    level: str | None = Field(None, max_length=63, description="healthy, unknown, warning or fired.")
    code: str | None = Field(None, max_length=63, description="The most severe condition's code.")
    reason: Text | None = Field(None, description="The most severe condition in words.")
    advice: list[Annotated[str, Field(max_length=63)]] | None = Field(
        None,
        max_length=32,
        description="Codes of what is only advice, such as port_taken; nothing acts on them.",
    )
    advice_reason: Text | None = Field(None, description="The advice in words: a sentence for each code.")
    fire: Latched | None = Field(
        None, description="The latch. Once set, the API server refuses to change or remove it."
    )
    halt: Latched | None = Field(
        None,
        description="The latch that is not a fire: a condition whose action is Stop held. "
        "It stays beside a later fire.",
    )
    ended: EndedStatus | None = Field(
        None, description="Set when the trainer said that it had finished, and has reported nothing since."
    )
    attempt: int | None = Field(None, description="Newest attempt seen.")
    step: int | None = Field(None, description="Newest training step seen.")
    steps: int | None = Field(None, description="Steps acknowledged over all attempts.")
    rounds: int | None = Field(None, description="Evaluation rounds folded.")
    announced: int | None = Field(None, description="Checkpoints that were announced.")
    evaluated: int | None = Field(None, description="Of these, evaluated on the held-out split.")
    failed: int | None = Field(None, description="Of these, given up because their evaluation failed.")
    skipped: int | None = Field(None, description="Of these, gone before their turn, or passed over.")
    refused: int | None = Field(
        None,
        description="Beside these, refused when they were announced, and not taken later.",
    )
    waiting: int | None = Field(
        None,
        description="Evaluations that are yet to be made: the other checkpoints, and a wanted second pass.",
    )
    steps_since_evaluation: int | None = Field(
        None,
        description="Steps after the last evaluated checkpoint: those that were reported, and those that the "
        "trainer says at its end it made beyond them.",
    )
    longest_round: int | None = Field(
        None, description="Most steps that belonged to one evaluated checkpoint: as many may follow the last."
    )
    in_loop_ema: float | None = Field(None, description="EMA of the in-loop reward, reward units.")
    heldout_ema: float | None = Field(None, description="EMA of the held-out score.")
    kl_ema: float | None = Field(None, description="EMA of the KL to the reference, nats/token.")
    proxy_real_gap: float | None = Field(None, description="The Hacking Gap, reward units.")
    last_evaluation: EvaluationStatus | None = Field(None, description="The newest evaluation.")
    last_evaluation_time: Timestamp | None = Field(None, description="When it finished.")
    best_checkpoint: EvaluationStatus | None = Field(
        None, description="Highest held-out score so far: the last good checkpoint."
    )


class WorkloadRef(StatusModel):
    """The workload that was created for this job, or to which it is attached."""

    api_version: str = Field(max_length=253, description="Its API version.")
    kind: str = Field(max_length=63, description="Its kind.")
    name: str = Field(max_length=253, description="Its name.")
    uid: str = Field(max_length=63, description="Its UID; a namesake with another UID is not ours.")


class PodRef(StatusModel):
    """A pod that was seen."""

    name: str = Field(max_length=253, description="Its name.")
    uid: str = Field(max_length=63, description="Its UID, by which it is deleted.")


#: More pods are not noted of one run.
MAX_NOTED_PODS = 1024


class StopStatus(StatusModel):
    """The teardown."""

    requested_at: Timestamp = Field(
        description="When the workload was first told to go; of one that is recreated, when that was seen."
    )
    pods: list[PodRef] = Field(
        default_factory=list,
        max_length=MAX_NOTED_PODS,
        description="Pods of the run that were seen and are not gone yet, whoever changed their labels or "
        "owners since.",
    )
    stopped_at: Timestamp | None = Field(
        None, description="When Stopped first became True. It stays, even if a pod comes back."
    )


class ConditionStatus(StatusModel):
    """A standard Kubernetes condition."""

    type: str = Field(max_length=63, description="See the table of condition types.")
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    reason: str = Field(max_length=63, description="See the table of reasons.")
    message: str = Field("", max_length=32768, description="A sentence for people.")
    observed_generation: int | None = Field(None, description="The generation it was computed from.")
    last_transition_time: Timestamp = Field(
        description="When `status` last changed, or a queue let a run go that waits on."
    )


class Phase(StrEnum):
    """A summary of the conditions for people and printer columns; programs read the conditions."""

    PENDING = "Pending"
    REFUSED = "Refused"
    SUSPENDED = "Suspended"
    STARTING = "Starting"
    RUNNING = "Running"
    JUDGING = "Judging"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DISRUPTED = "Disrupted"


class Status(StatusModel):
    """What was observed."""

    observed_generation: int | None = Field(None, description="Generation that the operator last acted on.")
    phase: Phase | None = Field(None, description="A summary of the conditions.")
    conditions: list[ConditionStatus] = Field(
        default_factory=list,
        max_length=32,
        description="One meaning each.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    guard: GuardStatus | None = Field(None, description="What the guard says.")
    workload_ref: WorkloadRef | None = Field(
        None, description="The workload that was created, or to which the job is attached."
    )
    stop: StopStatus | None = Field(None, description="The teardown, once there is one.")
    evidence: str | None = Field(
        None, max_length=253, description="ConfigMap with the evidence of a run that is over or is stopped."
    )


def latch_rule(name: str) -> tuple[str, str]:
    """Forbid any change of a latch in `status.guard`.

    For the root of the schema: dropping `status.guard` or all of `status` must not get round it.
    """
    there = "has({0}.status) && has({0}.status.guard) && has({0}.status.guard." + name + ")"
    return (
        f"!({there.format('oldSelf')}) || "
        f"({there.format('self')} && self.status.guard.{name} == oldSelf.status.guard.{name})",
        f"status.guard.{name} is latched: it can be neither changed nor removed",
    )


class GuardedTrainingJob(ApiModel):
    """A training job under guard: it is stopped when its policy hacks the reward."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            latch_rule("fire"),
            latch_rule("halt"),
            (
                f"self.metadata.name.size() <= {MAX_JOB_NAME} && "
                f"self.metadata.name.matches('{JOB_NAME_PATTERN}')",
                JOB_NAME_RULE,
            ),
        )
    )

    spec: Spec = Field(description="The workload to run, and the guard over it.")
    status: Status | None = Field(None, description="What the operator and the guard have observed.")
