"""What a trainer measures: which of its figures mean reward, KL, entropy, and their values step by step.

The same key means different things in different trainers: `kl` is a token mean against the reference in
GRPO, the drift between policy and rollouts in async GRPO, and another estimate in KTO. So a KL counts only
where this table says what it is. `docs/concepts/trainer.md` has the table for people.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from rlguard.client.rollouts import Candidate
from rlguard.client.samples import StepSample, fit_figures, number_of, sample_of
from rlguard.core.wire import KlKind, Sampling
from rlguard.core.wording import format_errors


@dataclass(frozen=True, slots=True)
class Figures:
    """The keys under which a trainer keeps its figures, and what its KL is; None: it has no such figure.

    `lists` is where the trainer keeps them as lists until it logs: `_metrics["train"]` of most TRL trainers,
    or `stats`. With `per_generation` a step that generates nothing trains on the completions of an earlier
    step, and its reward is theirs.
    """

    reward: str = "reward"
    reward_std: str | None = "reward_std"
    kl: str | None = "kl"
    kl_kind: KlKind = KlKind.ABSENT
    entropy: str | None = "entropy"
    lists: str = "_metrics"
    per_generation: bool = False

    def named(self) -> Iterator[tuple[str, str]]:
        """The figures that there are: (name in a report, key of the trainer)."""
        for name in ("reward", "kl", "entropy", "reward_std"):
            key = getattr(self, name)
            if key is not None:
                yield name, key

    def lists_of(self, trainer: Any) -> Mapping[str, Any] | None:
        """The trainer's live lists by its own keys; None if it has none."""
        lists = getattr(trainer, self.lists, None)
        if self.lists == "_metrics" and isinstance(lists, Mapping):
            lists = lists.get("train")
        return lists if isinstance(lists, Mapping) else None


#: What a trainer that this table does not know may have; its KL may be anything.
UNKNOWN = Figures(kl=None)

_ONLINE_DPO = Figures(
    reward="objective/scores",
    reward_std=None,
    kl="objective/kl",
    kl_kind=KlKind.REF_SEQ_SUM,
    entropy=None,  # TRL's is a sum over the sequence
    lists="stats",
)
#: By the name of the trainer's configuration class, which the events of a callback carry. The last three are
#: those of releases that some still use.
_TRL: Mapping[str, Figures] = {
    "GRPOConfig": Figures(kl_kind=KlKind.REF_TOKEN_MEAN, per_generation=True),
    "RLOOConfig": Figures(kl_kind=KlKind.REF_TOKEN_MEAN, per_generation=True),
    "AsyncGRPOConfig": Figures(kl_kind=KlKind.BEHAVIOUR),
    "A2POConfig": Figures(kl=None),
    "SDPOConfig": Figures(
        reward="self_distillation/reward_mean",
        reward_std="self_distillation/reward_std",
        kl=None,
        per_generation=True,
    ),
    "OnlineDPOConfig": _ONLINE_DPO,
    "XPOConfig": replace(_ONLINE_DPO, reward="objective/model_scores"),
    "NashMDConfig": replace(_ONLINE_DPO, reward="rewards/chosen", kl=None, kl_kind=KlKind.ABSENT),
    "PPOConfig": _ONLINE_DPO,  # it has no lists, and logs every step
}
#: What is plotted of a trainer's further figures: TRL's reward by function, and what completions look like.
_PLOTTED = re.compile(
    r"rewards/.+/mean|completions/(mean_length|clipped_ratio)|frac_reward_zero_std", re.DOTALL
)
#: What TRL's trainers call the length of a completion.
_LENGTHS = ("max_completion_length", "response_length", "max_new_tokens", "max_tokens")
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
#: Where transformers batches continuously, by the older name and the newer.
_BATCHING = ("use_transformers_paged", "use_transformers_continuous_batching")
#: These compute a KL only if `beta` is not 0.
_KL_NEEDS_BETA = frozenset({"GRPOConfig", "RLOOConfig"})


def figures_of(args: Any) -> Figures | None:
    """The figures of the trainer that these arguments are for.

    None for a trainer of TRL that measures no in-loop reward (SFT, DPO, ...); `UNKNOWN` for one of others.
    """
    name = _known_class(args)
    if name is None:
        return None if _trl_classes(args) else UNKNOWN
    no_kl = name in _KL_NEEDS_BETA and args.beta == 0.0
    return replace(_TRL[name], kl=None, kl_kind=KlKind.ABSENT) if no_kl else _TRL[name]


def _plotted(keys: Iterable[Any]) -> list[str]:
    """Those of a trainer's keys whose figures are sent for plots, beside what is judged."""
    return [key for key in keys if isinstance(key, str) and _PLOTTED.fullmatch(key)]


def kl_needs_beta(args: Any) -> bool:
    """Whether `beta` is what gives the trainer of these arguments a reference; to others it means more."""
    return _known_class(args) in _KL_NEEDS_BETA


def sampling_of(args: Any, model: Any = None) -> Sampling | None:
    """How the trainer samples completions; None if its arguments do not say.

    `generation_kwargs` of TRL's trainers wins over the argument of the same name, as it does in them.

    Raises:
        ValueError: a value is outside what can be evaluated with; the message names it.
    """
    said = {name: getattr(args, name, None) for name in (*_SAMPLING, *_LENGTHS)}
    given = getattr(args, "generation_kwargs", None)
    more = given if isinstance(given, Mapping) else {}
    said |= {name: value for name, value in more.items() if name in said}
    if said["temperature"] is None:
        return None
    length = next((said[name] for name in reversed(_LENGTHS) if said[name] is not None), None)
    stop = _ending(args, more, model)
    stop = [stop] if isinstance(stop, str) else stop
    try:
        used = {name: said[name] for name in _SAMPLING} | {"max_new_tokens": length, "stop": stop}
        return Sampling.model_validate(used)
    except ValidationError as error:
        raise ValueError(format_errors(error)) from None


def _ending(args: Any, more: Mapping[str, Any], model: Any) -> Any:
    """The texts that end a completion, by what generates it: each takes no notice of the other's name.

    `generate` of transformers also takes those of the model, where `more` has none. Its continuous batching
    takes neither.
    """
    if getattr(args, "use_vllm", False):
        return more.get("stop")
    if any(getattr(args, name, False) for name in _BATCHING):
        return None
    of_model = getattr(model, "generation_config", None)
    return more.get("stop_strings") or getattr(of_model, "stop_strings", None)


def _known_class(args: Any) -> str | None:
    """The most special class of these arguments that the table knows: AsyncGRPO's own before GRPO's."""
    return next((name for name in _trl_classes(args) if name in _TRL), None)


def _trl_classes(args: Any) -> list[str]:
    """The names of the classes of TRL that these arguments are of, the most special first."""
    return [base.__name__ for base in type(args).__mro__ if base.__module__.startswith("trl.")]


class StepReader:
    """Reads the values of one step after the other.

    Args:
        figures: where the trainer keeps them.
    """

    def __init__(self, figures: Figures) -> None:
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
        values = {name: _mean_of(found) for name, found in self._values.items()}
        self._values = {}
        self.generated = "reward" in values
        if self.figures.per_generation:
            self._generation |= values
            values = dict(self._generation)
        if "reward" not in values:
            return None
        shown = fit_figures({name: values[name] for name in _plotted(values)})
        return replace(sample_of(step, values, self.figures.kl_kind), figures=shown)

    def _keys(self, found: Mapping[str, Any]) -> list[tuple[str, str]]:
        return [*self.figures.named(), *((key, key) for key in _plotted(found))]


def _mean_of(values: Iterable[Any]) -> float | None:
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
