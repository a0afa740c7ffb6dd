"""What is read of a guard, which guard is asked, and what a new one is told of its run. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rlguard.core.wire import Verdict
from rlguard.operator.api.status import Latched
from rlguard.operator.guards.adoption import NO_LAST_WORD, NOTHING_KEPT, Kept, latches_of, what_is_known
from rlguard.operator.guards.reading import (
    MAX_TEXT,
    differs,
    differs_at_once,
    guard_status,
    understood,
)
from rlguard.operator.reconcile.controller import guard_to_ask
from rlguard.operator.reconcile.parse import parse_job, with_last_word
from rlguard.operator.reconcile.snapshot import Pod, Snapshot, Unsaid, guard_of

from .given import NOW, SUPPORT, UID, manifest

Json = dict[str, Any]
EVALUATION = {"attempt": 0, "step": 4, "score": 0.5, "items": 8, "path": "/c/4"}
FIRED = {"level": "fired", "code": "hacking_gap", "reason": "gap", "fire": True, "stop": True}
FIRE = {"code": "hacking_gap", "reason": "as it was", "attempt": 0, "step": 3, "at": "2026-01-01T00:00:00Z"}


def said(**fields: Any) -> Verdict:
    """A verdict, of a run that is well unless `fields` say otherwise."""
    well = {"level": "healthy", "code": "ok", "reason": "fine", "fire": False, "halt": False, "stop": False}
    return understood({**well, **fields})


FIRES = said(**FIRED, latch_attempt=1, latch_step=4)


# -- status.guard ----------------------------------------------------------------------------------------


def test_what_is_unknown_is_absent() -> None:
    status = guard_status(said(kl_ema=0.123456), {}, NOW)
    assert not {"step", "attempt", "heldoutEma", "lastEvaluation", "ended", "fire", "halt"} & status.keys()
    assert (status["klEma"], status["readAt"]) == (0.1235, "2026-01-02T00:00:00.000000Z")


def test_an_evaluation_has_the_time_at_which_it_was_first_read() -> None:
    first = guard_status(said(last_evaluation=EVALUATION), {}, NOW)
    later = NOW + timedelta(hours=1)
    same = guard_status(said(last_evaluation=EVALUATION), first, later)
    other = guard_status(said(last_evaluation=EVALUATION | {"step": 8}), first, later)
    assert first["lastEvaluationTime"] == same["lastEvaluationTime"] < other["lastEvaluationTime"]
    unsaid = guard_status(said(), first, later)
    assert unsaid["lastEvaluation"] == first["lastEvaluation"], (
        "a new guard that knows of none takes none away"
    )


def test_a_latch_in_the_status_is_repeated_word_for_word() -> None:
    status = guard_status(FIRES, {}, NOW)
    assert status["fire"] == {
        "code": "hacking_gap", "reason": "gap", "attempt": 1, "step": 4, "at": "2026-01-02T00:00:00.000000Z"
    }  # fmt: skip
    for verdict in (FIRES, said(), said(halt=True, stop=True)):
        assert guard_status(verdict, {"fire": FIRE}, NOW)["fire"] == FIRE
    assert guard_status(said(), {"halt": FIRE}, NOW)["halt"] == FIRE


def test_a_hostile_guard_can_neither_steer_a_terminal_nor_fill_the_status() -> None:
    hostile = guard_status(said(**FIRED | {"reason": "\x1b[2J" + "x" * 2 * MAX_TEXT}), {}, NOW)
    for reason in (hostile["reason"], hostile["fire"]["reason"]):
        assert reason.startswith("\ufffd[2J") and len(reason) == MAX_TEXT


@pytest.mark.parametrize(
    "more", [{}, {"level": "splendid"}, {"conditions": [{"of": "tomorrow"}]}, {"steps": "many", "novelty": 1}]
)
@pytest.mark.parametrize("kind", ["fire", "halt"])
def test_a_latch_of_a_code_that_this_release_does_not_know_is_a_latch(kind: str, more: Json) -> None:
    latch = {"fire": False, "halt": False, kind: True, "latch_attempt": 0, "latch_step": 4, "steps": 5}
    verdict = understood({**FIRED, "code": "of_tomorrow", **latch, **more})
    assert (verdict.fire, verdict.halt, verdict.stop) == (kind == "fire", kind == "halt", True)
    assert (verdict.latch_step, verdict.reason) == (4, "of_tomorrow: gap")
    assert verdict.steps == (0 if "steps" in more else 5), "what can be read is"
    with pytest.raises(ValueError, match="validation error"):
        understood({"code": "of_tomorrow", "fire": False, "halt": False})


@pytest.mark.parametrize(
    ("other", "at_all", "at_once"),
    [
        (said(), False, False),
        (said(step=5), True, False),
        (said(ended=True, step=4, attempt=0), True, True),
        (FIRES, True, True),
    ],
    ids=["the same", "a step", "the end", "a fire"],
)
def test_what_is_written_and_what_of_it_at_once(other: Verdict, at_all: bool, at_once: bool) -> None:
    before, after = guard_status(said(), {}, NOW), guard_status(other, {}, NOW + timedelta(seconds=9))
    assert (differs(after, before), differs_at_once(after, before)) == (at_all, at_once)


# -- what a new guard is told ----------------------------------------------------------------------------

KEPT = Kept({"sequence": 7, "evaluations": ["e"]}, evaluated=2, pod="old")
STATE = KEPT.state


def latch(step: int, fire: bool = True) -> Json:
    return {"fire": fire, "code": "c", "message": "m", "attempt": 0, "step": step}


@pytest.mark.parametrize(
    ("kept", "words", "heard", "told"),
    [
        (None, {}, False, {}),
        (None, {"pending": said()}, True, {}),
        (replace(KEPT, closed=True), {}, True, STATE),
        (KEPT, {"old": said(evaluated=2)}, True, STATE),
        (KEPT, {"old": said(evaluated=2), "crashed": said()}, False, STATE),
        (replace(KEPT, pod="new"), {}, True, STATE),
    ],
    ids=[
        "a new run", "none judged anything", "kept as it ended", "its last word was kept",
        "a guard that was never told is none of its past", "it is of this very pod",
    ],
)  # fmt: skip
def test_what_is_kept_is_told(kept: Kept | None, words: dict[str, Verdict], heard: bool, told: Json) -> None:
    assert what_is_known("new", kept, words, [], heard=heard) == told


@pytest.mark.parametrize(
    ("kept", "words", "why"),
    [
        (KEPT, {}, NO_LAST_WORD),
        (KEPT, {"crashed": said(evaluated=1)}, NO_LAST_WORD),
        (None, {}, NOTHING_KEPT),
        (
            replace(KEPT, closed=True),
            {"old": said(evaluated=3)},
            "made 3 evaluations, of which only 2 were kept",
        ),
        (None, {"old": said(evaluated=1)}, "made 1 evaluations, of which only 0 were kept"),
    ],
    ids=[
        "no last word",
        "only that of an older one",
        "nothing kept of what was heard",
        "not all kept",
        "none kept",
    ],
)
def test_what_nobody_knows_is_lost(kept: Kept | None, words: dict[str, Verdict], why: str) -> None:
    told = what_is_known("new", kept, words, [], heard=True)
    assert told["lost"].endswith(why) and "evaluations" not in told
    assert told["sequence"] == (7 if kept else 0), "it does not go back"


def test_no_latch_opens() -> None:
    """Whoever knows of one: the status, what was kept, or the last word of a guard. The first is told."""
    fired = {"older": FIRES, "old": said()}
    assert what_is_known("new", None, fired, [], heard=True)["latches"] == [
        {"fire": True, "code": "hacking_gap", "message": "gap", "attempt": 1, "step": 4}
    ]
    kept = Kept({"sequence": 7, "latches": [latch(1)]}, 0, "old")
    told = what_is_known("new", kept, fired, [latch(2), latch(3, fire=False)], heard=True)
    assert told["latches"] == [latch(1), latch(3, fire=False)]
    lost = what_is_known("new", kept, {}, [], heard=True)
    assert lost["lost"] and lost["latches"] == [latch(1)]
    assert latches_of(None, Latched.model_validate(FIRE)) == [
        {"fire": False, "code": "hacking_gap", "message": "as it was", "attempt": 0, "step": 3}
    ]


# -- which guard is asked --------------------------------------------------------------------------------


def raw_job(**guard: Any) -> Json:
    return manifest(status={"guard": guard}, guard={"port": 9000})


def pod(name: str, address: str = "", **more: Any) -> Pod:
    return Pod(name, f"uid-{name}", guarded=True, phase="Running", address=address, **more)


def snapshot(*pods: Pod, **guard: Any) -> Snapshot:
    return Snapshot(parse_job(raw_job(**guard)), pods=pods)


WORKER = Pod("worker", "w", guarded=False, phase="Running", address="10.0.0.9")
OLD, NEW = pod("old", last_word=said(step=3)), pod("new", "10.0.0.2")
HEARD = {"level": "healthy", "code": "ok", "reason": "fine"}


def test_the_guard_that_runs_is_asked_in_the_newest_pod() -> None:
    assert guard_to_ask(snapshot(WORKER, OLD)) is None, "none runs"
    guard = guard_to_ask(snapshot(pod("older", "10.0.0.1"), NEW, WORKER, pod("next")))
    assert guard is not None
    assert (guard.job, guard.uid, guard.pod) == (("ns", "run"), UID, "uid-new")
    assert (guard.url, guard.host) == ("https://10.0.0.2:9000", f"{SUPPORT}.ns.svc")
    assert guard.target == "pod new at 10.0.0.2:9000"
    over_6 = guard_to_ask(snapshot(pod("new", "fd00::2"), fire=FIRE))
    assert over_6 is not None and over_6.url == "https://[fd00::2]:9000"
    assert [one["step"] for one in over_6.latches] == [3] and (over_6.words, over_6.heard) == ({}, False)
    after = guard_to_ask(snapshot(OLD, pod("pending"), NEW, **HEARD))
    assert after is not None and (after.words, after.heard) == ({"uid-old": OLD.last_word}, True)


# -- a last word that nobody heard -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "left", "taken"),
    [
        ({"steps": 5}, {"steps": 5}, False),
        ({"steps": 5}, {"steps": 6}, True),
        ({"steps": 5, "evaluated": 1}, {"steps": 5, "evaluated": 2}, True),
        ({"steps": 5}, {"steps": 5, "ended": True, "step": 5}, True),
        ({"steps": 5}, {**FIRED, "steps": 5}, True),
        ({"steps": 5, "fire": FIRE}, {**FIRED, "steps": 5}, False),
    ],
    ids=["nothing new", "a step", "an evaluation", "the end", "a fire", "a fire that is known"],
)
def test_what_a_guard_left_is_taken_where_the_status_knows_less(known: Json, left: Json, taken: bool) -> None:
    job = parse_job(raw_job(**HEARD, step=5, heldoutEma=0.5, **known))
    after = with_last_word(job, said(**left), NOW)
    assert (after.unsaid is Unsaid.VERDICT) is taken and (after == job) is not taken
    assert guard_of(after).steps == max(5, left["steps"]) and guard_of(after).heldout_ema == 0.5
    assert (guard_of(after).fire is not None) is ("fire" in left)
    assert (guard_of(after).ended is not None) is ("ended" in left)
