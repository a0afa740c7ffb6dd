"""The `rlguard` command: finds the command that was asked for and imports that one only.

`rlguard --help` must be instant, so a command's module loads when it is called; the list shows its summary.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated

import typer

from guard_cli.errors import CliError

#: Command -> (module that holds a Typer application as `app`, summary).
COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("guard_cli.demo.command", "A real GRPO run that hacks its reward, and is stopped."),
    "run": ("guard_cli.run.command", "Run a trainer under a guard that can stop it."),
    "serve": ("guard_cli.serve", "The guard alone, for a trainer that runs elsewhere."),
    "split": ("guard_cli.split", "Make a held-out split, or check one."),
    "calibrate": ("guard_cli.calibrate.command", "Thresholds for a wanted false-stop rate."),
    "replay": ("guard_cli.replay.command", "When each detector would have stopped a past run."),
}

HELP = "RLGuard stops reinforcement-learning post-training when the policy starts to hack its reward."
EPILOG = (
    "Examples:  rlguard demo   |   "
    "rlguard run --heldout heldout.jsonl --policy policy.yaml -- python train.py   |   rlguard COMMAND --help"
)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; ends with `SystemExit`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    try:
        command = typer.main.get_command(build_app(chosen))
        command.main(arguments, prog_name="rlguard")
    except CliError as error:
        name = f"rlguard {chosen}" if chosen in COMMANDS else "rlguard"
        print(f"{name}: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


def build_app(chosen: str | None) -> typer.Typer:
    """The application with `chosen` loaded and every other command listed only."""
    app = typer.Typer(add_completion=False, help=HELP, epilog=EPILOG, rich_markup_mode=None)
    app.callback(no_args_is_help=True)(_root)
    for name, (module, summary) in COMMANDS.items():
        if name == chosen:
            _attach(app, name, import_module(module).app, summary)
        else:
            app.command(name, help=summary)(_listed_only)
    return app


def _attach(app: typer.Typer, name: str, loaded: typer.Typer, summary: str) -> None:
    """Add a loaded application: a group if it has several commands, else its one command."""
    if len(loaded.registered_commands) > 1:
        app.add_typer(loaded, name=name, help=summary)
        return
    [command] = loaded.registered_commands
    command.name = name
    app.registered_commands.append(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from guard_core import __version__

        print(f"rlguard {__version__}")
        raise typer.Exit()


def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and end."),
    ] = False,
) -> None:
    """Options of `rlguard` itself; the callback does the work."""


def _listed_only() -> None:
    raise AssertionError("build_app loads the command that is called")


if __name__ == "__main__":
    main()
