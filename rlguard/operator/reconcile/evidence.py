"""The evidence of a run that is over: a ConfigMap of bounded size, and the threads that collect it.

The job owns it, unless `spec.keepEvidence` says that it stays without the job.

It holds the verdict, the job's conditions, by which it ended, the evaluation rounds, the policy of the run,
the last good checkpoint, what the model wrote, the ends of the logs of the trainer and of the guard, and a
part of the steps, which takes the room that all else leaves; `rlguard report` turns it into a page. It is
written once; a later attempt finds it and leaves it. It is collected beside the reconciles: a log that cannot
be had delays no stop, and what goes wrong here is no error of a reconcile.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

from rlguard.core.thinning import fewer_lines, size
from rlguard.operator.api import names
from rlguard.operator.reconcile import layout
from rlguard.operator.reconcile.owned import owner_reference
from rlguard.operator.reconcile.snapshot import Job, Pod, Snapshot, guard_of
from rlguard.operator.reconcile.support import policy_file
from rlguard.operator.runtime.background import Background
from rlguard.operator.runtime.client import CONFIG_MAPS, Client, Json
from rlguard.operator.runtime.errors import ApiError, ClusterError, TransportError

THREADS = 16
#: How long one log may take, seconds: a busy node answers late.
LOG_SECONDS = 8.0

#: Bytes kept of each log. With everything else bounded by the schema, the object stays below 256 KiB; the
#: steps have what is left of `EVIDENCE_BYTES`.
LOG_BYTES = 64 * 1024
HISTORY_BYTES, ROLLOUTS_BYTES = 8 * 1024, 16 * 1024
#: Bytes kept of the message of one condition.
CONDITION_BYTES = 1024
EVIDENCE_BYTES = 248 * 1024


def evidence_name(job: Job) -> str:
    """Name of the ConfigMap."""
    return f"{names.support_name(job.name, job.uid)}-evidence"


def build_evidence(job: Job, told: Mapping[str, str], logs: Mapping[str, str], now: datetime) -> Json:
    """The ConfigMap.

    Args:
        job: the job that is being stopped, or has ended, with the conditions that say so.
        told: what its guard told for the evidence, by file name; empty where it did not.
        logs: log tails by file name.
        now: when it was collected, UTC.
    """
    guard = guard_of(job)
    best, verdict = guard.best_checkpoint, guard.to_json(exclude={"best_checkpoint"})
    data = {
        "collected-at": now.isoformat(timespec="milliseconds"),
        "verdict.json": json.dumps(verdict, indent=2, ensure_ascii=False),
        "conditions.json": _conditions(job),
        "history.jsonl": _tail(told.get("history.jsonl", ""), HISTORY_BYTES),
        layout.POLICY_KEY: policy_file(job.spec.guard.policy),
        "last-good-checkpoint.json": json.dumps(best and best.to_json(), indent=2, ensure_ascii=False),
        **({"rollouts.json": rollouts} if (rollouts := _whole(told.get("rollouts.json", ""))) else {}),
        **{name: _tail(text, LOG_BYTES) for name, text in logs.items()},
    }
    steps = fewer_lines(told.get("steps.jsonl", ""), EVIDENCE_BYTES - size(*data.values()))
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


def _conditions(job: Job) -> str:
    """How the run ended, which no verdict says, and what else was said of it then."""
    conditions = [
        {"type": one.type, "status": one.status, "reason": one.reason, "message": _head(one.message)}
        for one in job.status.conditions
    ]
    return json.dumps(conditions, indent=2, ensure_ascii=False)


def _whole(text: str) -> str:
    """This file, unless it is larger than any guard's: half of it would be no JSON."""
    return text if len(text.encode("utf-8", "replace")) <= ROLLOUTS_BYTES else ""


def _head(message: str) -> str:
    return message.encode("utf-8", "replace")[:CONDITION_BYTES].decode("utf-8", "ignore")


def _tail(text: str, limit: int) -> str:
    """The last `limit` bytes as text."""
    return text.encode("utf-8", "replace")[-limit:].decode("utf-8", "ignore")


class EvidenceCollector:
    """See the module.

    Args:
        client: of the API server.
        told: gives what the guard of a run, by UID, told for the evidence.
        collected: called with (namespace, name) of a job whose evidence was written.
    """

    def __init__(
        self,
        client: Client,
        told: Callable[[str], Mapping[str, str]],
        collected: Callable[[tuple[str, str]], None],
    ) -> None:
        self._client = client
        self._told = told
        self._collected = collected
        self._lock = threading.Lock()
        self._under_way: set[str] = set()
        self._written: dict[str, str] = {}  # by UID of the job, until it is asked for
        self._background = Background("evidence", THREADS)

    def collect(self, snapshot: Snapshot, final: bool) -> str | None:
        """Name of the evidence once it is written; until then it is collected, if it is not already."""
        uid = snapshot.job.uid
        with self._lock:
            if (name := self._written.pop(uid, None)) is not None:
                return name
            if uid not in self._under_way:
                self._under_way.add(uid)
                what = f"{snapshot.job.namespace}/{snapshot.job.name}: evidence"
                self._background.add(what, partial(self._collect, snapshot, final))
        return None

    def _collect(self, snapshot: Snapshot, final: bool) -> None:
        job, name = snapshot.job, None
        try:
            name = self._write(snapshot, final)
        finally:
            with self._lock:
                self._under_way.discard(job.uid)
                if name is not None:
                    self._written[job.uid] = name
        if name is not None:
            self._collected((job.namespace, job.name))

    def _write(self, snapshot: Snapshot, final: bool) -> str | None:
        """Write it once; its name, or None if the trainer's log cannot be had now and may be had later."""
        job, logs = snapshot.job, self._logs(snapshot)
        if isinstance(logs["trainer.log"], ClusterError) and not final:
            return None
        said = {
            name: f"not available: {text}" if isinstance(text, ClusterError) else text
            for name, text in logs.items()
        }
        body = build_evidence(job, self._told(job.uid), said, datetime.now(UTC))
        try:
            self._client.create(CONFIG_MAPS, job.namespace, body, names.OPERATOR_MANAGER)
        except ApiError as error:
            if error.status != 409:
                raise
        return evidence_name(job)

    def _logs(self, snapshot: Snapshot) -> dict[str, str | ClusterError]:
        """Ends of the logs of trainer and guard, or why one cannot be read now."""
        guarded = _newest([pod for pod in snapshot.pods if pod.guarded])
        if guarded is None or not snapshot.trainer:
            gone = TransportError("no pod is there, or which of its containers trains is not known")
            return {"trainer.log": gone, "guard.log": gone}
        trains = _newest([pod for pod in snapshot.pods if pod.rank0]) or guarded
        return {
            "trainer.log": self._log(snapshot.job.namespace, trains.name, snapshot.trainer),
            "guard.log": self._log(snapshot.job.namespace, guarded.name, names.GUARD_CONTAINER),
        }

    def _log(self, namespace: str, pod: str, container: str) -> str | ClusterError:
        try:
            return self._client.log_tail(namespace, pod, container, LOG_BYTES, LOG_SECONDS)
        except ClusterError as error:
            return error


def _newest(pods: Sequence[Pod]) -> Pod | None:
    """Of those that have run, if any has: one that replaces a stopped pod may never come so far."""
    ran = [pod for pod in pods if pod.phase != "Pending"]
    return next(reversed(ran or pods), None)
