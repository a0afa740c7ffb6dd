"""Tokens of a guard under test: settings take the files that hold them."""

from __future__ import annotations

from pathlib import Path


def with_token_files(settings: dict[str, str], folder: Path) -> dict[str, str]:
    """The settings with a file in `folder` for each `..._TOKEN` among them; an empty one is left out."""
    made = {name: value for name, value in settings.items() if not name.endswith("_TOKEN")}
    for name in sorted(settings.keys() - made.keys()):
        if settings[name]:
            (folder / name).write_text(settings[name])
            made[f"{name}_FILE"] = str(folder / name)
    return made
