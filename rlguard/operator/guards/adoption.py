"""What a guard with an empty log is told of its run: what was kept, and how the guard before it ended. Pure.

A guard cannot tell a new run from one whose store was lost with a pod; its operator can. What nobody knows is
unknown, never healthy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlguard.core.wire import Verdict
from rlguard.operator.api.status import Latched
from rlguard.operator.runtime.client import Json

NO_LAST_WORD = "the guard before this one ended without a last word: how it judged this run is not known"
NOTHING_KEPT = "a guard of this run was heard, and what was kept of it is gone: how it judged is not known"
UNKEPT = "the guard before this one made {made} evaluations, of which only {kept} were kept"


@dataclass(frozen=True, slots=True)
class Kept:
    """What was kept of a run.

    Fields:
        state: that of its guard, opaque but for its latches.
        evaluated: how many checkpoints it had evaluated.
        pod: UID of the pod of that guard: the one that was told last of the run.
        mark: by which it is seen whether there is more to keep.
        closed: whether nothing can be missing: it gave this as it ended, or was heard until then.
    """

    state: Json
    evaluated: int
    pod: str
    mark: str = ""
    closed: bool = False

    @property
    def sequence(self) -> int:
        """It grows with everything that the guard knows."""
        return int(self.state.get("sequence") or 0)


def what_is_known(
    pod: str, kept: Kept | None, words: Mapping[str, Verdict], latches: Sequence[Json], *, heard: bool
) -> Json:
    """What the guard in this pod is told by `PUT /v1/state`; {} of a new run.

    Args:
        pod: UID of its pod.
        kept: what was kept of the run; None: nothing.
        words: what the guards before it left when they ended, by the UID of the pod.
        latches: those in the job's status.
        heard: whether the job's status says that any guard of it was heard.
    """
    state = dict(kept.state) if kept is not None else {}
    if why := _lost(pod, kept, words, heard):
        state = {"sequence": state.get("sequence", 0), "latches": state.get("latches", []), "lost": why}
    left = [_latch_of(word) for word in words.values() if word.stop]
    closed = [*(state.get("latches") or []), *latches, *left]
    if closed:
        state["latches"] = [first for fire in (True, False) for first in _of_kind(closed, fire)]
    return state


def latches_of(fire: Latched | None, halt: Latched | None) -> Sequence[Json]:
    """The latches of a job's status, as a guard knows them."""
    found = ((True, fire), (False, halt))
    return [
        _latch(kind, one.code, one.reason, one.attempt, one.step) for kind, one in found if one is not None
    ]


def _lost(pod: str, kept: Kept | None, words: Mapping[str, Verdict], heard: bool) -> str:
    """Why nobody knows all that the guards before this one knew; "" if somebody does, or there was none.

    Only a guard that was told of its run lets anything train, and what is kept names the last one that was.
    """
    if kept is not None and kept.pod == pod:
        return ""
    made = max((word.evaluated for word in words.values()), default=0)
    known = kept.evaluated if kept else 0
    if made > known:
        return UNKEPT.format(made=made, kept=known)
    if kept is None:
        return NOTHING_KEPT if heard and not words else ""
    return "" if kept.closed or kept.pod in words else NO_LAST_WORD


def _latch(fire: bool, code: str, message: str, attempt: int, step: int) -> Json:
    return {"fire": fire, "code": code, "message": message, "attempt": attempt, "step": step}


def _latch_of(verdict: Verdict) -> Json:
    of = verdict.latch_attempt or 0, verdict.latch_step or 0
    return _latch(verdict.fire, verdict.code.value, verdict.reason, *of)


def _of_kind(latches: Sequence[Json], fire: bool) -> Sequence[Json]:
    """The first fire, or the first halt."""
    return [one for one in latches if bool(one.get("fire")) is fire][:1]
