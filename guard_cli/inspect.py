"""`rlguard inspect`: what a guard's store holds, also while the guard runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from guard_cli.epilog import epilog
from guard_cli.status import verdict_lines
from guard_cli.stored import read_store, state_dir_of
from guard_core.terminal import plain

EXIT_CODES = {
    0: "the state is shown, whatever the verdict is",
    1: "the store cannot be read",
    2: "there is no store",
}
EPILOG = epilog(
    "rlguard inspect state", "rlguard inspect rlguard-runs/20260102-030405 --json", codes=EXIT_CODES
)

app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG)
def inspect(
    folder: Annotated[Path, typer.Argument(help="State directory of a guard, or folder of a run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Read a guard's store: what arrived, what was evaluated, and the verdict. Nothing is changed.

    The store may belong to a guard that runs. Nothing of a single held-out item is shown.
    """
    found = read_store(state_dir_of(folder))
    typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(_lines(found)))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"store {found['store']}"
    yield f"detector {found['policy']['detector']}; split {found['split_sha256'] or 'none'}"
    events = found["events"]
    yield "events: " + ", ".join(f"{count} {kind}" for kind, count in events.items())
    for one in found["attempts"]:
        yield f"attempt {one['attempt']}: {one['steps']} steps, {one['first']} to {one['last']}"
    yield from (
        f"verdict: {line}" if index == 0 else line
        for index, line in enumerate(verdict_lines(found["verdict"]))
    )
    for one in found["last_evaluations"]:
        again = f", pass {one['pass'] + 1}" if one["pass"] else ""
        yield plain(
            f"evaluation at step {one['step']} of attempt {one['attempt']}{again}: {one['score']:.4f}"
        )
