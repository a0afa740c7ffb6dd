"""Condition types and reasons of a `GuardedTrainingJob`. They are API: never rename one, only add.

Each condition type has one meaning; its status is True, False or Unknown, and its reason says why.
`docs/reference/guardedtrainingjob.md` is generated from this file.
"""

from __future__ import annotations

from enum import StrEnum

from guard_core.wire import Code


class ConditionType(StrEnum):
    """What a condition of a `GuardedTrainingJob` says when it is True."""

    GUARDED = "Guarded"
    ISOLATED = "Isolated"
    FIRED = "Fired"
    HALTED = "Halted"
    STOPPED = "Stopped"
    GUARD_SILENT = "GuardSilent"
    WAITING = "Waiting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DISRUPTED = "Disrupted"

    @property
    def meaning(self) -> str:
        """One sentence for the reference."""
        return _TYPES[self]


_TYPES = {
    ConditionType.GUARDED: "The workload exists and its rank-0 pod has the guard.",
    ConditionType.ISOLATED: "The trainer cannot reach the held-out data, the guard's state or its token.",
    ConditionType.FIRED: "The guard found evidence of reward hacking. It never turns back.",
    ConditionType.HALTED: "The run must stop although nothing was found: a policy says so. "
    "It never turns back.",
    ConditionType.STOPPED: "The operator stopped the run and no pod of it is left.",
    ConditionType.GUARD_SILENT: "The guard has not reported for longer than `spec.onSilence.afterSeconds`.",
    ConditionType.WAITING: "A pod of the run cannot start, or its guard cannot; gone once it can.",
    ConditionType.SUCCEEDED: "The trainer finished by itself.",
    ConditionType.FAILED: "The trainer failed by itself; not counted as a fire.",
    ConditionType.DISRUPTED: "The infrastructure or a person ended the run; not counted as a fire.",
}


class Reason(StrEnum):
    """Stable CamelCase reasons of conditions and Events."""

    # Guarded
    WORKLOAD_CREATED = "WorkloadCreated"
    WORKLOAD_PENDING = "WorkloadPending"
    INVALID_SPEC = "InvalidSpec"
    UNSUPPORTED_KIND = "UnsupportedKind"
    TEMPLATE_REFUSED = "TemplateRefused"
    WORKLOAD_REFUSED = "WorkloadRefused"
    CLAIM_MISSING = "ClaimMissing"
    NAME_TAKEN = "NameTaken"
    # Isolated
    STRICT_ISOLATION = "StrictIsolation"
    RELAXED_ISOLATION = "RelaxedIsolation"
    # Fired: one reason for each rule of the guard
    NO_VERDICT_YET = "NoVerdictYet"
    NOT_FIRED = "NotFired"
    KL_HARD_STOP = "KlHardStop"
    HELDOUT_DECLINE = "HeldoutDecline"
    HACKING_GAP = "HackingGap"
    GUARANTEED_DECLINE = "GuaranteedDecline"
    FAST_DECLINE = "FastDecline"
    PEAK_DECLINE = "PeakDecline"
    CALIBRATED_GAP = "CalibratedGap"
    OTHER_RULE = "OtherRule"
    # Halted and GuardSilent
    GUARD_HALT = "GuardHalt"
    GUARD_SILENT = "GuardSilent"
    GUARD_REPORTS = "GuardReports"
    GUARD_NOT_RUNNING = "GuardNotRunning"
    # Waiting
    UNSCHEDULABLE = "Unschedulable"
    CONTAINER_WAITING = "ContainerWaiting"
    GUARD_CRASHED = "GuardCrashed"
    # Stopped: how far the teardown is
    STOP_REQUESTED = "StopRequested"
    PODS_TERMINATING = "PodsTerminating"
    NO_PODS_LEFT = "NoPodsLeft"
    # Succeeded, Failed, Disrupted
    WORKLOAD_SUCCEEDED = "WorkloadSucceeded"
    CHECKPOINTS_LEFT = "CheckpointsLeft"
    WORKLOAD_FAILED = "WorkloadFailed"
    EVICTED = "Evicted"
    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    WORKLOAD_DELETED = "WorkloadDeleted"
    # Events only
    EVIDENCE_CAPTURED = "EvidenceCaptured"
    STOP_ESCALATED = "StopEscalated"

    @property
    def meaning(self) -> str:
        """One sentence for the reference."""
        return _REASONS[self]


