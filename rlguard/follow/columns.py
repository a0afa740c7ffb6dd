"""Which column of a log is what, by the frameworks' files or by `--map`. Pure.

A look-alike of the KL is never taken, not even by `--map`: a KL between the policy and the one that sampled,
or one summed over a sequence, would be held against a threshold in nats/token of KL to the reference.

The trainer chooses the names, and `re` lets no other thread run: names are compared by their parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rlguard.core.frameworks import FIGURE_PATTERNS, FIGURES, bare, figure_of, fits
from rlguard.core.rounds import TOLD, TRAINER_LIMIT
from rlguard.core.terminal import plain
from rlguard.core.wording import meant, nearest
from rlguard.follow.decoders import MAX_NAME
from rlguard.follow.errors import InputError
from rlguard.follow.frameworks import BY_KEY, FRAMEWORKS, QUANTITIES, STEP_NAMES, Framework, Setting

#: Columns that are taken by their own name.
_OWN = (
    *("attempt", "items", "proxy_items", "fooled_items", "kl_kind", "pass_index", "samples_per_item"),
    *("step_event", "heldout_event", *TOLD.values(), TRAINER_LIMIT),
)
#: What a run is judged by.
JUDGED = ("step", "attempt", "reward", "kl", "entropy", "reward_std", "heldout", *_OWN[1:])
#: What `--map NAME=column` may name.
CANONICAL = (*JUDGED, *FIGURES)
#: Columns of figures that are kept of a log. One with more has none: its names may be anything.
MOST_FIGURES = 32

_COEFFICIENT = "is a coefficient, not a KL"
_COEFFICIENTS = ("coef", "coeff", "ctl", "controller", "beta", "target")
_NOT_REWARDS = {name for framework in FRAMEWORKS for name in framework.not_reward}
_MEAN_REWARD_WORDS = {"reward", "rewards", "mean", "avg", "average", "total", "episode", "step"}
#: Words in the names of what is offered where nothing is known, the likeliest first.
_STEP_WORDS = ("step", "iter", "epoch")
_REWARD_WORDS = ("reward", "score", "return", "acc", "pass", "success")
_HELDOUT_WORDS = (
    *("heldout", "held_out", "eval", "val/", "val-", "test", "gold", "acc", "pass@", "correct", "solve"),
    *("success", "f1", "reward/", "rewards/"),
)
#: Words in the names of what is neither a reward nor a score.
_OTHER_WORDS = {"std", "count", "num", "frac", "length", "tokens", "time", "loss", "kl"}


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


def quantity_of(column: str) -> str | None:
    """What a column may be, of whichever framework; None: nothing that a run is judged by."""
    name = bare(column)
    known = _QUANTITY_BY_NAME.get(name)
    return known or next((quantity for pattern, quantity in _PATTERNS if fits(name, pattern)), None)


_QUANTITY_BY_NAME = {
    **{
        name: quantity
        for quantity in reversed(QUANTITIES)
        for framework in FRAMEWORKS
        for name in getattr(framework, quantity)
    },
    **dict.fromkeys(STEP_NAMES, "step"),
    **{name: name for name in JUDGED},
}
_PATTERNS = tuple(one for one in _QUANTITY_BY_NAME.items() if "*" in one[0])


def is_judged(column: str) -> bool:
    """Whether a column may be one that a run is judged by, which its step is not."""
    return quantity_of(column) not in (None, "step")


def is_reward(column: str) -> bool:
    """Whether a column may be the reward."""
    return quantity_of(column) == "reward"


def why_not_kl(column: str, present: Collection[str]) -> str | None:
    """Why `column` is not the token-mean KL to the reference, or None if nothing speaks against it.

    Args:
        column: a bare name.
        present: the bare names of all columns of the log.
    """
    parts = (column, *column.split("/"))
    for framework in FRAMEWORKS:
        for pattern, why in framework.lookalikes.items():
            if any(fits(part, pattern) for part in parts):
                return why
        for rule in framework.false_kl if column == "kl" else ():
            if rule.holds(present):
                return rule.why
    name = column.removesuffix("s")
    is_coefficient = any(name.endswith(end) and "kl" in name.removesuffix(end) for end in _COEFFICIENTS)
    return _COEFFICIENT if is_coefficient else None


def resolve(
    columns: Collection[str],
    overrides: Mapping[str, str],
    framework: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Columns:
    """Decide which column is what.

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
    source = {name: by_bare[name] for name in _OWN if name in by_bare}
    notes: list[str] = []
    names: dict[str, str | None] = {
        "step": next((name for name in STEP_NAMES if name in by_bare), None),
        "kl": None if found is None else _kl(found, by_bare, settings or {}, notes),
    }
    for quantity in ("reward", "entropy", "reward_std", "heldout"):
        if quantity not in overrides:
            names[quantity] = _only(quantity, found, by_bare, notes)
    source |= {quantity: by_bare[name] for quantity, name in names.items() if name is not None}
    source |= overrides
    _require(source, columns)
    if "kl" in overrides:
        notes.clear()
    elif "kl" not in source and not notes:
        notes.extend(_refused_kls(by_bare))
    of_trainer = found is not None and found.name != "rlguard" and names.get("heldout") is not None
    if of_trainer and "items" not in source:
        notes.append(
            f"held-out is `{source['heldout']}`, which the trainer itself measured: this trusts the trainer, "
            "its items and its grader"
        )
    if len(columns) < len(every):
        notes.append(f"Columns with names of more than {MAX_NAME} characters are ignored.")
    figures, components = _figures(columns, overrides, notes)
    return Columns(found.name if found else "unknown", source, tuple(notes), figures, components)


