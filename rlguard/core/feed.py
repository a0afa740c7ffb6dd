"""Where a guard reads what a trainer writes, typed once: for the guard's settings and the CRD. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from rlguard.core.evaluation import Section
from rlguard.core.frameworks import FILE_FORMATS, FORMATS, LAYOUTS
from rlguard.core.wording import meant


def _one_of(known: tuple[str, ...], value: str) -> str:
    if value not in known:
        raise ValueError(meant(value, known))
    return value


#: A path below the root of the checkpoints: relative, without empty parts and "..".
_PART = r"(\.|\.\.[^/\x00]+|\.?[^./\x00][^/\x00]*)"
Below = Annotated[str, Field(min_length=1, max_length=512, pattern=rf"^{_PART}(/{_PART})*$")]
LogFormat = Annotated[
    str,
    AfterValidator(lambda value: _one_of(FORMATS, value)),
    Field(json_schema_extra={"enum": list(FORMATS)}),
]
LayoutName = Annotated[
    str,
    AfterValidator(lambda value: _one_of(LAYOUTS, value)),
    Field(json_schema_extra={"enum": list(LAYOUTS)}),
]


class FollowedLog(Section):
    """The log that the trainer writes."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    path: Below = Field(
        description="A file, or a folder with event files, that the trainer writes, relative to the root of "
        "the checkpoint volume. It need not exist yet."
    )
    format: LogFormat = Field(
        "auto", description="Which framework writes it, or how it is to be read; auto finds out by its names."
    )
    run_config: Below | None = Field(
        None,
        alias="runConfig",
        description="The run's own configuration in YAML or JSON, such as hydra's, relative to the root of "
        "the checkpoint volume: it says whether the KL of the log is a mean over tokens. It need not exist "
        "yet. Without it one that lies beside the log is read.",
    )


class FollowedCheckpoints(Section):
    """The checkpoints that the trainer saves."""

    path: Below = Field(
        ".", description="The folder in which it saves, relative to the root of the checkpoint volume."
    )
    layout: LayoutName | None = Field(
        None,
        description="By whose layout a checkpoint is complete; the framework of the log without it, and any "
        "layout that cannot be taken for another's where that names none.",
    )


class Feed(Section):
    """What the guard reads of a trainer that does not report: its log, and where it saves."""

    follow: FollowedLog = Field(description="The log that the trainer writes.")
    checkpoints: FollowedCheckpoints = Field(
        default_factory=FollowedCheckpoints, description="The checkpoints that it saves."
    )

    @model_validator(mode="after")
    def _finds_checkpoints(self) -> Self:
        if self.layout is not None and self.layout not in LAYOUTS:
            raise ValueError(f"no layout of {self.layout}'s checkpoints is known: set checkpoints.layout")
        return self

    @property
    def layout(self) -> str | None:
        """The framework whose layout counts; None: any."""
        written = self.follow.format
        return self.checkpoints.layout or (None if written in FILE_FORMATS else written)


class FollowOrder(Section):
    """What a guard tells the process that follows for it, in one line of JSON.

    Fields:
        root: whole path under which the trainer writes; nothing outside it is read.
        feed: what is read there.
        state: the guard's folder, in which it is kept what lay there before the run.
        url: of the guard.
        token: its ingest token, None where it has none.
        read_token: its read token, None where it has none.
        ca: its certificate, PEM; None where it does not speak TLS.
    """

    root: Path
    feed: Feed
    state: Path
    url: str
    token: str | None
    read_token: str | None
    ca: str | None
