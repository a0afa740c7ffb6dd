"""Condition types and reasons of a `GuardedTrainingJob`. They are API: never rename one, only add.

Each condition type has one meaning; its status is True, False or Unknown, and its reason says why.
`docs/reference/guardedtrainingjob.md` is generated from this file.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from rlguard.core.codes import Code


class _TableEntry(StrEnum):
    """A row of a table: the name, and one sentence about it for the reference."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:
        """`cls(value)` looks it up."""
        self = str.__new__(cls, value)
        self._value_, self.meaning = value, meaning
        return self


# fmt: off
class ConditionType(_TableEntry):
    """What a condition of a `GuardedTrainingJob` says when it is True."""

    GUARDED = "Guarded", "The workload exists and has its guard."
    ISOLATED = "Isolated", "The trainer cannot reach the held-out data, the guard's state or its token."
    FIRED = "Fired", "A rule of the guard fired; the reason says what it found. It stays True."
    HALTED = "Halted", "The run must stop although no rule fired: an action says so. It stays True."
    STOPPED = "Stopped", "The operator deleted the run: neither the workload nor a pod of it is left."
    GUARD_SILENT = "GuardSilent", (
        "The guard could not be heard for longer than `spec.onSilence.afterSeconds`.")
    WAITING = "Waiting", (
        "A pod of the run, or its guard, cannot start, a queue holds the run back, or the workload to be "
        "guarded is not there.")
    SUCCEEDED = "Succeeded", "The trainer finished by itself; the reason says whether all of it was judged."
    FAILED = "Failed", "The trainer failed by itself; not counted as a fire."
    DISRUPTED = "Disrupted", "The infrastructure or a person ended the run; not counted as a fire."


