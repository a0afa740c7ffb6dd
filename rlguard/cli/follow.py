"""`rlguard follow`: the command line of a follower, and its loop."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from rlguard.cli.epilog import epilog
from rlguard.cli.errors import CliError, ExitCode
from rlguard.cli.links import read_token
from rlguard.cli.logs.options import FormatOption, MapOption, RunConfigOption, read_map
from rlguard.cli.output import say
from rlguard.follow.config import FollowConfig
from rlguard.follow.guard_history import ca_of_environment
from rlguard.follow.sources import framework_of

#: Seconds between two looks at the log.
POLL_SECONDS = 1.0

EXIT_CODES = {
    ExitCode.FINISHED.value: "a signal came",
    1: "the guard does not respond at the start, or refuses a token",
    ExitCode.USAGE.value: "wrong arguments or files",
    ExitCode.FIRED.value: "a fire",
    ExitCode.HALTED.value: "a halt",
}
EPILOG = epilog(
    "rlguard follow --metrics run.jsonl --checkpoints ckpt --format verl",
    codes=EXIT_CODES,
)

MetricsHelp = "A log that a trainer writes: a file, or a folder of event files."
app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG)
def follow(
    metrics: Annotated[Path, typer.Option(help=MetricsHelp)],
    checkpoints: Annotated[
        Path | None, typer.Option(help="The folder in which the trainer saves. Without it none is scored.")
    ] = None,
    format_: FormatOption = "auto",
    url: Annotated[
        str | None, typer.Option(help="The guard; RLGUARD_URL without it. Token: RLGUARD_TOKEN.")
    ] = None,
    read_token_file: Annotated[
        Path | None, typer.Option(help="File with the guard's read token; RLGUARD_READ_TOKEN without it.")
    ] = None,
    run_config: RunConfigOption = None,
    column: MapOption = None,
) -> None:
    """Report a running trainer to a guard without a line of code in it: read what it writes.

    Steps come from its log, checkpoints from the folder in which it saves, once they are complete. Start it
    again at any time: what the guard has is not reported twice, and nothing in the log is left out.
    It stops no trainer by itself: see `rlguard run --follow`, or act on the exit code.
    """
    framework_of(format_)
    address = url or os.environ.get("RLGUARD_URL")
    if not address:
        raise CliError("no guard: give --url, or set RLGUARD_URL (`rlguard serve` prints both it and tokens)")
    if str(metrics) == "-":
        raise CliError("--metrics -: give a file; what is only printed goes into one with `| tee train.log`")
    what = FollowConfig(
        metrics=metrics,
        checkpoints=checkpoints,
        format=format_,
        overrides=read_map(column or ()),
        run_config=run_config,
    )
    raise typer.Exit(_run(what, address, read_token("--read-token-file", read_token_file)))


def _run(what: FollowConfig, address: str, read_token: str | None) -> int:
    from rlguard.client.client import GuardClient
    from rlguard.client.errors import GuardConfigError
    from rlguard.follow.follower import Follower
    from rlguard.follow.guard_history import ask_history

    stopping, ca = threading.Event(), ca_of_environment()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    try:
        client = GuardClient(address, os.environ.get("RLGUARD_TOKEN") or None, ca=ca)
    except GuardConfigError as error:
        raise CliError(str(error)) from None
    follower = Follower(what, client, ask_history(address, read_token, ca), _say, stopping)
    while not stopping.is_set():
        follower.poll()
        if follower.verdict is not None and follower.verdict.stop:
            _say(f"the guard says stop: {follower.verdict.code}: {follower.verdict.reason}")
            return ExitCode.FIRED if follower.verdict.fire else ExitCode.HALTED
        stopping.wait(POLL_SECONDS)
    follower.finish(trainer_ended=False)
    _say(f"{follower.accepted} steps and {follower.announced} checkpoints reported")
    return ExitCode.FINISHED


def _say(sentence: str) -> None:
    say(f"rlguard follow: {sentence}")
