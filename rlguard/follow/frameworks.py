"""The RL frameworks: `rlguard/core/frameworks/*.yaml`, one file each. No other module knows one by name."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

from rlguard.core.frameworks import FILES, fits

QUANTITIES = ("reward", "kl", "entropy", "reward_std", "heldout")

#: In order of preference. W&B's `_step` counts log calls, so it comes last.
STEP_NAMES = ("global_step", "training/global_step", "trainer/global_step", "step", "Step", "_step")


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Setting(_Entry):
    """A setting of the run that decides whether a metric is a mean over tokens of the KL.

    Fields:
        key: the end of its name in the run's configuration, its parts joined by dots.
        values: those under which it is one; () for every number above 0, as of a coefficient.
        default: its value where a configuration does not name it; "" for not known.
    """

    key: str
    values: tuple[str, ...] = ()
    default: str = ""

    @property
    def condition(self) -> str:
        """When the metric is such a mean, for people."""
        return f"{self.key}={' or '.join(self.values)}" if self.values else f"{self.key} above 0"

    def fits(self, value: str) -> bool:
        """Whether the metric is such a mean under this value."""
        return value in self.values if self.values else _number(value) > 0

    def text(self, value: object) -> str | None:
        """Convert a value of the configuration for `fits`; None if this setting has no such values."""
        if not self.values:
            return str(value) if not isinstance(value, bool) and _number(value) >= 0 else None
        if {"true", "false"}.issuperset(self.values) and isinstance(value, int | float):
            return str(value != 0).lower()  # TensorBoard has a flag for a number
        return value if isinstance(value, str) else None


def _number(value: object) -> float:
    """Convert to a number, as YAML reads 1e-3 as a text; NaN if it is none."""
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return math.nan


class FalseKl(_Entry):
    """Columns beside which a column `kl` is not the KL to the reference.

    Fields:
        beside: names of which each must be there.
        why: what `kl` is instead; goes on after its name.
        unless: names of which none may be there.
    """

    beside: tuple[str, ...]
    why: str
    unless: tuple[str, ...] = ()

    def holds(self, columns: Collection[str]) -> bool:
        """Whether a log with these columns is such a one."""
        return all(_has(columns, name) for name in self.beside) and not any(
            _has(columns, name) for name in self.unless
        )


def _has(columns: Collection[str], pattern: str) -> bool:
    return any(fits(column, pattern) for column in columns)


class Layout(_Entry):
    """Where the checkpoints of a framework lie, and when one is complete.

    Fields:
        place: the name of a checkpoint's folder; `N` is its step.
        models: folders in it that may hold the model in safetensors, "" for itself; the first that does.
        marker: a file in it that the framework writes last; "" if there is none.
        known_by: a file in it without which it is of another layout; it does not say that it is complete.
        merged: the suffix of the folder beside it that holds the merged model; "" if there is none.
        latest: a file beside the folders that names the newest complete step, alone or in JSON; "" if none.
        latest_key: the key, where `latest` is JSON.
        ambiguous: folders of other frameworks fit, too, so it counts only if the framework is named.
        advice: what to set so that there are weights that can be scored.
    """

    place: str
    models: tuple[str, ...] = ("",)
    marker: str = ""
    known_by: str = ""
    merged: str = ""
    latest: str = ""
    latest_key: str = ""
    ambiguous: bool = False
    advice: str = ""

    @property
    def folder(self) -> re.Pattern[str]:
        """The name of a checkpoint's folder; the first group is its step."""
        return re.compile(re.escape(self.place).replace("N", r"(\d{1,15})"))

    @property
    def marks(self) -> bool:
        """Whether the framework marks a checkpoint as complete."""
        return bool(self.latest or self.marker)

    @property
    def complete_when(self) -> str:
        """For people."""
        if self.latest:
            return f"`{self.latest}` names its step or a later one"
        if self.marker:
            return (
                f"it holds `{self.marker}`, no older than its weights (else as without one: quiet for 30 s)"
            )
        known = f"it holds `{self.known_by}`, " if self.known_by else ""
        return f"{known}its weights are whole, and no file changed for 30 s"