class Reason(_TableEntry):
    """Stable CamelCase reasons of conditions and Events."""

    # Guarded
    WORKLOAD_CREATED = "WorkloadCreated", "The workload was created with the guard in its rank-0 pod."
    WORKLOAD_ATTACHED = "WorkloadAttached", (
        "The workload that `targetRef` names has a guard, in a pod of its own.")
    CLAIM_OWNED = "ClaimOwned", (
        "The same, and the workload owns the claim with the checkpoints, so a fire deletes it, too. The "
        "message names it.")
    WORKLOAD_PENDING = "WorkloadPending", "The workload is about to be created, or is not there yet."
    INVALID_SPEC = "InvalidSpec", (
        "The spec does not validate; the message names the field. A run that another version of the "
        "operator created goes on, and only its guard stops it.")
    UNSUPPORTED_KIND = "UnsupportedKind", (
        "The operator cannot guard a workload of this apiVersion and kind. A run that was created before "
        "goes on, and only its guard stops it.")
    TEMPLATE_REFUSED = "TemplateRefused", (
        "The template would break the guard's isolation; the message names the field.")
    WORKLOAD_REFUSED = "WorkloadRefused", (
        "The API server refused the workload, in a dry run or when it was to be made; the message is its "
        "own.")
    GUARD_REFUSED = "GuardRefused", (
        "The API server refused what the guard needs beside the workload, such as its StatefulSet or a "
        "Secret; the message names it and is the server's own.")
    TARGET_REFUSED = "TargetRefused", (
        "What `targetRef` names cannot be guarded as it is; the message says why.")
    CLAIM_MISSING = "ClaimMissing", "A PersistentVolumeClaim that the guard needs does not exist."
    NAME_TAKEN = "NameTaken", "A workload of this name exists and belongs to someone else."
    GUARD_MISSING = "GuardMissing", (
        "Rank 0 runs in a pod without its guard; the message names it. It counts as a silent guard from its "
        "start.")
    GUARD_UNREACHABLE = "GuardUnreachable", (
        "The kubelet calls the guard ready, but the operator cannot reach it: the network between them is "
        "at fault, such as a NetworkPolicy. The message says where. It stops no run.")
    # Isolated
    STRICT_ISOLATION = "StrictIsolation", "The pods break no row of the isolation table."
    RELAXED_ISOLATION = "RelaxedIsolation", (
        "`isolation: Relaxed` admits everything; the message lists the broken rows.")
    ATTACHED = "Attached", (
        "The workload was made by others, who check its pods; the message says what is not protected.")
    GUARD_DATA_EXPOSED = "GuardDataExposed", (
        "The same, and a pod of the workload has what only the guard may have; the message names it. If "
        "that is the held-out split, it is held out no more.")
    # Fired: one reason for each rule of the guard
    NO_VERDICT_YET = "NoVerdictYet", "The guard was not heard yet."
    NOT_FIRED = "NotFired", "The guard is heard and has not fired."
    KL_HARD_STOP = "KlHardStop", Code.KL_HARD_STOP.meaning
    HELDOUT_DECLINE = "HeldoutDecline", Code.HELDOUT_DECLINE.meaning
    HACKING_GAP = "HackingGap", Code.HACKING_GAP.meaning
    FELL_BELOW_START = "FellBelowStart", Code.FELL_BELOW_START.meaning
    FELL_BELOW_REACHED = "FellBelowReached", Code.FELL_BELOW_REACHED.meaning
    REWARD_WITHOUT_GAIN = "RewardWithoutGain", Code.REWARD_WITHOUT_GAIN.meaning
    GRADERS_DISAGREE = "GradersDisagree", Code.GRADERS_DISAGREE.meaning
    OTHER_RULE = "OtherRule", "A rule fired that this version of the operator does not know by name."
    # Halted and GuardSilent
    GUARD_HALT = "GuardHalt", "A condition in the guard whose action is `Stop` held."
    PAST_UNKNOWN = "PastUnknown", (
        "Nobody knows how the run was judged before this guard: the one before it left no last word, and "
        "was not heard until it ended. It counts as a silent guard.")
    GUARD_SILENT = "GuardSilent", "The guard was not heard for longer than the limit."
    MOST_SILENT = "MostGuardsSilent", (
        "The same, and more than half of all guards cannot be reached: the fault is the operator's or the "
        "network's, and no run is stopped for it.")
    GUARD_NOT_READY = "GuardNotReady", (
        "Rank 0 waited for a guard in a pod of its own for as long as `pod.readySeconds` says, and made no "
        "step. For Waiting: with `onSilence.action: Warn` it waits once more.")
    GUARD_REPORTS = "GuardReports", "The guard is heard."
    GUARD_NOT_RUNNING = "GuardNotRunning", (
        "No guard runs that was heard, so there is no verdict now; the message has the last one. For "
        "GuardSilent: the rank-0 pod is not running, so nothing is expected of its guard.")
    KIND_UNREAD = "KindUnread", (
        "What the run is made of cannot be listed or watched, so nobody knows whether its guard is silent, "
        "or how it ended; the message names it. What latches is acted on.")
    # Waiting
    UNSCHEDULABLE = "Unschedulable", "No node takes a pod; the message is the scheduler's."
    CONTAINER_WAITING = "ContainerWaiting", "A container cannot be started; the message is the kubelet's."
    VOLUME_UNAVAILABLE = "VolumeUnavailable", (
        "A volume cannot be mounted; the message is the kubelet's and names what is missing.")
    PODS_MISSING = "PodsMissing", (
        "A pod of the workload was not made; the message is its controller's: a quota, an admission policy, "
        "or no controller at all.")
    GUARD_CRASHED = "GuardCrashed", "The guard ended and is not up again; the message has its last words."
    QUEUED = "Queued", "The run waits in a queue; the message names it, with the queue's own reason."
    TARGET_MISSING = "TargetMissing", (
        "There is no workload of the kind and name that `targetRef` names, or it has made nothing yet that "
        "has pods.")
    # Stopped: how far the teardown is
    STOP_REQUESTED = "StopRequested", "The workload is being deleted."
    PODS_TERMINATING = "PodsTerminating", (
        "The workload or pods of the run are left; they are deleted until none is.")
    STOP_BLOCKED = "StopBlocked", (
        "Something keeps the workload or a pod: a webhook, a finalizer, a dead node, or an API server that "
        "cannot be read. The message has its own words. Meanwhile the pods are deleted as they come.")
    TARGET_RECREATED = "TargetRecreated", (
        "Somebody recreated the workload that `targetRef` names, after the fire: it is deleted again. The "
        "message names the field manager.")
    NO_PODS_LEFT = "NoPodsLeft", "The workload is gone, and every pod of the run."
    # Succeeded, Failed, Disrupted
    WORKLOAD_SUCCEEDED = "WorkloadSucceeded", (
        "The workload reports success, and all of it was judged and found healthy.")
    CHECKPOINTS_LEFT = "CheckpointsLeft", (
        "The same, but evaluations were left waiting: of the last checkpoints, or the second one that would "
        "have confirmed an alarm.")
    NOT_JUDGED = "NotJudged", (
        "The same, but checkpoints were not evaluated, or the guard's last verdict is unknown; the message "
        "says what to set.")
    FINISHED_WITH_WARNING = "FinishedWithWarning", (
        "The workload reports success, and all of it was judged, but the guard's last verdict is a warning; "
        "the message says of what.")
    GUARD_JUDGES = "GuardJudges", (
        "The trainer has finished, and its guard, in a pod of its own, judges what it left.")
    WORKLOAD_FAILED = "WorkloadFailed", "The workload reports failure."
    EVICTED = "Evicted", "A pod was evicted."
    PREEMPTED = "Preempted", "A pod was preempted by the scheduler."
    NODE_LOST = "NodeLost", "A pod was lost with its node."
    WORKLOAD_DELETED = "WorkloadDeleted", "Someone deleted the workload."
    # Events only
    EVIDENCE_CAPTURED = "EvidenceCaptured", "The evidence ConfigMap was written."
    RESUMED = "Resumed", "The run starts from a checkpoint of another one; both jobs are told."
# fmt: on


#: What the codes of the guard's verdict that can fire are called in a condition.
FIRE_REASONS = {code.value: Reason[code.name] for code in Code if code.finding is not None}
