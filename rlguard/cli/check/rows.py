"""What a run needs, one row for each question: pure functions from what was found to ok, warn or refuse.

What is not known is `unknown`, never ok; its row says what to give.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlguard.core import preflight
from rlguard.core.policy import GREEDY_PASSES, Policy
from rlguard.core.preflight import CheckLevel, CheckRow, is_greedy
from rlguard.core.run_checks import (
    EVALUATIONS,
    FOLDER,
    KL,
    LAYOUT,
    ROTATION,
    SAMPLING,
    TIME,
    TOKENIZER,
    Folder,
    Needed,
    RunFacts,
    Saves,
    run_rows,
)
from rlguard.core.unscored import (
    MAX_TIMED_OUT,
    MAX_TRUNCATED,
    MAX_UNANSWERED,
    MOST_UNSCORED,
    scores_what_is_cut_off,
)
from rlguard.core.wire import EvaluationSampling, SamplingSource


@dataclass(frozen=True, slots=True)
class Trainer:
    """The trainer's own figures, None where they were not given.

    `save_steps`: steps between two saves; below 1 a share of `max_steps`, as in transformers. `step_seconds`:
    seconds of one training step.
    """

    save_steps: float | None = None
    max_steps: int | None = None
    save_total_limit: int | None = None
    beta: float | None = None
    step_seconds: float | None = None

    @property
    def steps_per_save(self) -> int | None:
        """Whole steps between two saves."""
        if self.save_steps is None or self.save_steps >= 1:
            return None if self.save_steps is None else math.ceil(self.save_steps)
        return None if self.max_steps is None else math.ceil(self.save_steps * self.max_steps)

    @property
    def saves(self) -> int | None:
        """Checkpoints of the run; the last step is saved as well."""
        if self.steps_per_save is None or self.max_steps is None:
            return None
        return math.ceil(self.max_steps / self.steps_per_save)


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint. The problems: why the guard cannot take it, or its tokenizer; None if it can."""

    path: Path
    problem: str | None
    no_tokenizer: str | None
    adapter: bool = False


@dataclass(frozen=True, slots=True)
class TriedScorer:
    """The scorer, tried on the items' own answers. The problems: why it, or the training grader, is unusable.

    `answers`: how many were tried; None: it is not known that it loads. `pay`: what the training grader pays
    on average for right answers, and for those of other items; None: it was not tried.
    """

    problem: str | None = None
    grader_problem: str | None = None
    answers: int | None = None
    pay: tuple[float, float | None] | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """The held-out split. `items`: how many, None if it cannot be read; `counted`: as how many they count.

    `overlap`: why it is not disjoint from the training prompts; None: not compared, "" if it is. `apart`:
    that near-duplicates of each other are not of one group, "" if none are.
    """

    items: int | None
    counted: int | None
    problem: str = ""
    overlap: str | None = None
    scorer: TriedScorer = TriedScorer()
    apart: str = ""


