"""From a verdict to `status.guard` and back: a table, and what must never travel."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from guard_core.checkpoint_key import CheckpointKey
from guard_core.codes import Code, Level
from guard_core.compact import CompactState
from guard_core.ending import not_judged
from guard_core.evaluation import HfEvaluation
from guard_core.judge import Evaluation, Judge, Latch
from guard_core.policy import Policy
from guard_core.thinning import rounds_that_stay
from guard_core.wire import (
    CheckpointReport,
    Condition,
    EvaluationSummary,
    FailureKind,
    Moment,
    MomentRollouts,
    Rollout,
    Sampling,
    StepReport,
    Verdict,
)
from guard_operator.api.types import GuardStatus
from guard_service.cluster.mapping import (
    MAX_STATE,
    MAX_TEXT,
    Known,
    detector_state,
    differs,
    essential,
    guard_status,
    last_word,
    latches,
    pins_in,
    resumed,
    trainer_has_ended,
)
from guard_service.heldout.identity import as_one

NOW = datetime(2026, 11, 21, 12, 0, 0, 5, tzinfo=UTC)
TIME = "2026-11-21T12:00:00.000005Z"
DEFAULT = Policy(detector="heldout_guard")
STATE = Judge(DEFAULT).compact()
CALIBRATED = Policy(detector="calibrated")
HOT = Sampling(temperature=1.0, top_p=0.9, max_new_tokens=64, stop=("\nQ:",))
SUMMARY = EvaluationSummary(
    attempt=0,
    step=40,
    score=0.5,
    items=128,
    truncated=0.25,
    unanswered=0.125,
    timed_out=0.0625,
    proxy_score=0.75,
    path="/ckpt/40",
    sampling=HfEvaluation().sampling_with(HOT),
)
SCORED = {
    **{"attempt": 0, "step": 40, "score": 0.5, "items": 128, "truncated": 0.25, "unanswered": 0.125},
    **{"timedOut": 0.0625, "proxyScore": 0.75, "path": "/ckpt/40"},
    "sampling": {
        **{"temperature": 1.0, "topP": 0.9, "maxNewTokens": 64, "stop": ["\nQ:"]},
        **{"samples": 1, "source": "trainer"},
    },
}
FIRE = Latch(True, "hacking_gap", "gap 0.3 > 0.1", 0, 40)
FIRED = {"code": "hacking_gap", "reason": "gap 0.3 > 0.1", "attempt": 0, "step": 40, "at": TIME}
EARLIER = {**FIRED, "at": "2026-11-21T11:00:00Z"}
ROUND = {"attempt": 0, "step": 40, "reward": 0.9, "heldout": 0.5}
BEFORE, LATER = ROUND | {"step": 30}, ROUND | {"step": 50}


def test_the_last_word_fits_into_what_a_kubelet_keeps() -> None:
    long = {**FIRED, "reason": "\u2028" * 4_000}
    word = last_word({"fire": long, "halt": long, "step": 40})
    assert len(word.encode()) <= 4_096
    assert GuardStatus.model_validate_json(word).fire is not None
    assert json.loads(last_word({"fire": FIRED, "step": 40})) == {"fire": FIRED}


def verdict(**values: Any) -> Verdict:
    base = {"halt": False, "stop": False} | {
        "level": Level.HEALTHY,
        "code": Code.OK,
        "reason": "fine",
        "fire": False,
    }
    return Verdict.model_validate(base | values)


PLACE = {"attempt": 1, "step": 40}


@pytest.mark.parametrize(
    ("known", "former", "ended"),
    [
        (Known(verdict(**PLACE), (), STATE, ended=True), {}, PLACE),
        (Known(verdict(**PLACE), (), STATE), {}, None),
        (Known(verdict(), (), STATE, ended=True), {}, None),
        (Known(verdict(**PLACE), (), STATE), {"ended": PLACE}, PLACE),
        (Known(verdict(**PLACE), (), STATE), {"ended": {"attempt": 1, "step": 39}}, None),
        (Known(verdict(**PLACE), (), STATE), {"ended": {"attempt": 0, "step": 40}}, None),
    ],
    ids=["it has ended", "it goes on", "no step", "a guard that came back", "a step since", "a new attempt"],
)
def test_how_the_trainer_ended_is_told(known: Known, former: dict[str, Any], ended: Any) -> None:
    status = guard_status(known, former, NOW)
    assert status.get("ended") == ended
    GuardStatus.model_validate(status)


def test_a_latch_has_the_time_at_which_it_closed() -> None:
    """Not that of a report which an API server took only later."""
    closed = datetime(2026, 11, 21, 11, 30, tzinfo=UTC)
    known = Known(verdict(), (FIRE,), STATE, latched_at={True: closed})
    assert guard_status(known, {}, NOW)["fire"]["at"] == "2026-11-21T11:30:00.000000Z"
    assert guard_status(known, {"fire": EARLIER}, NOW)["fire"] == EARLIER
    assert guard_status(Known(verdict(), (FIRE,), STATE), {}, NOW)["fire"]["at"] == TIME


def test_what_is_only_advice_is_told_beside_the_worst_condition() -> None:
    """The sentence of the status is of the worst condition, which advice never is."""
    advice, warning = (
        Condition(code=code, level=Level.WARNING, message=f"{code}: a", advice=code is not Code.SILENT)
        for code in (Code.PORT_TAKEN, Code.SILENT)
    )
    gap = advice.model_copy(update={"code": Code.HACKING_GAP, "message": "the gap is 0.31"})
    known = Known(verdict(conditions=(warning, advice, advice, gap)), state=STATE)
    status = guard_status(known, {}, NOW)
    assert status["advice"] == ["hacking_gap", "port_taken"]
    assert status["adviceReason"] == "the gap is 0.31; port_taken: a"
    assert GuardStatus.model_validate(status).advice_reason == status["adviceReason"]
    known = Known(verdict(conditions=(warning, advice)), state=STATE)
    status = guard_status(known, {}, NOW)
    assert GuardStatus.model_validate(status).advice == ["port_taken"]
    assert differs(status, guard_status(Known(verdict(conditions=(warning,)), state=STATE), {}, NOW))


def test_advice_that_may_depend_on_an_item_is_told_by_its_meaning() -> None:
    """Who may read the status may not own the split."""
    doubtful = Condition(
        code=Code.CHECKPOINT_DOUBTFUL, level=Level.WARNING, message="item 'x' failed", advice=True
    )
    known = Known(verdict(conditions=(doubtful,), failure=FailureKind.UNDERWAY), state=STATE)
    assert "item 'x'" not in guard_status(known, {}, NOW)["adviceReason"]


def judged(policy: Policy = DEFAULT, rounds: int = 3, items: int = 64) -> Judge:
    """A judge after some rounds of `items` items, half of which are right."""
    judge = Judge(policy)
    for step in range(rounds):
        judge.fold_step(StepReport(attempt=0, step=step, reward=0.5, kl=0.01, kl_kind="ref_token_mean"))
        judge.fold_checkpoint()
        outcomes = tuple(float(i % 2) for i in range(items))
        for index in range(policy.calibrated.baseline_passes if step == 0 else 1):
            judge.fold_evaluation(Evaluation(0, step, f"/ckpt/{step}", outcomes, None, index))
    return judge


@pytest.mark.parametrize(
    ("known", "former", "expected"),
    [
        pytest.param(Known(verdict(), (), STATE), {}, {"steps": 0, "rounds": 0}, id="numbers unknown"),
        pytest.param(
            Known(verdict(attempt=0, step=0, steps=1, waiting=2, kl_ema=0.0), (), STATE),
            {},
            {"attempt": 0, "step": 0, "steps": 1, "rounds": 0, "waiting": 2, "klEma": 0.0},
            id="a zero that is known is told",
        ),
        pytest.param(
            Known(verdict(announced=9, evaluated=4, failed=2, skipped=1, refused=5, waiting=3), (), STATE),
            {},
            {"steps": 0, "rounds": 0}
            | {"announced": 9, "evaluated": 4, "failed": 2, "skipped": 1, "refused": 5, "waiting": 3},
            id="what became of the checkpoints",
        ),
        pytest.param(
            Known(verdict(), (FIRE,), STATE, (ROUND,)),
            {},
            {"steps": 0, "rounds": 0, "fire": FIRED, "historyTail": [ROUND]},
            id="fire with its rounds",
        ),
        pytest.param(
            Known(verdict(), (FIRE,), STATE, (ROUND,)),
            {"fire": EARLIER, "historyTail": [ROUND, ROUND]},
            {"steps": 0, "rounds": 0, "fire": EARLIER, "historyTail": [ROUND, ROUND]},
            id="a fire that is there is repeated word for word",
        ),
        pytest.param(
            Known(verdict(), (), STATE, (ROUND, LATER)),
            {"historyTail": [BEFORE, ROUND]},
            {"steps": 0, "rounds": 0, "historyTail": [BEFORE, ROUND, LATER]},
            id="rounds of a guard that lost its store stay",
        ),
        pytest.param(
            Known(verdict(), (), STATE),
            {"fire": EARLIER},
            {"steps": 0, "rounds": 0, "fire": EARLIER},
            id="also by a guard that does not know it",
        ),
        pytest.param(
            Known(verdict(), (Latch(False, "silent", "no step", 1, 2),), STATE),
            {},
            {
                "steps": 0,
                "rounds": 0,
                "halt": {"code": "silent", "reason": "no step", "attempt": 1, "step": 2, "at": TIME},
            },
            id="a halt is no fire",
        ),
        pytest.param(
            Known(verdict(last_evaluation=SUMMARY, best_evaluation=SUMMARY), (), STATE),
            {"level": "unknown"},
            {
                "steps": 0,
                "rounds": 0,
                "lastEvaluation": SCORED,
                "lastEvaluationTime": TIME,
                "bestCheckpoint": SCORED,
            },
            id="a new evaluation finished now",
        ),
        pytest.param(
            Known(verdict(last_evaluation=SUMMARY), (), STATE),
            {"lastEvaluation": SCORED, "lastEvaluationTime": "2026-11-21T11:00:00Z"},
            {
                "steps": 0,
                "rounds": 0,
                "lastEvaluation": SCORED,
                "lastEvaluationTime": "2026-11-21T11:00:00Z",
            },
            id="an old one when it did",
        ),
        pytest.param(
            Known(verdict(last_evaluation=SUMMARY), (), STATE),
            {},
            {"steps": 0, "rounds": 0, "lastEvaluation": SCORED},
            id="its time is absent if nobody knows it",
        ),
    ],
)
def test_guard_status(known: Known, former: dict[str, Any], expected: dict[str, Any]) -> None:
    status = guard_status(known, former, NOW)
    always = {"heartbeat": TIME, "level": "healthy", "code": "ok", "reason": "fine"}
    always |= dict.fromkeys(("announced", "evaluated", "failed", "skipped", "refused", "waiting"), 0)
    always |= dict.fromkeys(("stepsSinceEvaluation", "longestRound"), 0)
    assert status.pop("detectorState") == detector_state(STATE)
    assert status == always | expected


def test_an_evaluation_has_only_what_the_api_has() -> None:
    status = guard_status(Known(verdict(last_evaluation=SUMMARY), (), STATE), {}, NOW)
    assert status["lastEvaluation"] == SCORED
    read = GuardStatus.model_validate(status).last_evaluation
    assert read is not None and read.sampling is not None and read.sampling.top_p == 0.9


def test_while_the_store_cannot_be_read_what_was_reported_stands() -> None:
    lost = verdict(level=Level.UNKNOWN, code=Code.STORE_UNAVAILABLE, reason="gone")
    former = {"heartbeat": "x", "level": "healthy", "steps": 7, "fire": EARLIER, "detectorState": "{}"}
    assert guard_status(Known(lost), former, NOW) == {
        **former,
        "heartbeat": TIME,
        "level": "unknown",
        "code": "store_unavailable",
        "reason": "gone",
    }


def test_a_latch_is_told_while_the_store_cannot_be_read() -> None:
    """It is kept beside the store. What an operator acts on is the fire, and not the level."""
    lost = verdict(level=Level.FIRED, code=Code.HACKING_GAP, reason="gap 0.3 > 0.1", fire=True, stop=True)
    halt = Latch(False, "silent", "no step", 0, 41)
    known = Known(lost, (FIRE, halt))
    assert guard_status(known, {}, NOW) == {
        **{"heartbeat": TIME, "level": "fired", "code": "hacking_gap", "reason": "gap 0.3 > 0.1"},
        "fire": FIRED,
        "halt": {"code": "silent", "reason": "no step", "attempt": 0, "step": 41, "at": TIME},
    }
    assert guard_status(known, {"fire": EARLIER, "steps": 7}, NOW)["fire"] == EARLIER
    assert guard_status(known, {"fire": EARLIER, "steps": 7}, NOW)["steps"] == 7


def moment(step: int, *moments: Moment, prompt: str = "p", text: str = "c") -> MomentRollouts:
    best = Rollout(prompt=prompt, completion=text, reward=1e100)
    other = Rollout(prompt="p", completion="another", reward=0.0)
    return MomentRollouts(moments=moments, attempt=0, step=step, rollouts=(best, other))


def test_what_the_policy_wrote_cannot_keep_a_latch_out_of_the_status() -> None:
    hostile = "a\0\x1b\x85\n" * 400
    rollouts = (moment(1, Moment.START, prompt=hostile, text=hostile),) * 3
    status = guard_status(Known(verdict(), (FIRE,), STATE, rollouts=rollouts), {}, NOW)
    assert len(GuardStatus.model_validate(status).rollouts) == 3
    for told in status["rollouts"]:
        assert len(told["prompt"]) <= 300 and len(told["completion"]) <= 1000
        assert {*told["completion"]} == {*"a\ufffd\n[…]"}
        assert told["completion"].startswith("a\ufffd\ufffd\ufffd\na") and told["completion"].endswith("\n")
    assert len(json.dumps(status["rollouts"])) < 32_000


@pytest.mark.parametrize(
    ("conditions", "ended"),
    [
        ([("Succeeded", "Unknown", "GuardJudges")], True),
        ([("Guarded", "True", "WorkloadCreated"), ("Failed", "True", "WorkloadFailed")], True),
        ([("Disrupted", "True", "Evicted")], True),
        ([("Disrupted", "False", "Evicted"), ("Succeeded", "Unknown", "Other")], False),
        ([("Guarded", "True", "WorkloadCreated")], False),
        ([], False),
    ],
)
def test_the_operator_says_that_the_trainer_has_ended(
    conditions: list[tuple[str, str, str]], ended: bool
) -> None:
    said = [dict(zip(("type", "status", "reason"), one, strict=True)) for one in conditions]
    assert trainer_has_ended({"conditions": said}) is ended


def test_the_essential_part_stops_a_run() -> None:
    status = guard_status(Known(judged().verdict(), (FIRE,), STATE, (ROUND,)), {}, NOW)
    assert essential(status).keys() == {"heartbeat", "level", "code", "reason", "fire"}


def test_it_fits_the_api() -> None:
    """Every key is one of the API's, within its bounds, and comes back as it was."""
    known = Known(
        judged().verdict(),
        (Latch(True, "hacking_gap", "x" * 9_000, 0, 40), Latch(False, "silent", "no step", 0, 41)),
        judged().compact(),
        [ROUND | {"step": step} for step in range(80)],
    )
    status = guard_status(known, {}, NOW)
    fields = {field.alias for field in GuardStatus.model_fields.values()}
    assert status.keys() <= fields
    parsed = GuardStatus.model_validate(status)
    assert parsed.fire is not None and len(parsed.fire.reason) == MAX_TEXT
    assert 25 < len(parsed.history_tail) <= 50 and parsed.rounds == 3


