"""One reconcile of one job: gather, decide, actuate. The queue calls it, and again after every error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from pydantic import ValidationError

from guard_operator.api.reasons import ConditionType, Reason
from guard_operator.api.types import ConditionStatus, GuardStatus, Phase, Status
from guard_operator.api.wording import invalid_spec
from guard_operator.guards.polls import GuardPolls
from guard_operator.reconcile.actuate import FIGURES_TIME, Actuator, Unwritten
from guard_operator.reconcile.conditions import Conditions, as_it_is, last_verdict
from guard_operator.reconcile.decide import decide, decide_latched
from guard_operator.reconcile.decision import Decision, Report
from guard_operator.reconcile.gather import Gatherer
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

    def reconcile(self, raw: Json | None) -> float | None:
        """Act on the job as it is cached; None: it is gone, and everything made for it goes by ownership.

        Of a job that is over no spec is cached; it is read where there is something left to do.

        Returns:
            In how many seconds to look again at the latest; None: on the next event.

        Raises:
            ClusterError: something did not work for now.
        """
        if raw is not None and "spec" not in raw:
            raw = self._gatherer.read_again(raw)
        if raw is None:
            return None
        try:
            job = parse_job(raw, self._guards.reading(raw["metadata"]["uid"]))
        except ValidationError as error:
            self._refuse(raw, error)
            return None
        known = self._memory.of(job)
        snapshot = self._gatherer.gather(job, known)
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

    def _refuse(self, raw: Json, error: ValidationError) -> None:
        """Say that the spec of a job without a workload does not validate: CRDs have versions."""
        if "deletionTimestamp" in raw["metadata"]:
            return
        unsaid = self._unsaid(raw, ConditionType.GUARDED, "False", Reason.INVALID_SPEC, invalid_spec(error))
        if unsaid is not None:
            noted = as_it_is(read_status(raw))  # a workload may be there
            self._actuator.say(raw, replace(noted, phase=Phase.REFUSED, conditions=(unsaid,)))

    def say_unlisted(self, raw: Json, kinds: Sequence[str]) -> None:
        """Say that nothing is known of a run of which these kinds cannot be listed. It goes on as it is.

        A latch that its guard left when it ended is taken all the same: what stands in the status waits for
        nothing.
        """
        if self._take_last_word(raw):
            return
        status = read_status(raw)
        if "deletionTimestamp" in raw["metadata"] or any(is_true(status, end) for end in OVER):
            return
        unlisted = f"{', '.join(kinds)} cannot be listed"
        message = f"{unlisted}, so nobody knows whether the guard is silent, or how the run is"
        silent = self._unsaid(raw, ConditionType.GUARD_SILENT, "Unknown", Reason.KIND_UNREAD, message)
        if silent is not None:
            self._actuator.say(raw, _said_too(status, silent, *_no_verdict(status, silent, unlisted)))

    def _take_last_word(self, raw: Json) -> bool:
        """Have a latch written down that a guard left when it ended; whether there is one."""
        with suppress(ValidationError):
            reading = self._guards.reading(raw["metadata"]["uid"])
            snapshot, now = self._gatherer.last_words(parse_job(raw, reading)), self._clock()
            if (decision := decide_latched(snapshot, Conditions(snapshot, now), now)) is not None:
                self._act(snapshot, decision)
                return True
        return False

    def _unsaid(
        self, raw: Json, kind: ConditionType, status: str, reason: Reason, message: str
    ) -> ConditionStatus | None:
        """The condition that is to be said of a job of which nothing more is decided; None: it says so."""
        message = message[:32768]
        old = condition_of(read_status(raw), kind)
        if old is not None and (old.reason, old.message) == (reason, message):
            return None
        return ConditionStatus(
            type=kind,
            status=status,
            reason=reason,
            message=message,
            observed_generation=raw["metadata"].get("generation"),
            last_transition_time=self._clock(),
        )


def _said_too(status: Status, *said: ConditionStatus) -> Report:
    """The status as it is, and these conditions."""
    kept = (one for one in status.conditions if all(one.type != new.type for new in said))
    conditions = tuple(sorted((*said, *kept), key=lambda one: one.type))
    return replace(as_it_is(status), conditions=conditions)


def _no_verdict(status: Status, silent: ConditionStatus, why: str) -> Iterator[ConditionStatus]:
    """Of a verdict that is told as one of now, that it is history, with all else as in `silent`."""
    fired = condition_of(status, ConditionType.FIRED)
    if fired is not None and fired.status == "False":
        message = f"there is no verdict now: {why}; {last_verdict(status.guard or GuardStatus())}"
        yield silent.model_copy(update={"type": ConditionType.FIRED, "message": message[:32768]})