@dataclass(frozen=True, slots=True)
class TriedEvaluation:
    """One evaluation that was tried: wall seconds and mean score, or why it failed.

    `paid`: what the training grader gave the same completions; `in_part`: share of what the scorer rejects
    that it pays a part for. The others are shares of the completions, None where that is not known.
    """

    seconds: float | None
    score: float | None
    problem: str | None = None
    paid: float | None = None
    in_part: float = 0.0
    truncated: float | None = None
    unanswered: float | None = None
    unscored: float = 0.0
    timed_out: float | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that the rows are made from.

    `sampling`: of an evaluation that no trainer tells how it samples. `grader`: whether the guard has the
    training grader (`proxy_scorer`). `followed`: the row of a log that is followed.
    """

    trainer: Trainer
    policy: Policy
    split: Split
    sampling: EvaluationSampling
    grader: bool
    folder: Folder | None
    followed: CheckRow | None
    model: Model | None
    measured: TriedEvaluation | None

    @property
    def affordable(self) -> Policy:
        """The policy, with as many passes of the starting policy as its budget has room for."""
        return self.policy.within_budget(self._seconds)

    @property
    def about_the_budget(self) -> str:
        """What the budget costs; "" if nothing."""
        counted, score = self.split.counted or 1, None if self.measured is None else self.measured.score
        return preflight.about_the_budget(self.policy, counted, self.sampling, self._seconds, score)

    @property
    def _seconds(self) -> float | None:
        return None if self.measured is None else self.measured.seconds


def rows(found: Found) -> list[CheckRow]:
    """The whole table: what only this command can look at, and the checks of any run."""
    return [
        split_row(found.split),
        overlap_row(found.split),
        scorer_row(found.split),
        grader_row(found.split, found.measured, given=found.grader),
        *(() if found.followed is None else (found.followed,)),
        *run_rows(facts_for_checks(found)),
        *_measured_rows(found),
        baseline_row(found.affordable, found.sampling, found.about_the_budget),
    ]


def facts_for_checks(found: Found) -> RunFacts:
    """What is known of the run."""
    trainer, model, measured = found.trainer, found.model, found.measured
    readable = found.split.items is not None
    evaluations = (
        "the split has to be readable first" if trainer.saves else "give --save-steps and --max-steps"
    )
    return RunFacts(
        beta=trainer.beta,
        kl_counts=None if trainer.beta is None else trainer.beta > 0,
        kl_limit=found.policy.kl.hard_stop,
        folder=found.folder,
        layout=None if model is None else model.problem or "",
        adapter=model is not None and model.adapter,
        tokenizer=None if model is None else _tokenizer(model),
        saves=Saves(trainer.steps_per_save, trainer.max_steps, trainer.saves),
        needed=Needed(*evaluations_until_judged(found)) if readable else None,
        kept=trainer.save_total_limit,
        max_lag=1 if found.followed is None else None,
        evaluation_seconds=None if measured is None else measured.seconds,
        step_seconds=trainer.step_seconds,
        own={
            SAMPLING: sampling_row(found.sampling, timed=measured is not None),
            **_failed_evaluation(measured),
        },
        ask={
            KL: "give --beta",
            FOLDER: "give --checkpoints DIR: the trainer's output_dir",
            LAYOUT: "give --model DIR: a checkpoint as the trainer saves it",
            TOKENIZER: "give --model DIR",
            EVALUATIONS: evaluations,
            ROTATION: "give --save-total-limit, if the trainer has one",
            TIME: "--time evaluates --model once",
        },
    )


def _tokenizer(model: Model) -> str:
    return "" if model.no_tokenizer is None else f"{model.path}: {model.no_tokenizer}"


def _failed_evaluation(measured: TriedEvaluation | None) -> dict[str, CheckRow]:
    """The row of an evaluation that was tried and failed."""
    if measured is None or measured.seconds is not None:
        return {}
    return {TIME: CheckRow(TIME, CheckLevel.REFUSE, measured.problem or "the evaluation failed")}


def _measured_rows(found: Found) -> Iterator[CheckRow]:
    if found.measured is not None and found.measured.score is not None:
        yield completions_row(found.measured)
        yield score_row(found.measured.score, found)


# -- held-out data ---------------------------------------------------------------------------------------


def split_row(split: Split) -> CheckRow:
    """Whether the split can be read."""
    name = "held-out split"
    if split.items is None:
        return CheckRow(name, CheckLevel.REFUSE, split.problem)
    said = f"{split.items} items"
    if split.counted != split.items:
        said += f" in {split.counted} groups: those of one group are judged as one item"
    if split.apart:
        return CheckRow(name, CheckLevel.WARN, f"{said}; {split.apart}")
    return CheckRow(name, CheckLevel.OK, said)


def overlap_row(split: Split) -> CheckRow:
    """Whether the split is disjoint from the training prompts."""
    name = "overlap with training"
    if split.overlap is None:
        said = "give --train-prompts: a prompt that was trained on measures memory"
        return CheckRow(name, CheckLevel.UNKNOWN, said)
    return CheckRow(name, CheckLevel.REFUSE if split.overlap else CheckLevel.OK, split.overlap or "none")


def scorer_row(split: Split) -> CheckRow:
    """Whether the scorer loads and accepts the items' own answers."""
    name, tried = "scorer and answers", split.scorer
    if split.items is None:
        return CheckRow(name, CheckLevel.UNKNOWN, "the split has to be readable first")
    if tried.problem is not None:
        return CheckRow(name, CheckLevel.REFUSE, tried.problem)
    if tried.answers is None:
        first = (
            "the training grader has to load" if tried.grader_problem else "the evaluation process must stay"
        )
        return CheckRow(name, CheckLevel.UNKNOWN, f"{first} first")
    if not tried.answers:
        return CheckRow(name, CheckLevel.OK, "the scorer loads; there are no answers to try")
    others = split.items - tried.answers
    left_out = f"; {others} more are not to be tried" if others else ""
    return CheckRow(name, CheckLevel.OK, f"the scorer loads, and the items' own answers score 1{left_out}")


