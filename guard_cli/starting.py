"""What makes a framework start from a checkpoint. One that is only followed reads no variable of ours."""

from __future__ import annotations

from guard_follow.frameworks import BY_KEY


def settings_to_start(format_: str, path: str, folder: str) -> str:
    """A clause with the settings for weights in `path` and a new `folder` to save into; "" if none are known.

    Args:
        format_: as `--format` has it.
    """
    framework = BY_KEY.get(format_)
    if framework is None or not framework.start:
        return ""
    note = f" ({framework.start_note})" if framework.start_note else ""
    return f"{framework.name} starts there with `{framework.start.format(path=path, folder=folder)}`{note}"


def why_no_settings(format_: str) -> str:
    """A sentence that says why `settings_to_start` has none; "" where nothing is known."""
    framework = BY_KEY.get(format_)
    if framework is None or framework.start or not framework.start_note:
        return ""
    return f"there are no settings for {framework.name}: {framework.start_note}"
