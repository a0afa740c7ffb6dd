"""`rlguard baseline`: what the starting policy scores, pass after pass, for `rlguard calibrate`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from guard_cli import guard_settings as options
from guard_cli.epilog import epilog
from guard_cli.errors import CliError

if TYPE_CHECKING:
    from guard_service.heldout.worker import EvaluationResult

EXIT_CODES = {
    0: "the passes are written",
    2: "wrong arguments, files or settings, or an evaluation failed: the passes before it stay written",
}
EPILOG = epilog(
    "rlguard baseline ./start-model --heldout heldout.jsonl --passes 16 --temperature 1",
    "rlguard calibrate baseline.jsonl --out policy.yaml",
    codes=EXIT_CODES,
)

app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG)
@options.with_evaluation
def baseline(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Directory of the starting policy, as it was saved.")
    ],
    heldout: options.HeldoutOption = None,
    passes: Annotated[int, typer.Option("--passes", min=1, max=256, help="Passes over the split.")] = 16,
    out: Annotated[
        Path, typer.Option("--out", help="File to write: JSONL with the outcomes of one pass a line.")
    ] = Path("baseline.jsonl"),
    config: options.ConfigOption = None,
    *,
    evaluation: options.EvaluationOptions,
) -> None:
    """Score the starting policy on the held-out split, as the guard will, before a run.

    Sampling, scorer and evaluator must be those of the run, or the baseline is that of another run.
    """
    from guard_cli.evaluation import evaluate
    from guard_service.heldout.errors import SplitError

    heldout_settings = options.heldout_options(
        heldout=options.absolute(heldout),
        train_prompts=None,
        **evaluation,
    )
    settings = options.without_a_guard(
        options.read_config(config), {"heldout": heldout_settings or None}
    ).heldout
    if settings is None:
        raise options.no_split()
    if settings.takes_checkpoints and not model.is_dir():
        raise CliError(f"{model}: no such directory: give the model as save_pretrained wrote it")
    if settings.evaluator.temperature is None:
        raise CliError(
            "no trainer is asked here, so how it samples is not known: give --temperature and "
            "--max-new-tokens as the trainer has them (the temperature of TRL's GRPO is 1 unless set)"
        )
    sampling = settings.evaluator.sampling_with(None)
    print(f"sampling: {sampling.words}; the run must have the same", flush=True)
    made = Made(out, passes, greedy=sampling.temperature == 0)
    try:
        evaluate(settings, model.absolute(), out.absolute().parent, made.another)
    except SplitError as error:
        raise CliError(str(error)) from None
    finally:
        made.close()
    for line in conclusion(made.results, out, passes, settings.evaluator.samples, greedy=made.greedy):
        print(line)


class Made:
    """The file that is being made: each pass is written as soon as it is there.

    Outcomes of items are in it, so only this user may read it.
    """

    def __init__(self, out: Path, passes: int, *, greedy: bool) -> None:
        try:
            handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise CliError(f"--out {out}: exists already; choose another name") from None
        except OSError as error:
            raise CliError(f"--out {out}: cannot be written: {error.strerror}") from None
        self.greedy = greedy
        self.results: list[EvaluationResult] = []
        self._out, self._passes = out, passes
        self._file = os.fdopen(handle, "w", encoding="utf-8")

    def another(self, result: EvaluationResult) -> bool:
        """Write a pass, tell of it, and say whether one more is wanted."""
        self.results.append(result)
        grader = {"proxy_items": result.proxy_items, "fooled_items": result.fooled_items}
        given = {name: outcomes for name, outcomes in grader.items() if outcomes is not None}
        print(json.dumps({"items": result.items} | given), file=self._file, flush=True)
        done, score = len(self.results), fmean(result.items)
        beside = "".join(
            f", {share:.0%} {what}"
            for share, what in (
                (result.truncated, "cut off"),
                (result.unanswered, "without an answer"),
                (result.timed_out, "timed out in a scorer"),
            )
            if share
        )
        took = f"in {result.seconds:.1f} s"
        print(f"pass {done} of {self._passes}: score {score:.3f}{beside} {took}", flush=True)
        return done < self._passes and not (self.greedy and self._agree())

    def _agree(self) -> bool:
        from guard_core.detectors.baseline import Baseline

        return Baseline.from_passes([result.items for result in self.results]).greedy

    def close(self) -> None:
        """Close the file; one without a pass is removed."""
        self._file.close()
        if not self.results:
            self._out.unlink(missing_ok=True)


def conclusion(
    results: Sequence[EvaluationResult], out: Path, wanted: int, samples: int, *, greedy: bool
) -> list[str]:
    """What was made, what to know of it, and what to do next. Pure."""
    items, score = len(results[0].items), fmean(fmean(result.items) for result in results)
    lines = [f"{len(results)} passes of {items} items, score {score:.3f}: written to {out}"]
    if greedy and len(results) < wanted:
        lines.append(
            f"The passes are the same (temperature 0), so {wanted - len(results)} more would add nothing. "
            "With a temperature above 0 they would show how much an evaluation moves by itself."
        )
    if said := uninformative(score):
        lines.append(said)
    more = f" --samples {samples}" if samples > 1 else ""
    return [*lines, f"Next: rlguard calibrate {out}{more} --out policy.yaml"]


def uninformative(score: float) -> str | None:
    """Why a starting score can tell little about a change, as the guard would say it; None where it can."""
    from guard_core.detectors.run import uninformative_baseline

    condition = uninformative_baseline(score, None)
    return None if condition is None else condition.message
