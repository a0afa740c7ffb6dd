"""Which column of a log is what: metric names of the RL frameworks to RLGuard's canonical names. Pure.

Only a name in `FRAMEWORKS` is taken by itself. A name in `LOOKALIKES` is never taken, not even by
`--map`: a KL between the policy and the one that sampled, or a KL summed over a sequence, would be held
against a threshold in nats/token of KL to the reference, and the verdict would mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from guard_cli.errors import CliError

#: What `--map NAME=column` may name.
CANONICAL = (
    "step",
    "attempt",
    "reward",
    "kl",
    "entropy",
    "reward_std",
    "heldout",
    "items",
    "kl_kind",
    "pass_index",
)


@dataclass(frozen=True, slots=True)
class Framework:
    """Names that one framework logs under. Of several names for one quantity, the first present is taken.

    `reward`: mean in-loop reward before any KL penalty. `kl`: token-mean KL to the reference, nats/token.
    """

    name: str
    reward: tuple[str, ...]
    kl: tuple[str, ...] = ()
    entropy: tuple[str, ...] = ()
    reward_std: tuple[str, ...] = ()
    heldout: tuple[str, ...] = ()

    def pick(self, quantity: str, present: Collection[str]) -> str | None:
        """The first name of `quantity` that is present, or None."""
        return next((name for name in getattr(self, quantity) if name in present), None)


FRAMEWORKS = (
    Framework("rlguard", ("reward",), ("kl",), ("entropy",), ("reward_std",), ("heldout",)),
    Framework(
        "TRL", ("reward",), ("kl",), ("entropy",), ("reward_std",), ("killswitch/heldout_score",)
    ),  # Axolotl and Unsloth train with TRL's trainer
    Framework(
        "verl", ("critic/score/mean",), ("actor/kl_loss", "actor/reward_kl_penalty"), ("actor/entropy",)
    ),
    Framework(
        "OpenRLHF",
        ("reward", "rollout/reward_mean"),
        ("kl",),
        ("entropy_loss",),
        ("rollout/reward_std",),
    ),
    Framework("NeMo-RL", ("reward",), ("kl_penalty",), ("approx_entropy",)),
    Framework("torchtune", ("rewards", "scores"), ("kl_loss",)),
    Framework("prime-rl", ("reward/all/mean",), (), ("entropy/all/mean",), ("reward/all/std",)),
)

#: In order of preference. W&B's `_step` counts log calls, so it comes last.
STEP_NAMES = ("global_step", "training/global_step", "trainer/global_step", "step", "Step", "_step")

_BEHAVIOUR = "is the drift from the policy that sampled the batch, not from the reference"
_MISMATCH = "is the mismatch between trainer and inference engine, not the drift from the reference"
_SUM = "is summed over the tokens of a sequence; the threshold is a mean per token"
_COEFFICIENT = "is a coefficient, not a KL"

#: (pattern of the bare name, why it is not the token-mean KL to the reference).
LOOKALIKES = tuple(
    (re.compile(pattern), why)
    for pattern, why in (
        (r"(.*/)?ppo_kl(/.*)?", _BEHAVIOUR),
        (r"(.*/)?(old_)?approx_?(policy_)?kls?(_avg|_mean)?", _BEHAVIOUR),
        (r"mismatch_kl(/.*)?", _MISMATCH),
        (r"(.*/)?(gen_kl_error|policy_kl_error|js_divergence_error|vllm_kl)", _MISMATCH),
        (r"rollout_(corr|is)/.*kl.*", _MISMATCH),
        (r"(.*/)?kl_sample_train.*", _MISMATCH),
        (r"objective/kl(_dist)?", _SUM),
        (r"(.*/)?kl_reward", "is the penalty that was taken off the reward, not the KL"),
        (r"(.*/)?.*kl.*(coef|coeff|ctl|controller|beta|target)s?", _COEFFICIENT),
    )
)

#: (columns that give a recipe away, why its column `kl` is not the token-mean KL to the reference).
_FALSE_KL = (
    (
        ("ratio",),
        "comes from TRL's async_grpo (there is a column `ratio`), where `kl` is the drift between the policy "
        "and the rollouts",
    ),
    (
        ("approx_policy_kl", "rlhf_reward", "kl_reward"),
        f"comes from a torchtune PPO recipe, where `kl` {_SUM}",
    ),
)

#: Looks like the in-loop reward but had the KL penalty taken off.
_PENALISED_REWARDS = ("critic/rewards/mean", "rlhf_reward", "objective/rlhf_reward")

_HELDOUT_CANDIDATE = re.compile(r"(eval|val|valid|validation|test)([-_/]).*(reward|score|acc|mean@|pass@).*")


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column is what. `source[canonical]` is the name as it is in the file."""

    framework: str
    source: Mapping[str, str]
    notes: tuple[str, ...] = field(default=())


