"""`rlguard replay`: the command line of a replay. It parses, calls, prints; it decides nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from guard_cli.epilog import epilog
from guard_cli.errors import CliError
from guard_cli.logs.options import RunConfigOption, read_map
from guard_cli.logs.readers import read_log
from guard_cli.replay import report
from guard_cli.replay.outcomes import DETECTORS, WHOLE_GUARD, DetectorOutcome, outcome
from guard_cli.replay.run import Run, load_run
from guard_cli.replay.symptoms import symptoms_of
from guard_cli.replay.unjudged import how_it_ended, report_of
from guard_core.codes import Level
from guard_core.policy import Policy
from guard_core.wording import meant
from guard_follow.names import CANONICAL
from guard_follow.settings import find_settings

#: Exit code of a replay that found what `--fail-on` names.
FAILED = 1

#: Suffixes of `--plot`.
PICTURES = (".png", ".svg", ".pdf")

EXIT_CODES = {
    0: "the log was judged, whether a detector fired or not",
    FAILED: "the guard, or the detector of --detector, says what --fail-on names",
    2: "wrong arguments, or input that cannot be used",
}
EPILOG = epilog(
    "rlguard replay out/trainer_state.json --map heldout=eval_reward --plot replay.png",
    "rlguard replay history.jsonl --detector heldout_guard --json",
    "rlguard replay history.jsonl --what-if heldout_guard.ema_alpha=0.7",
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
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            help="Also judge with these policy keys changed, such as heldout_guard.ema_alpha=0.7; several "
            "with commas. Repeat it to compare more policies.",
            metavar="KEY=VALUE",
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
    fail_on: Annotated[
        str | None,
        typer.Option(
            help="End with exit code 1 if the whole guard, under this policy, says `fired`; or with "
            "`warning` (`unknown` is the same) whatever it says but `healthy`, as `rlguard run` does: what "
            "was not judged has not passed. With --detector that one counts.",
            metavar="LEVEL",
        ),
    ] = None,
) -> None:
    """Say when each detector would have stopped a past run.

    Reads what trainers and trackers leave behind (TRL, verl, OpenRLHF, NeMo-RL, torchtune, prime-rl; W&B,
    TensorBoard and MLflow exports) and the guard's own history. A quantity that is not in the log is not
    judged, and the output says so.
    """
    failing = _levels(fail_on)
    outcomes = _replay(run, detector, as_json, plot, policy, what_if or [], column or [], run_config)
    # The parts of the guard are shown whatever the policy says of them: it may hold one for advice.
    counted = next(said for said in outcomes if said.detector == (detector or WHOLE_GUARD))
    if counted.level in failing:
        raise typer.Exit(FAILED)


def _replay(
    path: Path,
    detector: str | None,
    as_json: bool,
    plot: Path | None,
    policy_file: Path | None,
    what_if: Sequence[str],
    mapping: Sequence[str],
    run_config: Path | None,
) -> Sequence[DetectorOutcome]:
    """What the policy as it is comes to."""
    overrides = read_map(mapping)
    names = _detectors(detector)
    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise CliError(f"--plot {plot}: the name must end in {', '.join(PICTURES)}.")
    policies = _policies(path, policy_file, what_if)
    table = read_log(path, set(overrides.values()))
    run = load_run(table, str(path), overrides, find_settings(run_config, path))
    ended = how_it_ended(path)
    run = replace(run, notes=(*run.notes, *filter(None, (ended.note,))))
    named = [(name, [outcome(run, policy, d, ended) for d in names]) for name, policy in policies]
    if plot is not None:
        from guard_cli.replay.plot import save_outcomes

        save_outcomes(plot, run, policies[0][1], named[0][1])
    if as_json:
        _print_json(run, named, single=detector is not None and not what_if)
    else:
        report.show(Console(), run, named, symptoms_of(run))
    return named[0][1]


def _print_json(run: Run, named: Sequence[tuple[str, Sequence[DetectorOutcome]]], single: bool) -> None:
    result: dict[str, Any] = (
        report.one(named[0][1][0]) if single else report.full(run, named, symptoms_of(run))
    )
    print(json.dumps(result))
    if single:  # the one object has no room for them
        for sentence in named[0][1][0].inert:
            print(f"not judged: {sentence}", file=sys.stderr)
        for note in run.notes:
            print(f"note: {note}", file=sys.stderr)


def _levels(fail_on: str | None) -> Collection[Level]:
    """The levels at which the command fails. What was not judged has not passed: `rlguard run`, too, ends
    with 0 only where the last verdict is healthy, so `warning` and `unknown` are one.
    """
    no_pass = (Level.FIRED, Level.WARNING, Level.UNKNOWN)
    known = {None: (), "fired": (Level.FIRED,), "warning": no_pass, "unknown": no_pass}
    if fail_on not in known:
        raise CliError(f"--fail-on {fail_on}: it must be fired, warning or unknown.")
    return known[fail_on]


def _detectors(name: str | None) -> Sequence[str]:
    if name is None:
        return tuple(DETECTORS)
    if name not in DETECTORS:
        raise CliError(f"--detector {name}: there is no such detector: {meant(name, DETECTORS)}")
    return (name,)


def _policy_of_report(path: Path) -> Path | None:
    folder = report_of(path)
    return folder / "policy.yaml" if folder is not None and (folder / "policy.yaml").is_file() else None


def _policies(path: Path, given: Path | None, what_if: Sequence[str]) -> list[tuple[str, Policy]]:
    from guard_cli.replay.policies import changed, policy_from_file

    file = given or _policy_of_report(path)
    setting = "--policy" if given is not None else "the report's policy"
    base = policy_from_file(file, setting) if file is not None else Policy()
    return [("as it is", base), *((option, changed(base, option)) for option in what_if)]


app = typer.Typer(add_completion=False)
app.command(epilog=EPILOG)(replay)
