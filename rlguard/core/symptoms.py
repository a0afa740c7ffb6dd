"""Symptoms: what the log of a run itself shows that people look for. Advice, and never a stop. Pure.

Nothing here is evidence of hacking, and no verdict is made of it: a good run may have a symptom, and a hacked
one none. What a log does not hold is not looked at, and that is said: missing is not known, never healthy.

A run is cut into windows of equal numbers of steps, and each window is its median, so that neither a spike
nor a single odd step is a symptom. Each rule has its numbers, and why they are what they are, beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlguard.core.steps import MEDIAN_WINDOW, STARTS_NEAR_ZERO, starts_away
from rlguard.core.unscored import MAX_TRUNCATED

#: Windows of a run. Of fewer steps there are fewer windows, each of at least `MEDIAN_WINDOW` steps.
WINDOWS = 10
#: Windows below which there is neither a trend nor a stretch to speak of.
FEWEST = 4
FEWEST_STEPS = FEWEST * MEDIAN_WINDOW
#: Windows in a row that are a stretch: of ten they are a fifth of the run.
STRETCH = 2

#: A rise over the run counts from so many times the noise of a single step on. The slope of Theil and Sen
#: over ten medians of five steps has 0.6 times that noise where there is no trend, and over four once.
CLEAR = 2.0
#: And from this share of the largest median on: what is steady to the last digit has no noise.
NOTABLE = 0.05
#: Standard deviations of normal noise in one median absolute deviation.
SPREAD_PER_MAD = 1.4826

#: Share of the entropy that is left where it has collapsed. Where performance is b - a exp(entropy) (Cui et
#: al., arXiv 2505.22617) at most as large a share of what could be gained is left, because exp is convex.
LEFT = 0.1
#: Near 0, nats/token: a completion of 100 tokens then has 1 nat, as much as three equally likely ones.
NEAR_ZERO_ENTROPY = 0.01

#: Share of groups without spread. With a fifth left the noise of a gradient is 2.2 times as large.
MOST_WITHOUT_SPREAD = 0.8

#: How much steeper the KL may be in the second half than in the first. Near the reference it is quadratic, so
#: that of a policy which moves at constant speed is 3 times as steep there, and 3.5 times after a warm-up of
#: the learning rate over a tenth of the run. What is steeper moves ever faster.
STEEPER = 4.0

#: Step up to which the first KL must be for it to be the start: later, learning may have brought it there.
FIRST_STEPS = 20

#: Beyond it a number of a log is none.
LARGEST = 1e15


@dataclass(frozen=True, slots=True, eq=False)
class Logged:
    """What a log has of a run, in the order of training; equal to itself only.

    Every array has shape (steps,), NaN where a value is not known. A figure that the log has not is absent.

    Fields:
        step: the trainer's global step.
        figures: by name: `reward`; `kl` (to the reference, token mean, nats/token); `entropy` (nats/token);
            `clipped` (share of completions cut off at the limit); `zero_std`, `mixed` (shares of groups whose
            rewards have no spread, and some).
        components: parts of the reward, by their own names.
        because: why a figure is not there, where more is known than that.
    """

    step: NDArray[np.int64]
    figures: Mapping[str, NDArray[np.float64]]
    components: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    because: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Symptom:
    """One symptom.

    Fields:
        name: stable, for programs; `TITLES` has it for people.
        sentence: what was seen, with values, units and steps, and what to look at next.
        first_step, last_step: where it was seen.
        numbers: what the sentence rests on, by name.
    """

    name: str
    sentence: str
    first_step: int
    last_step: int
    numbers: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Unseen:
    """A symptom that could not be looked for.

    `why`: a clause. `needs`: the figure without which it cannot be; "" where no column would help.
    """

    name: str
    why: str
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found of all that was looked for, and what could not be."""

    symptoms: tuple[Symptom, ...]
    unseen: tuple[Unseen, ...]


class _UnseenError(Exception):
    def __init__(self, why: str, needs: str = "") -> None:
        super().__init__(why)
        self.why, self.needs = why, needs


class _Window(NamedTuple):
    """Steps in a row: the first, the last, and the median of their values."""

    first: int
    last: int
    median: float


