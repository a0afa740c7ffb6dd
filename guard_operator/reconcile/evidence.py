"""What is kept of a run that is over: a ConfigMap of bounded size. Pure.

The job owns it, unless `spec.keepEvidence` says that it stays without the job.

It holds the verdict, the job's conditions, by which it ended, the evaluation rounds of the status, the policy
of the run, the last good checkpoint, what the model wrote, the ends of the logs of the trainer and of the
guard, and a part of the steps, which takes the room that all else leaves; `rlguard report` turns it into a
page. The object is written once; a later attempt finds it and leaves it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from guard_core.policy import Policy
from guard_core.thinning import fewer_lines, size
from guard_operator.api import names
from guard_operator.api.types import ApiModel, GuardStatus, StatusModel
from guard_operator.reconcile import layout
from guard_operator.reconcile.inject import policy_file
from guard_operator.reconcile.owned import owner_reference
from guard_operator.reconcile.snapshot import Job, guard_of
from guard_operator.runtime.client import CONFIG_MAPS, Json

#: Bytes kept of each log. With everything else bounded by the schema, the object stays below 256 KiB; the
#: steps have what is left of `EVIDENCE_BYTES`.
LOG_BYTES = 64 * 1024
HISTORY_BYTES = 32 * 1024
#: Bytes kept of the message of one condition.
CONDITION_BYTES = 1024
EVIDENCE_BYTES = 248 * 1024


def evidence_name(job: Job) -> str:
    """Name of the ConfigMap."""
    return f"{names.support_name(job.name, job.uid)}-evidence"


def build_evidence(job: Job, policy: Policy | None, logs: Mapping[str, str], now: datetime) -> Json:
    """The ConfigMap.

    Args:
        job: the job that is being stopped, or has ended, with the conditions that say so.
        policy: that of the run; None if it is not known.
        logs: log tails by file name.
        now: when it was collected, UTC.
    """
    guard = guard_of(job)
    apart = {"detector_state", "history_tail", "best_checkpoint", "rollouts", "kept_steps"}
    verdict = _json(guard, exclude=apart)
    rounds = "\n".join(json.dumps(_json(one)) for one in guard.history_tail)
    data = {
        "collected-at": now.isoformat(timespec="milliseconds"),
        "verdict.json": json.dumps(verdict, indent=2, ensure_ascii=False),
        "conditions.json": _conditions(job),
        "history.jsonl": _tail(rounds, HISTORY_BYTES),
        **({} if policy is None else {layout.POLICY_KEY: policy_file(policy)}),
        "last-good-checkpoint.json": json.dumps(_json(guard.best_checkpoint), indent=2, ensure_ascii=False),
        **({"rollouts.json": _rollouts(guard)} if guard.rollouts else {}),
        **{name: _tail(text, LOG_BYTES) for name, text in logs.items()},
    }
    steps = fewer_lines(guard.kept_steps or "", EVIDENCE_BYTES - size(*data.values()))
    data |= {"steps.jsonl": steps} if steps else {}
    metadata = {
        "name": evidence_name(job),
        "namespace": job.namespace,
        "labels": {names.JOB_LABEL: job.name},
        **({} if job.spec.keep_evidence else {"ownerReferences": [owner_reference(job)]}),
    }
    return {
        "apiVersion": CONFIG_MAPS.api_version,
        "kind": CONFIG_MAPS.kind,
        "metadata": metadata,
        "data": data,
    }


def _json(model: ApiModel | StatusModel | None, exclude: set[str] | None = None) -> Any:
    if model is None:
        return None
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=exclude)


def _conditions(job: Job) -> str:
    """How the run ended, which no verdict says, and what else was said of it then."""
    conditions = [
        {"type": one.type, "status": one.status, "reason": one.reason, "message": _head(one.message)}
        for one in job.status.conditions
    ]
    return json.dumps(conditions, indent=2, ensure_ascii=False)


def _rollouts(guard: GuardStatus) -> str:
    """What the policy wrote, for people: as JSON, so that no text of it can look like another field."""
    return json.dumps([_json(one) for one in guard.rollouts], indent=2, ensure_ascii=False)


def _head(message: str) -> str:
    return message.encode("utf-8", "replace")[:CONDITION_BYTES].decode("utf-8", "ignore")


def _tail(text: str, limit: int) -> str:
    """The last `limit` bytes as text."""
    return text.encode("utf-8", "replace")[-limit:].decode("utf-8", "ignore")
