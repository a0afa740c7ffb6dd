"""YAML that anybody wrote: the one way in which `run`, `serve`, `check`, `replay` and `report` read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from guard_service.errors import SettingsError
from rlguard.core.policy import Policy
from rlguard.core.wording import EXPONENT, format_errors, not_yaml


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads 1e-5 as a number, as people and kubectl write it, and `=` as a text."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+0123456789"))
_Loader.add_constructor("tag:yaml.org,2002:value", lambda _, node: node.value)


class NotYamlError(ValueError):
    """A text cannot be read as YAML; the message says where and why."""


def load_policy(path: Path, setting: str = "policy_file") -> Policy:
    """Read a policy; an empty file is the default one. `setting` is the one that names the file.

    Raises:
        SettingsError: it cannot be read, is not YAML, or has an unknown key or a value out of range.
    """
    content = read_yaml(path, setting)
    return policy_of({} if content is None else content, f"{setting} {path}")


def read_yaml(path: Path, setting: str) -> Any:
    """What a YAML file holds; `setting` is the one that names the file.

    Raises:
        SettingsError: it cannot be read, or is not YAML.
    """
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{setting} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{setting} {path} is not UTF-8 at byte {error.start}") from None
    except NotYamlError as error:
        raise SettingsError(f"{setting} {path} is {error}") from None


def parse_yaml(text: str) -> Any:
    """What a text holds, whoever wrote it.

    Raises:
        NotYamlError: it is not YAML, or a value in it is none.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    # ValueError: of the 30th of February, of hexadecimals without a digit and of numbers without an end.
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise NotYamlError(not_yaml(error)) from None


def policy_of(content: Any, source: str) -> Policy:
    """The policy of what a YAML file holds; `source` says in a message where it is from.

    Raises:
        SettingsError: it has an unknown key or a value out of range.
    """
    try:
        return Policy.model_validate(content)
    except ValidationError as error:
        raise SettingsError(f"{source}: {format_errors(error)}") from None
