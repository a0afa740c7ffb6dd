"""Which column of a log is what: metric names of the RL frameworks to RLGuard's canonical names. Pure.

Only a name in `frameworks.FRAMEWORKS` is taken by itself. A look-alike of the KL (`_lookalike`) is never
taken, not even by `--map`: a KL between the policy and the one that sampled, or a KL summed over a sequence,
would be held against a threshold in nats/token of KL to the reference, and the verdict would mean nothing.

The trainer chooses the names. `re` lets no other thread run, not the one that ends the trainer, so names are
compared by their parts: no expression here can be slower than the name is long.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from guard_core.frameworks import FIGURE_PATTERNS, FIGURES, bare, figure_of, fits
from guard_core.judge import TOLD, TRAINER_LIMIT
from guard_core.terminal import plain
from guard_core.wording import meant, nearest
from guard_follow.errors import InputError
from guard_follow.frameworks import BY_KEY, FRAMEWORKS, QUANTITIES, STEP_NAMES, Framework, Setting
from guard_follow.records import MAX_NAME

#: What a run is judged by.
JUDGED = (
    "step",
    "attempt",
    "reward",
    "kl",
    "entropy",
    "reward_std",
    "heldout",
    "items",
    "proxy_items",
    "fooled_items",
    "kl_kind",
    "pass_index",
    "samples_per_item",
    "step_event",
    "heldout_event",
    *TOLD.values(),
    TRAINER_LIMIT,
)

#: What `--map NAME=column` may name.
CANONICAL = (*JUDGED, *FIGURES)

#: Columns of figures that are kept of a log. One with more has none: its names may be anything.
MOST_FIGURES = 32

_BEHAVIOUR = "is the drift from the policy that sampled the batch, not from the reference"
_MISMATCH = "is the mismatch between trainer and inference engine, not the drift from the reference"
_SUM = "is summed over the tokens of a sequence; the threshold is a mean per token"
_COEFFICIENT = "is a coefficient, not a KL"

_APPROXIMATE = frozenset(
    f"{old}approx{joint}{policy}kl{s}{mean}"
    for old in ("", "old_")
    for joint in ("", "_")
    for policy in ("", "policy_")
    for s in ("", "s")
    for mean in ("", "_avg", "_mean")
)
_MISMATCHES = frozenset({"gen_kl_error", "policy_kl_error", "js_divergence_error", "vllm_kl"})
_COEFFICIENTS = ("coef", "coeff", "ctl", "controller", "beta", "target")

#: (columns that together give a recipe away, why its column `kl` is not the token-mean KL to the reference).
_FALSE_KL = (
    (
        {"ratio", "reward"},
        "comes from TRL's async_grpo (there is a column `ratio`), where `kl` is the drift between the policy "
        "and the rollouts",
    ),
    ({"kl_loss"}, f"stands beside `kl_loss`: it {_BEHAVIOUR}"),
    *(
        ({mark}, f"comes from a torchtune PPO recipe, where `kl` {_SUM}")
        for mark in ("approx_policy_kl", "rlhf_reward", "kl_reward")
    ),
)

#: Looks like the in-loop reward but had the KL penalty taken off.
_PENALISED_REWARDS = ("critic/rewards/mean", "rlhf_reward", "objective/rlhf_reward")

#: Words of a name that is a mean reward and nothing else.
_OF_A_MEAN_REWARD = frozenset({"reward", "rewards", "mean", "avg", "average", "total", "episode", "step"})
#: What a reward is called, the likeliest first.
_LIKE_A_REWARD = ("reward", "score", "return", "acc", "pass", "success")
#: What a measure of success is called that is not the reward, the likeliest first.
_LIKE_A_SCORE = (
    "heldout",
    "held_out",
    "gold",
    "acc",
    "pass@",
    "correct",
    "solve",
    "success",
    "f1",
    "reward/",
    "rewards/",
)
#: A column that TRL's GRPO trainer logs and its asynchronous one does not.
_OF_GRPO = ("reward_std", "frac_reward_zero_std", "num_tokens", "completion", "rewards/")

_EVALUATIONS = tuple(
    kind + joint for kind in ("eval", "val", "valid", "validation", "test") for joint in "-_/"
)
_SCORES = ("reward", "score", "acc", "mean@", "pass@", "best@", "maj@")
#: A spread, a share of groups, a count, a length or a time is no score; nor is a quantile, an extreme, or a
#: confidence interval and its ends.
_NO_SCORE = frozenset(
    {"std", "stddev", "var", "variance", "frac", "fraction", "count", "num", "n", "samples", "total"}
    | {"length", "len", "tokens", "sem", "stderr", "time", "seconds"}
    | {"ci", "lcb", "ucb", "lower", "upper", "bound", "conf", "confidence", "interval"}
    | {"pct", "percentile", "quantile", "quartile", "median", "iqr", "mad", "min", "max", "range"}
)
#: The same as the last word: elsewhere they name a task (`high_school_physics`).
_ENDS = frozenset({"lo", "hi", "low", "high"})
#: How long something took is no KL, whatever was computed.
_DURATIONS = frozenset({"time", "times", "timing", "timings", "seconds"})
_QUANTILE = re.compile(r"[pq]\d{1,4}|\d{1,3}th")


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column is what. `source[canonical]` is the name as it is in the file.

    `figures` has those of `FIGURES`; `components` the columns with components of the reward.
    """

    framework: str
    source: Mapping[str, str]
    notes: tuple[str, ...] = field(default=())
    figures: Mapping[str, str] = field(default_factory=dict)
    components: tuple[str, ...] = ()


