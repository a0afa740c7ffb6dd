"""What a guard with an empty log is told of its run: what was kept, and how the guard before it ended. Pure.

A guard cannot tell a new run from one whose store was lost with a pod; its operator can. What nobody knows is
unknown, never healthy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from guard_core.wire import Verdict
from guard_operator.api.types import Latched
from guard_operator.guards.reading import LastWord

Json = dict[str, Any]

NO_LAST_WORD = "the guard before this one ended without a last word: how it judged this run is not known"
UNKEPT = "the guard before this one had made {made} evaluations, and what was kept knows of {kept}"


@dataclass(frozen=True, slots=True)
class Kept:
    """What was kept of a run.

    Fields:
        state: that of its guard, opaque but for its latches.
        evaluated: how many checkpoints it had evaluated.
        pod: UID of the pod of that guard.
        mark: by which it is seen whether there is more to keep.
    """

    state: Json
    evaluated: int
    pod: str
    mark: str = ""

    @property
    def sequence(self) -> int:
        """It grows with everything that the guard knows."""
        return int(self.state.get("sequence") or 0)


@dataclass(frozen=True, slots=True)
class Former:
    """The guard before the one that is told.

    Fields:
        last_word: what it left when it ended; None: nothing.
        followed: whether it was heard until it ended, so that nothing of it is missing.
        heard: whether any guard of the run was heard before; else none was ever ready, and nothing trained.
    """

    last_word: LastWord | None = None
    followed: bool = False
    heard: bool = True


def what_is_known(pod: str, kept: Kept | None, former: Former | None, latches: Sequence[Json]) -> Json:
    """What the guard in this pod is told by `PUT /v1/state`; {} of a new run.

    Args:
        pod: UID of its pod.
        kept: what was kept of the run; None: nothing.
        former: the guard before it; None: there was none, or nobody knows of one.
        latches: those in the job's status.
    """
    state = dict(kept.state) if kept is not None else {}
    if why := _lost(pod, kept, former):
        state = {"sequence": state.get("sequence", 0), "latches": state.get("latches", []), "lost": why}
    closed = [*(state.get("latches") or []), *latches]
    if former is not None and former.last_word is not None and former.last_word.verdict.stop:
        closed.append(_latch_of(former.last_word.verdict))
    if closed:
        state["latches"] = [first for fire in (True, False) for first in _of_kind(closed, fire)]
    return state


def latches_of(fire: Latched | None, halt: Latched | None) -> Sequence[Json]:
    """The latches of a job's status, as a guard knows them."""
    return [_latch(kind, one) for kind, one in ((True, fire), (False, halt)) if one is not None]


def _lost(pod: str, kept: Kept | None, former: Former | None) -> str:
    """Why nobody knows all that the guard before this one knew; "" if somebody does, or there was none."""
    if former is None or (kept is not None and kept.pod == pod):
        return ""
    if former.last_word is None:
        return "" if former.followed or not (former.heard or kept) else NO_LAST_WORD
    made, known = former.last_word.verdict.evaluated, 0 if kept is None else kept.evaluated
    return UNKEPT.format(made=made, kept=known) if made > known else ""


def _latch(fire: bool, one: Latched) -> Json:
    return {
        "fire": fire,
        "code": one.code,
        "message": one.reason,
        "attempt": one.attempt,
        "step": one.step,
    }


def _latch_of(verdict: Verdict) -> Json:
    return {
        "fire": verdict.fire,
        "code": verdict.code.value,
        "message": verdict.reason,
        "attempt": verdict.latch_attempt or 0,
        "step": verdict.latch_step or 0,
    }


def _of_kind(latches: Sequence[Json], fire: bool) -> Sequence[Json]:
    """The first fire, or the first halt."""
    return [one for one in latches if bool(one.get("fire")) is fire][:1]
