"""Where the guard of a run is, and what the trainer does when it does not respond."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Literal, Self, TypedDict

from guard_client.client import GuardClient
from guard_client.errors import GuardConfigError

#: Setting, its type, and what that is called. NumPy's numbers are numbers; of True and False none is meant.
_FORMS: tuple[tuple[str, type, str], ...] = (
    ("url", str, "a text, such as http://127.0.0.1:8470"),
    ("token", str, "a text"),
    ("ca", str, "certificates, PEM"),
    ("attempt", Integral, "a whole number"),
    ("unreachable_seconds", Real, "a number of seconds"),
    ("drain_seconds", Real, "a number of seconds"),
    ("max_lag", Integral, "a whole number of checkpoints"),
    ("rollouts", bool, "True or False"),
)
_MAY_BE_NONE = frozenset({"url", "token", "ca", "attempt", "max_lag"})


class Options(TypedDict, total=False):
    """The options that `Guard` and `GuardCallback` share; `ClientSettings` describes them."""

    ca: str | None
    attempt: int | None
    on_unreachable: Literal["stop", "continue"]
    unreachable_seconds: float
    drain_seconds: float
    max_lag: int | None
    rollouts: bool


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Where the guard is, and how a trainer deals with it.

    Args:
        url: base URL of the guard; None: there is none.
        token: the guard's ingest token.
        ca: certificates, PEM, of which one must have signed that of a guard at an https URL; None: those that
            the system trusts.
        attempt: number of this start of the trainer; None asks the guard.
        on_unreachable: `stop` or `continue` when no guard responds for `unreachable_seconds`, when it refuses
            one report after the other, or when a checkpoint has not reached it by the end of training.
        unreachable_seconds: the time of `on_unreachable`, seconds.
        drain_seconds: how long the end of training may wait until the guard has evaluated every checkpoint.
            For a guard that ends with the trainer, as in a pod; more than the limit of a collective would
            fail the other ranks, which wait too.
        max_lag: how many checkpoints may be unscored while training goes on, so that a fire comes before the
            policy is ruined; None never waits. Training also waits for the baseline and for a second look at
            an alarm. `guard_client.waiting` bounds all waits.
        rollouts: whether a few completions on training prompts are shown in the guard's dashboard and report.

    Raises:
        GuardConfigError: a setting is wrong.
    """

    url: str | None
    token: str | None = field(default=None, repr=False)
    ca: str | None = field(default=None, repr=False)
    attempt: int | None = None
    on_unreachable: Literal["stop", "continue"] = "stop"
    unreachable_seconds: float = 300.0
    drain_seconds: float = 0.0
    max_lag: int | None = 1
    rollouts: bool = True

    def __post_init__(self) -> None:
        for name, kind, form in _FORMS:
            refuse_other(name, getattr(self, name), kind, form)
        if self.url is not None:
            GuardClient(self.url, ca=self.ca)  # a wrong URL is an error here, not at the first step
        limits: tuple[tuple[str, bool, str], ...] = (
            ("on_unreachable", self.on_unreachable in ("stop", "continue"), "'stop' or 'continue'"),
            ("unreachable_seconds", 0 < self.unreachable_seconds < math.inf, "> 0 seconds"),
            ("drain_seconds", 0 <= self.drain_seconds < math.inf, ">= 0 seconds"),
            ("attempt", self.attempt is None or self.attempt >= 0, ">= 0"),
            ("max_lag", self.max_lag is None or self.max_lag >= 0, ">= 0 checkpoints"),
        )
        for name, holds, must in limits:
            if not holds:
                raise GuardConfigError(f"{name} must be {must}, got {getattr(self, name)!r}")

    @classmethod
    def from_env(cls, environ: Mapping[str, str], *, optional: bool = False) -> Self:
        """The settings that the environment of a guarded run holds.

        Args:
            environ: `RLGUARD_URL` (needed on rank 0 unless `optional`), `RLGUARD_TOKEN`, `RLGUARD_CA`,
                `RLGUARD_ATTEMPT`, `RLGUARD_ON_UNREACHABLE` (stop or continue),
                `RLGUARD_UNREACHABLE_SECONDS`, `RLGUARD_DRAIN_SECONDS`, `RLGUARD_MAX_LAG` (a number or off),
                `RLGUARD_ROLLOUTS` (1 or 0).
            optional: whether the run may be without a guard.

        Raises:
            GuardConfigError: naming the variable that is missing or wrong.
        """
        url = environ.get("RLGUARD_URL") or None
        if url is None and not optional and environ.get("RANK", "0") == "0":
            raise GuardConfigError(
                "RLGUARD_URL is not set: set it to the guard's address, such as http://127.0.0.1:8470, and "
                "RLGUARD_TOKEN to its ingest token, or start the trainer with `rlguard run`; "
                "from_env(optional=True) trains without a guard"
            )
        on_unreachable = environ.get("RLGUARD_ON_UNREACHABLE", "stop")
        if on_unreachable not in ("stop", "continue"):
            raise GuardConfigError(f"RLGUARD_ON_UNREACHABLE must be stop or continue, got {on_unreachable!r}")
        limit = _seconds(environ, "RLGUARD_UNREACHABLE_SECONDS", "300")
        if limit <= 0:
            raise GuardConfigError(f"RLGUARD_UNREACHABLE_SECONDS must be > 0 seconds, got {limit!r}")
        lag = environ.get("RLGUARD_MAX_LAG") or "1"
        return cls(
            url,
            environ.get("RLGUARD_TOKEN") or None,
            environ.get("RLGUARD_CA") or None,
            attempt=_count("RLGUARD_ATTEMPT", environ.get("RLGUARD_ATTEMPT") or None),
            on_unreachable="stop" if on_unreachable == "stop" else "continue",
            unreachable_seconds=limit,
            drain_seconds=_seconds(environ, "RLGUARD_DRAIN_SECONDS", "0"),
            max_lag=_count("RLGUARD_MAX_LAG", None if lag == "off" else lag, " or off"),
            rollouts=switch(environ, "RLGUARD_ROLLOUTS", "1"),
        )


def refuse_other(name: str, value: object, kind: type, form: str) -> None:
    """Raises `GuardConfigError` for a value of another type, which is called `form`. A token is not shown."""
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not fits and not (value is None and name in _MAY_BE_NONE):
        shown = f"a value of type {type(value).__name__}" if name == "token" else repr(value)
        raise GuardConfigError(f"{name} must be {form}, got {shown}")


def switch(environ: Mapping[str, str], name: str, default: Literal["0", "1"]) -> bool:
    """Whether a variable is 1; raises `GuardConfigError` if it is neither that nor 0."""
    text = environ.get(name, default)
    if text not in ("0", "1"):
        raise GuardConfigError(f"{name} must be 1 or 0, got {text!r}")
    return text == "1"


def _count(name: str, text: str | None, other: str = "") -> int | None:
    """A whole number >= 0 from the environment; `other`: what else it may be, for the message."""
    if text is not None and not (text.isascii() and text.isdigit()):
        raise GuardConfigError(f"{name} must be a whole number >= 0{other}, got {text!r}")
    return None if text is None else int(text)


def _seconds(environ: Mapping[str, str], name: str, default: str) -> float:
    """A finite number of seconds >= 0 from the environment."""
    text = environ.get(name, default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise GuardConfigError(f"{name} must be a number of seconds, got {text!r}")
    return seconds
