"""`rlguard resume`: prints what goes on from the last good checkpoint of a run that is over."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlguard.cli.cluster import UNREACHABLE, ContextOption, KubeconfigOption, NamespaceOption, connect
from rlguard.cli.epilog import epilog
from rlguard.cli.errors import CliError
from rlguard.cli.saved import is_file, is_folder, read_object
from rlguard.cli.saved_run import BEST, how_it_starts, how_to_go_on, report_in
from rlguard.cli.starting import start_hint
from rlguard.core.extras import missing_extra
from rlguard.core.terminal import plain

if TYPE_CHECKING:
    from rlguard.cli.resume.manifest import Resumed

EXIT_CODES = {
    0: "the new job, or the command, is printed",
    UNREACHABLE: "the cluster does not respond, or there is no such job",
    2: "the run has not ended, has no checkpoint to go on from, or the operator would refuse the new job",
}
EPILOG = epilog(
    "rlguard resume my-job -n training > again.yaml",
    "rlguard resume my-job -n training | kubectl create -f -",
    "rlguard resume rlguard-runs/my-run",
    codes=EXIT_CODES,
)

UNCHANGED = "what you have not changed is as it was: a reward that was hacked will be again"

app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG)
def resume_run(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB",
            help="Folder of a run; GuardedTrainingJob that has ended; or a saved file.",
        ),
    ],
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the new job; JOB-2, then JOB-3, without it.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", help="Directory to start from, other than the last good checkpoint."),
    ] = None,
) -> None:
    """Print what goes on from the last good checkpoint of a run that was stopped.

    Of the folder of a local run, that is a command. Of a job on the cluster, or in a file, it is a new job
    with the same template and guard, and `spec.resumedFrom`: change what was hacked, and create it with
    kubectl. The containers get RLGUARD_RESUME_FROM, the directory to load the weights from: the trainer image
    does that, and a script of yours has to. What was decided is said on stderr.
    """
    if is_folder(job):
        _of_folder(Path(job))
        return
    if missing := missing_extra("checking a job as the operator does", ["operator"]):
        raise CliError(missing)
    from rlguard.cli.resume.manifest import resume_job
    from rlguard.cli.wrap.as_written import as_yaml
    from rlguard.operator.config import OperatorConfig
    from rlguard.operator.reconcile.review import review_manifest

    if is_file(job):
        found = read_object(Path(job))
    else:
        found = connect(namespace, kubeconfig, "a folder or a file", context).job(job)
    resumed = resume_job(found, name, checkpoint)
    said = review_manifest(resumed.manifest, OperatorConfig(guard_image=""))
    if said.reason is not None:
        findings = "".join(f"\n  {plain(one)}" for one in said.findings)
        raise CliError(f"the operator would refuse it ({said.reason}), so nothing is printed:{findings}")
    typer.echo(as_yaml(resumed.manifest), nl=False)
    for line in _told(resumed):
        print(plain(line), file=sys.stderr)


def _of_folder(folder: Path) -> None:
    """Print the command that goes on from the checkpoint that a local run kept.

    Raises:
        CliError: the run has not ended, or kept none.
    """
    report = report_in(folder)
    command = how_to_go_on(report)
    if not command:
        raise CliError(f"{report} has no {BEST}, or is of a demo: start from the beginning")
    typer.echo(command)
    for line in filter(None, (UNCHANGED, how_it_starts(report))):
        print(line, file=sys.stderr)


def _told(resumed: Resumed) -> Iterator[str]:
    step = "" if resumed.step is None else f" of step {resumed.step}"
    score = "" if resumed.score is None else f", held-out {resumed.score:.4f}"
    yield f"{resumed.name} starts from the checkpoint{step} of {resumed.old}{score}: {resumed.checkpoint}"
    yield (
        "look before you create it: the old run's trainer may have deleted that directory, or saved into it "
        "again"
    )
    if resumed.copy:
        yield (
            f"then take the copy that the guard kept in {resumed.copy}: put it where the new trainer can "
            "read it, and name that with --checkpoint"
        )
    yield UNCHANGED
    yield from _of_a_followed_trainer(resumed)
    guard = resumed.manifest["spec"]["guard"]["heldout"]["evaluator"]
    if (guard.get("hf") or guard.get("vllm") or {}).get("baseModel"):
        yield (
            "an adapter's run: the trainer image starts from whole models. Merge the adapter, give the guard "
            "the result as its base model too, and name it with --checkpoint"
        )
    namespace = resumed.manifest["metadata"].get("namespace")
    where = f" -n {shlex.quote(namespace)}" if namespace else ""
    yield f"once it is created: rlguard status {shlex.quote(resumed.name)}{where}"


def _of_a_followed_trainer(resumed: Resumed) -> Iterator[str]:
    """It reads no variable of ours, so that it would start where the old run did, or go on from its end."""
    metrics = resumed.manifest["spec"]["guard"].get("metrics")
    if not metrics:
        return
    yield "its trainer is followed, and starts at that checkpoint only if its command says so"
    path, named = (
        shlex.quote(resumed.checkpoint),
        (metrics.get("follow", {}), metrics.get("checkpoints") or {}),
    )
    for format_ in (str(one.get(key)) for one, key in zip(named, ("format", "layout"), strict=True)):
        if how := start_hint(format_, path, "FOLDER"):
            yield how
            break
    yield "it must save into a new FOLDER: change the paths in guard.metrics, too"
