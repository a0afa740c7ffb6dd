"""What an operator kept of a run, as values. Pure.

A guard wrote it into a status, an operator into a ConfigMap, perhaps of other releases than this one, and a
file may hold anything: what cannot be read is left out, and missing is not known, never 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from guard_cli.errors import CliError
from guard_cli.summary import read_verdict
from guard_core.kept_steps import KeptSteps, read_steps
from guard_core.policy import Policy
from guard_core.wire import KlKind, MomentRollouts, Rollout, Verdict
from guard_service.policy_file import NotYamlError, parse_yaml

VERDICT, ROUNDS, BEST = "verdict.json", "history.jsonl", "last-good-checkpoint.json"
#: Beyond it a number of a file is none that a plot can bear.
LARGEST = 1e15
_PLACE, _PAID = MomentRollouts.model_fields.keys(), Rollout.model_fields.keys()
POLICY, ROLLOUTS, STEPS, COLLECTED = "policy.yaml", "rollouts.json", "steps.jsonl", "collected-at"
CONDITIONS = "conditions.json"


@dataclass(frozen=True, slots=True)
class KeptCondition:
    """What the operator said of the job when its evidence was collected."""

    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is left of a run on a cluster.

    Fields:
        job: name of the job, for people; "" if it is not known.
        collected_at: when it was collected, as the operator wrote it.
        conditions: none where an older operator did not keep them.
        history: for `ReportContent`; its steps are rounds where no steps were kept.
        lines: steps and rounds, for `plot.draw`.
        steps: what was kept of them; None where the guard had not told them.
        policy: None where an older operator did not keep it.
        rollouts: the best-rewarded completion of each moment; none where the trainer reported none.
    """

    job: str
    collected_at: str
    verdict: Verdict
    conditions: tuple[KeptCondition, ...]
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
    data = _object(_object(config_map).get("data"))
    if VERDICT not in data:
        raise CliError(
            f"this is no evidence of a run: a ConfigMap with data/{VERDICT} is needed, as "
            "`kubectl get configmap NAME -o yaml` prints it"
        )
    metadata = _object(_object(config_map).get("metadata"))
    verdict = _verdict(_object(_json(data[VERDICT])), _json(data.get(BEST)))
    rounds, steps = tuple(_rounds(data.get(ROUNDS))), read_steps(_words(data.get(STEPS)))
    return Evidence(
        job=_words(_object(metadata.get("labels")).get("rlguard.dev/job")),
        collected_at=_words(data.get(COLLECTED)),
        verdict=verdict,
        conditions=tuple(_conditions(_json(data.get(CONDITIONS)))),
        history=_history(rounds, steps, cut_off=verdict.rounds > len(rounds)),
        lines=_lines(rounds, steps),
        steps=steps,
        policy=_policy(data.get(POLICY)),
        rollouts=tuple(_moments(_json(data.get(ROLLOUTS)))),
    )


def _verdict(status: Mapping[str, Any], best: Any) -> Verdict:
    """`status.guard` as the verdict that it was made of.

    Raises:
        CliError: it has no code, or one of another release.
    """
    verdict = read_verdict({**status, "bestCheckpoint": best})
    if verdict is None:
        code = status.get("code")
        raise CliError(
            "the guard of this run had reported no verdict: its evidence holds logs and nothing to draw"
            if code is None
            else f"{VERDICT} has the code {code!r}, which this release does not know: use the release of its "
            "guard"
        )
    return verdict


def _conditions(kept: Any) -> Iterator[KeptCondition]:
    for one in kept if isinstance(kept, list) else ():
        of = _object(one)
        yield KeptCondition(*(_words(of.get(key)) for key in ("type", "status", "reason", "message")))


def _rounds(text: Any) -> Iterator[Mapping[str, Any]]:
    """The rounds that can be read; the first line may have been cut."""
    for line in _words(text).splitlines():
        one = _object(_json(line))
        places = all(_is_number(one.get(key), int) and one[key] >= 0 for key in ("attempt", "step"))
        if places and all(_is_number(one.get(key), int, float) for key in ("reward", "heldout")):
            yield one


def _history(
    rounds: tuple[Mapping[str, Any], ...], steps: KeptSteps | None, cut_off: bool
) -> Mapping[str, Any]:
    unknown = dict.fromkeys(("in_loop_ema", "heldout_ema", "proxy_real_gap", "kl_ema"))
    return {
        "steps": _lines(rounds, None) if steps is None else _dumped(steps),
        "evaluations": [
            unknown
            | {key: one[key] for key in ("attempt", "step", "reward")}
            | {"score": one["heldout"], "evidence": {}}
            for one in rounds
        ],
        "total_steps": len(rounds) if steps is None else steps.total,
        "of_rounds": steps is None,
        "averaged": False,
        "cut_off": cut_off,
    }


def _lines(rounds: tuple[Mapping[str, Any], ...], steps: KeptSteps | None) -> list[Mapping[str, Any]]:
    """The rounds, in the form of steps; beside steps they have their held-out score alone."""
    of_rounds = [_line(one) for one in rounds]
    if steps is None:
        return of_rounds
    scores = [{**one, "reward": None, "kl": None} for one in of_rounds]
    return sorted([*_dumped(steps), *scores], key=lambda line: (line["attempt"], line["step"]))


def _dumped(steps: KeptSteps) -> list[Mapping[str, Any]]:
    return [one.model_dump(mode="json") for one in steps.steps]


def _line(one: Mapping[str, Any]) -> Mapping[str, Any]:
    """A round in the form of a step."""
    kl = one.get("kl")
    return {key: one[key] for key in ("attempt", "step", "reward", "heldout")} | {
        "kl": kl if _is_number(kl, int, float) else None,
        "kl_kind": KlKind.REF_TOKEN_MEAN.value,
        "entropy": None,
        "reward_std": None,
    }


def _moments(kept: Any) -> Iterator[MomentRollouts]:
    """What the policy wrote at each moment; what does not validate is left out."""
    for one in kept if isinstance(kept, list) else ():
        place, paid = ({k: v for k, v in _object(one).items() if k in keys} for keys in (_PLACE, _PAID))
        with suppress(ValidationError):
            yield MomentRollouts.model_validate(place | {"rollouts": [paid]})


def _policy(text: Any) -> Policy | None:
    try:
        return None if text is None else Policy.model_validate(parse_yaml(_words(text)))
    except (NotYamlError, ValidationError):
        return None


def _json(text: Any) -> Any:
    """What a text holds as JSON, None if that cannot be said; no number is infinite."""
    try:
        return json.loads(_words(text), parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None


def _is_number(value: Any, *kinds: type[int | float]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool) and abs(value) < LARGEST


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _words(value: Any) -> str:
    return value if isinstance(value, str) else ""
