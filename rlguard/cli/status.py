"""`rlguard status`: how a run is, on a cluster, at a guard's address, or in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from rlguard.cli.cluster import (
    REQUEST_SECONDS,
    UNREACHABLE,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    connect,
)
from rlguard.cli.ending import NotedCondition, noted_end
from rlguard.cli.epilog import epilog
from rlguard.cli.errors import CliError
from rlguard.cli.links import read_token
from rlguard.cli.saved import is_folder
from rlguard.cli.saved_run import find_report, read_run_file
from rlguard.cli.summary import read_verdict, summary_lines
from rlguard.core.codes import Level
from rlguard.core.terminal import plain
from rlguard.follow.guard_history import ca_of_environment, reader
from rlguard.operator.api.reasons import ConditionType, Reason

EXIT_CODES = {
    0: "the state is shown, whatever the verdict is",
    UNREACHABLE: "cluster, guard or report cannot be read, or there is no such job",
    2: "wrong arguments or files",
}
EPILOG = epilog(
    "rlguard status",
    "rlguard status my-job -n training",
    "rlguard status --url http://127.0.0.1:8470 --token-file state/read.token",
    "rlguard status rlguard-runs/demo",
    codes=EXIT_CODES,
)

#: Says in a state directory where its guard listens.
ENDPOINT = "endpoint.json"

app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG)
def status(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]", help="GuardedTrainingJob, or folder of a local run; all jobs without it."
        ),
    ] = None,
    namespace: NamespaceOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    url: Annotated[str | None, typer.Option("--url", help="Ask the guard at this address.")] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with its read token; else RLGUARD_READ_TOKEN.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how a run is doing: level, reason, step, scores, and what became of its checkpoints.

    A name is a job on the cluster of the current kubeconfig; an existing folder is a local run.
    """
    if url is not None and job is not None:
        raise CliError(f"{job} and --url {url}: ask for one of them")
    if url is None and token_file is not None:
        raise CliError("--token-file is for a guard that is asked at its address: give --url, too")
    if url is not None:
        found = [_of_guard(url, token_file)]
    elif job is not None and is_folder(job):
        found = [_of_folder(Path(job))]
    else:
        found = _of_cluster(job, namespace, kubeconfig, context)
    if as_json:
        typer.echo(json.dumps(found if job is None and url is None else found[0], indent=2))
        return
    for one in found:
        typer.echo(plain(f"{one['name']}: {one['state']}"))
        for line in job_lines(one) if "now" in one else verdict_lines(one["verdict"], one["state"]):
            typer.echo(f"  {line}")
    if not found:
        typer.echo("there is no GuardedTrainingJob in this namespace")


def job_lines(job: Mapping[str, Any]) -> Iterator[str]:
    """What `show_job` found, in lines for people. A verdict that is none of now is told with its time."""
    now, verdict = job["now"], job["verdict"]
    told = verdict_lines(verdict)
    if (now["level"], now["reason"]) != (verdict.get("level"), verdict.get("reason")):
        yield plain(f"{now['level']}: {now['reason']}")
        when = f"last verdict, of {plain(str(verdict.get('readAt', 'an unknown time')))}: "
        yield f"{when if verdict else ''}{next(told)}"
    yield from told
    if verdict.get("adviceReason"):
        yield plain(f"advice: {verdict['adviceReason']}")
    for one in job["conditions"]:
        if one["type"] in _PROTECTS and one["status"] != "True" and one["message"] != now["reason"]:
            yield plain(f"{one['type']}={one['status']} ({one['reason']}): {one['message']}")


def verdict_lines(verdict: Mapping[str, Any] | None, told: str = "") -> Iterator[str]:
    """A verdict, as the guard or a job's status has it, in lines for people; what is missing is left out.

    Args:
        told: what stands above it; a reason that is in it is not repeated.
    """
    if (read := read_verdict(verdict or {})) is None:
        return iter(["no verdict yet"])
    return islice(summary_lines(read), 1 if read.reason and read.reason in told else 0, None)