def rounds_of(attempt: int, steps: Iterable[int]) -> list[dict[str, Any]]:
    return [ROUND | {"attempt": attempt, "step": step} for step in steps]


def kept(rounds: Sequence[dict[str, Any]], former: dict[str, Any], best: Any = None) -> list[dict[str, Any]]:
    """What a report has of these rounds after `former`, as the guard's store hands them out."""
    places = [CheckpointKey(one["attempt"], one["step"]) for one in rounds]
    stay = rounds_that_stay(places, None if best is None else CheckpointKey.of(best))
    known = Known(verdict(best_evaluation=best), (), STATE, [rounds[i] for i in stay])
    history: list[dict[str, Any]] = guard_status(known, former, NOW)["historyTail"]
    return history


def test_a_long_run_keeps_its_start_its_best_and_its_newest_rounds() -> None:
    rounds = rounds_of(0, range(10, 1010, 10))
    best = SUMMARY.model_copy(update={"step": 370})
    history: list[dict[str, Any]] = []
    for count in range(1, 101):
        history = kept(rounds[:count], {"historyTail": history}, best)
    assert history == kept(rounds, {}, best), "whatever was reported before"
    steps = [one["step"] for one in history]
    assert steps[0] == 10 and 370 in steps and steps[-25:] == [*range(760, 1010, 10)]
    assert len(steps) <= 50 and steps == sorted(set(steps))


