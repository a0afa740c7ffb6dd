"""`rlguard serve`: the guard alone, in this process, for a trainer that runs elsewhere."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import Annotated

import typer

from guard_cli import guard_settings as options
from guard_cli.errors import CliError

EPILOG = (
    "Example:  rlguard serve --state-dir state --checkpoints /mnt/checkpoints --heldout heldout.jsonl "
    "--policy policy.yaml --port 8470   |   The trainer needs RLGUARD_URL and RLGUARD_TOKEN."
)

app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG)
def serve(
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", help="Store of the run; a guard that starts again goes on from it."),
    ] = None,
    checkpoints: options.CheckpointsOption = None,
    heldout: options.HeldoutOption = None,
    policy: options.PolicyOption = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on; 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="TCP port; 8470, or 0 for a free one.")] = None,
    ingest_token_file: Annotated[
        Path | None, typer.Option("--ingest-token-file", help="Token of the trainer; made if it is missing.")
    ] = None,
    read_token_file: Annotated[
        Path | None, typer.Option("--read-token-file", help="Token of readers; made if it is missing.")
    ] = None,
    config: options.ConfigOption = None,
    train_prompts: options.TrainPromptsOption = None,
    scorer: options.ScorerOption = None,
    max_new_tokens: options.MaxNewTokensOption = None,
    temperature: options.TemperatureOption = None,
    samples: options.SamplesOption = None,
    batch_size: options.BatchSizeOption = None,
    device: options.DeviceOption = None,
    openai_url: options.OpenAIOption = None,
    openai_model: options.ModelOption = None,
    keep_best: Annotated[
        bool | None,
        typer.Option("--keep-best/--no-keep-best", help="Keep a copy of the best-scored checkpoint."),
    ] = None,
) -> None:
    """Run the guard until Ctrl-C or SIGTERM.

    Every setting can also come from the environment or --config (docs/reference/settings.md). Without
    --heldout no checkpoint is scored and only the KL rule can fire.
    """
    evaluation = options.heldout_options(
        heldout=options.absolute(heldout),
        train_prompts=options.absolute(train_prompts),
        scorer=scorer,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        samples=samples,
        batch_size=batch_size,
        device=device,
        openai_url=openai_url,
        openai_model=openai_model,
    )
    given = {
        "state_dir": options.absolute(state_dir),
        "checkpoint_root": options.absolute(checkpoints),
        "heldout": evaluation or None,
        "policy_file": options.absolute(policy),
        "host": host,
        "port": port,
        "ingest_token_file": _token_file(ingest_token_file),
        "read_token_file": _token_file(read_token_file),
        "keep_best_checkpoint": keep_best,
    }
    settings = options.make_settings(options.read_config(config), given)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from guard_service.__main__ import serve as serve_guard
    from guard_service.errors import GuardError

    try:
        serve_guard(settings)
    except GuardError as error:
        raise CliError(str(error), 1) from None


def _token_file(path: Path | None) -> Path | None:
    """The file, made with a random token that only this user can read if it is not there yet."""
    if path is None or path.exists():
        return options.absolute(path)
    try:
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(secrets.token_urlsafe(32), encoding="ascii")
    except OSError as error:
        raise CliError(f"token file {path} cannot be made: {error.strerror}") from None
    return path.absolute()
