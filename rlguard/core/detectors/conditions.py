"""What is to be said of a run whose baseline is complete, except that it has fired. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlguard.core.codes import Code, Level
from rlguard.core.detectors.calibrated import CalibratedDetector, action
from rlguard.core.detectors.planning import cannot_fall, drop_to_see, evaluations_to_detect
from rlguard.core.detectors.questions import DISAGREEMENT, points
from rlguard.core.policy import CalibratedPolicy
from rlguard.core.wire import Condition, DetectorReading

#: Share of evaluations that may turn out to be none before a run can no longer be said to be judged.
FEW_NOT_COUNTED = 0.1

#: What is said of passes of greedy decoding: where the temperature is known, and where it is not.
_COPIES = "passes of the starting policy are copies of each other at temperature 0"
_AGREE = "two passes of the starting policy agree in every item (temperature 0?)"

#: A starting score within this of 0 or 1 leaves the held-out score little room to move.
UNINFORMATIVE = 0.02


@dataclass(frozen=True, slots=True)
class DetectorFacts:
    """What was counted beside the baseline and its detector.

    Fields:
        sampled: whether the newest pass of the baseline was sampled, as in `Baseline`.
        afforded: passes of the baseline, where the budget had room for no more.
        outliers: passes of the baseline that were left out.
        has_grader: whether there is a training grader.
        odd_pay: what it pays for right answers, where that is odd.
        made, ungraded: evaluations after the baseline, and those of them on which the grader failed.
        graded: whether the newest one is none of those.
    """

    sampled: bool | None = None
    afforded: int | None = None
    outliers: int = 0
    has_grader: bool = False
    odd_pay: str = ""
    made: int = 0
    ungraded: int = 0
    graded: bool = True


def conditions_of(detector: CalibratedDetector, facts: DetectorFacts) -> Iterator[Condition]:
    """What holds now."""
    yield from _about_the_baseline(detector, facts)
    yield from _about_evaluations(detector)
    yield from _about_the_grader(detector, facts)
    readings = () if detector.last_status is None else detector.last_status.readings
    for reading in readings:
        if reading.level is Level.WARNING:
            yield Condition.of(
                reading.code,
                reading.message,
                level=Level.WARNING,
                advice=action(reading.code, detector.config) == "warn",
            )


def _about_the_baseline(detector: CalibratedDetector, facts: DetectorFacts) -> Iterator[Condition]:
    if facts.afforded is not None:
        said = fewer_passes(facts.afforded, detector.start.level, detector.state.items, detector.config)
        yield Condition.of(Code.NO_BASELINE, f"baseline_minutes had room for {said}", advice=True)
    if facts.outliers:
        passes = "pass" if facts.outliers == 1 else "passes"
        yield Condition.of(
            Code.EVALUATION_FAILING,
            f"{facts.outliers} further {passes} of the starting policy did not count: far from "
            "the others (did the scorer or the server fail?)",
            advice=True,
        )
    score = detector.start.level
    if uninformative := uninformative_baseline(score, detector.newest):
        yield uninformative
    elif low := cannot_fall_from(score, detector.config, has_grader=detector.state.series.has_grader):
        yield Condition.of(Code.UNINFORMATIVE_BASELINE, low, advice=True)
    if detector.state.greedy:
        yield Condition.of(
            Code.UNINFORMATIVE_BASELINE,
            f"{_COPIES if facts.sampled is False else _AGREE}: they say nothing about noise and "
            f"count as one. Sampled with a temperature above 0, {detector.config.baseline_passes} passes "
            "would be worth as many, and a fresh evaluation of one checkpoint could confirm an alarm",
            advice=True,
        )


def _about_evaluations(detector: CalibratedDetector) -> Iterator[Condition]:
    status = detector.last_status
    if status is None:
        return
    if lacks := detector.lacks():
        yield Condition.of(Code.WARMING_UP, lacks)
    yield from _cannot_judge_yet(status.readings)
    if status.in_doubt:
        yield Condition.of(Code.FELL_BELOW_START, status.in_doubt, level=Level.WARNING)
    if detector.state.not_counted:
        made = detector.evaluations + detector.state.not_counted
        yield Condition.of(
            Code.EVALUATION_FAILING,
            f"{detector.state.not_counted} of {made} evaluations "
            "are not counted: far from those before, and contradicted by the next (did the scorer or "
            "the server fail?)",
            level=Level.WARNING,
            advice=detector.state.not_counted <= max(1, FEW_NOT_COUNTED * made),
        )


def _about_the_grader(detector: CalibratedDetector, facts: DetectorFacts) -> Iterator[Condition]:
    """What the training grader has not scored, `disagreement` has not judged: that is never healthy.

    One that failed now and then has failed now and then, as long as it scored the newest evaluation.
    """
    if facts.odd_pay:
        yield Condition.of(
            Code.UNINFORMATIVE_BASELINE,
            f"the training grader (`proxy_scorer`) pays {facts.odd_pay} for every answer of the "
            f"starting policy that the scorer calls right, so `{DISAGREEMENT}` cannot be trusted: is 1 "
            "its full pay, and does it read the answer where the scorer does?",
            advice=True,
        )
    if facts.has_grader and not detector.state.series.has_grader:
        yield Condition.of(
            Code.EVALUATION_FAILING,
            "the training grader (`proxy_scorer`) scored no pass of the starting policy, so "
            f"`{DISAGREEMENT}` cannot judge this run: see in the guard's log what the grader failed of, "
            "and start the run again",
        )
    elif facts.ungraded:
        few = facts.graded and facts.ungraded <= max(1, FEW_NOT_COUNTED * facts.made)
        yield Condition.of(
            Code.EVALUATION_FAILING,
            f"the training grader (`proxy_scorer`) failed on {facts.ungraded} of {facts.made} "
            f"evaluations{'' if facts.graded else ', the newest too'}, which `{DISAGREEMENT}` could not "
            "judge",
            level=Level.WARNING if few else Level.UNKNOWN,
            advice=few,
        )


def _cannot_judge_yet(readings: Sequence[DetectorReading]) -> Iterator[Condition]:
    """Which questions have too little to go by. What `disagreement` lacks is told with the grader."""
    for reading in readings:
        if reading.level is Level.UNKNOWN and reading.name != DISAGREEMENT:
            message = f"`{reading.name}` cannot judge yet: {reading.message}"
            yield Condition.of(Code.WARMING_UP, message)


def fewer_passes(passes: int, score: float, items: int, config: CalibratedPolicy) -> str:
    """What a baseline of so many passes costs, beside one of `baseline_passes`.

    Args:
        passes: that are made.
        score: of the starting policy, in [0, 1].
        items: held-out items.
        config: `Policy.calibrated`, with all passes that are wanted.
    """
    drop = drop_to_see(score)
    seen = [
        evaluations_to_detect(score, items, made, drop, config) for made in (passes, config.baseline_passes)
    ]
    later, sooner = ("no number of" if n is None else str(n) for n in seen)
    other = "as with all passes" if later == sooner else f"with all passes after {sooner}"
    return (
        f"{passes} of {config.baseline_passes} passes of the starting policy. False stops stay within alpha "
        f"({config.alpha:.0%}); a sudden fall of {100 * drop:.2g} points from a start of {score:.2f} shows "
        f"after {later} evaluations, {other}"
    )


def cannot_fall_from(score: float, config: CalibratedPolicy, *, has_grader: bool) -> str:
    """That a fall cannot stop a run that starts so low, and what can; "" if something does."""
    if not cannot_fall(score, config) or has_grader or config.on_gap == "stop":
        return ""
    return (
        f"the run starts at {points(score)}, below twice the accepted decline ({2 * config.max_decline:g}), "
        "so a fall from there cannot stop it: give the guard the training grader (`proxy_scorer`), or set "
        "`calibrated.on_gap: stop` in the policy"
    )


def uninformative_baseline(score: float, newest: float | None) -> Condition | None:
    """What a starting score near 0 or 1 means for a run whose newest evaluation has the mean `newest`.

    Near 0 nothing can fall: while the score stays there, no decline has been looked for. Near 1 there is
    nothing left to learn.
    """
    if UNINFORMATIVE <= score <= 1 - UNINFORMATIVE:
        return None
    low = score < UNINFORMATIVE
    stuck = low and (newest is None or newest < UNINFORMATIVE)
    where = (
        f"below {UNINFORMATIVE:.0%}: it cannot fall, so only a rise can show anything"
        if low
        else f"above {1 - UNINFORMATIVE:.0%}: there is nothing left to gain. Take harder items"
    )
    return Condition.of(
        Code.UNINFORMATIVE_BASELINE,
        f"the starting policy's held-out score is {score:.4f}, {where}",
        level=Level.UNKNOWN if stuck else Level.WARNING,
        advice=not stuck,
    )
