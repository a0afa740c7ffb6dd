"""Settings of the guard process, from `RLGUARD_GUARD_*` environment variables or from arguments.

`load_settings` turns every mistake into one `SettingsError` that names the variable, its value and what to
do. Secrets are never repeated in a message.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as SourceError

from guard_core.policy import Policy
from guard_service.cluster.settings import ClusterSettings
from guard_service.errors import SettingsError
from guard_service.heldout.config import HeldoutSettings

ENV_PREFIX = "RLGUARD_GUARD_"
MAX_TOKEN_FILE_BYTES = 64 * 1024


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

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(
        8470, ge=0, le=65535, description="TCP port; 0 takes a free one and writes it to endpoint.json."
    )
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="TCP port that serves GET /metrics without a token, and nothing else; none without it. "
        "0 takes a free one and logs it.",
    )
    metrics_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address for metrics_port. Whoever reaches it can read the metrics: means and counts, "
        "nothing of a held-out item.",
    )
    state_dir: Path = Field(
        description="Directory of the store, endpoint.json and the best checkpoint. One run, one directory; "
        "it must survive a restart of the guard, and the trainer must not be able to read it."
    )
    checkpoint_root: Path = Field(
        description="Directory under which the trainer writes its checkpoints. Paths outside are refused."
    )
    heldout: HeldoutSettings | None = Field(
        None,
        description="Held-out evaluation. Without it no checkpoint is scored and only the KL rule can fire.",
    )
    policy_file: Path | None = Field(
        None, description="YAML file with the policy (every threshold of the run); defaults without it."
    )
    ingest_token: SecretStr | None = Field(None, description="Bearer token of the trainer, for POST.")
    ingest_token_file: Path | None = Field(None, description="File that holds the ingest token.")
    read_token: SecretStr | None = Field(
        None, description="Bearer token for reading: verdict, history, metrics and the dashboard's data."
    )
    read_token_file: Path | None = Field(None, description="File that holds the read token.")
    allow_unauthenticated_loopback: bool = Field(
        False,
        description="Start without one or both tokens. Only on a loopback address, where every local user "
        "may then report and read.",
    )
    keep_best_checkpoint: bool = Field(
        False,
        description="Keep the files of the best-scored checkpoint in <state_dir>/best (checkpoint evaluator "
        "only; costs the disk space of one model).",
    )

    cluster: ClusterSettings | None = Field(
        None, description="The job to report to on a cluster; the operator sets it."
    )

    @model_validator(mode="after")
    def _one_source_per_token(self) -> Self:
        for name in ("ingest_token", "read_token"):
            if getattr(self, name) is not None and getattr(self, f"{name}_file") is not None:
                raise ValueError(f"{name} and {name}_file are both set: keep one of them")
        return self

    @model_validator(mode="after")
    def _no_open_port(self) -> Self:
        missing = [
            name
            for name in ("ingest_token", "read_token")
            if getattr(self, name) is None and getattr(self, f"{name}_file") is None
        ]
        if not missing:
            return self
        if not self.allow_unauthenticated_loopback:
            raise ValueError(
                f"no {' and no '.join(missing)}: set {' and '.join(f'{m} or {m}_file' for m in missing)}, or "
                "allow_unauthenticated_loopback=true on a loopback address"
            )
        if not is_loopback(self.host):
            raise ValueError(
                f"allow_unauthenticated_loopback=true with host={self.host!r}, which is not a loopback "
                f"address: set {' and '.join(missing)}, or host to 127.0.0.1"
            )
        return self

    def tokens(self) -> tuple[str | None, str | None]:
        """The ingest token and the read token; None where the role is open.

        Raises:
            SettingsError: a token file cannot be read, or a token is empty or not printable ASCII.
        """
        return (
            _token("ingest_token", self.ingest_token, self.ingest_token_file),
            _token("read_token", self.read_token, self.read_token_file),
        )

    def policy(self) -> Policy:
        """The policy of the run.

        Raises:
            SettingsError: the policy file cannot be read or does not validate.
        """
        return Policy() if self.policy_file is None else load_policy(self.policy_file)


def load_settings(**values: Any) -> GuardSettings:
    """Settings from the environment, with `values` taking precedence.

    Raises:
        SettingsError: naming every variable that is wrong or unknown.
    """
    known = {name.upper() for name in GuardSettings.model_fields}
    unknown = sorted(
        name
        for name in os.environ
        if name.startswith(ENV_PREFIX) and name.removeprefix(ENV_PREFIX).upper().split("__")[0] not in known
    )
    if unknown:
        raise SettingsError(
            f"unknown setting {', '.join(unknown)}: unset it, or correct its name "
            f"(known: {', '.join(ENV_PREFIX + name for name in sorted(known))})"
        )
    try:
        return GuardSettings(**values)
    except ValidationError as error:
        raise SettingsError("; ".join(_sentence(e) for e in error.errors(include_url=False))) from None
    except SourceError as error:
        raise SettingsError(f"a nested {ENV_PREFIX}* variable is not valid JSON: {error}") from None


def load_policy(path: Path) -> Policy:
    """Read a policy from YAML.

    Raises:
        SettingsError: it cannot be read, is not YAML, or has an unknown key or a value out of range.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"policy_file {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"policy_file {path} is not YAML: {error}") from None
    try:
        return Policy.model_validate({} if content is None else content)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}, got {e['input']!r}"
            for e in error.errors(include_url=False)
        )
        raise SettingsError(f"policy_file {path}: {wrong}") from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _token(name: str, given: SecretStr | None, file: Path | None) -> str | None:
    if given is None and file is None:
        return None
    if given is not None:
        source, token = name, given.get_secret_value().strip()
    else:
        assert file is not None
        source = f"{name}_file {file}"
        try:
            with file.open("rb") as stream:
                token = stream.read(MAX_TOKEN_FILE_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{source} cannot be read as an ASCII token: {error}") from None
    if not token:
        raise SettingsError(f"{source} is empty: give it a token, e.g. of `openssl rand -hex 32`")
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise SettingsError(f"{source} holds characters that a header cannot carry: use letters and digits")
    return token


def _sentence(error: Any) -> str:
    """One validation error in words. Secrets are not repeated; other values are."""
    message = str(error["msg"]).removeprefix("Value error, ")
    if not error["loc"]:
        return message
    top, *rest = (str(part) for part in error["loc"])
    name = "__".join([ENV_PREFIX + top.upper(), *(part.upper() for part in rest)])
    if error["type"] == "missing":
        return f"{name} is not set: {message.lower()}"
    if "token" in name.lower():
        return f"{name}: {message}"
    value = os.environ.get(name)
    return f"{name}: {message}" + ("" if value is None else f", got {value!r}")