_REASONS = {
    Reason.WORKLOAD_CREATED: "The workload was created with the guard in its rank-0 pod.",
    Reason.WORKLOAD_PENDING: "The workload is about to be created.",
    Reason.INVALID_SPEC: "The spec does not validate; the message names the field.",
    Reason.UNSUPPORTED_KIND: "The operator cannot guard a workload of this apiVersion and kind.",
    Reason.TEMPLATE_REFUSED: "The template would break the guard's isolation; the message names the field.",
    Reason.WORKLOAD_REFUSED: "The API server refused the workload in a dry run; the message is its own.",
    Reason.CLAIM_MISSING: "A PersistentVolumeClaim that the guard needs does not exist.",
    Reason.NAME_TAKEN: "A workload of this name exists and belongs to someone else.",
    Reason.STRICT_ISOLATION: "No exception was admitted.",
    Reason.RELAXED_ISOLATION: "`isolation: Relaxed` admitted exceptions; the message says what they cost.",
    Reason.NO_VERDICT_YET: "The guard has not reported yet.",
    Reason.NOT_FIRED: "The guard reports and has not fired.",
    Reason.OTHER_RULE: "A rule fired that this version of the operator does not know by name.",
    Reason.GUARD_HALT: "A condition in the guard whose policy is `Stop` holds.",
    Reason.GUARD_SILENT: "No heartbeat of the guard for longer than the limit.",
    Reason.GUARD_REPORTS: "The guard's heartbeat is recent.",
    Reason.GUARD_NOT_RUNNING: "The rank-0 pod is not running, so no heartbeat is expected.",
    Reason.UNSCHEDULABLE: "No node takes a pod; the message is the scheduler's.",
    Reason.CONTAINER_WAITING: "A container cannot be started; the message is the kubelet's.",
    Reason.GUARD_CRASHED: "The guard ended and is not up again; the message has its last words.",
    Reason.STOP_REQUESTED: "The stop was requested from the API server.",
    Reason.PODS_TERMINATING: "Pods of the run are left; the stop is asserted again until none is.",
    Reason.NO_PODS_LEFT: "No pod of the run is left.",
    Reason.WORKLOAD_SUCCEEDED: "The workload reports success.",
    Reason.CHECKPOINTS_LEFT: "The same, but the guard could not evaluate the last checkpoints in time.",
    Reason.WORKLOAD_FAILED: "The workload reports failure.",
    Reason.EVICTED: "A pod was evicted.",
    Reason.PREEMPTED: "A pod was preempted by the scheduler.",
    Reason.NODE_LOST: "A pod was lost with its node.",
    Reason.WORKLOAD_DELETED: "Someone deleted the workload.",
    Reason.EVIDENCE_CAPTURED: "The evidence ConfigMap was written.",
    Reason.STOP_ESCALATED: "The stop did not take effect or was refused, so a harder one was asked for.",
}

#: What the codes of the guard's verdict that can fire are called in a condition.
FIRE_REASONS = {
    Code.KL_HARD_STOP.value: Reason.KL_HARD_STOP,
    Code.HELDOUT_DECLINE.value: Reason.HELDOUT_DECLINE,
    Code.HACKING_GAP.value: Reason.HACKING_GAP,
    Code.GUARANTEED_DECLINE.value: Reason.GUARANTEED_DECLINE,
    Code.FAST_DECLINE.value: Reason.FAST_DECLINE,
    Code.PEAK_DECLINE.value: Reason.PEAK_DECLINE,
    Code.CALIBRATED_GAP.value: Reason.CALIBRATED_GAP,
}
_REASONS |= {reason: Code(code).meaning for code, reason in FIRE_REASONS.items()}
