"""`rlguard wrap`: a training job's manifest in, the `GuardedTrainingJob` around it out."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rlguard.cli import guard_settings as options
from rlguard.cli.epilog import epilog
from rlguard.cli.errors import CliError
from rlguard.cli.logs.options import FormatOption
from rlguard.core.frameworks import LAYOUTS

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
_CHECKED = "it passes the checks of the operator; the cluster was not asked (claims, admission, its schema)"

app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG)
@options.with_evaluation
def wrap(
    file: Annotated[
        typer.FileBinaryRead, typer.Option("--file", "-f", help="Manifest of a training job; - is stdin.")
    ],
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
    name: Annotated[str | None, typer.Option("--name", help="Another name than the job's own.")] = None,
) -> None:
    """Put a training job that you have under guard: print the GuardedTrainingJob around it.

    Comments, order and quotes are kept; other documents of the file stay as they are. What was decided is
    said on stderr. What the operator would refuse is refused here, and no cluster is asked.
    """
    from rlguard.cli.wrap.guard import heldout_section, metrics_section, policy_section, unknown_scorer
    from rlguard.cli.wrap.manifest import (
        MAX_BYTES,
        ManifestError,
        filled_in,
        find_job,
        placeholders,
        read_documents,
    )
    from rlguard.cli.wrap.rewrite import wrap_job
    from rlguard.cli.wrap.summary import decided, refusal, to_do
    from rlguard.core.terminal import plain
    from rlguard.operator.config import OperatorConfig
    from rlguard.operator.reconcile.review import review_manifest

    volume, _, folder = checkpoints.partition("/")
    scoring = options.heldout_options(heldout=None, train_prompts=None, backlog=backlog, **evaluation)
    guard = options.given(
        heldout=heldout_section(heldout, train_prompts, base_model, scoring),
        checkpoints={"volume": volume},
        metrics=metrics_section(follow, format_, folder, checkpoint_layout),
        placement=placement,
        state=options.given(claimName=state_claim, keepBest=keep_best) or None,
        isolation="Relaxed" if relaxed else None,
        policy=policy_section(policy),
    )
    try:
        job = find_job(read_documents(file.read(MAX_BYTES + 1)))
        wrapped = wrap_job(job, guard, name)
    except ManifestError as error:
        raise CliError(f"{file.name}: {error}") from None
    review = review_manifest(filled_in(wrapped.manifest), OperatorConfig(guard_image=""))
    if review.reason is not None:
        raise CliError(refusal(review))
    typer.echo(wrapped.text.encode(), nl=False)
    unfilled = ", ".join(dict.fromkeys(placeholders(job.document.content)))
    fill_in = f"fill in {unfilled} before you apply it: its value was not checked" if unfilled else ""
    lines = [
        *(f"warning: {one}" for one in (unknown_scorer(evaluation["scorer"]), fill_in) if one),
        *decided(wrapped, job.adapter, review),
        *([] if unfilled else [_CHECKED]),
        *to_do(wrapped, job.adapter.resource.kind),
    ]
    for line in lines:
        print(plain(line), file=sys.stderr)