@pytest.mark.parametrize(
    ("change", "worth"),
    [
        ({"heartbeat": "later"}, False),
        ({"reason": "no step for 302 s"}, False),
        ({"detectorState": "{}"}, False),
        ({"rollouts": []}, False),
        ({"step": 9}, True),
        ({"level": "warning"}, True),
        ({"fire": FIRED}, True),
    ],
)
def test_what_counts_as_a_change(change: dict[str, Any], worth: bool) -> None:
    written = {"heartbeat": "h", "reason": "r", "step": 8, "level": "healthy"}
    assert differs(written | change, written) is worth
    assert differs(written, written | change) is worth


@pytest.mark.parametrize("policy", [DEFAULT, CALIBRATED, Policy(detector="both")])
def test_no_outcome_of_an_item_travels(policy: Policy) -> None:
    """Invariant 8: the state of two runs that differ only in which items were right is the same."""
    one, other = Judge(policy), Judge(policy)
    for judge, wrong in ((one, 0), (other, 1)):
        for step in range(6):
            judge.fold_step(StepReport(attempt=0, step=step, reward=0.5))
            items = tuple(float(i % 2 == wrong) for i in range(64))
            judge.fold_evaluation(Evaluation(0, step, "/ckpt", items))
    assert detector_state(one.compact()) == detector_state(other.compact())


