"""The checks of a run before its first step: one list for `rlguard check` and for the trainer's callback.

Each side fills in the `RunFacts` that it knows. A row that is `refuse` keeps the callback's run from
starting. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlguard.core.preflight import CheckLevel, CheckRow

_OK, _WARN, _REFUSE, _UNKNOWN = CheckLevel.OK, CheckLevel.WARN, CheckLevel.REFUSE, CheckLevel.UNKNOWN

STEPS, KL, FOLDER, LAYOUT = "steps", "KL to the reference", "checkpoints folder", "checkpoint layout"
TOKENIZER, EVALUATIONS, SAMPLING = "tokenizer", "evaluations", "sampling"
#: Checkpoints of a run that is saved often enough, before it is known how many its policy takes.
WANTED_CHECKPOINTS = 10
#: Checkpoints of the rarest saving that has one before the end: the last one comes at the end.
BEFORE_THE_END = 2
ROTATION, START, TIME = "save_total_limit", "starting policy", "evaluation time"


@dataclass(frozen=True, slots=True)
class Folder:
    """Where the trainer saves, and the guard's checkpoint root; `problem`: why it cannot be used, or None."""

    path: Path
    root: Path | None
    inside: bool
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Saves:
    """When the trainer saves.

    Fields:
        every: steps between two checkpoints; None: not known.
        last: the last step; None: not known.
        count: checkpoints that can be judged; None: not known.
        by_steps: whether they come after a number of steps, and not at the end of an epoch.
        never: why none is saved that could be scored; "" if some are.
    """

    every: int | None = None
    last: int | None = None
    count: int | None = None
    by_steps: bool = True
    never: str = ""


