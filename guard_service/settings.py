"""Settings of the guard process, from `RLGUARD_GUARD_*` environment variables or from arguments.

`load_settings` turns every mistake into one `SettingsError` that names the variable, its value and what to
do.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as SourceError

from guard_service.errors import SettingsError
from guard_service.heldout.config import HeldoutSettings
from guard_service.policy_file import load_policy
from rlguard.core.feed import Feed
from rlguard.core.loopback import is_loopback
from rlguard.core.policy import Policy
from rlguard.core.wording import Named, Place, format_errors, unknown

ENV_PREFIX = "RLGUARD_GUARD_"
MAX_TOKEN_FILE_BYTES = 64 * 1024


class TokenSet(NamedTuple):
    """The bearer token of each role; None: there is none."""

    ingest: str | None = None
    read: str | None = None
    evaluations: str | None = None
    supervisor: str | None = None


class GuardSettings(BaseSettings):
    """Everything a guard process is told. `docs/reference/settings.md` is generated from this."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
    )

    run_name: str | None = Field(
        None,
        min_length=1,
        max_length=120,
        pattern=r"^[^\x00-\x1f\x7f]*$",
        description="Name of the run, for people: on the dashboard and in `rlguard status`. Without it that "
        "of state_dir.",
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Form of the guard's log lines: text, or one JSON object a line."
    )
    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address to listen on; `::` is every address, of IPv6 and IPv4.",
    )
    port: int = Field(
        8470, ge=0, le=65535, description="TCP port; 0 takes a free one and writes it to endpoint.json."
    )
    tls_certificate: Path | None = Field(
        None,
        description="File with the certificate (PEM) with which the port speaks TLS, and nothing else. "
        "Trainers on another machine verify it by `RLGUARD_CA`.",
    )
    tls_key: Path | None = Field(None, description="File with its private key (PEM, without a password).")
    listen_fd: int | None = Field(
        None,
        ge=3,
        description="File descriptor of a TCP socket that listens already, from the process that starts the "
        "guard and keeps it while no guard runs, as `rlguard run` does: nobody else can take its port. "
        "In place of host and port; it needs both tokens.",
    )
    state_dir: Path = Field(
        description="Directory of the store, endpoint.json and the best checkpoint. One run, one directory; "
        "it must survive a restart of the guard, and the trainer must not be able to read it."
    )
    checkpoint_root: Path = Field(
        description="Directory under which the trainer writes its checkpoints. Paths outside are refused."
    )
    metrics: Feed | None = Field(
        None,
        description="What the guard itself reads of a trainer that does not report: its log and its "
        "checkpoints, below checkpoint_root. Without it the trainer reports.",
    )
    heldout: HeldoutSettings | None = Field(
        None,
        description="Held-out evaluation. Without it no checkpoint is scored and only the KL rule can fire.",
    )
    policy_file: Path | None = Field(
        None, description="YAML file with the policy (every threshold of the run); defaults without it."
    )
    ingest_token_file: Path | None = Field(
        None, description="File with the bearer token of the trainer, for POST."
    )
    read_token_file: Path | None = Field(
        None,
        description="File with the bearer token for reading: verdict, history and the dashboard's data.",
    )
    evaluations_token_file: Path | None = Field(
        None,
        description="File with the bearer token of whoever evaluates checkpoints outside of the guard and "
        "reports the outcomes (POST /v1/evaluations), in place of heldout. No trainer may have it.",
    )
    supervisor_token_file: Path | None = Field(
        None,
        description="File with the bearer token of the supervisor: it reads, and hands a run over from one "
        "guard to the next (GET, PUT /v1/state). With it a guard whose store is empty is not ready until it "
        "was told what is known.",
    )
    termination_message: Path | None = Field(
        None,
        description="File that says how the run is judged, rewritten whenever that changes: JSON, at most "
        "1 KiB. In a container /dev/termination-log: it outlives the container in the pod's status.",
    )
    allow_unauthenticated_loopback: bool = Field(
        False,
        description="Start without one or both tokens. Only on a loopback address, where every local user "
        "may then report and read.",
    )
    keep_best_checkpoint: bool = Field(
        False,
        description="Keep the files of the best-scored checkpoint in <state_dir>/best (costs the disk "
        "space of one model).",
    )

    max_store_mib: int = Field(
        1024,
        ge=1,
        description="Bound of the store in MiB. The trainer's steps are refused (507) from 80 % of it, its "
        "announcements of checkpoints from 90 %; the rest is for evaluations.",
    )

    replica_index: int = Field(
        0,
        ge=0,
        description="Where each of several pods of a run has a guard: the number of this pod. The guard of "
        "any but 0 scores nothing and has no supervisor.",
    )

    @model_validator(mode="after")
    def _one_who_evaluates(self) -> Self:
        if self.heldout is not None and self.takes_outcomes:
            raise ValueError(
                "heldout and evaluations_token_file are both set: either the guard evaluates checkpoints, or "
                "whoever has that token"
            )
        return self

    @model_validator(mode="after")
    def _certificate_with_its_key(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key must be set together")
        return self

    @model_validator(mode="after")
    def _no_open_port(self) -> Self:
        missing = [name for name in ("ingest_token_file", "read_token_file") if getattr(self, name) is None]
        if not missing:
            return self
        if not self.allow_unauthenticated_loopback:
            raise ValueError(
                f"no {' and no '.join(missing)}: set {' and '.join(missing)}, or "
                "allow_unauthenticated_loopback=true on a loopback address"
            )
        if self.listen_fd is not None:
            raise ValueError(
                f"listen_fd without {' and '.join(missing)}: where that socket listens is not told by "
                f"host={self.host!r}; set {' and '.join(missing)}"
            )
        if not is_loopback(self.host):
            raise ValueError(
                f"allow_unauthenticated_loopback=true with host={self.host!r}, which is not a loopback "
                f"address: set {' and '.join(missing)}, or host to 127.0.0.1"
            )
        return self

    def tokens(self) -> TokenSet:
        """Read the tokens.

        Raises:
            SettingsError: a token file cannot be read, or a token is empty or not printable ASCII.
        """
        return TokenSet(*(_token(f"{name}_token_file", self) for name in TokenSet._fields))

    @property
    def takes_outcomes(self) -> bool:
        """Whether somebody else evaluates checkpoints and reports the outcomes."""
        return self.evaluations_token_file is not None

    @property
    def has_supervisor(self) -> bool:
        """Whether a supervisor says what is known of the run before a guard without a store begins."""
        return self.supervisor_token_file is not None and self.replica_index == 0

    @property
    def name(self) -> str:
        """The run's name for people."""
        return self.run_name or self.state_dir.absolute().name

    def policy(self, setting: str = "policy_file") -> Policy:
        """The policy of the run. `setting`: what a message calls the one that names its file.

        Raises:
            SettingsError: the policy file cannot be read or does not validate.
        """
        return Policy() if self.policy_file is None else load_policy(self.policy_file, setting)


def variable(place: Place) -> str:
    """The environment variable of a setting."""
    return "__".join([ENV_PREFIX + place[0].upper(), *(part.upper() for part in place[1:])])


def load_settings(named: Named = variable, **values: Any) -> GuardSettings:
    """Settings from the environment, with `values` taking precedence.

    `named`: what a setting is called in a message.

    Raises:
        SettingsError: naming every setting that is wrong or unknown.
    """
    known = list(GuardSettings.model_fields)
    wrong = [
        unknown(place, [variable((name,)) for name in known], lambda place: place[0])
        for place in sorted((name,) for name in os.environ if name.startswith(ENV_PREFIX))
        if place[0].removeprefix(ENV_PREFIX).lower().split("__")[0] not in known
    ]
    # What reads the environment minds no case: `Port` would win over `port`.
    wrong += [unknown((name,), known, named) for name in values if name not in known]
    if wrong:
        raise SettingsError("; ".join(wrong))
    try:
        return GuardSettings(**values)
    except ValidationError as error:
        raise SettingsError(format_errors(error, lambda place: named(_without_kind(place)))) from None
    except SourceError:
        raise SettingsError(f"a variable {ENV_PREFIX}* of a whole section must be a JSON object") from None


def _without_kind(place: Place) -> Place:
    """The place as a user writes it: pydantic puts the evaluator's kind into it."""
    kinds = ("hf", "vllm")
    nested = place[:2] == ("heldout", "evaluator") and place[2:3] and place[2] in kinds
    return (*place[:2], *place[3:]) if nested else place


def _token(name: str, settings: GuardSettings) -> str | None:
    file: Path | None = getattr(settings, name)
    if file is None:
        return None
    source = f"{name} {file}"
    try:
        with file.open("rb") as stream:
            token = stream.read(MAX_TOKEN_FILE_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{source} cannot be read as an ASCII token: {error}") from None
    if not token:
        raise SettingsError(f"{source} is empty: give it a token, e.g. from `openssl rand -hex 32`")
    if not (token.isprintable() and " " not in token):
        raise SettingsError(f"{source} holds characters that a header cannot carry: use letters and digits")
    return token