def wanted(column: str) -> bool:
    """Whether a reader must keep the values of this column although no `--map` names it."""
    return _is_known(bare(column))


def is_judged(column: str) -> bool:
    """Whether a column may be one that a run is judged by, which its step is not."""
    return wanted(column) and bare(column) not in STEP_NAMES


def is_reward(column: str) -> bool:
    """Whether a column may be the reward, of whichever framework."""
    return any(fits(bare(column), known) for framework in FRAMEWORKS for known in framework.reward)


def is_kl(column: str) -> bool:
    """Whether a column may be the KL to the reference, of whichever framework."""
    return any(fits(bare(column), known) for framework in FRAMEWORKS for known in framework.kl)


def why_not_kl(column: str, present: Collection[str]) -> str | None:
    """Why `column` is not the token-mean KL to the reference, or None if nothing speaks against it.

    Args:
        column: a bare name.
        present: the bare names of all columns of the log.
    """
    if why := _lookalike(column):
        return why
    if column == "kl":
        if _is_asynchronous(present):
            return (
                "may be the drift between the policy and its rollouts, as async GRPO of TRL logs it: nothing "
                "in the log says that it is the KL to the reference"
            )
        for marks, why in _FALSE_KL:
            if marks.issubset(present):
                return why
    return None


def _is_asynchronous(present: Collection[str]) -> bool:
    """Whether a log has TRL's clip ratios and nothing that only its synchronous trainer logs."""
    return any(name.startswith("clip_ratio/") for name in present) and not any(
        name.startswith(_OF_GRPO) for name in present
    )


def _lookalike(column: str) -> str:
    """Why a column is known not to be the KL, by its name alone; "" if it is not known."""
    first, *_ = parts = column.split("/")
    last = parts[-1]
    if "ppo_kl" in parts or last in _APPROXIMATE:
        return _BEHAVIOUR
    if first == "mismatch_kl" or last in _MISMATCHES or any(p.startswith("kl_sample_train") for p in parts):
        return _MISMATCH
    if first in ("rollout_corr", "rollout_is") and any("kl" in part for part in parts[1:]):
        return _MISMATCH
    if column in ("objective/kl", "objective/kl_dist"):
        return _SUM
    if last == "kl_reward":
        return "is the penalty that was taken off the reward, not the KL"
    name = column.removesuffix("s")
    is_coefficient = any(name.endswith(end) and "kl" in name.removesuffix(end) for end in _COEFFICIENTS)
    return _COEFFICIENT if is_coefficient else ""