def test_its_size_does_not_grow_with_the_steps_of_a_run() -> None:
    judge = Judge(Policy(detector="both"))
    for step in range(12_000):
        judge.fold_step(StepReport(attempt=0, step=step, reward=0.123456789))
    judge.fold_failure("x" * 1_000_000)
    assert len(detector_state(judge.compact()) or "") < 16_384 < MAX_STATE
    assert detector_state(STATE.model_copy(update={"lost": "x" * MAX_STATE})) is None


def resumed_judge(policy: Policy, status: dict[str, Any]) -> tuple[Judge | None, str]:
    """The judge of a guard that begins with what a status tells of, and what of the run was lost."""
    state = resumed(policy, status)
    if state is None:
        return None, ""
    judge = Judge(policy)
    judge.fold_adopted(state)
    for latch in latches(status):
        judge.fold_latch(latch)
    return judge, state.lost


def test_a_judge_comes_back_as_it_was() -> None:
    judge = judged()
    status = guard_status(Known(judge.verdict(), judge.latches, judge.compact()), {}, NOW)
    back, lost = resumed_judge(DEFAULT, status)
    assert back is not None and lost == ""
    assert back.verdict() == judge.verdict()
    for one in (judge, back):
        one.fold_step(StepReport(attempt=1, step=1, reward=0.6))
        one.fold_evaluation(Evaluation(1, 1, "/ckpt/1", (1.0, 0.0)))
    assert back.verdict() == judge.verdict()


