"""Policies from files and from `--what-if key=value`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from guard_cli.errors import CliError
from guard_core.policy import Policy


def load_policy(path: Path) -> Policy:
    """Read a policy.yaml.

    Raises:
        CliError: it cannot be read, or a key or value is wrong; naming it.
    """
    try:
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CliError(f"{path}: cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CliError(f"{path}: not YAML: {error}.") from None
    return _validated({} if body is None else body, str(path))


def changed(base: Policy, option: str) -> Policy:
    """`base` with the keys of a `--what-if` option changed: `heldout_guard.ema_alpha=0.7,silent.policy=stop`.

    Raises:
        CliError: there is no such key, or the value does not fit it.
    """
    body = base.model_dump(mode="json")
    for pair in option.split(","):
        key, equals, text = pair.strip().partition("=")
        if not equals:
            raise CliError(f"--what-if {pair}: expected KEY=VALUE, such as heldout_guard.ema_alpha=0.7.")
        *sections, last = key.split(".")
        at: Any = body
        for name in sections:
            at = at.get(name) if isinstance(at, dict) else None
        if not isinstance(at, dict) or last not in at:
            raise CliError(f"--what-if {key}: no such policy key. Known: {', '.join(_keys(body))}.")
        try:
            at[last] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise CliError(f"--what-if {pair}: {text!r} is not a YAML value.") from None
    return _validated(body, f"--what-if {option}")


def _keys(body: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in body.items():
        found += _keys(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name]
    return found


def _validated(body: Any, where: str) -> Policy:
    try:
        return Policy.model_validate(body)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'policy'}: {e['msg']}, got {e['input']!r:.60}"
            for e in error.errors()
        )
        raise CliError(f"{where}: {problems}.") from None
