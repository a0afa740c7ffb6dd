"""What a run's own configuration says of its metrics. It lies beside them, or is named by the user."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from rlguard.follow.errors import InputError
from rlguard.follow.frameworks import FRAMEWORKS, Setting
from rlguard.follow.safe_open import open_regular

MAX_BYTES = 2 << 20
MAX_NODES = 100_000
_PLACES = tuple(name for framework in FRAMEWORKS for name in framework.run_configs)
#: Of the parts of a name, the last ones that a key can have.
_MOST_PARTS = 3
#: Beside YAML's own errors, what its constructors raise of `!!bool 7`, `!!int ""` or `!!timestamp x`, of a
#: number with too many parts for a float, and of one, as a key, with too many digits for a text.
_NOT_READ = (
    *(ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError),
    yaml.YAMLError,
)
#: By the last part of its key.
_SETTINGS: dict[str, set[Setting]] = {}
for _framework in FRAMEWORKS:
    for _needs in _framework.kl_needs.values():
        for _setting in _needs:
            _SETTINGS.setdefault(_setting.key.rpartition(".")[2], set()).add(_setting)


def settings_finder(
    written: Path | None, near: Path, is_old: Callable[[Path], bool], say: Callable[[str], None]
) -> Callable[[], dict[str, str]]:
    """Make a function that finds the settings anew: a trainer writes its configuration when it starts.

    Args:
        written: where the trainer writes its configuration, if that is known; then no other one counts.
        near: see `find_settings`.
        is_old: whether a file is of another run.
        say: gets why what is `written` says nothing.
    """
    if written is None:
        return lambda: find_settings(None, near, is_old)

    def read() -> dict[str, str]:
        try:
            return _read(written)
        except InputError as error:
            say(f"the run's configuration is not known: {error}")
            return {}

    return read


def find_settings(
    given: Path | None, near: Path | None, is_old: Callable[[Path], bool] = lambda _: False
) -> dict[str, str]:
    """The settings on which a metric depends, by their key; {} where no configuration is found.

    Args:
        given: the configuration of the run, from `--run-config`.
        near: where its metrics lie; the configuration is looked for in that folder and the two above it.
            The first that has any setting counts alone.
        is_old: whether a file is of another run.

    Raises:
        InputError: the given one cannot be read.
    """
    if given is not None:
        return _read(given)
    for file in configurations(near) if near is not None else ():
        try:
            settings = {} if is_old(file) else _read(file)
        except InputError:
            continue
        if settings:  # else it is of something else: `args.json` is a common name
            return settings
    return {}


def configurations(near: Path) -> Iterator[Path]:
    """The configurations beside metrics, the nearest first."""
    folder = near.absolute() if near.is_dir() else near.absolute().parent
    for place in (folder, *folder.parents[:2]):
        yield from (file for name in _PLACES if (file := place / name).is_file())


def _read(file: Path) -> dict[str, str]:
    try:
        with os.fdopen(open_regular(file), "rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(f"{file}: a configuration of more than {MAX_BYTES >> 20} MiB is not read.")
        tree = json.loads(content) if file.suffix == ".json" else yaml.load(content, _Plain)  # noqa: S506
        return _known(tree)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}.") from None
    except _NOT_READ as error:
        raise InputError(f"{file}: not a configuration that can be read ({type(error).__name__}).") from None


class _Plain(yaml.SafeLoader):
    """Reads YAML without merge keys: a few lines of them make more keys than fit into memory."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge nothing: the constructor refuses the key."""


def _known(tree: Any) -> dict[str, str]:
    """The settings of a configuration that a metric depends on, by `Setting.key`."""
    found: dict[str, str] = {}
    for setting, of_actor, value in _settings(tree):
        # verl's critic has a setting of the same name, which says nothing of the actor's KL.
        if of_actor or setting.key not in found:
            found[setting.key] = value
    return found


def _settings(tree: Any) -> Iterator[tuple[Setting, bool, str]]:
    """Each known setting, whether it is one of the actor's, and its value. A key may be a path with dots."""
    waiting: list[tuple[tuple[str, ...], bool, Any]] = [((), False, tree)]
    for _ in range(MAX_NODES):
        if not waiting:
            return
        above, of_actor, node = waiting.pop()
        for key, value in node.items() if isinstance(node, dict) else ():
            parts = str(key).split(".")
            name, actors = (*above, *parts)[-_MOST_PARTS:], of_actor or "actor" in parts
            if isinstance(value, dict):
                waiting.append((name, actors, value))
                continue
            for setting in _SETTINGS.get(name[-1], ()):
                text = setting.text(value)
                wanted = tuple(setting.key.split("."))
                if text is not None and name[-len(wanted) :] == wanted:
                    yield setting, actors, text
