"""`rlguard calibrate`: the command line of a calibration."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.markup import escape

from guard_cli.epilog import epilog
from guard_cli.errors import CliError
from guard_core.policy import MAX_HORIZON, DetectorName
from guard_core.wording import meant

EXIT_CODES = {
    0: "thresholds are proposed",
    2: "wrong arguments, or a file cannot be used or written",
}
EPILOG = epilog(
    "rlguard calibrate baseline.jsonl --false-stops 0.05 --horizon 100 --out policy.yaml",
    "rlguard calibrate rlguard-runs/first --plot delays.png",
    "rlguard calibrate --from-runs good-runs/ --out policy.yaml",
    codes=EXIT_CODES,
)

#: Suffixes of `--plot`.
PICTURES = (".png", ".svg", ".pdf")


app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG)
def calibrate(
    baseline: Annotated[
        Path | None,
        typer.Argument(
            metavar="[BASELINE]",
            help='Passes of the starting policy: JSONL with {"items": [0, 1, ...]} a line, or a guard\'s '
            "history, state directory or report.",
        ),
    ] = None,
    false_stops: Annotated[
        float, typer.Option(help="Wanted probability of a false stop within the horizon.", metavar="RATE")
    ] = 0.05,
    horizon: Annotated[
        int, typer.Option(help="Evaluations of one run that the probability is for.", metavar="N")
    ] = 100,
    detector: Annotated[
        str,
        typer.Option(
            help="What the policy lets fire: calibrated, heldout_guard, or both, which gives "
            "each half of the rate.",
            metavar="NAME",
        ),
    ] = "calibrated",
    samples: Annotated[int, typer.Option(help="Independent samples behind each outcome.", metavar="K")] = 1,
    reward_noise: Annotated[
        float | None,
        typer.Option(
            help="Standard error of a round's mean in-loop reward; without it, as the history shows it, or "
            "that of an evaluation.",
            metavar="SE",
        ),
    ] = None,
    from_runs: Annotated[
        Path | None,
        typer.Option(help="Folder of past runs of this model, known to be good.", metavar="DIR"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the policy there, for `rlguard run --policy`.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (.png, .svg, .pdf).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Choose thresholds for a false-stop rate, and see what they cost in delay.

    Simulates runs from a baseline of the starting policy: what noise alone does, and how long a fall of 2, 5
    and 10 points would go on. Or learns the thresholds from past runs that are known to be good.
    """
    from guard_cli.calibrate.propose import LEAST_HORIZON
    from guard_cli.calibrate.session import Wish, run_calibration

    if baseline is None and from_runs is None:
        raise CliError("nothing to calibrate from: give a BASELINE, or --from-runs DIR (see --help).")
    wrong = (
        (
            not 0.0 < false_stops < 0.5,
            f"--false-stops {false_stops:g}: must lie between 0 and 0.5, such as 0.05.",
        ),
        (
            horizon < LEAST_HORIZON,
            f"--horizon {horizon}: at least {LEAST_HORIZON} evaluations, or no rule can judge.",
        ),
        (horizon > MAX_HORIZON, f"--horizon {horizon}: at most {MAX_HORIZON} evaluations."),
        (samples < 1, f"--samples {samples}: must be at least 1."),
        (seed < 0, f"--seed {seed}: must be 0 or more."),
        *_about_the_noise(reward_noise, baseline),
        *_about_files(baseline, plot, out),
    )
    for is_so, sentence in wrong:
        if is_so:
            raise CliError(sentence)
    wish = Wish(baseline, from_runs, false_stops, horizon, _detector(detector), samples, reward_noise, seed)
    console = Console(quiet=as_json)
    result, policy = run_calibration(wish, console, plot)
    if out is not None:
        try:
            out.write_text(policy, encoding="utf-8")
        except OSError as error:
            raise CliError(f"--out {out}: cannot be written: {error.strerror}.") from None
    if as_json:
        print(json.dumps(result))
    elif out is not None:
        console.print(f"Written to {escape(str(out))}.", soft_wrap=True)
    else:
        console.print("policy.yaml (write it with --out):\n")
        console.print(escape(policy), soft_wrap=True, highlight=False)


def _about_the_noise(noise: float | None, baseline: Path | None) -> Iterator[tuple[bool, str]]:
    """What is wrong with --reward-noise."""
    if noise is not None:
        is_number = math.isfinite(noise) and noise >= 0
        yield not is_number, f"--reward-noise {noise:g}: must be a number of 0 or more."
        yield baseline is None, "--reward-noise is of a simulation, which takes a BASELINE."


def _about_files(baseline: Path | None, plot: Path | None, out: Path | None) -> Iterator[tuple[bool, str]]:
    """What is wrong with the files to be written."""
    if plot is not None:
        cannot = baseline is None or plot.suffix.lower() not in PICTURES
        yield cannot, f"--plot {plot}: needs a BASELINE, and a name that ends in {', '.join(PICTURES)}."
    if out is not None:
        yield out.exists(), f"--out {out}: exists already; a policy is not overwritten. Choose another name."


def _detector(name: str) -> DetectorName:
    """The detector of this name.

    Raises:
        CliError: there is none.
    """
    known: tuple[DetectorName, ...] = get_args(DetectorName)
    for one in known:
        if one == name:
            return one
    raise CliError(f"--detector {name:.60}: there is no such detector: {meant(name, known)}")
