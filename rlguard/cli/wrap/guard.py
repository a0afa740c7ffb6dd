"""`spec.guard` as the options of `rlguard wrap` set it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic.alias_generators import to_camel

from guard_service.errors import SettingsError
from guard_service.heldout.scorers import BUILT_IN
from guard_service.policy_file import load_policy
from rlguard.cli.errors import CliError
from rlguard.cli.guard_settings import given
from rlguard.core.wording import meant
from rlguard.operator.api.guard import policy_to_api

#: How `--heldout` names what holds the split -> the field of `spec.guard.heldout.volume`.
SOURCES = {"claim": "claimName", "secret": "secretName", "configmap": "configMapName"}


def heldout_section(
    heldout: str, train_prompts: str | None, base_model: str | None, scoring: Mapping[str, Any]
) -> dict[str, Any]:
    """Make `spec.guard.heldout`; what was not given is left to its default.

    Args:
        heldout: what holds the split, see `SOURCES`, and its path there, such as claim:NAME/PATH.
        train_prompts: path beside the split.
        base_model: path beside the split.
        scoring: settings of the guard, as `heldout_options` has them: its scorers and its evaluator.

    Raises:
        CliError: `heldout` names no place.
    """
    kind, _, rest = heldout.partition(":")
    name, _, path = rest.partition("/")
    if kind not in SOURCES or not name or not path:
        raise CliError(
            f"--heldout {heldout}: write claim:NAME/PATH for a PersistentVolumeClaim, secret:NAME/KEY or "
            "configmap:NAME/KEY"
        )
    if kind != "claim" and "/" in path:
        raise CliError(f"--heldout {heldout}: {path} is no key of a {kind}, which has no folders")
    evaluator = {"base_model": base_model, **scoring.get("evaluator", {})}
    evaluator_kind = evaluator.pop("kind", "hf")
    return {
        **given(volume={SOURCES[kind]: name}, split=path, trainPrompts=train_prompts),
        **{to_camel(key): value for key, value in scoring.items() if key != "evaluator"},
        "evaluator": {evaluator_kind: given(**{to_camel(key): value for key, value in evaluator.items()})},
    }


def metrics_section(
    follow: str | None, format_: str, folder: str, layout: str | None
) -> dict[str, Any] | None:
    """Make `spec.guard.metrics`: the log, and where and how the trainer saves; None: it reports itself.

    Raises:
        CliError: an option says how a log is read that is not followed.
    """
    if follow is not None:
        saved = given(path=folder or None, layout=layout)
        return {"follow": {"path": follow, "format": format_}, **given(checkpoints=saved or None)}
    unused = {"--format ": format_.replace("auto", ""), "--layout ": layout, "--checkpoints …/": folder}
    for option, value in unused.items():
        if value:
            raise CliError(f"{option}{value} is for a guard that reads a log: give --follow, too")
    return None


def policy_section(path: Path | None) -> dict[str, Any] | None:
    """Read `spec.guard.policy` from a file.

    Raises:
        CliError: it cannot be used.
    """
    try:
        return None if path is None else policy_to_api(load_policy(path, "--policy"))
    except SettingsError as error:
        raise CliError(str(error)) from None


def unknown_scorer(name: str | None) -> str:
    """Doubt a scorer's name; "": it is known. A package in the guard's image may bring what is not."""
    if name is None or name in BUILT_IN or ":" in name:
        return ""
    return f"scorer {name!r} is unknown: {meant(name, BUILT_IN)} A package in the guard's image may bring it"
