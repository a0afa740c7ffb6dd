"""The store of a guard on this machine: where it is, and what it holds. It is only read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from guard_cli.errors import CliError


def state_dir_of(folder: Path) -> Path:
    """The state directory: this folder, or the one in the folder of a run.

    Raises:
        CliError: there is no store.
    """
    from guard_service.store import FILE_NAME

    places = (folder, folder / "guard", folder / "report" / "guard")
    for place in places:
        if (place / FILE_NAME).is_file():
            return place
    raise CliError(
        f"{folder} holds no store of a guard (no {FILE_NAME} there, nor in guard/): name the state "
        "directory, or the folder of a run"
    )


def read_store(state_dir: Path) -> dict[str, Any]:
    """See `guard_service.inspection.summarize_store`.

    Raises:
        CliError: the store cannot be read.
    """
    from guard_service.errors import GuardError
    from guard_service.inspection import summarize_store as inspect_store

    try:
        return inspect_store(state_dir)
    except GuardError as error:
        raise CliError(str(error), 1) from None