def grader_row(split: Split, measured: TriedEvaluation | None, *, given: bool) -> CheckRow:
    """Whether the training grader scores the held-out completions too, and tells right from wrong."""
    name, tried = "training grader", split.scorer
    if not given:
        said = "give --proxy-scorer: without it a grader that pays for wrong answers is found late"
        return CheckRow(name, CheckLevel.UNKNOWN, said)
    if tried.grader_problem is not None:
        return CheckRow(name, CheckLevel.REFUSE, tried.grader_problem)
    if split.items is None or tried.answers is None:
        return CheckRow(name, CheckLevel.UNKNOWN, "split and scorers have to be usable first")
    if measured is not None and measured.score is not None:
        return _paid_for_completions(name, measured.score, measured)
    if tried.pay is None:
        return CheckRow(name, CheckLevel.UNKNOWN, "it loads; --time tries it on completions")
    return _paid_for_answers(name, *tried.pay)


def _paid_for_answers(name: str, right: float, wrong: float | None) -> CheckRow:
    """What the grader pays for the items' own answers, and for those of other items."""
    said = f"it pays {right:.2f} for right answers"
    if wrong is not None:
        said += f", and {wrong:.2f} for the answers of other items"
    if wrong is not None and wrong >= right:
        return CheckRow(name, CheckLevel.WARN, f"{said}: it does not tell right from wrong")
    return CheckRow(name, CheckLevel.OK, said)


def _paid_for_completions(name: str, score: float, measured: TriedEvaluation) -> CheckRow:
    """What the grader paid for the completions of --model."""
    if measured.paid is None:
        return CheckRow(name, CheckLevel.REFUSE, "it failed on the completions of --model")
    said = f"it gives {measured.paid:.3f} where the scorer gives {score:.3f}"
    if not measured.in_part:
        return CheckRow(name, CheckLevel.OK, said)
    more = (
        f"; it pays a part for {measured.in_part:.0%} of what the scorer rejects, and that a policy "
        "learns to earn that part cannot be told from a hack, so the guard will only warn of it: "
        "give the part of the grader that says right or wrong"
    )
    return CheckRow(name, CheckLevel.WARN, said + more)


def evaluations_until_judged(found: Found) -> tuple[int | None, str]:
    """Evaluations until every rule of the policy can judge, and the condition that this holds under.

    None: no number of them is enough.
    """
    what = found.affordable, found.split.counted or 0, found.sampling
    score = found.measured.score if found.measured is not None else None
    needed = preflight.needed_for(preflight.evaluations_needed(*what, score), found.trainer.steps_per_save)
    if found.policy.detector == "heldout_guard":
        return needed, ""
    if score is None:
        return needed, preflight.FROM_NOISIEST
    risen = preflight.needed_for(preflight.needed_once_risen(*what, score), found.trainer.steps_per_save)
    if risen is None or (needed is not None and needed <= risen):
        return needed, ""
    return risen, preflight.low_start(score)


