"""`rlguard report`: the page of a run, of its folder or of what the operator kept of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from rlguard.cli.cluster import (
    REQUEST_SECONDS,
    UNREACHABLE,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    asking,
    connect,
)
from rlguard.cli.ending import Heading, heading_of
from rlguard.cli.epilog import epilog
from rlguard.cli.errors import CliError
from rlguard.cli.report.evidence import COLLECTED, Evidence, read_evidence
from rlguard.cli.saved import is_file, is_folder, read_object
from rlguard.cli.saved_run import find_report, read_run_file, report_in
from rlguard.core.terminal import plain
from rlguard.operator.api.names import KIND

EXIT_CODES = {
    0: "the page is written",
    UNREACHABLE: "the cluster cannot be read, or there is no evidence of such a job",
    2: "wrong arguments or files",
}
EPILOG = epilog(
    "rlguard report my-job -n training",
    "rlguard report evidence.yaml --out my-job.html",
    "rlguard report rlguard-runs/my-run",
    codes=EXIT_CODES,
)

app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG)
def report(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB",
            help="Folder of a run; GuardedTrainingJob, also a deleted one; or a saved file.",
        ),
    ],
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The page to write; report.html without it."),
    ] = None,
) -> None:
    """Make the report of a run.

    JOB is the folder of a run on this machine, a job on the cluster, or a saved manifest: of the job, or of
    its evidence (`kubectl get configmap NAME -o yaml`). The operator keeps the evidence when a run fires or
    ends, so that no pod is needed, and with `spec.keepEvidence` not even the job. Of the evaluation rounds
    up to 50 are kept, and of the steps up to 200, with the symptoms of all.
    """
    if is_folder(job):
        folder = Path(job)
        headline, page, out = *_of_folder(folder), out or (find_report(folder) or folder) / "report.html"
    else:
        evidence = read_evidence(_evidence(job, namespace, kubeconfig, context))
        headline, page, out = _ended(evidence).headline, _page(evidence), out or Path("report.html")
    try:
        out.write_text(page + "\n", encoding="utf-8")
    except OSError as error:
        raise CliError(f"--out {out} cannot be written: {error.strerror or error}") from None
    typer.echo(plain(f"{out}: {headline}"))


def _of_folder(folder: Path) -> tuple[str, str]:
    """The outcome and the page of a local run."""
    report = report_in(folder)
    from rlguard.cli.report.local import render

    return str(read_run_file(report / "run.json").get("outcome", "")), render(report)


def _evidence(job: str, namespace: str | None, kubeconfig: Path | None, context: str | None) -> Any:
    """The evidence that a file holds, or that the cluster has of the job that is named, or in the file."""
    if not is_file(job):
        return _of_cluster(job, namespace, kubeconfig, context)
    found = read_object(Path(job))
    if not isinstance(found, dict) or found.get("kind") != KIND:
        return found
    metadata = found.get("metadata")
    given = metadata if isinstance(metadata, dict) else {}
    return _of_cluster(str(given.get("name")), namespace or given.get("namespace"), kubeconfig, context)


def _of_cluster(job: str, namespace: str | None, kubeconfig: Path | None, context: str | None = None) -> Any:
    """The newest evidence of a job of this name; a job that was made again has some of each.

    Raises:
        CliError: the cluster cannot be asked, or has none.
    """
    cluster = connect(namespace, kubeconfig, "a file with the evidence", context)
    from rlguard.operator.api.names import JOB_LABEL

    with asking(absent=f"there is no namespace {cluster.namespace}"):
        listed = cluster.core.list_namespaced_config_map(
            cluster.namespace, label_selector=f"{JOB_LABEL}={job}", _request_timeout=REQUEST_SECONDS
        )
        found = [one for one in listed.items if COLLECTED in (one.data or {})]
        if not found:
            raise CliError(
                f"namespace {cluster.namespace} has no evidence of a job {job!r}: it is written when a run "
                f"fires or ends (`rlguard status {job}` says where it is)",
                UNREACHABLE,
            )
        return cluster.client.sanitize_for_serialization(max(found, key=lambda one: one.data[COLLECTED]))


def _page(evidence: Evidence) -> str:
    from rlguard.cli.report.page import ReportContent, report_page
    from rlguard.cli.report.plot import draw

    kept = evidence.steps
    picture = draw(evidence.lines, evidence.verdict, each="round" if kept is None else "kept step")
    content = ReportContent(
        verdict=evidence.verdict,
        history=evidence.history,
        policy=evidence.policy,
        picture=picture,
        rollouts=evidence.rollouts,
        figures=() if kept is None else kept.figures,
        symptoms=None if kept is None else kept.symptoms,
    )
    return report_page(_banner(evidence), _rows(evidence), content)


def _ended(evidence: Evidence) -> Heading:
    return heading_of(evidence.verdict, evidence.conditions)


def _banner(evidence: Evidence) -> Any:
    from guard_service.dashboard.page import Banner

    verdict, ended = evidence.verdict, _ended(evidence)
    latched = f"Step {verdict.latch_step} of attempt {verdict.latch_attempt}. " if verdict.stop else ""
    return Banner(
        name=evidence.job or "a run",
        when=f"report · evidence of {evidence.collected_at or 'a time that is not known'}",
        state=ended.state,
        word=ended.word,
        headline=ended.headline,
        reason=ended.reason,
        since=f"{latched}A run on a cluster: what follows is {_what_follows(evidence)}.",
    )


def _what_follows(evidence: Evidence) -> str:
    if evidence.steps is None:
        return "its evaluation rounds; its steps were not kept"
    kept, total = len(evidence.steps.steps), evidence.steps.total
    return f"its evaluation rounds and {'its' if kept == total else f'{kept:,} of its {total:,}'} steps"


def _rows(evidence: Evidence) -> Iterator[tuple[str, str]]:
    from guard_service.dashboard.page import text
    from rlguard.cli.report.page import verdict_rows

    yield "Job", text(evidence.job or "not known")
    kept = len(evidence.history["evaluations"])
    if evidence.history["cut_off"]:
        yield "Kept", f"{kept} of {evidence.verdict.rounds} evaluation rounds"
    yield from verdict_rows(evidence.verdict)