def resolve(
    columns: Collection[str],
    overrides: Mapping[str, str],
    framework: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Columns:
    """Say which column is what.

    Args:
        columns: every column name in the file.
        overrides: canonical name to column, from `--map`.
        framework: key of the framework that wrote it; None finds it by the names.
        settings: what is known of the run's own configuration, by `Setting.key`.

    Raises:
        InputError: an override names no column or a look-alike; the step or the reward is missing or
            could be several columns.
    """
    every, columns = columns, [name for name in columns if len(name) <= MAX_NAME]
    _check_overrides(columns, overrides)
    by_bare = _by_bare_name(columns)
    found = BY_KEY[framework] if framework is not None else _framework(by_bare, overrides)
    source: dict[str, str] = {
        name: by_bare[name]
        for name in (
            *("attempt", "items", "proxy_items", "fooled_items", "kl_kind", "pass_index"),
            *("samples_per_item", "step_event", "heldout_event", *TOLD.values(), TRAINER_LIMIT),
        )
        if name in by_bare
    }
    step = next((name for name in STEP_NAMES if name in by_bare), None)
    if step is not None:
        source["step"] = by_bare[step]
    notes: list[str] = []
    for quantity in QUANTITIES:
        name = _name_of(quantity, found, by_bare, overrides, settings or {}, notes)
        if name is not None:
            source[quantity] = by_bare[name]
    source.update(overrides)
    _require(source, columns)
    if "kl" in overrides:
        notes.clear()
    elif "kl" not in source and not notes:
        notes.extend(_refused_kls(by_bare))
    if "items" not in source and _is_of_the_trainer(found, source, overrides):
        notes.append(
            f"held-out is `{source['heldout']}`, which the trainer itself measured: this trusts the trainer, "
            "its items and its grader"
        )
    if "heldout" not in source and "items" not in source:
        notes.extend(_about_candidates(by_bare))
    if len(columns) < len(every):
        notes.append(f"Columns with names of more than {MAX_NAME} characters are ignored.")
    figures, components = _figures(columns, overrides, notes)
    return Columns(found.name if found else "unknown", source, tuple(notes), figures, components)


def _name_of(
    quantity: str,
    framework: Framework | None,
    by_bare: Mapping[str, str],
    overrides: Mapping[str, str],
    settings: Mapping[str, str],
    notes: list[str],
) -> str | None:
    """The column of one quantity; None without any, or where several could be it."""
    if quantity == "kl":
        return _kl(framework, by_bare, settings, notes)
    several = framework.picks(quantity, by_bare) if framework else []
    if quantity == "reward" and framework and several and quantity not in overrides:
        _refuse_rivals(several, framework, by_bare)
    if quantity == "heldout" and len(several) > 1 and quantity not in overrides:
        there = [by_bare[name] for name in several]
        notes.append(f"held-out could be {listing(there)}. Choose one with --map heldout={there[0]}")
    if quantity == "heldout" and not several and quantity in by_bare:
        return quantity
    return several[0] if len(several) == 1 else None


def _is_of_the_trainer(
    found: Framework | None, source: Mapping[str, str], overrides: Mapping[str, str]
) -> bool:
    """Whether the held-out column is the run's own validation, taken by its name."""
    return (
        found is not None and found.name != "rlguard" and "heldout" in source and "heldout" not in overrides
    )


def _refuse_rivals(taken: Sequence[str], framework: Framework, by_bare: Mapping[str, str]) -> None:
    """Raise if there are several for the mean reward, or another column is as much that one."""
    own = [name for name in by_bare if any(fits(name, known) for known in framework.reward)]
    others = [name for name in by_bare if name not in own and not figure_of(name)]
    like_it = [name for name in others if _words(name) <= _OF_A_MEAN_REWARD]
    rivals = [name for name in like_it if {"reward", "rewards"} & _words(name)]
    if len(there := [by_bare[name] for name in (*taken, *rivals)]) > 1:
        raise InputError(f"the reward could be {listing(there)}. Choose one with --map reward={there[0]}.")


def _figures(
    columns: Collection[str], overrides: Mapping[str, str], notes: list[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Which columns are further figures, and which are components of the reward. Of several the first.

    Of those of several parts of a run, such as its agents, none: the reward may be another one's.
    """
    named = {column: figure for column in sorted(columns) if (figure := figure_of(column))}
    if len(named) > MOST_FIGURES:
        notes.append(
            f"{len(named)} columns look like figures for symptoms, and none is read of more than "
            f"{MOST_FIGURES}."
        )
        named = {}
    several = _of_parts(named)
    figures = {
        figure: column
        for column, figure in reversed(named.items())
        if figure != "components" and column not in several
    }
    figures |= {name: column for name, column in overrides.items() if name in FIGURES}
    whole = any(bare(column) == "reward/overall" for column in columns)
    components = (column for column, figure in named.items() if figure == "components")
    return figures, tuple(c for c in components if whole or not bare(c).startswith("reward/"))


def _of_parts(named: Mapping[str, str]) -> set[str]:
    """Columns of which several are one figure, by a name with a part that the run chooses."""
    found: dict[str, list[str]] = {}
    for column in named:
        for known, _ in FIGURE_PATTERNS:
            if fits(bare(column), known):
                found.setdefault(known, []).append(column)
    return {column for columns in found.values() if len(columns) > 1 for column in columns}


def _kl(
    framework: Framework | None, by_bare: Mapping[str, str], settings: Mapping[str, str], notes: list[str]
) -> str | None:
    """The first name of the KL that is known to be a token mean; why the others are not, in `notes`."""
    for known in framework.kl if framework else ():
        there = [name for name in by_bare if fits(name, known)]
        if len(there) > 1:
            notes.append(f"{listing(there)} are KLs of parts of the batch: choose one with --map kl=NAME.")
            continue
        if not there or why_not_kl(name := there[0], by_bare):
            continue
        needs = _needs(framework, known, by_bare)
        why = next(filter(None, (_why_no_token_mean(setting, settings) for setting in needs)), "")
        if not why:
            return name
        notes.append(f"`{by_bare[name]}` is not taken as the KL to the reference: {why}.")
    for name, why in framework.not_kl.items() if framework else ():
        if name in by_bare:
            notes.append(f"`{by_bare[name]}` is not taken as the KL to the reference: it {why}.")
    return None


def _needs(framework: Framework | None, kl: str, by_bare: Mapping[str, str]) -> list[Setting]:
    """The settings that this KL needs: also those of another framework whose marks are in the log.

    What the user says of the format makes no other quantity of the KL.
    """
    marked = [f for f in FRAMEWORKS if f is not framework and not by_bare.keys().isdisjoint(f.marks)]
    theirs = [f for f in (framework, *marked) if f is not None]
    return [setting for f in theirs for setting in f.kl_needs.get(kl, ())]


def _why_no_token_mean(needs: Setting, settings: Mapping[str, str]) -> str:
    if needs.fits(settings.get(needs.key, needs.default)):
        return ""
    only = f"it is the KL as a mean over tokens with {needs.condition} alone"
    if needs.key in settings:
        return f"the run has {needs.key}={settings[needs.key]!r:.40}, and {only}"
    return (
        f"{only}, and no configuration of the run that says it was found: give it with --run-config, on a "
        "cluster with metrics.follow.runConfig, or vouch for it with --map kl=NAME"
    )


def _check_overrides(columns: Collection[str], overrides: Mapping[str, str]) -> None:
    for canonical, column in overrides.items():
        if canonical not in CANONICAL:
            raise InputError(
                f"--map {canonical}={column}: {canonical} is not a quantity: {meant(canonical, CANONICAL)}"
            )
        if column not in columns:
            near = nearest(column, columns)
            raise InputError(
                f"--map {canonical}={column}: there is no such column. "
                + (f"Did you mean {listing([near])}? " if near else "")
                + f"Found: {listing(columns)}."
            )
    kl = overrides.get("kl")
    if kl is not None and (why := why_not_kl(bare(kl), {bare(c) for c in columns})):
        raise InputError(
            f"--map kl={kl} is refused: `{kl}` {why}. "
            "Leave the KL out; the KL rule is then inert and the replay says so."
        )


def _by_bare_name(columns: Collection[str]) -> dict[str, str]:
    """Bare name to column; W&B's __MIN and __MAX are no columns of their own."""
    found: dict[str, list[str]] = {}
    for column in columns:
        if not column.endswith(("__MIN", "__MAX")):
            found.setdefault(bare(column), []).append(column)
    for name, several in found.items():
        if len(several) > 1 and _is_known(name):
            raise InputError(
                f"{listing(several)} could each be `{name}`: several runs in one file? "
                f"Choose one with --map {_quantity(name)}={several[0]!r}, or export one run."
            )
    return {name: several[0] for name, several in found.items()}


def _framework(by_bare: Mapping[str, str], overrides: Mapping[str, str]) -> Framework | None:
    """The framework with most of its names in the log, or with a mark of its own; an error if two disagree
    about the reward.
    """
    ranked = sorted(FRAMEWORKS, key=lambda f: (by_bare.keys().isdisjoint(f.marks), -_matches(f, by_bare)))
    with_reward = [f for f in ranked if f.pick("reward", by_bare) and _matches(f, by_bare)]
    parents = {f.derived_from for f in with_reward} - {""}
    theirs = {name for f in FRAMEWORKS if f.name in parents for name in f.reward}
    with_reward = [f for f in with_reward if f.pick("reward", by_bare) not in theirs]
    rewards = {f.pick("reward", by_bare): f.name for f in reversed(with_reward)}
    if len(rewards) > 1 and "reward" not in overrides:
        several = ", ".join(f"`{name}` ({who})" for name, who in rewards.items())
        raise InputError(f"the reward could be {several}. Choose one with --map reward=NAME.")
    if with_reward:
        return with_reward[0]
    return ranked[0] if _matches(ranked[0], by_bare) else None


def _matches(framework: Framework, by_bare: Mapping[str, str]) -> int:
    score = sum(framework.pick(quantity, by_bare) is not None for quantity in QUANTITIES)
    if framework.name == "rlguard":  # `reward` and `kl` alone say TRL; these three columns are the guard's
        score = score if {"items", "heldout", "kl_kind"} & by_bare.keys() else 0
    return score


def _require(source: Mapping[str, str], columns: Collection[str]) -> None:
    if "step" not in source:
        raise InputError(
            f"no column says the step (looked for {', '.join(STEP_NAMES)}). Name it with --map step=NAME; "
            f"found: {_by_likeness(columns, ('step', 'iter', 'epoch'))}."
        )
    if "reward" not in source:
        near = [c for c in columns if bare(c) in _PENALISED_REWARDS]
        why = f" {listing(near)} has the KL penalty taken off, so it is not the reward." if near else ""
        likely = _likely(columns, _LIKE_A_REWARD, but=near)
        raise InputError(
            f"no column is known to be the reward.{why} Try --map reward={likely[0] if likely else 'NAME'}; "
            f"found: {_by_likeness(columns, _LIKE_A_REWARD)}."
        )


def _likely(columns: Collection[str], words: Sequence[str], but: Collection[str] = ()) -> list[str]:
    """Columns with one of these words in their names, by the first such word; a spread is no reward."""
    found = {c: next((i for i, w in enumerate(words) if w in c.lower()), None) for c in columns}
    fit = [c for c, place in found.items() if place is not None and c not in but and not _is_statistic(c)]
    return sorted(fit, key=lambda c: (found[c], len(c)))


def _by_likeness(columns: Collection[str], words: Sequence[str]) -> str:
    """All columns, the likeliest first."""
    return listing([*dict.fromkeys([*_likely(columns, words), *columns])])


def _refused_kls(by_bare: Mapping[str, str]) -> list[str]:
    """A sentence for each column that looks like the KL, for a log in which none was taken."""
    notes = []
    for name, column in by_bare.items():
        why = why_not_kl(name, by_bare)
        if why and why != _COEFFICIENT:
            notes.append(f"`{column}` is not taken as the KL to the reference: it {why}.")
        elif not why and "kl" in (words := _words(name)) and not words & _DURATIONS:
            notes.append(
                f"`{column}` is not a name known for the KL to the reference; if it is its token mean "
                f"in nats, say --map kl={column}."
            )
    return notes


def _about_candidates(by_bare: Mapping[str, str]) -> list[str]:
    """What to say of evaluations that are not taken as held-out evidence."""
    found = _evaluations(by_bare.values())
    if not found:
        return []
    return [
        f"{listing(found)} may be scored by the training reward itself, which a hack games too. If its "
        f"grader and its items are independent of training, say --map heldout={found[0]}."
    ]


def heldout_candidates(columns: Collection[str]) -> list[str]:
    """Columns that may be a held-out score: evaluations, then other measures of success."""
    others = [column for column in _likely(columns, _LIKE_A_SCORE) if not is_reward(column)]
    return [*dict.fromkeys([*_evaluations(columns), *others])]


def _evaluations(columns: Collection[str]) -> list[str]:
    return [column for column in columns if _is_evaluation(bare(column)) and not _is_statistic(bare(column))]


def _is_evaluation(name: str) -> bool:
    return name.startswith(_EVALUATIONS) and any(score in name for score in _SCORES)


def _is_statistic(name: str) -> bool:
    """Whether a name that has a score's in it is of something else that is known of scores."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word] or [""]
    return bool(_words(name) & _NO_SCORE) or words[-1] in _ENDS or any(map(_QUANTILE.fullmatch, words))


def _words(name: str) -> set[str]:
    return {word for word in re.split(r"[^a-z]+", name.lower()) if word}


def listing(names: Collection[str], most: int = 12) -> str:
    """Names for a message, cut after `most`."""
    shown = ", ".join(f"`{plain(name, 100)}`" for name in list(names)[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "") if names else "nothing"


def _quantity(name: str) -> str:
    if name in JUDGED:
        return name
    if name in STEP_NAMES:
        return "step"
    for framework in FRAMEWORKS:
        for quantity in QUANTITIES:
            if any(fits(name, known) for known in getattr(framework, quantity)):
                return quantity
    raise AssertionError(name)


def _is_known(name: str) -> bool:
    return name in _KNOWN or any(fits(name, pattern) for pattern in _PATTERNS)


_NAMES = {
    name for framework in FRAMEWORKS for quantity in QUANTITIES for name in getattr(framework, quantity)
}
_PATTERNS = tuple(name for name in _NAMES if "*" in name)
_KNOWN = _NAMES.difference(_PATTERNS).union(STEP_NAMES, JUDGED)
