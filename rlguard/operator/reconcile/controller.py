"""One reconcile of one job: gather, decide, actuate. The queue calls it, and again after every error."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from pydantic import ValidationError

from rlguard.operator.api.reasons import ConditionType, Reason
from rlguard.operator.api.status import MAX_NOTED_PODS, Phase
from rlguard.operator.guards.adoption import latches_of
from rlguard.operator.guards.polls import GuardPolls, PolledGuard
from rlguard.operator.reconcile.actuate import FIGURES_TIME, Actuator
from rlguard.operator.reconcile.conditions import (
    as_it_is,
    new_condition,
    with_conditions,
)
from rlguard.operator.reconcile.decide import decide
from rlguard.operator.reconcile.gather import Gatherer, UnsupportedKindError
from rlguard.operator.reconcile.owned import host_of
from rlguard.operator.reconcile.parse import invalid_spec, parse_job, read_status
from rlguard.operator.reconcile.snapshot import (
    NOTHING_REMEMBERED,
    Decision,
    Job,
    Remembered,
    Snapshot,
    Unsaid,
    guard_of,
)
from rlguard.operator.runtime.client import Json

log = logging.getLogger(__name__)

FIGURES_SECONDS = FIGURES_TIME.total_seconds()


class Controller:
    """See the module."""

    def __init__(self, gatherer: Gatherer, actuator: Actuator, guards: GuardPolls) -> None:
        self._gatherer = gatherer
        self._actuator = actuator
        self._runs: dict[str, Remembered] = {}  # by UID
        self._guards = guards

    def reconcile(self, raw: Json, unread: Sequence[str] = ()) -> float | None:
        """Act on the job as it is cached.

        Args:
            raw: the job.
            unread: kinds by which it is decided and that cannot be read now.

        Returns:
            In how many seconds to look again at the latest; None: on the next event.

        Raises:
            ClusterError: something did not work for now.
        """
        try:
            job = parse_job(raw, self._guards.reading(raw["metadata"]["uid"]))
            snapshot = self._gatherer.gather(job, self._remembered(job), unread)
        except ValidationError as error:
            self._refuse(raw, Reason.INVALID_SPEC, invalid_spec(error))
            return None
        except UnsupportedKindError as error:
            self._refuse(raw, Reason.UNSUPPORTED_KIND, str(error))
            return None
        if snapshot is None:
            return None
        if not unread:
            self._follow(snapshot)
        decision = decide(snapshot, datetime.now(UTC))
        if decision.actions:
            log.info("%s/%s: %s: %s", job.namespace, job.name, decision.report.phase, decision.actions)
        self._act(snapshot, decision)
        if snapshot.job.unsaid is Unsaid.NOTHING:
            return decision.look_again
        return min(decision.look_again or FIGURES_SECONDS, FIGURES_SECONDS)

    def _follow(self, snapshot: Snapshot) -> None:
        """Have the guard of this run asked, wherever it runs now.

        One that is not found any more is asked for as long as it can be reached: its pod may have lost its
        labels or its owner.
        """
        uid, reading = snapshot.job.uid, self._guards.reading(snapshot.job.uid)
        if (guard := guard_to_ask(snapshot)) is not None:
            self._guards.follow(guard)
        elif reading is not None and reading.unreached_since is not None:
            self._guards.leave(uid)

    def _remembered(self, job: Job) -> Remembered:
        """What is remembered of this run, with the pods that its status notes."""
        known = self._runs.get(job.uid, NOTHING_REMEMBERED)
        noted = job.status.stop.pods if job.status.stop is not None else []
        pods = {uid: name for name, uid in known.pods} | {pod.uid: pod.name for pod in noted}
        return replace(known, pods=tuple((name, uid) for uid, name in pods.items()))

    def forget(self, job_uid: str) -> None:
        """The job is gone."""
        self._runs.pop(job_uid, None)

    def _act(self, snapshot: Snapshot, decision: Decision) -> None:
        """Carry it out, and remember what was seen, decided and refused: the next look goes on from there.

        A run is stopped only when every pod that was ever seen is gone, also one that lost its labels and its
        owner. And whoever may write a job or its status must not hold up its stop.
        """
        pods = {pod.uid: pod.name for pod in snapshot.pods}
        if not snapshot.live:
            pods = {uid: name for name, uid in snapshot.known.pods} | pods
        seen = tuple((name, uid) for uid, name in pods.items())[-MAX_NOTED_PODS:]
        stop = decision.report.stop if decision.report.phase is Phase.STOPPING else None
        outcome = self._actuator.actuate(snapshot, decision)
        self._runs[snapshot.job.uid] = Remembered(seen, stop, outcome.refusal)
        if outcome.trouble is not None:
            raise outcome.trouble

    def _refuse(self, raw: Json, reason: Reason, message: str) -> None:
        """Say why this operator does nothing for a job. What runs stays running."""
        metadata = raw["metadata"]
        log.warning("%s/%s: %s: %s", metadata["namespace"], metadata["name"], reason, message)
        with suppress(ValidationError):  # of the status: then nothing can be written beside it
            status = read_status(raw)
            of = metadata.get("generation")
            guarded = new_condition(
                status, of, datetime.now(UTC), ConditionType.GUARDED, "False", reason, message
            )
            report = with_conditions(as_it_is(status), guarded)
            if status.workload_ref is None:
                report = replace(report, phase=Phase.REFUSED)
            if "deletionTimestamp" not in metadata:
                self._actuator.write_status(raw, status, report)


def guard_to_ask(snapshot: Snapshot) -> PolledGuard | None:
    """The guard that runs, in the newest pod that has one; None: none does, or it may not be asked yet."""
    job, guards = snapshot.job, [pod for pod in snapshot.pods if pod.guarded]
    running = [pod for pod in guards if pod.address]
    if not running or snapshot.not_admitted:
        return None
    pod, said = running[-1], guard_of(job)
    return PolledGuard(
        job=(job.namespace, job.name),
        uid=job.uid,
        pod=pod.uid,
        pod_name=pod.name,
        address=pod.address,
        port=job.spec.guard.port,
        host=host_of(job),
        latches=tuple(latches_of(said.fire, said.halt)),
        words={one.uid: one.last_word for one in guards if one.last_word is not None},
        heard=said.level is not None,
    )
