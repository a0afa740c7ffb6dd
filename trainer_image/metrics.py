"""What the trainer measured in one optimizer step, read without changing what anybody else sees.

TRL trainers collect values in lists and clear them when they log, every `logging_steps` steps. `StepMetrics`
reads what was appended since it last looked; `trainer_image.figures` says under which keys, and
`guard_client.samples` what counts as a value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from guard_client.samples import StepSample, fit_figures, number_of, sample_of
from trainer_image.figures import UNKNOWN, Figures, plotted


@dataclass
class StepMetrics:
    """Values of the current step, gathered from the live lists of a TRL trainer."""

    figures: Figures = UNKNOWN
    #: Whether the step that was taken last has generated.
    generated: bool = False
    _values: dict[str, list[Any]] = field(default_factory=dict)
    # The list that was read, and how far. Holding the list itself tells a cleared one from a grown one.
    _read: dict[str, tuple[Any, int]] = field(default_factory=dict)
    # The newest figures of a generation, for the steps that train on it without one of their own.
    _generation: dict[str, Any] = field(default_factory=dict)

    def gather(self, lists: Mapping[str, Any]) -> None:
        """Take what `lists` has beyond what was read before."""
        for name, key in (*self.figures.named(), *((key, key) for key in plotted(lists))):
            values = lists.get(key)
            if not isinstance(values, list):
                continue
            known, count = self._read.get(key, (None, 0))
            start = count if known is values and count <= len(values) else 0
            if values[start:]:
                self._values.setdefault(name, []).extend(values[start:])
            self._read[key] = (values, len(values))

    def take(self, step: int) -> StepSample | None:
        """The sample of the step that just ended, or None if its reward is unknown; starts the next step."""
        values = {name: mean_of(found) for name, found in self._values.items()}
        self._values = {}
        self.generated = "reward" in values
        if self.figures.per_generation:
            self._generation |= values
            values = dict(self._generation)
        sample = sample_of(step, values, self.figures.kl_kind)
        return None if sample is None else with_figures(sample, values)


def with_figures(sample: StepSample, values: Mapping[str, Any]) -> StepSample:
    """The sample with those of these values that are plotted."""
    figures, _ = fit_figures({name: values[name] for name in plotted(values)})
    return replace(sample, figures=figures)


def mean_of(values: Iterable[Any]) -> float | None:
    """Mean of the values that are not NaN, as TRL's `log()` takes it; NaN if all are, None without any."""
    numbers = [number for value in values if (number := number_of(value)) is not None]
    valid = [number for number in numbers if not math.isnan(number)]
    if valid:
        return sum(valid) / len(valid)
    return math.nan if numbers else None
