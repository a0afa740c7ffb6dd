"""`rlguard wrap`: a training job's manifest in, the `GuardedTrainingJob` around it out."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from guard_cli import guard_settings as options
from guard_cli.epilog import epilog
from guard_cli.errors import CliError
from guard_cli.logs.options import FormatOption
from guard_core.frameworks import LAYOUTS

EXIT_CODES = {
    0: "the object is printed, whatever it warns of",
    2: "the operator would refuse it, or a file cannot be used: nothing is printed",
}
EPILOG = epilog(
    "rlguard wrap -f job.yaml --heldout claim:heldout/heldout.jsonl --checkpoints checkpoints "
    "--scorer numeric > guarded.yaml",
    "kubectl get pytorchjob my-run -o yaml | rlguard wrap -f - --heldout secret:heldout/heldout.jsonl "
    "--checkpoints checkpoints",
    codes=EXIT_CODES,
)

app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG)
@options.with_evaluation
def wrap(
    file: Annotated[str, typer.Option("--file", "-f", help="Manifest of a training job; - is stdin.")],
    heldout: Annotated[
        str,
        typer.Option(
            "--heldout", help="Where the split lies: claim:NAME/PATH, secret:… or configmap:NAME/KEY."
        ),
    ],
    checkpoints: Annotated[
        str,
        typer.Option(
            "--checkpoints",
            help="Volume of the job's pods in which the trainer saves; with --follow VOLUME/FOLDER, too.",
            metavar="VOLUME",
        ),
    ],
    follow: Annotated[
        str | None,
        typer.Option(
            "--follow",
            help="The log that the trainer writes, by its path in that volume: the guard reads it, and the "
            "trainer needs no code.",
        ),
    ] = None,
    format_: FormatOption = "auto",
    checkpoint_layout: Annotated[
        str | None,
        typer.Option(
            "--layout",
            help="By whose layout a checkpoint is complete, if not by that of --format: "
            f"{', '.join(LAYOUTS)}.",
            metavar="NAME",
        ),
    ] = None,
    train_prompts: Annotated[
        str | None,
        typer.Option("--train-prompts", help="Training prompts beside the split: refuse one that overlaps."),
    ] = None,
    policy: options.PolicyOption = None,
    backlog: options.BacklogOption = None,
    *,
    evaluation: options.EvaluationOptions,
    base_model: Annotated[
        str | None,
        typer.Option("--base-model", help="Base model of a LoRA run: its directory, beside the split."),
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(
            "--placement",
            help="Where the guard runs: Sidecar, beside the trainer, or Pod, in one of its own, which --vllm "
            "needs.",
        ),
    ] = None,
    state_claim: Annotated[
        str | None,
        typer.Option(
            "--state-claim",
            help="A claim for what the guard knows, which then outlives its pod; --keep-best needs it.",
        ),
    ] = None,
    keep_best: options.KeepBestOption = None,
    relaxed: Annotated[
        bool,
        typer.Option(
            "--relaxed", help="isolation: Relaxed. Admits what reaches into the guard; says what does."
        ),
    ] = False,
    runtime: Annotated[
        str | None,
        typer.Option(
            "--runtime", help="Manifest of the runtime that a TrainJob names, if it is not in the same file."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Another name than the job's own.")] = None,
) -> None:
    """Put a training job that you have under guard: print the GuardedTrainingJob around it.

    Its own lines are kept, with comments and order; other documents of the file stay as they are. What was
    decided is said on stderr. What the operator would refuse is refused here, and no cluster is asked.
    """
    from guard_cli.wrap.guard import (
        checkpoint_volume,
        counted_restarts,
        guard_section,
        metrics_section,
        unknown_scorer,
    )
    from guard_cli.wrap.host_paths import narrow_host_paths
    from guard_cli.wrap.manifest import (
        MAX_BYTES,
        ManifestError,
        find_job,
        placeholders,
        read_text,
        scalar_text,
        value_of,
    )
    from guard_cli.wrap.rewrite import wrap_job
    from guard_cli.wrap.source import composed_spec, source_in
    from guard_cli.wrap.telling import refusal, told
    from guard_core.terminal import plain
    from guard_operator.config import OperatorConfig
    from guard_operator.reconcile.review import review_manifest

    checkpoints, _, folder = checkpoints.partition("/")
    guard = guard_section(
        heldout=heldout,
        train_prompts=train_prompts,
        checkpoints=checkpoints,
        metrics=metrics_section(follow, format_, folder, checkpoint_layout),
        scoring=options.heldout_options(heldout=None, train_prompts=None, backlog=backlog, **evaluation),
        base_model=base_model,
        policy=policy,
        relaxed=relaxed,
        placement=placement,
        state=options.given(claimName=state_claim, keepBest=keep_best),
    )
    where = "stdin" if file == "-" else file
    try:
        text = read_text(_read(file, MAX_BYTES + 1))
        job = find_job(text)
        narrowed = narrow_host_paths(
            job, name or scalar_text(value_of(job.root, "metadata", "name")) or "run"
        )
        job = find_job(narrowed.text)
        wrapped = wrap_job(job, guard, name)
    except ManifestError as error:
        raise CliError(f"{where}: {error}") from None
    given, texts = wrapped.manifest["spec"]["template"]["spec"], {where: text}
    if runtime is not None:
        try:
            texts[runtime] = read_text(_read(runtime, MAX_BYTES + 1))
        except ManifestError as error:
            raise CliError(f"{runtime}: {error}") from None
    source = source_in(texts, job.adapter, given)
    said = review_manifest(wrapped.manifest, OperatorConfig(guard_image=""), source)
    composed = composed_spec(job.adapter, given, source)
    volume = checkpoint_volume(composed, job.adapter, checkpoints)
    wrong = f"--checkpoints {checkpoints}: {volume.wrong}" if volume is not None and volume.wrong else ""
    if said.reason is not None:
        raise CliError(refusal(said, wrong))
    if wrong:
        raise CliError(plain(wrong))
    _write(wrapped.text)
    restarts = "" if placement == "Pod" else counted_restarts(composed, job.adapter)
    unfilled = ", ".join(dict.fromkeys(placeholders(job.root)))
    unchecked = f"fill in {unfilled} before you apply it: its value was not checked" if unfilled else ""
    for doubt in filter(None, (unknown_scorer(evaluation["scorer"]), restarts, unchecked)):
        print(f"warning: {plain(doubt)}", file=sys.stderr)
    for line in (*narrowed.changes, *told(wrapped, job, volume, said.broken, whole=not unfilled)):
        print(line, file=sys.stderr)


def _write(text: str) -> None:
    """Print it, and all of it.

    Raises:
        CliError: stdout takes no more.
    """
    try:
        typer.echo(text.encode("utf-8"), nl=False)
    except BrokenPipeError:  # whoever reads has seen enough
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the end
        raise CliError(f"stdout cannot be written: {error.strerror or error}") from None


def _read(file: str, most: int) -> bytes:
    """The first bytes of a file, or of stdin.

    Raises:
        CliError: it cannot be read.
    """
    try:
        if file == "-":
            return sys.stdin.buffer.read(most)
        with Path(file).open("rb") as opened:
            return opened.read(most)
    except (OSError, ValueError) as error:
        raise CliError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