@dataclass(frozen=True, slots=True)
class Needed:
    """Evaluations until every rule can judge; `count` None: no number is enough. `condition` must hold."""

    count: int | None
    condition: str = ""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run before its first step.

    None is not known: `ask` then says, by the row's name, what to give.

    Fields:
        beta: the trainer's setting, where that decides whether there is a KL.
        kl_counts: whether steps will have a mean over tokens of the KL to the reference.
        kl_limit: the policy's `kl.hard_stop`, nats/token; None: there is none.
        folder: where checkpoints are saved.
        layout: why the guard could not load a checkpoint; "" if it could.
        adapter: whether checkpoints are adapters.
        tokenizer: why a checkpoint would have none; "" if it has one.
        saves: when checkpoints are saved.
        needed: how many evaluations the policy takes.
        kept: checkpoints that rotation leaves to wait for their score; 0 keeps all.
        max_lag: checkpoints that may be unscored while training goes on; None: it does not wait.
        evaluation_seconds: of one evaluation.
        step_seconds: of one training step.
        own: rows that only this side can fill in, by name.
        ask: what to give for a row that is not known, by name.
    """

    beta: float | None = None
    kl_counts: bool | None = None
    kl_limit: float | None = None
    folder: Folder | None = None
    layout: str | None = None
    adapter: bool = False
    tokenizer: str | None = None
    saves: Saves = Saves()
    needed: Needed | None = None
    kept: int | None = None
    max_lag: int | None = None
    evaluation_seconds: float | None = None
    step_seconds: float | None = None
    own: Mapping[str, CheckRow] = field(default_factory=dict)
    ask: Mapping[str, str] = field(default_factory=dict)

    def unknown(self, name: str) -> CheckRow:
        """The row of a question to which the answer is not known."""
        return CheckRow(name, _UNKNOWN, self.ask.get(name, "not known"))


def run_rows(facts: RunFacts) -> list[CheckRow]:
    """Every check, in the order in which they are shown."""
    own = facts.own
    rows = (
        own.get(STEPS),
        kl_row(facts),
        folder_row(facts),
        layout_row(facts),
        tokenizer_row(facts),
        evaluations_row(facts),
        own.get(SAMPLING, facts.unknown(SAMPLING)),
        rotation_row(facts),
        own.get(START),
        own.get(TIME, time_row(facts)),
    )
    return [row for row in rows if row is not None]


def reason_to_refuse(rows: list[CheckRow]) -> str | None:
    """Why the run must not start; None if it may."""
    return next((row.says for row in rows if row.level == _REFUSE), None)


def kl_row(facts: RunFacts) -> CheckRow | None:
    """Whether there will be a KL to the reference, and whether a limit on it can be watched."""
    if facts.kl_counts is None:
        return facts.unknown(KL) if KL in facts.ask else None
    if facts.kl_counts:
        return CheckRow(KL, _OK, "a mean over tokens" if facts.beta is None else f"beta is {facts.beta:g}")
    if facts.kl_limit is not None:
        needs = "set beta above 0, or " if facts.beta == 0 else ""
        return CheckRow(
            KL,
            _REFUSE,
            "there is no KL to the reference (a mean over tokens) to hold against kl.hard_stop "
            f"({facts.kl_limit:g}), and the run would end as one that was not judged: {needs}leave "
            "kl.hard_stop out of the policy",
        )
    if facts.beta != 0:
        return None
    return CheckRow(
        KL,
        _WARN,
        "beta is 0: there is no reference and no KL, so the KL rules are inert and the held-out score judges "
        "alone; a beta of 0.001 would show it",
    )


def folder_row(facts: RunFacts) -> CheckRow:
    """Whether checkpoints are saved where the guard takes them from."""
    folder = facts.folder
    if folder is None or folder.root is None:
        return facts.unknown(FOLDER)
    if not folder.inside:
        return CheckRow(
            FOLDER,
            _REFUSE,
            f"output_dir {folder.path} is outside the guard's checkpoint_root {folder.root}, so it would "
            "refuse every checkpoint: set output_dir to a folder below it, or checkpoint_root to one above",
        )
    if folder.problem is not None:
        return CheckRow(FOLDER, _REFUSE, f"{folder.path}: {folder.problem}")
    return CheckRow(FOLDER, _OK, f"{folder.path}, where the guard reads")


def layout_row(facts: RunFacts) -> CheckRow:
    """Whether the guard could load what is saved: safetensors, no code, an adapter with its base."""
    if facts.layout is None:
        return facts.unknown(LAYOUT)
    if facts.layout:
        return CheckRow(LAYOUT, _REFUSE, facts.layout)
    return CheckRow(
        LAYOUT,
        _OK,
        "an adapter of the guard's base model" if facts.adapter else "whole weights in safetensors",
    )


def tokenizer_row(facts: RunFacts) -> CheckRow:
    """Whether a tokenizer lies beside the weights."""
    if facts.tokenizer is None:
        return facts.unknown(TOKENIZER)
    if facts.tokenizer:
        return CheckRow(TOKENIZER, _REFUSE, facts.tokenizer)
    return CheckRow(
        TOKENIZER, _OK, "saved with the model" + (", or with its base model" if facts.adapter else "")
    )


def evaluations_row(facts: RunFacts) -> CheckRow:
    """Whether there are enough checkpoints to judge by."""
    saves, needed = facts.saves, facts.needed
    if saves.never:
        return CheckRow(EVALUATIONS, _REFUSE, saves.never)
    if saves.every is not None and saves.last is not None and saves.every > saves.last:
        wanted = min(saves.last, WANTED_CHECKPOINTS) if needed is None else needed.count
        return CheckRow(
            EVALUATIONS,
            _REFUSE,
            f"save_steps {saves.every} is more than max_steps {saves.last}: no checkpoint before the end, so "
            f"no fire could stop the run; {_save_more(saves.last, max(wanted or 1, BEFORE_THE_END))}",
        )
    if saves.count is None or saves.last is None or needed is None:
        return facts.unknown(EVALUATIONS)
    if needed.count is None:
        return CheckRow(
            EVALUATIONS,
            _WARN,
            "no number of evaluations of so few items would show a fall of ten points, or by half: take "
            "more items, or more calibrated.baseline_passes at a temperature above 0",
        )
    enough = f"{needed.count} are needed{needed.condition}"
    if saves.count >= needed.count:
        return CheckRow(EVALUATIONS, _OK, f"{saves.count} checkpoints; {enough}")
    other = "" if saves.by_steps else "with save_strategy='steps', "
    more = _save_more(saves.last, needed.count)
    return CheckRow(EVALUATIONS, _WARN, f"you will get {saves.count} evaluations; {enough}: {other}{more}")


def _save_more(max_steps: int, needed: int) -> str:
    if max_steps < needed:
        return f"train for {needed} steps at least"
    return f"set save_steps to {max_steps // needed} or less"


def rotation_row(facts: RunFacts) -> CheckRow:
    """Whether a checkpoint is still there when its turn comes."""
    kept = facts.kept
    if kept is None:
        return facts.unknown(ROTATION)
    if kept == 0:
        return CheckRow(ROTATION, _OK, "none: every checkpoint stays until it is scored")
    if kept < 0:
        return CheckRow(ROTATION, _WARN, "none has room to wait for its score beside the best one: raise it")
    if facts.max_lag is not None:
        most = min(facts.max_lag, kept - 1)
        return CheckRow(
            ROTATION, _OK, f"{kept} are kept, and training waits while more than {most} are unscored"
        )
    return CheckRow(
        ROTATION,
        _WARN,
        f"{kept} are kept, and training does not wait: one that is deleted before its turn is judged by "
        f"nobody; max_lag={kept - 1} has training wait, where it is not followed",
    )


def time_row(facts: RunFacts) -> CheckRow:
    """How long training waits for an evaluation."""
    if facts.evaluation_seconds is None:
        return facts.unknown(TIME)
    took = f"an evaluation takes {facts.evaluation_seconds:.3g} s"
    if facts.saves.every is None or not facts.step_seconds:
        return CheckRow(TIME, _UNKNOWN, f"{took}; give --save-steps and --step-seconds to compare it")
    save = facts.saves.every * facts.step_seconds
    says = f"{took}, and the trainer saves every {save:.3g} s"
    if facts.evaluation_seconds <= save:
        return CheckRow(TIME, _OK, says)
    least = -int(-facts.evaluation_seconds // facts.step_seconds)
    return CheckRow(
        TIME,
        _WARN,
        f"{says}: training waits for the guard, or, where it does not wait, a fire comes late; set "
        f"save_steps to {least} or more, or take fewer items or a shorter max_new_tokens",
    )