PINS = {"tokenizer.json": "a" * 64, "config.json": "b" * 64}


def test_what_checkpoints_must_have_travels_with_the_judge() -> None:
    judge = judged()
    status = guard_status(Known(judge.verdict(), (), judge.compact(), pins=PINS), {}, NOW)
    assert pins_in(status) == as_one(PINS) and len(as_one(PINS)) == 1
    again = guard_status(Known(judge.verdict(), (), judge.compact(), pins=as_one(PINS)), {}, NOW)
    assert pins_in(again) == as_one(PINS)
    back, lost = resumed_judge(DEFAULT, status)
    assert back is not None and lost == "" and back.verdict() == judge.verdict()


@pytest.mark.parametrize("detector", ["heldout_guard", "calibrated", "both"])
def test_a_start_after_the_store_was_lost_is_one_and_those_taken_stay_taken(detector: str) -> None:
    """The pod lost its checkpoints with its log. Averages go on, and so does the baseline."""
    policy = DEFAULT.model_copy(update={"detector": detector})
    judge = Judge(policy)
    for attempt in (0, 1, 2):
        for n in (1, 2, 3):
            judge.fold_step(StepReport(attempt=attempt, step=n, reward=n / 4))
            judge.fold_evaluation(Evaluation(attempt, n, f"/c/{n}", (0.0, *[float(n > 1)] * 9)))
    before = judge.compact()
    assert before.series.taken == 2 and average(before) > 0.3
    back, lost = resumed_judge(policy, {"detectorState": detector_state(before)})
    assert back is not None, lost
    back.fold_step(StepReport(attempt=3, step=1, reward=1 / 4))
    back.fold_evaluation(Evaluation(3, 1, "/c/1", (0.0,) * 10))
    state = back.compact()
    assert state.series.taken == 3 and average(state) == pytest.approx(1 / 4)
    assert state.starts.base == 1


