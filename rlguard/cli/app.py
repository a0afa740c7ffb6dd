"""The command line as a Typer application, with the command that was called loaded and the others listed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from rlguard.cli.commands import HELP, RLGUARD, Program

#: For every command, which get them of the program.
HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


def build_app(chosen: str | None, program: Program = RLGUARD) -> typer.Typer:
    """The application with `chosen` loaded and every other command listed only."""
    app = typer.Typer(
        add_completion=False,
        help=HELP,
        epilog=program.epilog,
        rich_markup_mode=None,
        context_settings=HELP_OPTIONS,
    )
    app.callback(no_args_is_help=True)(_root)
    for name, command in program.commands.items():
        if name == chosen:
            _attach(app, name, import_module(command.module).app, command.summary)
        else:
            app.command(name, help=command.summary)(_listed_only)
    return app


def run_program(app: typer.Typer, arguments: Sequence[str], program: Program) -> None:
    """Run a command; ends with `SystemExit`, or with the command's `CliError`."""
    typer.main.get_command(app).main(list(arguments), prog_name=program.name)


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
        from rlguard.core import __version__

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
