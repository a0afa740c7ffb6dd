"""What a guard has of a run: asked once, when a log begins to be followed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from guard_client.samples import StepSample
from guard_core.wire import KlKind
from guard_follow.errors import InputError
from guard_follow.reading import reader
from guard_follow.steps import ReportedSteps

REQUEST_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class KnownHistory:
    """What a guard has of a run.

    Fields:
        steps: by attempt and step.
        checkpoints: those that it has evaluated, as (attempt, step, path).
        attempt: the newest one; None before any step. A guard whose state was lost knows it alone.
    """

    steps: ReportedSteps = field(default_factory=dict)
    checkpoints: frozenset[tuple[int, int, str]] = frozenset()
    attempt: int | None = None


def ask_history(url: str, token: str | None, ca: str | None = None) -> KnownHistory:
    """The history of the guard at `url`; `ca`: see `reader`.

    Raises:
        InputError: it does not respond, or does not take the read token.
    """
    import httpx

    steps: ReportedSteps = {}
    try:
        with reader(url, token, REQUEST_SECONDS, ca) as client:
            evaluations = client.get("/v1/history", params={"max_points": 2})
            if evaluations.status_code in (401, 403):
                raise InputError(
                    f"the guard at {url} does not take this read token: set RLGUARD_READ_TOKEN or "
                    "--read-token-file. What was reported before is asked of the guard",
                    1,
                )
            evaluations.raise_for_status()
            verdict = client.get("/v1/verdict")
            verdict.raise_for_status()
            with client.stream("GET", "/v1/history") as lines:
                lines.raise_for_status()
                for line in lines.iter_lines():
                    _add(steps, json.loads(line))
        return KnownHistory(
            steps,
            frozenset((e["attempt"], e["step"], e["path"]) for e in evaluations.json()["evaluations"]),
            verdict.json()["attempt"],
        )
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise InputError(f"no guard responds at {url}: {error}", 1) from None


def _add(steps: ReportedSteps, row: dict[str, object]) -> None:
    """One line of a history; a checkpoint without a step has no reward."""
    if row.get("reward") is None:
        return
    values = {name: row.get(name) for name in ("reward", "kl", "entropy", "reward_std")}
    sample = StepSample(step=row["step"], kl_kind=KlKind(row.get("kl_kind", "absent")), **values)  # type: ignore[arg-type]
    steps.setdefault(int(str(row["attempt"])), {})[sample.step] = sample