class _Series:
    """The known values of one figure, and its windows."""

    def __init__(self, name: str, step: NDArray[np.int64], values: NDArray[np.float64], needs: str) -> None:
        with np.errstate(invalid="ignore"):
            known = np.abs(values) <= LARGEST  # which NaN is not
        self.step, self.values = step[known], values[known]
        if len(self.step) < FEWEST_STEPS:
            needs = "" if len(self.step) else needs
            raise _UnseenError(f"{name} at {len(self.step)} steps, and {FEWEST_STEPS} are needed", needs)
        parts = np.array_split(np.arange(len(self.step)), min(WINDOWS, len(self.step) // MEDIAN_WINDOW))
        self.windows = [
            _Window(int(self.step[p[0]]), int(self.step[p[-1]]), float(np.median(self.values[p])))
            for p in parts
        ]
        own = np.repeat(self.medians, [len(p) for p in parts])
        #: Standard deviation of a single step within its window, by the median of deviations.
        self.noise = SPREAD_PER_MAD * float(np.median(np.abs(self.values - own)))

    @property
    def medians(self) -> NDArray[np.float64]:
        """Of the windows."""
        return np.array([window.median for window in self.windows])

    @property
    def rise(self) -> float:
        """By how much it rises over all windows; 0.0 where that is not clear."""
        rise = _rise(self.medians)
        least = max(CLEAR * self.noise, NOTABLE * float(np.max(np.abs(self.medians))))
        return rise if abs(rise) > least else 0.0

    @property
    def relative_rise(self) -> float:
        """The rise as a share of its size, for figures that have scales of their own."""
        return self.rise / float(np.max(np.abs(self.medians))) if self.rise else 0.0


def _rise(medians: NDArray[np.float64]) -> float:
    """Over all windows, by the slope of Theil and Sen: the median of the slopes between any two of them."""
    i, j = np.triu_indices(len(medians), k=1)
    return float(np.median((medians[j] - medians[i]) / (j - i))) * len(medians)


def _of(log: Logged, name: str, said: str) -> _Series:
    """The series of a figure, `said` in words.

    Raises:
        _UnseenError: there is none, or too little of it.
    """
    if name not in log.figures:
        raise _UnseenError(log.because.get(name, f"the log has no {said}"), name)
    return _Series(said, log.step, log.figures[name], name)


def _share(log: Logged, name: str, said: str) -> _Series:
    found = _of(log, name, said)
    low, high = float(found.medians.min()), float(found.medians.max())
    if low < 0.0 or high > 1.0:
        raise _UnseenError(f"its {said} goes from {low:.4g} to {high:.4g}, so it is no share", name)
    return found


def _stretch(windows: list[_Window], holds: Callable[[float], bool]) -> list[_Window]:
    """The longest row of windows that hold, the last of several; [] if it is no stretch."""
    best: list[_Window] = []
    row: list[_Window] = []
    for window in windows:
        row = [*row, window] if holds(window.median) else []
        best = row if len(row) >= len(best) else best
    return best if len(best) >= STRETCH else []


def _steps(first: int, last: int) -> str:
    return f"steps {first:,} to {last:,}"


def _extremes(row: list[_Window]) -> tuple[tuple[str, float], ...]:
    medians = [window.median for window in row]
    return ("lowest", min(medians)), ("highest", max(medians))


def _from_to(row: list[_Window], form: str = ".3g") -> str:
    (_, low), (_, high) = _extremes(row)
    return _range(low, high, form)


def _range(low: float, high: float, form: str = ".3g") -> str:
    return f"{low:{form}}" if f"{low:{form}}" == f"{high:{form}}" else f"{low:{form}} to {high:{form}}"


def _components_part(log: Logged) -> Symptom | None:
    """One component of the reward climbs over the run while another falls."""
    clear: dict[str, _Series] = {}
    for name in sorted(log.components):
        with suppress(_UnseenError):
            clear[name] = _Series(name, log.step, log.components[name], "components")
    if len(clear) < 2:
        why = f"fewer than two components of the reward at {FEWEST_STEPS} steps"
        raise _UnseenError(why, "components" if len(log.components) < 2 else "")
    rises = {name: series.relative_rise for name, series in clear.items()}
    up, down = max(rises, key=lambda name: rises[name]), min(rises, key=lambda name: rises[name])
    if not rises[down] < 0.0 < rises[up]:
        return None
    first, last = clear[down].windows[0], clear[down].windows[-1]
    (a, b), (c, d) = ((clear[n].medians[0].item(), clear[n].medians[-1].item()) for n in (up, down))
    return Symptom(
        "components_part",
        f"`{up}` went from {a:.3g} to {b:.3g} while `{down}` went from {c:.3g} to {d:.3g} (medians of "
        f"{_steps(first.first, first.last)} and of {_steps(last.first, last.last)}): the policy may give up "
        "the one for the other. Read completions that score high in the first and low in the second, and see "
        "what the weights of the two pay for.",
        first.first,
        last.last,
        (("rises_from", a), ("rises_to", b), ("falls_from", c), ("falls_to", d)),
    )


def _length_at_cap(log: Logged) -> Symptom | None:
    """For a stretch more completions are cut off than a score can bear."""
    clipped = _share(log, "clipped", "share of clipped completions")
    if not (row := _stretch(clipped.windows, lambda median: median > MAX_TRUNCATED)):
        return None
    first, last = row[0].first, row[-1].last
    return Symptom(
        "length_at_cap",
        f"{_from_to(row, '.0%')} of the completions were cut off at the length limit in "
        f"{_steps(first, last)} (medians). A completion that is cut off is paid for what it had no room to "
        "finish. Read some that were cut off: do they repeat themselves, or is the limit too low? (Where "
        "every completion of the task has the same length, that is as it should be.)",
        first,
        last,
        _extremes(row),
    )


def _entropy_collapse(log: Logged) -> Symptom | None:
    """The entropy fell to a small share of its start, or near 0, and stays there to the end."""
    windows = _of(log, "entropy", "entropy").windows
    start, lowest = windows[0], min(w.median for w in windows)
    if lowest < 0.0:
        raise _UnseenError(f"its entropy goes down to {lowest:.4g}, and one is never below 0", "entropy")
    limit = max(LEFT * start.median, NEAR_ZERO_ENTROPY)
    stays = len(windows)
    while stays and windows[stays - 1].median <= limit:
        stays -= 1
    row = windows[stays:]
    if len(row) < STRETCH:
        return None
    return Symptom(
        "entropy_collapse",
        f"entropy was {start.median:.3g} nats/token in {_steps(start.first, start.last)} and stays at "
        f"{_from_to(row)} from step {row[0].first:,} to the end, step {row[-1].last:,} (medians): the "
        "completions of a prompt hardly differ, and little is left to explore. See whether the reward still "
        "rises there, and whether completions have become one pattern; the temperature, the clip range and "
        "an entropy bonus act on it.",
        row[0].first,
        row[-1].last,
        (("start", start.median), ("end", row[-1].median), ("limit", limit)),
    )


def _groups_without_spread(log: Logged) -> Symptom | None:
    """For a stretch nearly all groups have one reward for all of their completions, so no gradient."""
    if "zero_std" not in log.figures and "mixed" in log.figures:
        log = replace(log, figures={"zero_std": 1.0 - _bounded(log.figures["mixed"]), **log.figures})
    shares = _share(log, "zero_std", "share of groups without spread")
    if not (row := _stretch(shares.windows, lambda median: median > MOST_WITHOUT_SPREAD)):
        return None
    first, last = row[0].first, row[-1].last
    return Symptom(
        "groups_without_spread",
        f"in {_from_to(row, '.0%')} of the groups all completions had the same reward in "
        f"{_steps(first, last)} (medians), and such a group has no gradient.{_paid(log, first, last)} See "
        "whether these prompts are solved by now, too hard, or graded alike whatever is written, and give "
        "the run prompts between.",
        first,
        last,
        _extremes(row),
    )


def _bounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(values) <= LARGEST, values, np.nan)


def _paid(log: Logged, first: int, last: int) -> str:
    """A sentence on the reward of these steps; "" where there is none."""
    reward = _bounded(log.figures.get("reward", np.full(len(log.step), np.nan)))
    there = reward[(log.step >= first) & (log.step <= last) & ~np.isnan(reward)]
    return f" The reward there is {np.median(there):.3g}." if len(there) else ""


def _kl(log: Logged, moves: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Steps and values of the KL.

    Raises:
        _UnseenError: there is none, or it is 0 throughout, which says `moves`.
    """
    if "kl" not in log.figures:
        raise _UnseenError(log.because.get("kl", "the log has no KL to the reference"), "kl")
    kl = _bounded(log.figures["kl"])
    known = kl >= 0.0
    if known.any() and not kl[known].any():
        raise _UnseenError(f"the KL is exactly 0 at every step (beta = 0?), so {moves}")
    return log.step[known], kl[known]


def _kl_above_trend(log: Logged) -> Symptom | None:
    """The KL rises far faster in the second half of the run than by its trend in the first."""
    kl = _Series("KL to the reference", *_kl(log, "it has no trend"), "kl")
    half = (len(kl.windows) + 1) // 2
    early, late = kl.windows[:half], kl.windows[-half:]
    before, after = _rise(kl.medians[:half]), _rise(kl.medians[-half:])
    if after <= max(STEEPER * before, STARTS_NEAR_ZERO, CLEAR * kl.noise):
        return None
    return Symptom(
        "kl_above_trend",
        f"the KL to the reference changed by {before:+.3g} nats/token over "
        f"{_steps(early[0].first, early[-1].last)} and by {after:+.3g} over "
        f"{_steps(late[0].first, late[-1].last)} (trends of medians), and at constant speed it would be 3 "
        "times as much: the policy leaves the reference ever faster. Read completions from there on, and see "
        "the learning rate and the coefficient of the KL at that step.",
        late[0].first,
        late[-1].last,
        (("first_half", before), ("second_half", after), ("end", late[-1].median)),
    )


def _reference_not_start(log: Logged) -> Symptom | None:
    """The first KLs are not near 0: the judge's own rule, on a log that has the first steps."""
    step, kl = _kl(log, "it says nothing of the reference")
    if len(kl) < MEDIAN_WINDOW:
        raise _UnseenError(
            f"KL to the reference at {len(kl)} steps, and {MEDIAN_WINDOW} are needed",
            "" if len(kl) else "kl",
        )
    if step[0] > FIRST_STEPS:
        raise _UnseenError(f"the first KL is of step {int(step[0]):,}, and the start is not in the log")
    first = kl[:MEDIAN_WINDOW]
    if not starts_away(first.tolist()):
        return None
    last_step = int(step[MEDIAN_WINDOW - 1])
    return Symptom(
        "reference_not_start",
        f"the KL to the reference was {_range(first.min(), first.max())} nats/token at the first "
        f"{MEDIAN_WINDOW} steps that have one ({int(step[0]):,} to {last_step:,}), and it is near 0 where a "
        "run starts at its reference. See which model the reference is, and whether trainer and reference "
        "run in the same precision.",
        int(step[0]),
        last_step,
        (("lowest", float(first.min())), ("highest", float(first.max()))),
    )


_LOOKS: Mapping[str, tuple[str, Callable[[Logged], Symptom | None]]] = {
    "components_part": ("reward components that part", _components_part),
    "length_at_cap": ("length at its cap", _length_at_cap),
    "entropy_collapse": ("entropy collapse", _entropy_collapse),
    "groups_without_spread": ("groups without spread", _groups_without_spread),
    "kl_above_trend": ("KL against its own trend", _kl_above_trend),
    "reference_not_start": ("reference far from the start", _reference_not_start),
}
#: What each symptom is called, for people, in the order in which they are looked for.
TITLES: Mapping[str, str] = {name: title for name, (title, _) in _LOOKS.items()}


def examine(log: Logged) -> Examined:
    """Look for every symptom in what a log has of a run."""
    symptoms, unseen = [], []
    for name, (_, look) in _LOOKS.items():
        try:
            found = look(log)
        except _UnseenError as error:
            unseen.append(Unseen(name, error.why, error.needs))
            continue
        if found is not None:
            symptoms.append(found)
    return Examined(tuple(symptoms), tuple(unseen))
