"""Condition types and reasons of a `GuardedTrainingJob`. They are API: never rename one, only add.

Each condition type has one meaning; its status is True, False or Unknown, and its reason says why.
`docs/reference/guardedtrainingjob.md` is generated from this file.
"""

from __future__ import annotations

from enum import StrEnum

from rlguard.core.codes import Code


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
    ConditionType.GUARDED: "The workload exists and has its guard.",
    ConditionType.ISOLATED: "The trainer cannot reach the held-out data, the guard's state or its token.",
    ConditionType.FIRED: "A rule of the guard fired; the reason says what it found. It stays True.",
    ConditionType.HALTED: "The run must stop although no rule fired: an action says so. It stays True.",
    ConditionType.STOPPED: "The operator deleted the run: neither the workload nor a pod of it is left.",
    ConditionType.GUARD_SILENT: "The guard could not be heard for longer than `spec.onSilence.afterSeconds`.",
    ConditionType.WAITING: "A pod of the run, or its guard, cannot start, a queue holds the run back, or the "
    "workload to be guarded is not there.",
    ConditionType.SUCCEEDED: "The trainer finished by itself; the reason says whether all of it was judged.",
    ConditionType.FAILED: "The trainer failed by itself; not counted as a fire.",
    ConditionType.DISRUPTED: "The infrastructure or a person ended the run; not counted as a fire.",
}


class Reason(StrEnum):
    """Stable CamelCase reasons of conditions and Events."""

    # Guarded
    WORKLOAD_CREATED = "WorkloadCreated"
    WORKLOAD_ATTACHED = "WorkloadAttached"
    CLAIM_OWNED = "ClaimOwned"
    WORKLOAD_PENDING = "WorkloadPending"
    INVALID_SPEC = "InvalidSpec"
    UNSUPPORTED_KIND = "UnsupportedKind"
    TEMPLATE_REFUSED = "TemplateRefused"
    WORKLOAD_REFUSED = "WorkloadRefused"
    GUARD_REFUSED = "GuardRefused"
    TARGET_REFUSED = "TargetRefused"
    CLAIM_MISSING = "ClaimMissing"
    NAME_TAKEN = "NameTaken"
    GUARD_MISSING = "GuardMissing"
    GUARD_UNREACHABLE = "GuardUnreachable"
    # Isolated
    STRICT_ISOLATION = "StrictIsolation"
    RELAXED_ISOLATION = "RelaxedIsolation"
    ATTACHED = "Attached"
    GUARD_DATA_EXPOSED = "GuardDataExposed"
    # Fired: one reason for each rule of the guard
    NO_VERDICT_YET = "NoVerdictYet"
    NOT_FIRED = "NotFired"
    KL_HARD_STOP = "KlHardStop"
    HELDOUT_DECLINE = "HeldoutDecline"
    HACKING_GAP = "HackingGap"
    FELL_BELOW_START = "FellBelowStart"
    FELL_BELOW_REACHED = "FellBelowReached"
    REWARD_WITHOUT_GAIN = "RewardWithoutGain"
    GRADERS_DISAGREE = "GradersDisagree"
    OTHER_RULE = "OtherRule"
    # Halted and GuardSilent
    GUARD_HALT = "GuardHalt"
    PAST_UNKNOWN = "PastUnknown"
    GUARD_SILENT = "GuardSilent"
    MOST_SILENT = "MostGuardsSilent"
    GUARD_NOT_READY = "GuardNotReady"
    GUARD_REPORTS = "GuardReports"
    GUARD_NOT_RUNNING = "GuardNotRunning"
    KIND_UNREAD = "KindUnread"
    # Waiting
    UNSCHEDULABLE = "Unschedulable"
    CONTAINER_WAITING = "ContainerWaiting"
    VOLUME_UNAVAILABLE = "VolumeUnavailable"
    PODS_MISSING = "PodsMissing"
    GUARD_CRASHED = "GuardCrashed"
    QUEUED = "Queued"
    TARGET_MISSING = "TargetMissing"
    # Stopped: how far the teardown is
    STOP_REQUESTED = "StopRequested"
    PODS_TERMINATING = "PodsTerminating"
    STOP_BLOCKED = "StopBlocked"
    TARGET_RECREATED = "TargetRecreated"
    NO_PODS_LEFT = "NoPodsLeft"
    # Succeeded, Failed, Disrupted
    WORKLOAD_SUCCEEDED = "WorkloadSucceeded"
    CHECKPOINTS_LEFT = "CheckpointsLeft"
    NOT_JUDGED = "NotJudged"
    FINISHED_WITH_WARNING = "FinishedWithWarning"
    GUARD_JUDGES = "GuardJudges"
    WORKLOAD_FAILED = "WorkloadFailed"
    EVICTED = "Evicted"
    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    WORKLOAD_DELETED = "WorkloadDeleted"
    # Events only
    EVIDENCE_CAPTURED = "EvidenceCaptured"
    RESUMED = "Resumed"

    @property
    def meaning(self) -> str:
        """One sentence for the reference."""
        return _REASONS[self]


