"""Everything that a verdict can say: one table. Verdict, terminal, status and reference page read it."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Level(StrEnum):
    """Verdict levels in order of severity; the worst of several wins."""

    HEALTHY = "healthy"
    UNKNOWN = "unknown"
    WARNING = "warning"
    FIRED = "fired"

    @property
    def severity(self) -> int:
        """0 for healthy up to 3 for fired."""
        return list(Level).index(self)


class Finding(StrEnum):
    """What a code that fires has found. A decline is not yet hacking, and neither is distance."""

    HACKING = "hacking"
    DECLINE = "decline"
    DISTANCE = "distance"

    @property
    def words(self) -> str:
        """The finding for people, as in "fired at step 9: WORDS"."""
        return _FINDING_WORDS[self]


_FINDING_WORDS = {
    Finding.HACKING: "evidence of reward hacking",
    Finding.DECLINE: "the held-out score fell",
    Finding.DISTANCE: "the policy is too far from its reference",
}


_LOOK_AT_BOTH = "compare the best checkpoint with the last one before you use either"


class Code(StrEnum):
    """Stable codes: the name, the level that it has unless a condition says another, meaning and remedy.

    The name says which question was answered, and not by which algorithm.
    """

    #: Of the condition by itself.
    level: Level
    #: One sentence, for people.
    meaning: str
    #: What to do about a run that ends with it, in the imperative; "" where nothing is to be done.
    remedy: str
    #: What has been found where this code fires; None for a code that does not fire.
    finding: Finding | None

    def __new__(
        cls,
        value: str,
        level: Level = Level.UNKNOWN,
        meaning: str = "",
        remedy: str = "",
        finding: Finding | None = None,
    ) -> Self:
        """A row of the table; `Code(value)` looks it up."""
        self = str.__new__(cls, value)
        self._value_ = value
        self.level, self.meaning, self.remedy, self.finding = level, meaning, remedy, finding
        return self

    KL_HARD_STOP = (
        "kl_hard_stop",
        Level.FIRED,
        "KL to the reference is above the limit that the policy sets for it.",
        "lower the learning rate, raise beta, or raise the limit if that distance is wanted",
        Finding.DISTANCE,
    )
    HELDOUT_DECLINE = (
        "heldout_decline",
        Level.FIRED,
        "The held-out score kept falling while in-loop reward rose.",
        _LOOK_AT_BOTH,
        Finding.HACKING,
    )
    HACKING_GAP = (
        "hacking_gap",
        Level.FIRED,
        "In-loop reward gained more than the held-out score, by more than the ceiling.",
        _LOOK_AT_BOTH,
        Finding.HACKING,
    )
    FELL_BELOW_START = (
        "fell_below_start",
        Level.FIRED,
        "The held-out score fell below where it started.",
        _LOOK_AT_BOTH,
        Finding.DECLINE,
    )
    FELL_BELOW_REACHED = (
        "fell_below_reached",
        Level.FIRED,
        "The held-out score fell below a level that it had reached since the start.",
        _LOOK_AT_BOTH,
        Finding.DECLINE,
    )
    REWARD_WITHOUT_GAIN = (
        "reward_without_gain",
        Level.FIRED,
        "The reward rose and the held-out score did not.",
        _LOOK_AT_BOTH,
        Finding.HACKING,
    )
    GRADERS_DISAGREE = (
        "graders_disagree",
        Level.FIRED,
        "The training grader pays for held-out completions that the scorer rejects.",
        "read completions on which the two graders differ, and fix the training grader",
        Finding.HACKING,
    )
    UNINFORMATIVE_BASELINE = (
        "uninformative_baseline",
        Level.WARNING,
        "The starting score leaves the held-out score little room to move.",
        "choose items that the starting policy solves sometimes, and let it finish its completions "
        "(max_new_tokens)",
    )
    CUT_SHORT = (
        "cut_short",
        Level.UNKNOWN,
        "Scores could not be compared: the evaluator cuts off what the trainer lets go on.",
        "raise the evaluator's max_new_tokens_ceiling to what the trainer generates with, and start a new "
        "run from the last good checkpoint",
    )
    NO_BASELINE = (
        "no_baseline",
        Level.UNKNOWN,
        "The passes of the starting policy are not complete, so declines cannot be judged yet.",
        "let the trainer save more checkpoints (save_steps), or lower baseline_passes",
    )
    SILENT = (
        "silent",
        Level.UNKNOWN,
        "The trainer has reported no step for too long.",
        "see the trainer's log; raise silent.after_seconds if one step may take that long",
    )
    STALE = (
        "stale",
        Level.UNKNOWN,
        "Checkpoints or steps arrive, but no evaluation has finished for too long.",
        "save less often, or make an evaluation cheaper (items, samples, max_new_tokens); where checkpoints "
        "were deleted before their turn, keep more of them (save_total_limit), and where the guard itself "
        "passed them over (backlog: newest), let it take each (backlog: every)",
    )
    EVALUATION_FAILING = (
        "evaluation_failing",
        Level.UNKNOWN,
        "Held-out evaluations failed several times in a row, or the training grader did on some of them.",
        "fix what the failure names; the guard's log has each one",
    )
    CHECKPOINT_DOUBTFUL = (
        "checkpoint_doubtful",
        Level.UNKNOWN,
        "The newest checkpoint was not scored, because it is not what this run may be judged by: other files "
        "than were announced, another tokenizer, or the weights of the one before.",
        "save what is trained, complete before it is announced, with one tokenizer for the whole run; if "
        "nobody did otherwise, ask who else writes there",
    )
    NO_STEPS = (
        "no_steps",
        Level.UNKNOWN,
        "No step has been reported yet.",
        "add GuardCallback.from_env(trainer) to the trainer, or, where its log is followed, let path and "
        "format be those of that log",
    )
    NO_REWARD = (
        "no_reward",
        Level.UNKNOWN,
        "The reward of the newest steps is NaN or infinite, or none was reported for the newest evaluated "
        "checkpoints.",
        "look in the trainer's log for rewards that are NaN, infinite or None. If there is none, let the "
        "trainer log at least as often as it saves (logging_steps, save_steps)",
    )
    WARMING_UP = (
        "warming_up",
        Level.UNKNOWN,
        "Too few evaluation rounds for the rule to judge.",
        "save more often (save_steps), for more evaluations",
    )
    REPORTS_REFUSED = (
        "reports_refused",
        Level.UNKNOWN,
        "The guard refused several reports of the trainer in a row.",
        "fix what the refusal names; the trainer's log has each one",
    )
    KL_INERT = (
        "kl_inert",
        Level.HEALTHY,
        "There is no KL to the reference, so the KL rule cannot fire. Where `kl.hard_stop` is set, the "
        "verdict is `unknown` after five such steps in a row.",
        "set beta above 0 if KL is to be watched, else leave kl.hard_stop out",
    )
    KL_NOT_FINITE = (
        "kl_not_finite",
        Level.UNKNOWN,
        "The trainer's KL to the reference is infinite or not a number.",
        "look for logits that are infinite or not a number in the trainer",
    )
    REFERENCE_NOT_START = (
        "reference_not_start",
        Level.WARNING,
        "KL did not start near 0: the reference is not the starting policy.",
        "give the trainer its starting policy as the reference",
    )
    SAMPLING_UNKNOWN = (
        "sampling_unknown",
        Level.WARNING,
        "The trainer does not say how it samples, and neither do the settings.",
        "let the trainer say it (`sampling` of a checkpoint's report), or set temperature and max_new_tokens "
        "of the evaluator",
    )
    SAMPLING_CHANGED = (
        "sampling_changed",
        Level.WARNING,
        "The trainer no longer samples as it did at the start; evaluations still do.",
        "keep the trainer's sampling as it is for a whole run, or start a new run",
    )
    NOT_WAITING = (
        "not_waiting",
        Level.WARNING,
        "The trainer does not wait for its guard, so a fire may come late.",
        "save less often, or make an evaluation cheaper (items, samples, max_new_tokens); --max-lag N lets "
        "the trainer wait",
    )
    STARTED_AGAIN = (
        "started_again",
        Level.UNKNOWN,
        "An attempt of the trainer started from scratch.",
        "let the trainer go on from its newest checkpoint (resume_from_checkpoint), or give a run that "
        "starts from scratch a guard of its own",
    )
    PAST_UNKNOWN = (
        "past_unknown",
        Level.UNKNOWN,
        "The guard came back without its store, and what the status tells cannot be used: nobody knows how "
        "the run was judged until then.",
        "start a new run from a checkpoint that you trust, and let the guard's store outlive its pod "
        "(`state.claimName`)",
    )
    STORE_UNAVAILABLE = (
        "store_unavailable",
        Level.UNKNOWN,
        "The guard's store cannot be read or written.",
        "give the guard's state directory room and write permission",
    )
    NOT_FOLLOWED = (
        "not_followed",
        Level.UNKNOWN,
        "The guard cannot read what the trainer writes, or nothing was written there.",
        "let path and format of the guard's `metrics` be those of the trainer's log, which the guard's user "
        "must be able to read",
    )
    OK = (
        "ok",
        Level.HEALTHY,
        "Nothing speaks against the run.",
    )
