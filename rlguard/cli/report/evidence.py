"""What an operator kept of a run, as values. Pure.

A file may hold anything: what cannot be read is left out, and missing is not known, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from guard_service.policy_file import NotYamlError, parse_yaml
from rlguard.cli.ending import NotedCondition
from rlguard.cli.errors import CliError
from rlguard.cli.summary import read_verdict
from rlguard.core.kept_steps import KeptSteps, read_steps
from rlguard.core.policy import Policy
from rlguard.core.wire import Attempt, KlKind, MomentRollouts, Rollout, Step, Verdict

T = TypeVar("T")
Json = dict[str, Any]
VERDICT, ROUNDS, BEST = "verdict.json", "history.jsonl", "last-good-checkpoint.json"
POLICY, ROLLOUTS, STEPS, COLLECTED = "policy.yaml", "rollouts.json", "steps.jsonl", "collected-at"
CONDITIONS = "conditions.json"
_PLACE, _PAID = MomentRollouts.model_fields.keys(), Rollout.model_fields.keys()
#: A number that a plot can bear.
_Drawn = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False, strict=True)]


class KeptRound(BaseModel):
    """An evaluation round; a KL that was not reported is None."""

    attempt: Annotated[Attempt, Field(strict=True)]
    step: Annotated[Step, Field(strict=True)]
    reward: _Drawn
    heldout: _Drawn
    kl: _Drawn | None = None


class _Metadata(BaseModel):
    labels: dict[str, str] = {}


class _ConfigMap(BaseModel):
    metadata: _Metadata = _Metadata()
    data: dict[str, str]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is left of a run on a cluster.

    Fields:
        job: name of the job, for people; "" if it is not known.
        collected_at: when it was collected, as the operator wrote it.
        conditions: of the job at its end.
        history: for `ReportContent`; its steps are rounds where no steps were kept.
        lines: steps and rounds, for `plot.draw`.
        steps: what was kept of them; None where the guard had not told them.
        policy: None where it cannot be read.
        rollouts: the best-rewarded completion of each moment; none where the trainer reported none.
    """

    job: str
    collected_at: str
    verdict: Verdict
    conditions: tuple[NotedCondition, ...]
    history: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]
    steps: KeptSteps | None
    policy: Policy | None
    rollouts: tuple[MomentRollouts, ...]


def read_evidence(config_map: Any) -> Evidence:
    """The evidence in a ConfigMap, given as the API server or `kubectl get -o yaml` has it.

    Raises:
        CliError: it is not evidence of a run.
    """
    try:
        given = _ConfigMap.model_validate(config_map)
        data, metadata = given.data, given.metadata
        status: Json = _read(Json, data[VERDICT], {})
    except (ValidationError, KeyError):
        raise CliError(
            f"this is no evidence of a run: a ConfigMap with data/{VERDICT} is needed, as "
            "`kubectl get configmap NAME -o yaml` prints it"
        ) from None
    verdict = read_verdict({**status, "bestCheckpoint": _read(Json, data.get(BEST), {})})
    if verdict is None:
        raise CliError("the guard of this run had reported no verdict: its evidence holds logs only")
    lines = data.get(ROUNDS, "").splitlines()
    rounds: list[KeptRound] = [one for line in lines if (one := _read(KeptRound, line, None)) is not None]
    steps = read_steps(data.get(STEPS, ""))
    return Evidence(
        job=metadata.labels.get("rlguard.dev/job", ""),
        collected_at=data.get(COLLECTED, ""),
        verdict=verdict,
        conditions=_read(tuple[NotedCondition, ...], data.get(CONDITIONS), ()),
        history=_history(rounds, steps, cut_off=verdict.rounds > len(rounds)),
        lines=_lines(rounds, steps),
        steps=steps,
        policy=_policy(data.get(POLICY)),
        rollouts=tuple(_moments(_read(list[Json], data.get(ROLLOUTS), []))),
    )


def _read(kind: Any, text: str | None, otherwise: T) -> Any | T:
    """A value of this type, read from JSON without infinite numbers; `otherwise` if it is none."""
    try:
        return TypeAdapter(kind).validate_python(from_json(text or "", allow_inf_nan=False))
    except ValueError:
        return otherwise


def _history(rounds: Sequence[KeptRound], steps: KeptSteps | None, cut_off: bool) -> Json:
    unknown = dict.fromkeys(("in_loop_ema", "heldout_ema", "proxy_real_gap", "kl_ema"))
    return {
        "steps": _lines(rounds, None) if steps is None else _dumped(steps),
        "evaluations": [
            {**unknown, **one.model_dump(include={"attempt", "step", "reward"}), "score": one.heldout}
            for one in rounds
        ],
        "total_steps": len(rounds) if steps is None else steps.total,
        "of_rounds": steps is None,
        "averaged": False,
        "cut_off": cut_off,
    }


def _lines(rounds: Sequence[KeptRound], steps: KeptSteps | None) -> list[Json]:
    """The rounds, in the form of steps; beside steps they have their held-out score alone."""
    unknown = {"kl_kind": KlKind.REF_TOKEN_MEAN.value, "entropy": None, "reward_std": None}
    of_rounds = [{**one.model_dump(), **unknown} for one in rounds]
    if steps is None:
        return of_rounds
    scores = [{**one, "reward": None, "kl": None} for one in of_rounds]
    return sorted([*_dumped(steps), *scores], key=lambda line: (line["attempt"], line["step"]))


def _dumped(steps: KeptSteps) -> list[Json]:
    return [one.model_dump(mode="json") for one in steps.steps]


def _moments(kept: Sequence[Mapping[str, Any]]) -> Iterator[MomentRollouts]:
    """What the policy wrote at each moment; what does not validate is left out."""
    for one in kept:
        place, paid = ({k: v for k, v in one.items() if k in keys} for keys in (_PLACE, _PAID))
        with suppress(ValidationError):
            yield MomentRollouts.model_validate(place | {"rollouts": [paid]})


def _policy(text: str | None) -> Policy | None:
    try:
        return None if text is None else Policy.model_validate(parse_yaml(text))
    except (NotYamlError, ValidationError):
        return None