def average(state: CompactState) -> float:
    """HeldOutGuard's average of the reward."""
    assert state.guard is not None
    return float(str(state.guard["in_loop_ema"]))


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("{", "Invalid JSON"),
        ("[]", "Input should be an object"),
        ("{}", "Field required"),
        (json.dumps({"state": STATE.model_dump(mode="json") | {"version": 999}}), "state.version"),
        (detector_state(Judge(Policy.model_validate({"silent": {"after_seconds": 77}})).compact()), "policy"),
    ],
)
def test_a_state_that_cannot_be_used_never_hides_a_fire(state: str, words: str) -> None:
    policy = DEFAULT
    judge, lost = resumed_judge(policy, {"detectorState": state})
    assert judge is not None and words in lost and not judge.latches
    assert (judge.verdict().level, judge.verdict().code) == (Level.UNKNOWN, Code.PAST_UNKNOWN)
    waited = dict.fromkeys(("steps", "announced", "evaluated", "failed", "skipped", "refused"), 0)
    judge, lost = resumed_judge(policy, {"detectorState": state, "level": "unknown", **waited})
    assert judge is None and lost == "", "nothing is lost of a run that has not begun"
    judge, lost = resumed_judge(DEFAULT, {"detectorState": state, "fire": EARLIER})
    assert judge is not None and judge.verdict().fire and judge.verdict().code is Code.HACKING_GAP


