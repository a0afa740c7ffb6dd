"""`rlguard replay`: the command line of a replay. It parses, calls, prints; it decides nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rlguard.cli.epilog import epilog
from rlguard.cli.errors import CliError
from rlguard.cli.logs.options import RunConfigOption, read_map
from rlguard.cli.logs.readers import read_log
from rlguard.cli.replay import report
from rlguard.cli.replay.outcomes import DETECTORS, outcome
from rlguard.cli.replay.run import load_run
from rlguard.cli.replay.symptoms import symptoms_of
from rlguard.cli.replay.unjudged import how_it_ended, report_of
from rlguard.core.policy import Policy
from rlguard.core.wording import meant
from rlguard.follow.columns import CANONICAL
from rlguard.follow.run_config import find_settings

#: Suffixes of `--plot`.
PICTURES = (".png", ".svg", ".pdf")

EXIT_CODES = {
    0: "the log was judged, whether a detector fired or not",
    2: "wrong arguments, or input that cannot be used",
}
EPILOG = epilog(
    "rlguard replay out/trainer_state.json --heldout-items 500 --plot replay.png",
    "rlguard replay history.jsonl --detector calibrated --json",
    codes=EXIT_CODES,
)


def replay(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="trainer_state.json, *.jsonl, *.csv, a TensorBoard event file, what verl, ROLL or TRL "
            "printed, exports of MLflow, or a folder that holds one of them (a report of `rlguard run`, an "
            "output folder of TRL).",
        ),
    ],
    detector: Annotated[
        str | None, typer.Option(help=f"Only this detector: {', '.join(DETECTORS)}.", metavar="NAME")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (.png, .svg, .pdf).")] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            help="The policy.yaml of the run. Without it that of the report folder, or else the defaults."
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            help=f"Which column is what, such as reward=my/col. Names: {', '.join(CANONICAL)}.",
            metavar="NAME=COLUMN",
        ),
    ] = None,
    run_config: RunConfigOption = None,
    heldout_items: Annotated[
        int | None,
        typer.Option(
            "--heldout-items",
            min=2,
            help="Of how many items each held-out mean is, where the log has only means.",
        ),
    ] = None,
) -> None:
    """Say when the guard would have stopped a past run.

    Reads what trainers and trackers leave behind (TRL, verl, OpenRLHF, NeMo-RL, prime-rl, SkyRL, slime, ROLL
    and others; W&B, TensorBoard and MLflow exports; CSV, JSON and JSONL) and the guard's own history.
    What is not in the log is not judged, and the first line says so.
    """
    overrides = read_map(column or [])
    names = _detectors(detector)
    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise CliError(f"--plot {plot}: the name must end in {', '.join(PICTURES)}.")
    rules = _policy(run, policy)
    loaded = load_run(
        read_log(run, set(overrides.values())),
        str(run),
        overrides,
        find_settings(run_config, run),
        heldout_items,
    )
    ended = how_it_ended(run)
    loaded = replace(loaded, notes=(*loaded.notes, *filter(None, (ended.note,))))
    outcomes = [outcome(loaded, rules, name, ended) for name in names]
    if plot is not None:
        from rlguard.cli.replay.plot import save_outcomes

        save_outcomes(plot, loaded, rules, outcomes)
    if not as_json:
        report.show(Console(), loaded, outcomes, symptoms_of(loaded), plot)
    elif detector is None:
        print(json.dumps(report.full(loaded, outcomes, symptoms_of(loaded))))
    else:
        print(json.dumps(report.one(outcomes[0])))
        for sentence in (*outcomes[0].inert, *loaded.notes):  # the one object has no room for them
            print(f"note: {sentence}", file=sys.stderr)


def _detectors(name: str | None) -> Sequence[str]:
    if name is None:
        return tuple(DETECTORS)
    if name not in DETECTORS:
        raise CliError(f"--detector {name}: there is no such detector: {meant(name, DETECTORS)}")
    return (name,)


def _policy_of_report(path: Path) -> Path | None:
    folder = report_of(path)
    return folder / "policy.yaml" if folder is not None and (folder / "policy.yaml").is_file() else None


def _policy(path: Path, given: Path | None) -> Policy:
    """The thresholds: of the file that is given, of the run's report, or the defaults."""
    from guard_service.errors import SettingsError
    from guard_service.policy_file import load_policy

    file = given or _policy_of_report(path)
    if file is None:
        return Policy()
    try:
        return load_policy(file, "--policy" if given is not None else "the report's policy")
    except SettingsError as error:
        raise CliError(str(error)) from None


app = typer.Typer(add_completion=False)
app.command(epilog=EPILOG)(replay)
