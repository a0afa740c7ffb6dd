"""Where the guard of a run is, and how a trainer deals with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Self, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rlguard.client.client import GuardClient
from rlguard.client.errors import GuardConfigError
from rlguard.core.wording import Named, format_errors

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Options(TypedDict, total=False):
    """The options that `Guard` and `GuardCallback` share; `ClientSettings` describes them."""

    ca: str | None
    on_unreachable: Literal["stop", "continue"]
    unreachable_seconds: float
    drain_seconds: float
    max_lag: int | None
    rollouts: bool


class ClientSettings(BaseModel):
    """Where the guard is, and how a trainer deals with it; made by `of` or `from_env`.

    Fields:
        url: base URL of the guard; None: there is none.
        token: the guard's ingest token.
        ca: certificates, PEM, of which one must have signed that of a guard at an https URL; None: those that
            the system trusts.
        on_unreachable: `stop` or `continue` when no guard responds for `unreachable_seconds`, when it refuses
            one report after the other, or when a checkpoint has not reached it by the end of training.
        unreachable_seconds: the time of `on_unreachable`, seconds.
        drain_seconds: how long the end of training may wait until the guard has evaluated every checkpoint.
            For a guard that ends with the trainer, as in a pod; more than the limit of a collective would
            fail the other ranks, which wait too.
        max_lag: how many checkpoints may be unscored while training goes on, so that a fire comes before the
            policy is ruined; None never waits. Training also waits for the baseline and for a second look at
            an alarm. `rlguard.client.waiting` bounds all waits.
        rollouts: whether a few completions on training prompts are shown in the guard's dashboard and report.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    url: str | None = None
    token: str | None = Field(None, repr=False)
    ca: str | None = Field(None, repr=False)
    on_unreachable: Literal["stop", "continue"] = "stop"
    unreachable_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 300.0
    drain_seconds: Seconds = 0.0
    max_lag: Count | None = 1
    rollouts: bool = True

    @model_validator(mode="after")
    def _check_url(self) -> Self:
        if self.url is not None:
            GuardClient(self.url, ca=self.ca)  # a wrong URL is an error here, not at the first step
        return self

    @classmethod
    def of(cls, **options: Any) -> Self:
        """The settings that these options make.

        Raises:
            GuardConfigError: an option is wrong.
        """
        with _as_config_error(".".join):
            return cls(**options)

    @classmethod
    def from_env(cls, environ: Mapping[str, str], *, optional: bool = False) -> Self:
        """The settings that the environment of a guarded run holds.

        Args:
            environ: for each field `RLGUARD_` and its name; an empty variable is not set. `RLGUARD_URL` is
                needed on rank 0 unless `optional`. `RLGUARD_MAX_LAG` may be `off`.
            optional: whether the run may be without a guard.

        Raises:
            GuardConfigError: naming the variable that is missing or wrong.
        """
        given = {name: text for name in cls.model_fields if (text := environ.get(variable_of((name,))))}
        if "url" not in given and not optional and environ.get("RANK", "0") == "0":
            raise GuardConfigError(
                "RLGUARD_URL is not set: set it to the guard's address, such as http://127.0.0.1:8470, and "
                "RLGUARD_TOKEN to its ingest token, or start the trainer with `rlguard run`; "
                "from_env(optional=True) trains without a guard"
            )
        never_waits = given.get("max_lag") == "off" and given.pop("max_lag")
        with _as_config_error(variable_of):
            settings = cls.model_validate_strings(given)
        return settings.model_copy(update={"max_lag": None}) if never_waits else settings


def variable_of(place: tuple[str, ...]) -> str:
    """The environment variable of a setting."""
    return f"RLGUARD_{place[0].upper()}"


@contextmanager
def _as_config_error(named: Named) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise GuardConfigError(format_errors(error, named)) from None
