"""What makes a framework start from a checkpoint. One that is only followed reads no variable of ours."""

from __future__ import annotations

from rlguard.follow.frameworks import BY_KEY


def start_hint(format_: str, path: str, folder: str) -> str:
    """A clause with the settings for weights in `path` and a new `folder` to save into.

    It says why there are none where that is known; "" of a framework of which nothing is.

    Args:
        format_: as `--format` has it.
    """
    framework = BY_KEY.get(format_)
    if framework is None:
        return ""
    note = framework.start_note
    if framework.start:
        settings = framework.start.format(path=path, folder=folder)
        return f"{framework.name} starts there with `{settings}`{f' ({note})' if note else ''}"
    return f"there are no settings for {framework.name}: {note}" if note else ""