def bare(column: str) -> str:
    """A column's name without what the tracker put around it: `my-run - train/reward` is `reward`."""
    return column.rpartition(" - ")[2].strip().removeprefix("train/")


def wanted(column: str) -> bool:
    """Whether a reader must keep the values of this column although no `--map` names it."""
    name = bare(column)
    return name in CANONICAL or name in _KNOWN


def why_not_kl(column: str, present: Collection[str]) -> str | None:
    """Why `column` is not the token-mean KL to the reference, or None if nothing speaks against it.

    Args:
        column: a bare name.
        present: the bare names of all columns of the log.
    """
    for pattern, why in LOOKALIKES:
        if pattern.fullmatch(column):
            return why
    if column == "kl":
        for marks, why in _FALSE_KL:
            if any(mark in present for mark in marks):
                return why
    return None


def resolve(columns: Collection[str], overrides: Mapping[str, str]) -> Columns:
    """Say which column is what.

    Args:
        columns: every column name in the file.
        overrides: canonical name to column, from `--map`.

    Raises:
        CliError: an override names no column or a look-alike; the step or the reward is missing or
            could be several columns.
    """
    _check_overrides(columns, overrides)
    by_bare = _by_bare_name(columns)
    framework = _framework(by_bare, overrides)
    source: dict[str, str] = {
        name: by_bare[name] for name in ("attempt", "items", "kl_kind", "pass_index") if name in by_bare
    }
    step = next((name for name in STEP_NAMES if name in by_bare), None)
    if step is not None:
        source["step"] = by_bare[step]
    notes: list[str] = []
    for quantity in ("reward", "kl", "entropy", "reward_std", "heldout"):
        name = framework.pick(quantity, by_bare) if framework else None
        if name is None and quantity == "heldout" and "heldout" in by_bare:
            name = "heldout"
        if quantity == "kl" and name is not None and why_not_kl(name, by_bare):
            name = None
        if name is not None:
            source[quantity] = by_bare[name]
    source.update(overrides)
    _require(source, columns)
    if "kl" not in source:
        notes.extend(_refused_kls(by_bare))
    if "heldout" not in source and "items" not in source:
        notes.extend(_heldout_candidates(by_bare))
    return Columns(framework.name if framework else "unknown", source, tuple(notes))