# -- judging ---------------------------------------------------------------------------------------------


def completions_row(measured: TriedEvaluation) -> CheckRow:
    """Whether the completions come to an end, and to an answer; above the guard's own limits it warns."""
    shares = (
        (measured.truncated, MAX_TRUNCATED, "cut off at the length limit (max_new_tokens)"),
        (measured.unanswered, MAX_UNANSWERED, "without an answer (answer_after is not in them)"),
        (measured.timed_out, MAX_TIMED_OUT, "timed out in a scorer (scorer_timeout_seconds)"),
    )
    said = [f"{share:.0%} {what}" for share, _, what in shares if share is not None]
    if measured.unscored >= MOST_UNSCORED:
        nothing = f"{measured.unscored:.0%} could not be scored, so the score says nothing of the policy"
        return CheckRow("completions", CheckLevel.REFUSE, "; ".join([nothing, *said]))
    if any(share is not None and share > limit for share, limit, _ in shares):
        scored = scores_what_is_cut_off(measured.truncated, measured.unscored)
        count = "what is cut off is scored as it is (score_truncated)" if scored else "they count as wrong"
        return CheckRow("completions", CheckLevel.WARN, f"{'; '.join(said)}: {count}")
    if measured.truncated is None:
        return CheckRow("completions", CheckLevel.UNKNOWN, "; ".join(["how they end is not known", *said]))
    return CheckRow("completions", CheckLevel.OK, "; ".join(said))


def score_row(score: float, found: Found) -> CheckRow:
    """Whether the starting score leaves room to move, and which falls from it stop the run."""
    from rlguard.core.detectors.conditions import cannot_fall_from, uninformative_baseline

    name, policy = "starting score", found.policy
    if said := uninformative_baseline(score, None):
        return CheckRow(name, CheckLevel.WARN, said.message)
    if policy.detector == "heldout_guard" or not found.split.counted:
        return CheckRow(name, CheckLevel.OK, f"{score:.3f}")
    if low := cannot_fall_from(score, policy.calibrated, has_grader=found.grader):
        return CheckRow(name, CheckLevel.WARN, low)
    falls = preflight.about_falls(score, found.split.counted, found.affordable, found.sampling)
    return CheckRow(name, CheckLevel.OK, f"{score:.3f}; {falls}")


def sampling_row(sampling: EvaluationSampling, *, timed: bool) -> CheckRow:
    """How evaluations sample. The trainer says it with its first checkpoint, and is not asked here."""
    if sampling.source is SamplingSource.SETTINGS:
        return CheckRow(SAMPLING, CheckLevel.OK, sampling.words)
    known = f"; tried here: {sampling.words}" if timed else ", if it says so"
    ask = "give --temperature and --max-new-tokens as the trainer has them"
    return CheckRow(SAMPLING, CheckLevel.UNKNOWN, f"as the trainer's will be{known}; {ask}")


def baseline_row(policy: Policy, sampling: EvaluationSampling, budget: str) -> CheckRow:
    """How many passes of the starting policy the guard makes. `budget`: what theirs costs, or ""."""
    name, passes = "baseline passes", policy.calibrated.baseline_passes
    if policy.detector == "heldout_guard":
        return CheckRow(name, CheckLevel.OK, "detector heldout_guard needs none")
    if is_greedy(sampling):
        passes = min(GREEDY_PASSES, passes)
    default = sampling.source is SamplingSource.DEFAULT
    temperature = "the trainer's temperature" if default else f"temperature {sampling.temperature:g}"
    return CheckRow(name, CheckLevel.OK, budget or f"{passes} at {temperature}")
