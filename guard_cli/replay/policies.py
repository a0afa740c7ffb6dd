"""The policies that a replay compares: that of a file, and what `--what-if key=value` makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from guard_cli.errors import CliError
from guard_core.policy import Policy
from guard_service import policy_file
from guard_service.errors import SettingsError


def policy_from_file(path: Path, setting: str) -> Policy:
    """Read a policy.yaml; `setting` is what names it.

    Raises:
        CliError: it cannot be read, or a key or value is wrong; naming it.
    """
    try:
        return policy_file.load_policy(path, setting)
    except SettingsError as error:
        raise CliError(str(error)) from None


def changed(base: Policy, option: str) -> Policy:
    """`base` with the keys of a `--what-if` option changed: `heldout_guard.ema_alpha=0.7,silent.action=stop`.

    Raises:
        CliError: there is no such key, or the value does not fit it.
    """
    body = base.model_dump(mode="json")
    for pair in option.split(","):
        key, equals, text = pair.strip().partition("=")
        if not equals:
            raise CliError(f"--what-if {pair}: expected KEY=VALUE, such as heldout_guard.ema_alpha=0.7.")
        try:
            _set(body, key, policy_file.parse_yaml(text))
        except policy_file.NotYamlError as error:
            raise CliError(f"--what-if {pair:.60}: {text[:60]!r} is {error}.") from None
    try:
        return policy_file.policy_of(body, f"--what-if {option}")
    except SettingsError as error:
        raise CliError(str(error)) from None


def _set(body: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; one that the policy does not have is told when the whole is validated."""
    *sections, last = key.split(".")
    for name in sections:
        inner = body.get(name)
        body[name] = body = inner if isinstance(inner, dict) else {}
    body[last] = value
