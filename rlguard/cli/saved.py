"""Objects of a cluster that were saved as files, with `kubectl get … -o yaml`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from guard_service.policy_file import NotYamlError, parse_yaml
from rlguard.cli.errors import CliError
from rlguard.core.terminal import plain

#: A large object of a cluster has 1 MiB; as YAML it is longer.
MOST_BYTES = 8 << 20


def is_folder(given: str) -> bool:
    """Whether this is a folder. What no file can be called is none."""
    with suppress(OSError, ValueError):
        return Path(given).is_dir()
    return False


def is_file(given: str) -> bool:
    """Whether a file is meant, which no name of an object looks like.

    Raises:
        CliError: it is not there.
    """
    with suppress(OSError, ValueError):  # such as a name that is too long
        if Path(given).is_file():
            return True
        if Path(given).exists() and not Path(given).is_dir():
            raise CliError(f"{plain(given[:200])}: not a regular file")
    if "/" in given or given.endswith((".yaml", ".yml", ".json")):
        raise CliError(f"{plain(given[:200])}: no such file")
    return False


def read_object(path: Path) -> Any:
    """What kubectl wrote there.

    Raises:
        CliError: it cannot be read, is too large for an object of a cluster, or is not YAML.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise CliError(
                f"{path} is too large for an object of a cluster: more than {MOST_BYTES >> 20} MiB"
            )
        return parse_yaml(path.read_text("utf-8"))
    except NotYamlError as error:
        raise CliError(f"{path} is {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{path} cannot be read: {error}") from None