_REASONS = {
    Reason.WORKLOAD_CREATED: "The workload was created with the guard in its rank-0 pod.",
    Reason.WORKLOAD_ATTACHED: "The workload that `targetRef` names has a guard, in a pod of its own.",
    Reason.CLAIM_OWNED: "The same, and the workload owns the claim with the checkpoints, so a fire deletes "
    "it, too. The message names it.",
    Reason.WORKLOAD_PENDING: "The workload is about to be created, or is not there yet.",
    Reason.INVALID_SPEC: "The spec does not validate; the message names the field. A run that another "
    "version of the operator created goes on, and only its guard stops it.",
    Reason.UNSUPPORTED_KIND: "The operator cannot guard a workload of this apiVersion and kind. A run that "
    "was created before goes on, and only its guard stops it.",
    Reason.TEMPLATE_REFUSED: "The template would break the guard's isolation; the message names the field.",
    Reason.WORKLOAD_REFUSED: "The API server refused the workload, in a dry run or when it was to be "
    "made; the message is its own.",
    Reason.GUARD_REFUSED: "The API server refused what the guard needs beside the workload, such as its "
    "StatefulSet or a Secret; the message names it and is the server's own.",
    Reason.TARGET_REFUSED: "What `targetRef` names cannot be guarded as it is; the message says why.",
    Reason.CLAIM_MISSING: "A PersistentVolumeClaim that the guard needs does not exist.",
    Reason.NAME_TAKEN: "A workload of this name exists and belongs to someone else.",
    Reason.GUARD_MISSING: "Rank 0 runs in a pod without its guard; the message names it. It counts as a "
    "silent guard from its start.",
    Reason.GUARD_UNREACHABLE: "The kubelet calls the guard ready, but the operator cannot reach it: the "
    "network between them is at fault, such as a NetworkPolicy. The message says where. It stops no run.",
    Reason.STRICT_ISOLATION: "The pods break no row of the isolation table.",
    Reason.RELAXED_ISOLATION: "`isolation: Relaxed` admits everything; the message lists the broken rows.",
    Reason.ATTACHED: "The workload was made by others, who check its pods; the message says what is not "
    "protected.",
    Reason.GUARD_DATA_EXPOSED: "The same, and a pod of the workload has what only the guard may have; the "
    "message names it. If that is the held-out split, it is held out no more.",
    Reason.NO_VERDICT_YET: "The guard was not heard yet.",
    Reason.NOT_FIRED: "The guard is heard and has not fired.",
    Reason.OTHER_RULE: "A rule fired that this version of the operator does not know by name.",
    Reason.GUARD_HALT: "A condition in the guard whose action is `Stop` held.",
    Reason.PAST_UNKNOWN: "Nobody knows how the run was judged before this guard: the one before it "
    "left no last word, and was not heard until it ended. It counts as a silent guard.",
    Reason.GUARD_SILENT: "The guard was not heard for longer than the limit.",
    Reason.MOST_SILENT: "The same, and more than half of all guards cannot be reached: the fault is the "
    "operator's or the network's, and no run is stopped for it.",
    Reason.GUARD_NOT_READY: "Rank 0 waited for a guard in a pod of its own for as long as `pod.readySeconds` "
    "says, and made no step. For Waiting: with `onSilence.action: Warn` it waits once more.",
    Reason.GUARD_REPORTS: "The guard is heard.",
    Reason.GUARD_NOT_RUNNING: "No guard runs that was heard, so there is no verdict now; the message has "
    "the last one. For GuardSilent: the rank-0 pod is not running, so nothing is expected of its guard.",
    Reason.KIND_UNREAD: "What the run is made of cannot be listed or watched, so nobody knows whether its "
    "guard is silent, or how it ended; the message names it. What latches is acted on.",
    Reason.UNSCHEDULABLE: "No node takes a pod; the message is the scheduler's.",
    Reason.CONTAINER_WAITING: "A container cannot be started; the message is the kubelet's.",
    Reason.VOLUME_UNAVAILABLE: "A volume cannot be mounted; the message is the kubelet's and names "
    "what is missing.",
    Reason.PODS_MISSING: "A pod of the workload was not made; the message is its controller's: a quota, an "
    "admission policy, or no controller at all.",
    Reason.GUARD_CRASHED: "The guard ended and is not up again; the message has its last words.",
    Reason.QUEUED: "The run waits in a queue; the message names it, with the queue's own reason.",
    Reason.TARGET_MISSING: "There is no workload of the kind and name that `targetRef` names, or it has made "
    "nothing yet that has pods.",
    Reason.STOP_REQUESTED: "The workload is being deleted.",
    Reason.PODS_TERMINATING: "The workload or pods of the run are left; they are deleted until none is.",
    Reason.STOP_BLOCKED: "Something keeps the workload or a pod: a webhook, a finalizer, a dead node, or an "
    "API server that cannot be read. The message has its own words. Meanwhile the pods are deleted as they "
    "come.",
    Reason.TARGET_RECREATED: "Somebody recreated the workload that `targetRef` names, after the fire: it is "
    "deleted again. The message names the field manager.",
    Reason.NO_PODS_LEFT: "The workload is gone, and every pod of the run.",
    Reason.WORKLOAD_SUCCEEDED: "The workload reports success, and all of it was judged and found healthy.",
    Reason.CHECKPOINTS_LEFT: "The same, but evaluations were left waiting: of the last checkpoints, or the "
    "second one that would have confirmed an alarm.",
    Reason.NOT_JUDGED: "The same, but checkpoints were not evaluated, or the guard's last verdict is "
    "unknown; the message says what to set.",
    Reason.FINISHED_WITH_WARNING: "The workload reports success, and all of it was judged, but the guard's "
    "last verdict is a warning; the message says of what.",
    Reason.GUARD_JUDGES: "The trainer has finished, and its guard, in a pod of its own, judges what it left.",
    Reason.WORKLOAD_FAILED: "The workload reports failure.",
    Reason.EVICTED: "A pod was evicted.",
    Reason.PREEMPTED: "A pod was preempted by the scheduler.",
    Reason.NODE_LOST: "A pod was lost with its node.",
    Reason.WORKLOAD_DELETED: "Someone deleted the workload.",
    Reason.EVIDENCE_CAPTURED: "The evidence ConfigMap was written.",
    Reason.RESUMED: "The run starts from a checkpoint of another one; both jobs are told.",
}

#: What the codes of the guard's verdict that can fire are called in a condition.
FIRE_REASONS = {
    Code.KL_HARD_STOP.value: Reason.KL_HARD_STOP,
    Code.HELDOUT_DECLINE.value: Reason.HELDOUT_DECLINE,
    Code.HACKING_GAP.value: Reason.HACKING_GAP,
    Code.FELL_BELOW_START.value: Reason.FELL_BELOW_START,
    Code.FELL_BELOW_REACHED.value: Reason.FELL_BELOW_REACHED,
    Code.REWARD_WITHOUT_GAIN.value: Reason.REWARD_WITHOUT_GAIN,
    Code.GRADERS_DISAGREE.value: Reason.GRADERS_DISAGREE,
}
_REASONS |= {reason: Code(code).meaning for code, reason in FIRE_REASONS.items()}
