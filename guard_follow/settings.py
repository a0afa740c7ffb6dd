"""What a run's own configuration says of its metrics: verl's hydra file, EasyR1's experiment_config.json."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from guard_core.frameworks import FRAMEWORKS
from guard_follow.beneath import open_regular
from guard_follow.errors import InputError

MAX_BYTES = 2 << 20
MAX_NODES = 100_000
_PLACES = (".hydra/config.yaml", "experiment_config.json")
_KEYS = frozenset(
    setting.key for framework in FRAMEWORKS for needs in framework.kl_needs.values() for setting in needs
)


def settings_of(
    given: Path | None, near: Path | None, is_old: Callable[[Path], bool]
) -> Callable[[], dict[str, str]]:
    """Finds the settings anew at each call: a trainer writes its configuration when it starts.

    Args:
        given: see `find_settings`.
        near: see `find_settings`.
        is_old: whether a file is of another run.

    Raises:
        InputError: the given one cannot be read.
    """
    if given is not None:
        settings = _read(given)
        return lambda: settings
    return lambda: find_settings(None, near, is_old)


def find_settings(
    given: Path | None, near: Path | None, is_old: Callable[[Path], bool] = lambda _: False
) -> dict[str, str]:
    """The settings on which a metric depends, by their key; {} where no configuration is found.

    Args:
        given: the configuration of the run, from `--run-config`.
        near: where its metrics lie; the configuration is looked for in that folder and the two above it.
        is_old: whether a file is of another run.

    Raises:
        InputError: the given one cannot be read.
    """
    if given is not None:
        return _read(given)
    for file in configurations(near) if near is not None else ():
        if is_old(file):
            continue
        try:
            return _read(file)
        except InputError:
            continue
    return {}


def configurations(near: Path) -> Iterator[Path]:
    """The configurations beside metrics, the nearest first."""
    folder = near.absolute() if near.is_dir() else near.absolute().parent
    for place in (folder, *folder.parents[:2]):
        yield from (file for name in _PLACES if (file := place / name).is_file())


def _read(file: Path) -> dict[str, str]:
    import yaml

    try:
        with os.fdopen(open_regular(file), "rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(f"{file}: a configuration of more than {MAX_BYTES >> 20} MiB is not read.")
        tree = json.loads(content) if file.suffix == ".json" else _of_yaml(content)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"{file}: not a configuration that can be read ({type(error).__name__}).") from None
    found: dict[str, str] = {}
    for path, value in _settings(tree):
        # verl's critic has a setting of the same name, which says nothing of the actor's KL.
        if "actor" in path or path[-1] not in found:
            found[path[-1]] = value
    return found


def _of_yaml(content: bytes) -> Any:
    """The tree, without YAML's merge keys: a few lines of them make more keys than fit into memory."""
    import yaml

    class Plain(yaml.SafeLoader):
        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            """Merge nothing: the constructor refuses the key."""

    return yaml.load(content, Plain)  # noqa: S506  # a safe loader that can do less


def _settings(tree: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    waiting: list[tuple[tuple[str, ...], Any]] = [((), tree)]
    for _ in range(MAX_NODES):
        if not waiting:
            return
        path, node = waiting.pop()
        for key, value in node.items() if isinstance(node, dict) else ():
            if isinstance(value, dict):
                waiting.append(((*path, str(key)), value))
            elif key in _KEYS and isinstance(value, str):
                yield (*path, str(key)), value
