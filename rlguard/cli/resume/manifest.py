"""The job that goes on from a checkpoint of a run that is over. Pure.

What a guard wrote into the status comes from a trainer: it is checked like anything that a stranger wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlguard.cli.errors import CliError
from rlguard.core.terminal import plain
from rlguard.operator.api.names import API_VERSION, KIND, MAX_JOB_NAME
from rlguard.operator.api.status import Phase

Json = dict[str, Any]

#: A run in one of these has no pod that could still write a checkpoint.
ENDED = (Phase.STOPPED, Phase.SUCCEEDED, Phase.FAILED, Phase.DISRUPTED)
#: By these labels and annotations a tool knows what it made, and would change or delete the new job with it.
_OF_TOOLS = (
    "kubectl.kubernetes.io/",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "argocd.argoproj.io/",
    "helm.sh/",
    "meta.helm.sh/",
    "helm.toolkit.fluxcd.io/",
    "kustomize.toolkit.fluxcd.io/",
    "kueue.x-k8s.io/prebuilt-workload-name",
)


@dataclass(frozen=True, slots=True)
class Resumed:
    """A new job, as it is to be created, and where it starts.

    Fields:
        old: name of the job that it goes on from.
        step: of the checkpoint, in that run; None: not known.
        score: its held-out score, in [0, 1]; None: not known.
        copy: where the guard has kept a copy of these weights, for people; "" where it has none.
    """

    manifest: Json
    old: str
    checkpoint: str
    step: int | None
    score: float | None
    copy: str = ""

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.manifest["metadata"]["name"])


def resume_job(job: Any, name: str | None, checkpoint: str | None) -> Resumed:
    """A job of the same template and guard that starts at a checkpoint of `job`.

    Args:
        job: a `GuardedTrainingJob` as the API server has it.
        name: of the new one; None: that of `job` with the next number behind it.
        checkpoint: where it starts; None: at the last good one, that is the best-scored.

    Raises:
        CliError: it is no such job, has not ended or has no checkpoint that was scored.
    """
    given = _object(_as_json(job, "the job"))
    metadata, spec, status = (_object(given.get(part)) for part in ("metadata", "spec", "status"))
    kind, old = (given.get("apiVersion"), given.get("kind")), metadata.get("name")
    if kind != (API_VERSION, KIND) or not isinstance(old, str):
        raise CliError(f"this is no {KIND} of {API_VERSION}, as `kubectl get gtj NAME -o yaml` prints it")
    _refuse_running(old, status.get("phase"))
    copy = _kept_copy(spec, metadata.get("uid"))
    best = _start(_object(status.get("guard")), checkpoint, copy)
    path, step, score = best.get("path"), best.get("step"), best.get("score")
    if not isinstance(path, str):
        raise CliError(
            f"no checkpoint of {plain(old)} has been scored, so there is no last good one: start from the "
            "beginning, or name one with --checkpoint"
        )
    if target := _object(spec.get("targetRef")):
        named = f"{plain(str(target.get('kind')))} {plain(str(target.get('name')))}"
        raise CliError(
            f"{plain(old)} is attached to {named}, which others made. Start that from {plain(path)}, where "
            "/checkpoints is the root of the claim, and attach a new job to it"
        )
    step = step if isinstance(step, int) and not isinstance(step, bool) else None
    origin = {"name": old, "uid": metadata.get("uid"), "step": step, "checkpoint": path}
    origin["sha256"] = best.get("sha256")
    new = {**spec, "resumedFrom": {key: value for key, value in origin.items() if value is not None}}
    return Resumed(
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": _metadata(metadata, name or next_name(old)),
            "spec": new,
        },
        old,
        path,
        step,
        score if isinstance(score, int | float) and 0 <= score <= 1 else None,
        "" if best == {"path": checkpoint} else copy,
    )


def _kept_copy(spec: Mapping[str, Any], uid: Any) -> str:
    """Where the guard of a job has a copy of the last good checkpoint, for people; "" where it has none."""
    state = _object(_object(spec.get("guard")).get("state"))
    if state.get("keepBest") is not True:
        return ""
    return f"{uid}/best of the claim {state.get('claimName')} ({uid}/0/best where the pods are numbered)"


def _start(guard: Mapping[str, Any], checkpoint: str | None, copy: str) -> Mapping[str, Any]:
    """What is known of where it starts; `copy`: where the last good checkpoint lies, too.

    Raises:
        CliError: other weights have been scored in that directory since.
    """
    best, last = _object(guard.get("bestCheckpoint")), _object(guard.get("lastEvaluation"))
    if checkpoint is not None and checkpoint != best.get("path"):
        return {"path": checkpoint}
    keys = ("attempt", "step", "sha256")
    same_place = last.get("path") == best.get("path") is not None
    if checkpoint is None and same_place and any(last.get(key) != best.get(key) for key in keys):
        where, was, now = (plain(str(one.get(key))) for one, key in (
            (best, "path"), (best, "step"), (last, "step"),
        ))  # fmt: skip
        own = f"The guard kept a copy in {plain(copy)}: put that where the new trainer can read it, and"
        raise CliError(
            f"the last good checkpoint, of step {was}, was in {where}, where that of step {now} has been "
            f"saved since. {own if copy else 'If you have a copy of it,'} name that with --checkpoint"
        )
    return best


def _refuse_running(name: str, phase: Any) -> None:
    if phase not in ENDED:
        raise CliError(
            f"{plain(name)} has not ended: its phase is {plain(str(phase or 'not known yet'))[:40]}. What is "
            f"{', '.join(ENDED[:-1])} or {ENDED[-1]} can be gone on from"
        )


def _metadata(old: Mapping[str, Any], name: str) -> Json:
    """The names of the new job, with the labels and annotations that people gave the old one."""
    kept = {
        "namespace": old.get("namespace"),
        **{
            part: {
                key: value
                for key, value in _object(old.get(part)).items()
                if isinstance(value, str) and not key.startswith(_OF_TOOLS)
            }
            for part in ("labels", "annotations")
        },
    }
    return {"name": name} | {key: value for key, value in kept.items() if value}


def next_name(name: str) -> str:
    """`run-2` of `run`, `run-3` of `run-2`; cut where it is too long for a job."""
    match = re.fullmatch(r"(.+)-([2-9]|[1-9]\d)", name)
    stem, number = (name, 2) if match is None else (match[1], int(match[2]) + 1)
    return f"{stem[: MAX_JOB_NAME - len(f'-{number}')].rstrip('-')}-{number}"


def _as_json(value: Any, what: str) -> Any:
    """The same as an API server has it, apart from what it was; a date is a text there.

    Raises:
        CliError: it is nested too deep, or holds itself, a number that is none, or a key that is no text.
    """
    try:
        return json.loads(json.dumps(value, default=str, allow_nan=False))
    except (ValueError, RecursionError, TypeError):
        raise CliError(f"{what} is nested too deep, or holds what JSON cannot") from None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
