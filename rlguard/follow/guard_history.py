"""What a guard has of a run, asked over HTTP with its read token."""

from __future__ import annotations

import json
import os
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlguard.client.samples import StepSample
from rlguard.core.wire import KlKind
from rlguard.follow.attempts import VALUES
from rlguard.follow.errors import InputError

if TYPE_CHECKING:  # a command that asks nobody does not load it
    import httpx

REQUEST_SECONDS = 60.0

#: By attempt and step, what the guard has.
ReportedSteps = dict[int, dict[int, StepSample]]


def ca_of_environment() -> str | None:
    """The certificates in RLGUARD_CA, as the operator sets it in a trainer's pod."""
    return os.environ.get("RLGUARD_CA") or None


def reader(url: str, token: str | None, seconds: float, ca: str | None = None) -> httpx.Client:
    """Make a client of the guard at a URL, with that many seconds for each request.

    `ca`: certificates, PEM, of which one must have signed the guard's; None: those that the system trusts.

    Raises:
        ValueError, httpx.InvalidURL: it is no URL, or these are no certificates.
    """
    import httpx

    try:
        trusted = True if ca is None else ssl.create_default_context(cadata=ca)
    except ssl.SSLError as error:
        raise ValueError(f"RLGUARD_CA must be certificates, PEM: {error}") from None
    return httpx.Client(
        base_url=url,
        verify=trusted,
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=seconds,
        trust_env=False,
    )


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
    """Ask the guard at `url` for its history; `ca`: see `reader`.

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
            verdict = client.get("/v1/verdict")
            for response in (evaluations, verdict):
                response.raise_for_status()
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
    """Add one line of a history; a checkpoint without a step has no reward."""
    if row.get("reward") is None:
        return
    values = {name: row.get(name) for name in VALUES}
    sample = StepSample(step=row["step"], kl_kind=KlKind(row.get("kl_kind", "absent")), **values)  # type: ignore[arg-type]
    steps.setdefault(int(str(row["attempt"])), {})[sample.step] = sample
