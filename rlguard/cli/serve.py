"""`rlguard serve`: the guard alone, in this process, for a trainer that runs elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlguard.cli import guard_settings as options
from rlguard.cli.epilog import epilog
from rlguard.cli.errors import CliError
from rlguard.cli.links import dashboard_link, export_lines, token_file

if TYPE_CHECKING:
    from guard_service.settings import GuardSettings

EXIT_CODES = {
    0: "a signal ended it",
    1: "the guard failed, or refused to start",
    2: "wrong arguments, files or settings",
}
EPILOG = epilog(
    "rlguard serve --state-dir state --checkpoints /mnt/checkpoints --heldout heldout.jsonl --port 8470",
    "rlguard serve rlguard-runs",
    note="It prints the two `export` lines that the trainer's shell needs.",
    codes=EXIT_CODES,
)

app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG)
@options.with_evaluation
def serve(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="A run that has ended, or a folder of such runs, to look at; nothing is written."
        ),
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", help="Store of the run; a guard that starts again goes on from it."),
    ] = None,
    name: options.NameOption = None,
    checkpoints: options.CheckpointsOption = None,
    heldout: options.HeldoutOption = None,
    evaluations_token_file: options.EvaluationsTokenOption = None,
    policy: options.PolicyOption = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on; 127.0.0.1 without it.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="TCP port; 8470 without it, 0 for a free one.")
    ] = None,
    ingest_token_file: Annotated[
        Path | None,
        typer.Option(
            "--ingest-token-file",
            help="Token of the trainer; made if it is missing. Without it: STATE_DIR/ingest.token.",
        ),
    ] = None,
    read_token_file: Annotated[
        Path | None,
        typer.Option(
            "--read-token-file",
            help="Token of readers; made if it is missing. Without it: STATE_DIR/read.token.",
        ),
    ] = None,
    config: options.ConfigOption = None,
    train_prompts: options.TrainPromptsOption = None,
    backlog: options.BacklogOption = None,
    *,
    evaluation: options.EvaluationOptions,
    keep_best: options.KeepBestOption = None,
) -> None:
    """Run the guard until Ctrl-C or SIGTERM; with FOLDER, show runs that have ended.

    Every setting can also come from the environment or --config (docs/reference/settings.md). Without
    --heldout, or --evaluations-token-file, no checkpoint is scored and only the KL rule can fire.
    """
    if folder is not None:
        from rlguard.cli.report.gallery import serve_runs

        return serve_runs(folder, host or "127.0.0.1", 8470 if port is None else port)
    heldout_settings = options.heldout_options(
        heldout=options.absolute(heldout),
        train_prompts=options.absolute(train_prompts),
        backlog=backlog,
        **evaluation,
    )
    given = {
        "run_name": name,
        "state_dir": options.absolute(state_dir),
        "checkpoint_root": options.absolute(checkpoints),
        "heldout": heldout_settings or None,
        "policy_file": options.absolute(policy),
        "host": host,
        "port": port,
        "ingest_token_file": _token_file(ingest_token_file),
        "read_token_file": _token_file(read_token_file),
        "evaluations_token_file": options.absolute(evaluations_token_file),
        "keep_best_checkpoint": keep_best,
    }
    file = options.read_config(config)
    settings = options.make_settings(file, {**_tokens_beside_the_store(file, given), **given})
    from guard_service.__main__ import log_as, serve_guard
    from guard_service.errors import GuardError

    log_as(settings.log_format)
    try:
        serve_guard(settings, lambda url: _say_how_to_reach(settings, url))
    except GuardError as error:
        raise CliError(str(error), 1) from None


def _say_how_to_reach(settings: GuardSettings, url: str) -> None:
    """Print what a trainer and a reader need, in lines that can be copied."""
    lines = [
        f"# {settings.name}: dashboard {dashboard_link(url, settings.tokens().read)}",
        *export_lines(url, settings.ingest_token_file),
        f"# tokens: of the trainer {settings.ingest_token_file or 'none'}, "
        f"of readers {settings.read_token_file or 'none'}",
    ]
    print("\n".join(lines), flush=True)


def _tokens_beside_the_store(file: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """A token file in the state directory for each role whose token nobody chose."""

    def chosen(name: str) -> Any:
        return given.get(name) or file.get(name) or os.environ.get(f"RLGUARD_GUARD_{name.upper()}")

    state_dir, is_open = chosen("state_dir"), str(chosen("allow_unauthenticated_loopback")).lower()
    if state_dir is None:
        raise CliError("give --state-dir and --checkpoints, or the folder of a run that has ended")
    if is_open in ("true", "1", "yes", "on"):
        return {}
    made = {}
    for role in ("ingest", "read"):
        if not chosen(f"{role}_token_file"):
            given.pop(f"{role}_token_file", None)
            Path(state_dir).mkdir(parents=True, mode=0o700, exist_ok=True)
            made[f"{role}_token_file"] = _token_file(Path(state_dir) / f"{role}.token")
    return made


def _token_file(path: Path | None) -> Path | None:
    try:
        return None if path is None else token_file(path)
    except OSError as error:
        raise CliError(f"token file {path} cannot be made: {error.strerror}") from None