class Console(_Entry):
    """A line of metrics that a framework prints.

    Fields:
        form: `pairs` (`step:1 - name:value - …`), `json` (an object), `dict` (`WORD 1: {'name': value, …}`),
            `fields` (`Step 1 | Name 0.3 | …`) or `counted` (`{'loss': 0.1, 'name': value, …}`, without a
            step).
        after: of `json` what stands before the object, of `dict` the words before the step.
        names: of `fields`, each name that is printed, and the one under which it is logged.
    """

    form: Literal["pairs", "json", "dict", "fields", "counted"]
    after: tuple[str, ...] = ()
    names: Mapping[str, str] = {}


class Framework(_Entry):
    """What one framework logs and saves. Of several names for one quantity, the first present is taken.

    In a name `*` stands for one part that the run chooses, such as an agent, and `**` for one or more.

    Fields:
        key: its name as `--format` has it.
        name: as people write it.
        rank: of two that fit equally well, the one with the lower rank is meant.
        reward: mean in-loop reward before any KL penalty.
        not_reward: what looks like it and had the KL penalty taken off.
        kl: token-mean KL to the reference, nats/token.
        heldout: means of the run's own validation.
        kl_needs: name of a KL to the settings that decide whether it is a token mean.
        not_kl: name of what looks like the KL to why it is not taken.
        lookalikes: name, or part of one, that is never the KL to the reference, whoever logs it, to why.
        false_kl: when a column `kl` is not the KL to the reference.
        marks: columns that it alone logs, where its names are those of another.
        derived_from: the framework whose names it logs too, under which it must not be found.
        reads: the files or lines that can be read, for people.
        files: files of lines that it writes into its own folder, which may be given instead of them.
        run_configs: where it writes the run's configuration, from the folder of its metrics.
        wrapper: the key in each record under which its metrics lie, beside `step`.
        step_fraction: where it logs its step as "12/500".
        console: what it prints.
        whole_rows: one record holds everything of a step, so that the step need not wait for the next one.
        layouts: where its checkpoints lie, whichever trainer of it trains; () if none can be scored.
        start: settings with which a new run starts from the weights in `{path}` and saves into a new
            `{folder}`; "" where none are known, as with a script of one's own.
        start_note: what to know of `start`, or why there is none: a clause; "" where there is nothing.
        tested: the release whose own writer made the log of the tests, or, of TRL, whose names are in it.
    """

    key: str
    name: str
    rank: int = 9
    reward: tuple[str, ...] = ()
    not_reward: tuple[str, ...] = ()
    kl: tuple[str, ...] = ()
    entropy: tuple[str, ...] = ()
    reward_std: tuple[str, ...] = ()
    heldout: tuple[str, ...] = ()
    kl_needs: Mapping[str, tuple[Setting, ...]] = {}
    not_kl: Mapping[str, str] = {}
    lookalikes: Mapping[str, str] = {}
    false_kl: tuple[FalseKl, ...] = ()
    marks: tuple[str, ...] = ()
    derived_from: str = ""
    reads: str = ""
    files: tuple[str, ...] = ()
    run_configs: tuple[str, ...] = ()
    wrapper: str = ""
    step_fraction: tuple[str, ...] = ()
    console: tuple[Console, ...] = ()
    whole_rows: bool = False
    layouts: tuple[Layout, ...] = ()
    start: str = ""
    start_note: str = ""
    tested: str = ""

    def pick(self, quantity: str, present: Collection[str]) -> str | None:
        """The first name of `quantity` that is present, or None."""
        return next(iter(self.picks(quantity, present)), None)

    def picks(self, quantity: str, present: Collection[str]) -> list[str]:
        """Every name that is present for the first name of `quantity`: several only where that has a `*`."""
        for name in getattr(self, quantity):
            if name in present:
                return [name]
            if "*" in name and (found := [p for p in present if fits(p, name)]):
                return found
        return []


def _load() -> Iterator[Framework]:
    for key, file in FILES.items():
        yield Framework(key=key, **yaml.safe_load(file.read_text("utf-8")))


FRAMEWORKS = tuple(sorted(_load(), key=lambda f: (f.rank, f.key)))
BY_KEY = {framework.key: framework for framework in FRAMEWORKS}