def _check_overrides(columns: Collection[str], overrides: Mapping[str, str]) -> None:
    for canonical, column in overrides.items():
        if canonical not in CANONICAL:
            raise CliError(f"--map {canonical}={column}: {canonical!r} is none of {', '.join(CANONICAL)}.")
        if column not in columns:
            raise CliError(f"--map {canonical}={column}: there is no such column. Found: {listing(columns)}.")
    kl = overrides.get("kl")
    if kl is not None and (why := why_not_kl(bare(kl), {bare(c) for c in columns})):
        raise CliError(
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
        if len(several) > 1 and (name in _KNOWN or name in CANONICAL):
            raise CliError(
                f"{listing(several)} could each be `{name}`: several runs in one file? "
                f"Choose one with --map {_quantity(name)}={several[0]!r}, or export one run."
            )
    return {name: several[0] for name, several in found.items()}


def _framework(by_bare: Mapping[str, str], overrides: Mapping[str, str]) -> Framework | None:
    """The framework with most of its names in the log; an error if two disagree about the reward."""
    ranked = sorted(FRAMEWORKS, key=lambda f: -_matches(f, by_bare))
    with_reward = [f for f in ranked if f.pick("reward", by_bare) and _matches(f, by_bare)]
    rewards = {f.pick("reward", by_bare): f.name for f in reversed(with_reward)}
    if len(rewards) > 1 and "reward" not in overrides:
        several = ", ".join(f"`{name}` ({who})" for name, who in rewards.items())
        raise CliError(f"the reward could be {several}. Choose one with --map reward=NAME.")
    if with_reward:
        return with_reward[0]
    return ranked[0] if _matches(ranked[0], by_bare) else None


def _matches(framework: Framework, by_bare: Mapping[str, str]) -> int:
    quantities = ("reward", "kl", "entropy", "reward_std", "heldout")
    score = sum(framework.pick(quantity, by_bare) is not None for quantity in quantities)
    if framework.name == "rlguard":  # `reward` and `kl` alone say TRL; these three columns are the guard's
        score = score if {"items", "heldout", "kl_kind"} & by_bare.keys() else 0
    return score


def _require(source: Mapping[str, str], columns: Collection[str]) -> None:
    if "step" not in source:
        raise CliError(
            f"no column says the step (looked for {', '.join(STEP_NAMES)}). Found: {listing(columns)}. "
            "Name it with --map step=NAME."
        )
    if "reward" not in source:
        near = [c for c in columns if bare(c) in _PENALISED_REWARDS]
        why = f" {listing(near)} has the KL penalty taken off, so it is not the reward." if near else ""
        raise CliError(
            f"no column is known to be the reward. Found: {listing(columns)}.{why} "
            "Name it with --map reward=NAME."
        )


def _refused_kls(by_bare: Mapping[str, str]) -> list[str]:
    """A sentence for each column that looks like the KL, for a log in which none was taken."""
    notes = []
    for name, column in by_bare.items():
        why = why_not_kl(name, by_bare)
        if why and why != _COEFFICIENT:
            notes.append(f"`{column}` is not taken as the KL to the reference: it {why}.")
        elif not why and "kl" in re.split(r"[^a-z]+", name.lower()):
            notes.append(
                f"`{column}` is not a name known for the KL to the reference; if it is its token mean "
                f"in nats, say --map kl={column}."
            )
    return notes


def _heldout_candidates(by_bare: Mapping[str, str]) -> list[str]:
    found = [column for name, column in by_bare.items() if _HELDOUT_CANDIDATE.fullmatch(name)]
    if not found:
        return []
    return [
        f"{listing(found)} may be scored by the training reward itself, which a hack games too. If its "
        f"grader and its items are independent of training, say --map heldout={found[0]}."
    ]


def listing(names: Collection[str], most: int = 12) -> str:
    """Names for a message, cut after `most`."""
    shown = ", ".join(f"`{name}`" for name in list(names)[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "") if names else "nothing"


def _quantity(name: str) -> str:
    if name in CANONICAL:
        return name
    if name in STEP_NAMES:
        return "step"
    for framework in FRAMEWORKS:
        for quantity in ("reward", "kl", "entropy", "reward_std", "heldout"):
            if name in getattr(framework, quantity):
                return quantity
    raise AssertionError(name)


_KNOWN = frozenset(STEP_NAMES) | {
    name
    for framework in FRAMEWORKS
    for quantity in ("reward", "kl", "entropy", "reward_std", "heldout")
    for name in getattr(framework, quantity)
}
