"""What the trainer measured in one optimizer step, read without changing what anybody else sees.

TRL trainers collect values in lists and clear them when they log, every `logging_steps` steps. `StepReader`
reads what was appended since it last looked; of other trainers it reads what they log. `figures.py` says
under which keys, and `guard_client.samples` what counts as a value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from guard_client.rollouts import Candidate
from guard_client.samples import StepSample, fit_figures, number_of, sample_of
from trainer_image.figures import UNKNOWN, Figures, plotted


class StepReader:
    """Reads the values of one step after the other.

    Args:
        figures: where the trainer keeps them.
    """

    def __init__(self, figures: Figures = UNKNOWN) -> None:
        self.figures = figures
        #: Whether the step that was taken last has generated.
        self.generated = False
        self._values: dict[str, list[Any]] = {}
        # The list that was read, and how far. Holding the list itself tells a cleared one from a grown one.
        self._read: dict[str, tuple[Any, int]] = {}
        # The newest figures of a generation, for the steps that train on it without one of their own.
        self._generation: dict[str, Any] = {}

    def read_lists(self, lists: Mapping[str, Any]) -> None:
        """Take what a TRL trainer's live lists have beyond what was read before."""
        for name, key in self._keys(lists):
            values = lists.get(key)
            if not isinstance(values, list):
                continue
            known, count = self._read.get(key, (None, 0))
            start = count if known is values and count <= len(values) else 0
            if values[start:]:
                self._values.setdefault(name, []).extend(values[start:])
            self._read[key] = (values, len(values))

    def read_log(self, logs: Mapping[str, Any]) -> None:
        """Take what a trainer has logged; TRL logs None for a list of which no value is a number."""
        for name, key in self._keys(logs):
            if key in logs:
                self._values.setdefault(name, []).append(math.nan if logs[key] is None else logs[key])

    def take(self, step: int) -> StepSample | None:
        """The sample of the step that just ended, or None if it had no reward at all; starts the next."""
        values = {name: mean_of(found) for name, found in self._values.items()}
        self._values = {}
        self.generated = "reward" in values
        if self.figures.per_generation:
            self._generation |= values
            values = dict(self._generation)
        if "reward" not in values:
            return None
        shown, _ = fit_figures({name: values[name] for name in plotted(values)})
        return replace(sample_of(step, values, self.figures.kl_kind), figures=shown)

    def _keys(self, found: Mapping[str, Any]) -> list[tuple[str, str]]:
        return [*self.figures.named(), *((key, key) for key in plotted(found))]


def mean_of(values: Iterable[Any]) -> float | None:
    """Mean of the values that are not NaN, as TRL's `log()` takes it; NaN if all are, None without any."""
    numbers = [number for value in values if (number := number_of(value)) is not None]
    valid = [number for number in numbers if not math.isnan(number)]
    if valid:
        return sum(valid) / len(valid)
    return math.nan if numbers else None


def newest_rollouts(trainer: Any) -> list[Candidate] | None:
    """The newest generation of all ranks, as TRL keeps it for its table of completions; None without it.

    An evaluation of the trainer replaces it, so it is read when a step has generated, and before that. The
    reward is the sum of the weighted rewards, as TRL's.
    """
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
