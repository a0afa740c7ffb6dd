"""One reconcile of one job: gather, decide, actuate. The queue calls it, and again after every error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from pydantic import ValidationError

from guard_operator.adapters import find_adapter
from guard_operator.api.reasons import ConditionType, Reason
from guard_operator.api.types import ConditionStatus, GuardStatus, Phase, Status
from guard_operator.api.wording import invalid_spec
from guard_operator.guards.polls import GuardPolls
from guard_operator.reconcile.actuate import FIGURES_TIME, Actuator, Unwritten
from guard_operator.reconcile.conditions import (
    Conditions,
    as_it_is,
    last_verdict,
    new_condition,
    with_conditions,
)
from guard_operator.reconcile.decide import decide, decide_latched
from guard_operator.reconcile.decision import Decision
from guard_operator.reconcile.gather import Gatherer, UnsupportedKindError
from guard_operator.reconcile.memory import RunMemory
from guard_operator.reconcile.parse import parse_job, read_status
from guard_operator.reconcile.snapshot import OVER, Snapshot, Unsaid, condition_of, is_true
from guard_operator.reconcile.whom_to_ask import guard_to_ask
from guard_operator.runtime.client import Json

log = logging.getLogger(__name__)

FIGURES_SECONDS = FIGURES_TIME.total_seconds()


class Controller:
    """See the module. `clock` gives the time in UTC."""

    def __init__(
        self,
        gatherer: Gatherer,
        actuator: Actuator,
        memory: RunMemory,
        guards: GuardPolls,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._gatherer = gatherer
        self._actuator = actuator
        self._clock = clock
        self._memory = memory
        self._guards = guards

    def reconcile(self, raw: Json) -> float | None:
        """Act on the job as it is cached.

        Returns:
            In how many seconds to look again at the latest; None: on the next event.

        Raises:
            ClusterError: something did not work for now.
        """
        try:
            job = parse_job(raw, self._guards.reading(raw["metadata"]["uid"]))
            known = self._memory.of(job)
            snapshot = self._gatherer.gather(job, known)
        except ValidationError as error:
            self._refuse(raw, Reason.INVALID_SPEC, invalid_spec(error))
            return None
        except UnsupportedKindError as error:
            self._refuse(raw, Reason.UNSUPPORTED_KIND, str(error))
            return None
        if snapshot is None:
            return None
        self._follow(snapshot)
        decision = decide(snapshot, self._clock())
        under_way = decision.report.phase is Phase.STOPPING
        self._memory.note(snapshot, decision.report.stop if under_way else None, known)
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

    def _act(self, snapshot: Snapshot, decision: Decision) -> None:
        """Carry it out, and remember what was refused: the next look says so."""
        refusal = ""
        try:
            refusal = self._actuator.actuate(snapshot, decision)
        except Unwritten as error:
            refusal = error.refusal
            raise
        finally:
            self._memory.note_refusal(snapshot.job, refusal)

    def _refuse(self, raw: Json, reason: Reason, message: str) -> None:
        """Say why this operator does nothing for a job. What runs stays running."""
        metadata = raw["metadata"]
        log.warning("%s/%s: %s: %s", metadata["namespace"], metadata["name"], reason, message)
        with suppress(ValidationError):  # of the status: then nothing can be written beside it
            status = read_status(raw)
            guarded = self._condition(raw, status, ConditionType.GUARDED, "False", reason, message)
            report = with_conditions(as_it_is(status), guarded)
            if status.workload_ref is None:
                report = replace(report, phase=Phase.REFUSED)
            if "deletionTimestamp" not in metadata:
                self._actuator.write_status(raw, status, report)

    def say_unread(self, raw: Json, kinds: Sequence[str]) -> None:
        """Say that nothing is known of a run of which these kinds cannot be read. It goes on as it is.

        A latch that its guard left when it ended is taken all the same.
        """
        with suppress(ValidationError):
            if self._take_last_word(raw):
                return
            status = read_status(raw)
            if "deletionTimestamp" in raw["metadata"] or any(is_true(status, end) for end in OVER):
                return
            unread = f"{', '.join(kinds)} cannot be listed or watched"
            silent = f"{unread}, so nobody knows whether the guard is silent, or how the run is"
            said = {ConditionType.GUARD_SILENT: silent}
            if (fired := condition_of(status, ConditionType.FIRED)) is not None and fired.status != "True":
                last = last_verdict(status.guard or GuardStatus())
                said[ConditionType.FIRED] = f"there is no verdict now: {unread}; {last}"
            new = (
                self._condition(raw, status, kind, "Unknown", Reason.KIND_UNREAD, message)
                for kind, message in said.items()
            )
            self._actuator.write_status(raw, status, with_conditions(as_it_is(status), *new))

    def _take_last_word(self, raw: Json) -> bool:
        """Have a latch written down that a guard left when it ended; whether there is one."""
        job = parse_job(raw, self._guards.reading(raw["metadata"]["uid"]))
        if find_adapter(job.spec.workload.api_version, job.spec.workload.kind) is None:
            return False
        snapshot, now = self._gatherer.last_words(job), self._clock()
        if (decision := decide_latched(snapshot, Conditions(snapshot, now), now)) is None:
            return False
        self._act(snapshot, decision)
        return True

    def _condition(
        self, raw: Json, status: Status, kind: ConditionType, value: str, reason: Reason, message: str
    ) -> ConditionStatus:
        generation = raw["metadata"].get("generation")
        return new_condition(status, generation, self._clock(), kind, value, reason, message)