def _of_guard(url: str, token_file: Path | None) -> dict[str, Any]:
    """Asks a guard.

    Raises:
        CliError: it does not respond, or refuses the token.
    """
    import httpx

    token = read_token("--token-file", token_file)
    try:
        with reader(url, token, REQUEST_SECONDS, ca_of_environment()) as client:
            responses = [client.get(path) for path in ("/v1/run", "/v1/verdict")]
        for response in responses:
            if response.status_code in (401, 403):
                raise CliError(
                    f"the guard at {url} refuses this token: give its read token with --token-file", 1
                )
            response.raise_for_status()
        run, verdict = (response.json() for response in responses)
        return {
            "name": str(run["name"]),
            "state": f"guard {run['version']} at {url}",
            "verdict": dict(verdict),
        }
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError, UnicodeEncodeError) as error:
        raise CliError(f"no guard responds at {url}: {error}", UNREACHABLE) from None


def _of_folder(folder: Path) -> dict[str, Any]:
    """Read the report of a local run that has ended, or ask its guard while it runs.

    Raises:
        CliError: there is no run, its report cannot be read, or its guard does not respond.
    """
    if (report := find_report(folder)) is not None:
        facts, verdict = read_run_file(report / "run.json"), report / "verdict.json"
        return {
            "name": str(facts.get("name", report.absolute().name)),
            "state": str(facts.get("outcome", "ended")),
            "verdict": read_run_file(verdict) if verdict.is_file() else None,
        }
    for place in (folder, folder / "guard", folder / "report" / "guard"):
        if (place / ENDPOINT).is_file():
            url, token = str(read_run_file(place / ENDPOINT).get("url", "")), place / "read.token"
            return _of_guard(url, token if token.is_file() else None)
    raise CliError(
        f"{folder} holds no run (no run.json, and no guard/{ENDPOINT}): name the folder of a run, or the "
        "state directory of a guard that runs"
    )


def _of_cluster(
    job: str | None, namespace: str | None, kubeconfig: Path | None, context: str | None = None
) -> list[dict[str, Any]]:
    """Reads one GuardedTrainingJob, or all of a namespace.

    Raises:
        CliError: the cluster cannot be asked, or has no such job.
    """
    cluster = connect(namespace, kubeconfig, "a folder of a run, --url", context)
    found = cluster.jobs() if job is None else [cluster.job(job)]
    return [show_job(one) for one in found]


#: Conditions that are told where they are not True: then something of the run's protection is missing.
_PROTECTS = frozenset({"Guarded", "Isolated"})
#: While one of these is True, nobody judges the run.
_NOT_JUDGED = (ConditionType.GUARD_SILENT, ConditionType.WAITING)
#: Ends that are told by their own word; another by how healthy the run is.
_LATCHES = ("fired", "halted")


def show_job(found: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of a job: `verdict` is the last one, `now` what is known now."""
    status = found.get("status") or {}
    conditions = [
        NotedCondition(**{key: str(one.get(key, "")) for key in NotedCondition.model_fields})
        for one in status.get("conditions") or ()
    ]
    hold = [f"{one.type}: {one.reason}" for one in conditions if one.status == "True"]
    level, reason = _verdict_of_now(status.get("guard") or {}, conditions)
    return {
        "name": str(found["metadata"]["name"]),
        "state": " | ".join([str(status.get("phase", "new")), *hold]),
        "verdict": dict(status.get("guard") or {}),
        "now": {"level": level, "reason": reason},
        "conditions": [one.model_dump() for one in conditions],
    }


def _verdict_of_now(guard: Mapping[str, Any], conditions: Sequence[NotedCondition]) -> tuple[str, str]:
    """Level of a run and the sentence for it; unknown while no guard reports."""
    if (end := noted_end(conditions)) is not None:
        return end.word if end.word in _LATCHES else end.state.value, end.reason
    by_type = {one.type: one for one in conditions}
    for kind in _NOT_JUDGED:
        if kind in by_type and by_type[kind].status == "True":
            return "unknown", _message(by_type[kind])
    guarded, fired = by_type.get(ConditionType.GUARDED), by_type.get(ConditionType.FIRED)
    if guarded is not None and guarded.status == "False" and guarded.reason != Reason.WORKLOAD_PENDING:
        return "unknown", _message(guarded)
    if fired is None or fired.status != "False":
        said = "" if fired is None else _message(fired)
        return "unknown", said or "the operator has not looked at it yet"
    level = guard.get("level")
    return level if level in set(Level) else "unknown", str(guard.get("reason") or _message(fired))


def _message(condition: NotedCondition) -> str:
    return condition.message or condition.reason
