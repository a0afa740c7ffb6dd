"""What the policy has just written, as TRL keeps it for its table of completions.

TRL's GRPO and RLOO hold the newest generation of all ranks in `_logs`, whether `log_completions` is set or
not. An evaluation of the trainer replaces it, so it is read when a step has generated, and before that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from guard_client.rollouts import Candidate
from guard_client.samples import number_of


def newest_rollouts(trainer: Any) -> list[Candidate] | None:
    """The newest generation, with the sum of its weighted rewards; None of a trainer that keeps none."""
    logs = getattr(trainer, "_logs", None)
    if not (isinstance(logs, Mapping) and {"prompt", "completion", "rewards"} <= logs.keys()):
        return None
    names = getattr(trainer, "reward_func_names", ())
    weights = dict(zip(names, map(number_of, getattr(trainer, "reward_weights", ())), strict=False))
    by_function = {name: list(rewards) for name, rewards in logs["rewards"].items()}
    prompts, completions = list(logs["prompt"]), list(logs["completion"])
    return [
        Candidate(prompt, completion, _weighted(weights, {n: r[i] for n, r in by_function.items()}))
        for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
    ]


def _weighted(weights: Mapping[str, float | None], rewards: Mapping[str, Any]) -> float | None:
    """The reward as TRL sums it: a function that has none for this completion does not count."""
    terms = [
        (weights.get(name) or 0.0) * reward
        for name, value in rewards.items()
        if (reward := number_of(value)) is not None and not math.isnan(reward)
    ]
    return sum(terms) if terms else None
