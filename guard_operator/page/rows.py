"""What the page shows of a job, from the job as it is cached. Pure; every value may be missing.

Texts are handed on as they are, cut to a length: whoever shows them shows text and never markup.
"""

from __future__ import annotations

import re
from typing import Any

from guard_operator.api.reasons import ConditionType, Reason
from guard_operator.api.types import Phase
from guard_operator.reconcile.slim import TREND
from guard_operator.runtime.client import Json

#: Characters of a text in a row; the details have `DETAIL_TEXT`.
ROW_TEXT = 240
DETAIL_TEXT = 4096

#: Conditions that, when they are True, say more of a run than its last verdict; the first that holds counts.
_TELLING = (
    ConditionType.FIRED,
    ConditionType.HALTED,
    ConditionType.DISRUPTED,
    ConditionType.FAILED,
    ConditionType.GUARD_SILENT,
    ConditionType.WAITING,
    ConditionType.SUCCEEDED,
)
_STATES = {ConditionType.FIRED: "fired", ConditionType.HALTED: "halted"}
#: What a ConfigMap may be called. The page shows the name in a command to paste, so nothing else passes.
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LEVELS = frozenset({"healthy", "warning", "unknown", "fired"})


def row(raw: Json) -> Json:
    """One job in the list: some 500 bytes."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    guard = status.get("guard") or {}
    state, sentence = verdict_of_now(status)
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "created": metadata.get("creationTimestamp"),
        "phase": status.get("phase") or Phase.PENDING,
        "state": state,
        "verdict": sentence[:ROW_TEXT],
        "heartbeat": guard.get("heartbeat"),
        "step": guard.get("step"),
        "reward": guard.get("inLoopEma"),
        "heldout": guard.get("heldoutEma"),
        "trend": guard.get(TREND) or [],
        "evidence": _name(status.get("evidence")),
    }


def details(raw: Json) -> Json:
    """One job with what stands behind its row: conditions, counts, the last good checkpoint."""
    status = raw.get("status") or {}
    guard = status.get("guard") or {}
    best = guard.get("bestCheckpoint")
    return row(raw) | {
        "conditions": [
            {key: str(one.get(key, ""))[:DETAIL_TEXT] for key in ("type", "status", "reason", "message")}
            for one in status.get("conditions") or []
        ],
        "checkpoints": {
            key: guard.get(key) for key in ("announced", "evaluated", "failed", "skipped", "waiting")
        },
        "best": best and {key: best.get(key) for key in ("step", "score", "path", "sha256")},
        "gap": guard.get("proxyRealGap"),
        "kl": guard.get("klEma"),
    }


def verdict_of_now(status: Json) -> tuple[str, str]:
    """The state of a run and the sentence for it. Without a guard that reports there is no verdict now.

    `rlguard status` says the same.
    """
    guard = status.get("guard") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or []}
    for kind in _TELLING:
        one = conditions.get(kind, {})
        if one.get("status") == "True":
            well = kind is ConditionType.SUCCEEDED and one.get("reason") == Reason.WORKLOAD_SUCCEEDED
            return _STATES.get(kind, "healthy" if well else "unknown"), _message(one)
    guarded, fired = (conditions.get(kind, {}) for kind in (ConditionType.GUARDED, ConditionType.FIRED))
    if guarded.get("status") == "False" and guarded.get("reason") != Reason.WORKLOAD_PENDING:
        return "unknown", _message(guarded)
    if fired.get("status") == "False":
        level = guard.get("level")
        return level if level in _LEVELS else "unknown", str(guard.get("reason") or _message(fired))
    return "unknown", _message(fired) or "the operator has not looked at it yet"


def _name(evidence: str | None) -> str | None:
    return evidence if evidence and _OBJECT_NAME.fullmatch(evidence) else None


def _message(condition: dict[str, Any]) -> str:
    return str(condition.get("message") or condition.get("reason") or "")
