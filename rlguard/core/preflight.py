"""What is looked at before the first step, a row for each question; and how many evaluations a run takes.

`rlguard check` and the trainer's callback say the same of it. Pure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rlguard.core.policy import CalibratedPolicy, Policy
from rlguard.core.rounds import MIN_STEPS
from rlguard.core.wire import EvaluationSampling, EvaluationsNeeded, SamplingSource

#: A start at which an evaluation is noisiest, for want of the real one.
NOISIEST = 0.5

#: What is said with a number of evaluations that is for that start.
FROM_NOISIEST = ", for a start near one half (near 0 it may take more)"

#: Begins the line with which a trainer says why it does not start; `rlguard run` reads it in its output.
REFUSED = "refused before the first step: "


class CheckLevel(StrEnum):
    """What would become of a run. `REFUSE`: it would not start, or nothing of it could be judged."""

    OK = "ok"
    WARN = "warn"
    REFUSE = "refuse"
    UNKNOWN = "not checked"


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One line of the table: what was looked at, how it is, and what to do."""

    name: str
    level: CheckLevel
    says: str


def as_text(rows: Sequence[CheckRow], width: int = 120) -> str:
    """The table for a log, no wider than `width` characters where its words allow."""
    names = 2 + max(len(row.name) for row in rows)
    levels = 2 + max(len(row.level) for row in rows)
    return "\n".join(
        textwrap.fill(
            row.says,
            width,
            initial_indent=f"{row.name:{names}}{row.level:{levels}}",
            subsequent_indent=" " * (names + levels),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for row in rows
    )


def is_greedy(sampling: EvaluationSampling) -> bool:
    """Whether evaluations are greedy whatever the trainer will say; most trainers sample."""
    return sampling.temperature == 0 and sampling.source is not SamplingSource.DEFAULT


def evaluations_needed(
    policy: Policy, items: int, sampling: EvaluationSampling, score: float | None = None
) -> EvaluationsNeeded:
    """Evaluations until every rule of the policy can judge a run that stays at its start.

    Args:
        policy: the thresholds.
        items: held-out items; those of one group are one.
        sampling: of an evaluation that no trainer tells how it samples.
        score: of the starting policy; None counts as the noisiest.
    """
    if policy.detector == "heldout_guard":
        return _with_the_other_rules(policy, 1)
    from rlguard.core.detectors import planning

    config = _config(policy, sampling)
    score = NOISIEST if score is None else score
    drop = planning.drop_to_see(score)
    passes = 1 if is_greedy(sampling) else config.baseline_passes
    seen = planning.evaluations_to_detect(score, items, passes, drop, config) if items and drop else None
    return _with_the_other_rules(policy, seen)


def about_the_budget(
    policy: Policy,
    items: int,
    sampling: EvaluationSampling,
    seconds: float | None,
    score: float | None = None,
) -> str:
    """What `baseline_minutes` cost, in one sentence; "" where they cost nothing.

    Args:
        policy: the thresholds, with all passes that are wanted.
        items: held-out items; those of one group are one.
        sampling: of an evaluation that no trainer tells how it samples.
        seconds: that a pass takes; None: not known yet.
        score: of the starting policy; None counts as the noisiest.
    """
    passes = policy.within_budget(seconds).calibrated.baseline_passes
    enough = passes == policy.calibrated.baseline_passes
    if enough or policy.detector == "heldout_guard" or is_greedy(sampling):
        return ""
    from rlguard.core.detectors.conditions import fewer_passes

    said = fewer_passes(passes, NOISIEST if score is None else score, items, _config(policy, sampling))
    return f"baseline_minutes have room for {said}"


def needed_once_risen(
    policy: Policy, items: int, sampling: EvaluationSampling, score: float
) -> EvaluationsNeeded:
    """The same for a run that rises to a level from `score`; null where that start is high enough."""
    from rlguard.core.detectors import planning

    config = _config(policy, sampling)
    passes = 1 if is_greedy(sampling) else config.baseline_passes
    low = planning.drop_to_see(score) < planning.DROP_TO_SEE
    seen = planning.evaluations_once_risen(items, passes, config) if items and low else None
    return _with_the_other_rules(policy, seen)


def _config(policy: Policy, sampling: EvaluationSampling) -> CalibratedPolicy:
    # The detector, too, takes it from the evaluations.
    return policy.calibrated.model_copy(update={"samples": sampling.samples})


def _with_the_other_rules(policy: Policy, seen: int | None) -> EvaluationsNeeded:
    if policy.detector == "heldout_guard":
        least = max(1, policy.heldout_guard.min_steps)
        return EvaluationsNeeded(long_rounds=least, short_rounds=least)
    if seen is None:
        return EvaluationsNeeded(long_rounds=None, short_rounds=None)
    from rlguard.core.detectors.rewards import KNOWN, WINDOW

    return EvaluationsNeeded(long_rounds=max(seen, KNOWN), short_rounds=max(seen, 2 * WINDOW))


def needed_for(needed: EvaluationsNeeded, steps_per_save: int | None) -> int | None:
    """How many evaluations a run takes that saves so often; None: no number is enough."""
    short = steps_per_save is not None and steps_per_save < MIN_STEPS
    return needed.short_rounds if short else needed.long_rounds


def about_falls(score: float, items: int, policy: Policy, sampling: EvaluationSampling) -> str:
    """From which size on a sudden fall stops a run that starts at this score, and how soon.

    Args:
        score: of the starting policy, in [0, 1].
        items: held-out items; those of one group are one.
        policy: the thresholds.
        sampling: of the evaluations.
    """
    from rlguard.core.detectors import planning

    config = _config(policy, sampling)
    passes = 1 if is_greedy(sampling) else config.baseline_passes
    sizes = ((since, planning.least_drop(score, items, passes, since, config)) for since in (4, 16))
    said = [f"of {100 * drop:.2g} points after {since} evaluations" for since, drop in sizes if drop < score]
    return f"a fall stops the run {' or '.join(said)}" if said else "no fall from there can stop the run"


def low_start(score: float) -> str:
    """The condition of `needed_once_risen`."""
    return f", and a score that has risen, because a fall from a start of {score:.3f} could not be seen"
