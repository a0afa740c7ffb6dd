"""`spec.guard`: the guard of a run, its held-out split, its pod and its policy."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic.alias_generators import to_camel, to_pascal, to_snake

from rlguard.core.evaluation import HfEvaluation, Scoring, VllmEvaluation
from rlguard.core.feed import Feed
from rlguard.core.policy import Policy
from rlguard.operator.api.models import (
    CAMEL_CHOICES,
    ApiModel,
    InVolume,
    ModelRule,
    ObjectName,
    Quantity,
    RuledModel,
)


def _policy_from_api(value: Any) -> Any:
    """Camel case to what `rlguard.core.policy.Policy` reads: keys, and strings, which are all choices."""
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


class HeldoutVolume(RuledModel):
    """Where the held-out split lies. Mounted read-only, in the guard alone."""

    rules = (
        ModelRule(
            "[has(self.claimName), has(self.secretName), has(self.configMapName)].exists_one(x, x)",
            "exactly one of claimName, secretName and configMapName must be set",
            lambda of: [of.claim_name, of.secret_name, of.config_map_name].count(None) == 2,
        ),
    )

    claim_name: ObjectName | None = Field(None, description="A PersistentVolumeClaim in the job's namespace.")
    secret_name: ObjectName | None = Field(None, description="A Secret in the job's namespace.")
    config_map_name: ObjectName | None = Field(None, description="A ConfigMap in the job's namespace.")


class EvaluatorModel(RuledModel):
    """What all evaluators have beside the settings of `rlguard.core.evaluation`: their rule, for CEL."""

    rules = (
        ModelRule(  # in Python that of `rlguard.core.evaluation`
            "self.samples == 1 || !has(self.temperature) || self.temperature > 0.0",
            "samples above 1 need a temperature above 0: greedy completions are all the same",
        ),
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


class EvaluatorSpec(RuledModel):
    """What turns a checkpoint into completions. Exactly one."""

    rules = (
        ModelRule(
            "has(self.hf) != has(self.vllm)",
            "exactly one evaluator must be set: hf or vllm",
            lambda of: (of.hf is None) != (of.vllm is None),
        ),
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
        return next(one.timeout_seconds for one in (self.hf, self.vllm) if one is not None)


class Heldout(RuledModel, Scoring):
    """The held-out split and how it is scored."""

    rules = (
        ModelRule(
            "self.onScorerTimeout != 'wrong' || has(self.scorerTimeoutSeconds)",
            "onScorerTimeout: wrong without a limit means nothing: set scorerTimeoutSeconds, too",
        ),
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


class Checkpoints(RuledModel):
    """Where the checkpoints are: in a volume of the template, or in a claim that a target mounts."""

    rules = (
        ModelRule(
            "has(self.volume) != has(self.claimName)",
            "exactly one of volume and claimName must be set",
            lambda of: (of.volume is None) != (of.claim_name is None),
        ),
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


class GuardSpec(RuledModel):
    """The guard: image, held-out split, thresholds. Immutable: a changed guard is a new run."""

    rules = (
        ModelRule(
            "!has(self.state) || !has(self.state.claimName) || !has(self.heldout.volume.claimName) || "
            "self.state.claimName != self.heldout.volume.claimName",
            "state.claimName must not be the claim of the held-out split, which is mounted read-only",
            lambda of: of.state.claim_name is None or of.state.claim_name != of.heldout.volume.claim_name,
        ),
        ModelRule(
            "!has(self.state) || !self.state.keepBest || has(self.state.claimName)",
            "state.keepBest needs state.claimName: without a claim the copy would go with the pod",
            lambda of: not of.state.keep_best or of.state.claim_name is not None,
        ),
        ModelRule(
            "self.placement == 'Pod' || !has(self.pod)",
            "pod means nothing without placement: Pod",
            lambda of: of.placement == "Pod" or of.pod is None,
        ),
        ModelRule(  # containers of a pod share the loopback interface
            "self.placement == 'Pod' || !has(self.heldout.evaluator.vllm)",
            "the evaluator vllm needs placement: Pod: it opens local sockets, which other containers of the "
            "guard's pod could reach",
            lambda of: of.placement == "Pod" or of.heldout.evaluator.vllm is None,
        ),
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

    @property
    def own_pod(self) -> GuardPod | None:
        """What is said of the guard's own pod; None: it has none."""
        return (self.pod or GuardPod()) if self.placement == "Pod" else None