def heldout_candidates(columns: Collection[str]) -> list[str]:
    """Columns that may be a held-out score, the likeliest first."""
    return [column for column in _likely(columns, _HELDOUT_WORDS) if not is_reward(column)]


def listing(names: Collection[str], most: int = 12) -> str:
    """Names for a message, cut after `most`."""
    shown = ", ".join(f"`{plain(name, 100)}`" for name in list(names)[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "") if names else "nothing"


# -- the framework, and what is missing ------------------------------------------------------------------


def _framework(by_bare: Mapping[str, str], overrides: Mapping[str, str]) -> Framework | None:
    """The framework with most of its names in the log, or with a mark of its own.

    Raises:
        InputError: two disagree about the reward.
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
    if framework.name == "rlguard" and not {"items", "heldout", "kl_kind"} & by_bare.keys():
        return 0  # `reward` and `kl` alone say TRL; these three columns are the guard's
    return sum(framework.pick(quantity, by_bare) is not None for quantity in QUANTITIES)


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
        if len(several) > 1 and (quantity := quantity_of(name)) is not None:
            raise InputError(
                f"{listing(several)} could each be `{name}`: several runs in one file? "
                f"Choose one with --map {quantity}={several[0]!r}, or export one run."
            )
    return {name: several[0] for name, several in found.items()}


def _require(source: Mapping[str, str], columns: Collection[str]) -> None:
    """Raise if step or reward is missing, and name the likeliest columns."""
    if "step" not in source:
        raise InputError(
            f"no column says the step (looked for {', '.join(STEP_NAMES)}). Name it with --map step=NAME; "
            f"found: {_by_likeness(columns, _STEP_WORDS)}."
        )
    if "reward" not in source:
        near = [c for c in columns if bare(c) in _NOT_REWARDS]
        why = f" {listing(near)} has the KL penalty taken off, so it is not the reward." if near else ""
        likely = [c for c in _likely(columns, _REWARD_WORDS) if c not in near]
        raise InputError(
            f"no column is known to be the reward.{why} Try --map reward={likely[0] if likely else 'NAME'}; "
            f"found: {_by_likeness(columns, _REWARD_WORDS)}."
        )


def _likely(columns: Collection[str], words: Sequence[str]) -> list[str]:
    """Columns with one of these words in their names, by the first such word."""
    found = {c: next((i for i, w in enumerate(words) if w in c.lower()), None) for c in columns}
    fit = [c for c, place in found.items() if place is not None and not _words(c) & _OTHER_WORDS]
    return sorted(fit, key=lambda c: (found[c], len(c)))


def _by_likeness(columns: Collection[str], words: Sequence[str]) -> str:
    return listing([*dict.fromkeys([*_likely(columns, words), *columns])])


def _words(name: str) -> set[str]:
    return set("".join(c if "a" <= c <= "z" else " " for c in name.lower()).split())


# -- one quantity ----------------------------------------------------------------------------------------


def _only(
    quantity: str, framework: Framework | None, by_bare: Mapping[str, str], notes: list[str]
) -> str | None:
    """The column of one quantity; None without any, or where several could be it.

    Raises:
        InputError: the reward could be several columns.
    """
    several = framework.picks(quantity, by_bare) if framework else []
    if quantity == "reward" and framework and several:
        own = {n for n in by_bare if figure_of(n) or any(fits(n, known) for known in framework.reward)}
        several += [n for n in by_bare if n not in own and _is_mean_reward(n)]
    there = [by_bare[name] for name in several]
    if quantity == "reward" and len(several) > 1:
        raise InputError(f"the reward could be {listing(there)}. Choose one with --map reward={there[0]}.")
    if quantity == "heldout" and len(several) > 1:
        notes.append(f"held-out could be {listing(there)}. Choose one with --map heldout={there[0]}")
    if quantity == "heldout" and not several and quantity in by_bare:
        return quantity
    return several[0] if len(several) == 1 else None


def _is_mean_reward(name: str) -> bool:
    return bool({"reward", "rewards"} & _words(name)) and _words(name) <= _MEAN_REWARD_WORDS


def _kl(
    framework: Framework, by_bare: Mapping[str, str], settings: Mapping[str, str], notes: list[str]
) -> str | None:
    """The first name of the KL that is known to be a token mean; why the others are not, in `notes`."""
    # What the user says of the format makes no other quantity of the KL: another's marks count, too.
    marked = [f for f in FRAMEWORKS if f is framework or not by_bare.keys().isdisjoint(f.marks)]
    for known in framework.kl:
        there = [name for name in by_bare if fits(name, known)]
        if len(there) > 1:
            notes.append(f"{listing(there)} are KLs of parts of the batch: choose one with --map kl=NAME.")
        if len(there) != 1 or why_not_kl(there[0], by_bare):
            continue
        needs = [setting for f in marked for setting in f.kl_needs.get(known, ())]
        why = next(filter(None, (_why_no_token_mean(setting, settings) for setting in needs)), "")
        if not why:
            return there[0]
        notes.append(f"`{by_bare[there[0]]}` is not taken as the KL to the reference: {why}.")
    for name, why in framework.not_kl.items():
        if name in by_bare:
            notes.append(f"`{by_bare[name]}` is not taken as the KL to the reference: it {why}.")
    return None


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


def _refused_kls(by_bare: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each column that looks like the KL, for a log in which none was taken."""
    for name, column in by_bare.items():
        why = why_not_kl(name, by_bare)
        if why and why != _COEFFICIENT:
            yield f"`{column}` is not taken as the KL to the reference: it {why}."
        elif not why and "kl" in (words := _words(name)) and not words & {"time", "timing", "seconds"}:
            yield (
                f"`{column}` is not a name known for the KL to the reference; if it is its token mean "
                f"in nats, say --map kl={column}."
            )


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
    same = ([column for column in named if fits(bare(column), known)] for known, _ in FIGURE_PATTERNS)
    of_parts = {column for several in same if len(several) > 1 for column in several}
    figures = {
        figure: column
        for column, figure in reversed(named.items())
        if figure != "components" and column not in of_parts
    }
    figures |= {name: column for name, column in overrides.items() if name in FIGURES}
    whole = any(bare(column) == "reward/overall" for column in columns)
    components = (column for column, figure in named.items() if figure == "components")
    return figures, tuple(c for c in components if whole or not bare(c).startswith("reward/"))
