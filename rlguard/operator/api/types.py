"""`GuardedTrainingJob`, typed once. The CRD, its copy in the chart and the reference page come from here."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from rlguard.core.policy import KlPolicy, Policy
from rlguard.operator.api.guard import GuardSpec, Heldout
from rlguard.operator.api.models import UNDECLARED, ApiModel, ModelRule, ObjectName, RuledModel
from rlguard.operator.api.names import JOB_NAME_PATTERN, JOB_NAME_RULE, MAX_JOB_NAME
from rlguard.operator.api.status import Status
from rlguard.operator.runtime.decoding import depth_of

#: How many objects and lists of a spec may be in one another; a pod template has about fifteen.
MAX_NESTED = 100


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
        description="Kind of the workload, such as RayJob: see docs/reference/kinds.md.",
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
        description="Its kind, such as RayCluster: see docs/reference/kinds.md.",
    )
    name: str = Field(
        min_length=1,
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        description="Its name, by which its pods are found: as long as a label may be.",
    )


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


class Spec(RuledModel):
    """What is wanted: a workload, and a guard over it."""

    rules = (
        ModelRule(
            "has(self.template) != has(self.targetRef)",
            "exactly one of template and targetRef must be set",
            lambda of: (of.template is None) != (of.target_ref is None),
        ),
        ModelRule(
            "!has(self.targetRef) || (self.guard.placement == 'Pod' && has(self.guard.metrics) && "
            "has(self.guard.checkpoints.claimName))",
            "targetRef needs guard.placement: Pod, guard.metrics (the log that the guard follows) and "
            "guard.checkpoints.claimName: nothing is put into the pods of a workload that exists",
            lambda of: (
                of.target_ref is None
                or (of.guard.own_pod and of.guard.metrics and of.guard.checkpoints.claim_name)
            ),
        ),
        ModelRule(
            "has(self.targetRef) || !has(self.guard.checkpoints.claimName)",
            "guard.checkpoints.claimName is for targetRef: name a volume of the template",
            lambda of: of.target_ref is not None or of.guard.checkpoints.claim_name is None,
        ),
        ModelRule(
            "!has(self.targetRef) || !has(self.resumedFrom)",
            "resumedFrom needs a template: nobody tells a workload that exists where to start",
            lambda of: of.target_ref is None or of.resumed_from is None,
        ),
        ModelRule(
            _same("targetRef"),
            "spec.targetRef is immutable: another workload is guarded by a new GuardedTrainingJob",
        ),
        ModelRule(
            _same("template"),
            "spec.template is immutable: a changed workload is a new GuardedTrainingJob. Delete this one "
            "first, or give the new one another name",
        ),
        ModelRule(
            _same_guard(),
            "spec.guard is immutable: a changed guard is a new GuardedTrainingJob. Delete this one first, or "
            "give the new one another name",
        ),
        ModelRule(
            _same("resumedFrom"),
            "spec.resumedFrom is immutable: a run begins once. Give a new job another name",
        ),
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

    @property
    def workload(self) -> WorkloadTemplate | TargetRef:
        """What says of which kind the workload is."""
        return self.made_from if self.target_ref is None else self.target_ref

    @property
    def made_from(self) -> WorkloadTemplate:
        """The template of a workload that the operator makes: nobody asks for that of a target."""
        assert self.template is not None
        return self.template


def latch_rule(name: str) -> ModelRule:
    """Forbid any change of a latch in `status.guard`.

    For the root of the schema: dropping `status.guard` or all of `status` must not get round it.
    """
    there = "has({0}.status) && has({0}.status.guard) && has({0}.status.guard." + name + ")"
    return ModelRule(
        f"!({there.format('oldSelf')}) || "
        f"({there.format('self')} && self.status.guard.{name} == oldSelf.status.guard.{name})",
        f"status.guard.{name} is latched: it can be neither changed nor removed",
    )


class GuardedTrainingJob(RuledModel):
    """A training job under guard: it is stopped when its policy hacks the reward."""

    rules = (
        latch_rule("fire"),
        latch_rule("halt"),
        ModelRule(
            f"self.metadata.name.size() <= {MAX_JOB_NAME} && "
            f"self.metadata.name.matches('{JOB_NAME_PATTERN}')",
            JOB_NAME_RULE,
        ),
    )

    spec: Spec = Field(description="The workload to run, and the guard over it.")
    status: Status | None = Field(None, description="What the operator and the guard have observed.")
