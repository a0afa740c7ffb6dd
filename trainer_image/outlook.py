"""How many checkpoints a run of the Trainer will save, and where there is room for one between two."""

from __future__ import annotations

import math
from typing import Any

from guard_core.preflight import FROM_NOISIEST, enough_evaluations, needed_for
from guard_core.wire import EvaluationsNeeded

#: Checkpoints that must be kept for one between two: the best, the newest, and it.
ROOM = 3


def evaluations_ahead(
    args: Any, state: Any, needed: EvaluationsNeeded, since: int
) -> tuple[bool, str] | None:
    """Whether this run can be judged, and a sentence; None where the number of checkpoints is not known.

    Args:
        args: the `TrainingArguments`.
        state: the `TrainerState` at the beginning of training.
        needed: what the guard says its policy takes.
        since: step after which checkpoints reach a guard that knows of none before.
    """
    every = steps_per_save(args, state)
    if every is None:
        return None
    saves = math.ceil(state.max_steps / every) - since // every
    strategy = getattr(args, "save_strategy", None)
    by_steps = getattr(strategy, "value", strategy) == "steps"
    return enough_evaluations(
        saves, needed_for(needed, every), state.max_steps, FROM_NOISIEST, by_steps=by_steps
    )


def kept_for_their_turn(args: Any, *, keep_best: bool = False) -> int | None:
    """How many checkpoints rotation leaves to wait for their score; None: it deletes none.

    Args:
        args: the `TrainingArguments`.
        keep_best: whether the best one is spared, and takes the place of one that waits.
    """
    limit = getattr(args, "save_total_limit", None)
    return None if limit is None or limit <= 0 else int(limit) - keep_best


def safe_lag(kept: int) -> int:
    """How many checkpoints may be unscored when the next is saved, so that none of them is deleted by that.

    The guard has a copy of the one that it scores. But while it makes passes of the starting policy, which go
    first, it has a copy of none that waits.

    Args:
        kept: as of `kept_for_their_turn`, at least 1.
    """
    return kept - 1


def capped_lag(max_lag: int, kept: int | None) -> int:
    """`max_lag`, or less where rotation would delete a checkpoint before its turn.

    Args:
        max_lag: checkpoints that may be unscored while training goes on.
        kept: as of `kept_for_their_turn`.
    """
    return max_lag if kept is None else min(max_lag, max(0, safe_lag(kept)))


def rotation_ahead(lag: int, limit: int | None) -> str | None:
    """That checkpoints will be deleted before their turn, with what to set; None while there is room.

    The guard has a copy of the one that it scores, so as many may wait beside it as are kept.

    Args:
        lag: checkpoints that are unscored, the one under way included.
        limit: as of `kept_for_their_turn`; None keeps all.
    """
    if limit is None or lag <= limit:
        return None
    return (
        f"{lag} checkpoints are unscored and save_total_limit keeps {limit}: one that is deleted before its "
        "turn is judged by nobody. Raise save_total_limit, save less often, or have training wait for the "
        f"guard (max_lag={safe_lag(limit)}, RLGUARD_MAX_LAG)"
    )


def save_sooner(every: int | None, since: int, args: Any) -> bool:
    """Whether this is the place of a checkpoint between two regular ones, for a guard that wants one.

    About halfway, so there is at most one more; and none where it would take the place of one that may be
    waited for, beside a best one that is kept. Between epochs there is none: the Trainer saves at their ends
    after the last step, and would write over one that was saved at that step.

    Args:
        every: steps between two regular ones; None: not known.
        since: steps since the newest one.
        args: the `TrainingArguments`.
    """
    limit, strategy = getattr(args, "save_total_limit", None), getattr(args, "save_strategy", None)
    by_steps, room = getattr(strategy, "value", strategy) == "steps", not limit or limit >= ROOM
    if every is None or not (by_steps and room):
        return False
    return every <= 2 * since and 4 * since <= 3 * every


def steps_per_save(args: Any, state: Any) -> int | None:
    """Steps between two checkpoints that the Trainer saves by itself; None where it saves none by a count."""
    strategy = getattr(args, "save_strategy", None)
    last, epochs = getattr(state, "max_steps", 0), getattr(state, "num_train_epochs", 0)
    match getattr(strategy, "value", strategy):
        case "steps" if last > 0 and getattr(state, "save_steps", 0) > 0:
            return int(state.save_steps)
        case "epoch" if last > 0 and epochs > 0:
            return math.ceil(last / epochs)
    return None