@pytest.mark.parametrize(
    "status",
    [
        *({"level": "unknown", one: 1} for one in ("steps", "announced", "evaluated", "failed", "skipped")),
        {"level": "unknown", "refused": 3},
        {"level": "healthy", "code": "ok"},
        {"level": "warning", "code": "stale"},
    ],
    ids=str,
)
def test_a_run_that_had_begun_does_not_begin_anew(status: dict[str, Any]) -> None:
    """Its state was too large for the status, or the API server took no more than what stops a run."""
    judge, lost = resumed_judge(DEFAULT, status)
    assert judge is not None and "has no state to resume from" in lost
    for step in range(1, 13):
        judge.fold_step(StepReport(attempt=1, step=step, reward=0.5))
        judge.fold_checkpoint()
        judge.fold_evaluation(Evaluation(1, step, f"/ckpt/{step}", (1.0, 0.0)))
    assert judge.verdict().code is Code.PAST_UNKNOWN
    assert not_judged(judge.verdict(), "wait longer") != ""
    status = {"detectorState": detector_state(judge.compact())}
    again, _ = resumed_judge(DEFAULT, status)
    assert again is not None and again.verdict().code is Code.PAST_UNKNOWN, "nor the next time"


def test_nothing_to_resume_from() -> None:
    assert resumed(Policy(), {}) is None
    assert resumed(Policy(), {"heartbeat": TIME, "level": "unknown"}) is None


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, ()),
        ({"fire": EARLIER}, (FIRE,)),
        ({"halt": FIRED}, (Latch(False, "hacking_gap", "gap 0.3 > 0.1", 0, 40),)),
        (
            {"fire": {**FIRED, "code": "new_rule"}},
            (Latch(True, "heldout_decline", "new_rule: gap 0.3 > 0.1", 0, 40),),
        ),
        ({"fire": {"code": "hacking_gap"}}, (Latch(True, "hacking_gap", "None", 0, 0),)),
    ],
)
def test_latches(status: dict[str, Any], expected: tuple[Latch, ...]) -> None:
    assert latches(status) == expected


OF_AN_ITEM = "item 'canary-1': 2004 prompt tokens exceed the model's 64 positions"


@pytest.mark.parametrize("kind", [FailureKind.UNDERWAY, FailureKind.TOKENIZER, FailureKind.CHECKPOINT])
@pytest.mark.parametrize("action", ["warn", "stop"])
def test_a_failure_that_may_depend_on_an_item_is_told_by_its_kind(action: str, kind: FailureKind) -> None:
    """Its words stay in the guard's log and with the read token; also once an evaluation has succeeded. A
    library quotes what it has read, which should be the checkpoint's own files, and may be the split.
    """
    policy = Policy.model_validate({"evaluation_failing": {"after_failures": 1, "action": action}})
    judge = Judge(policy)
    judge.fold_step(StepReport(attempt=0, step=1, reward=0.5))
    judge.fold_checkpoint(CheckpointReport(attempt=0, step=1, path="/ckpt/1"))
    judge.fold_failure(OF_AN_ITEM, kind=kind)
    assert judge.verdict().code is Code.EVALUATION_FAILING and "canary-1" in judge.verdict().reason
    known = Known(judge.verdict(), judge.latches, judge.compact())
    status = guard_status(known, {}, NOW)
    assert "canary" not in json.dumps(status) and "2004" not in json.dumps(status)
    assert kind.words in status["reason"]
    assert ("halt" in status) is (action == "stop")
    back, _ = resumed_judge(policy, status)
    assert back is not None and back.verdict().code is Code.EVALUATION_FAILING
    assert "canary" not in back.verdict().model_dump_json()

    judge.fold_checkpoint(CheckpointReport(attempt=0, step=2, path="/ckpt/2"))
    judge.fold_evaluation(Evaluation(0, 2, "/ckpt/2", (1.0, 0.0)))
    assert "canary" not in json.dumps(guard_status(Known(judge.verdict(), (), judge.compact()), {}, NOW))


def test_a_failure_that_the_guard_itself_has_words_for_is_told_in_full() -> None:
    policy = Policy.model_validate({"evaluation_failing": {"after_failures": 1}})
    judge = Judge(policy)
    judge.fold_checkpoint(CheckpointReport(attempt=0, step=1, path="/ckpt/1"))
    judge.fold_failure("no other weights", kind=FailureKind.WEIGHTS)
    status = guard_status(Known(judge.verdict(), (), judge.compact()), {}, NOW)
    assert "no other weights" in status["reason"] and "no other weights" in status["detectorState"]
