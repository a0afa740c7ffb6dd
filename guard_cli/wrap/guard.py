"""What the options say: `spec.guard` as it is written, and which volume holds the checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guard_cli.errors import CliError
from guard_cli.wrap.manifest import ManifestError
from guard_operator.adapters import TemplateError, WorkloadAdapter
from guard_operator.api.types import Isolation, policy_to_api
from guard_operator.reconcile.refusals import pod_spec
from guard_service.errors import SettingsError
from guard_service.policy_file import policy_of, read_yaml

#: How `--heldout` names what holds the split -> the field of `spec.guard.heldout.volume`.
SOURCES = {"claim": "claimName", "secret": "secretName", "configmap": "configMapName"}
#: Volumes that can be written and go with their pod.
_PASSING = ("emptyDir", "ephemeral")


def guard_of(
    *,
    heldout: str,
    train_prompts: str | None,
    checkpoints: str,
    scorer: str | None,
    policy: Path | None,
    relaxed: bool,
    evaluator: Mapping[str, Any],
    openai: tuple[str | None, str | None],
) -> dict[str, Any]:
    """`spec.guard` as these options say it; what was not given is left to its default.

    Args:
        heldout: see `SOURCES`, such as claim:NAME/PATH.
        train_prompts: path beside the split.
        checkpoints: name of the volume.
        scorer: its name.
        policy: a file with the policy.
        relaxed: whether the template may have what Strict refuses and Relaxed admits.
        evaluator: settings of the evaluator; of None nothing is written.
        openai: URL and model of a server that is asked instead of loading checkpoints.

    Raises:
        CliError: an option cannot be used.
    """
    volume, split = _source(heldout)
    guard: dict[str, Any] = {
        "heldout": _given(
            volume=volume,
            split=split,
            trainPrompts=train_prompts,
            scorer=scorer,
            evaluator=_evaluator(evaluator, *openai),
        ),
        "checkpoints": {"volume": checkpoints},
    }
    if relaxed:
        guard["isolation"] = Isolation.RELAXED.value
    return guard if policy is None else guard | {"policy": _policy(policy)}


def _source(heldout: str) -> tuple[dict[str, str], str]:
    kind, _, rest = heldout.partition(":")
    name, _, path = rest.partition("/")
    if kind not in SOURCES or not name or not path:
        raise CliError(
            f"--heldout {heldout}: write claim:NAME/PATH for a PersistentVolumeClaim, secret:NAME/KEY or "
            "configmap:NAME/KEY"
        )
    if kind != "claim" and "/" in path:
        raise CliError(f"--heldout {heldout}: {path} is no key of a {kind}, which has no folders")
    return {SOURCES[kind]: name}, path


def _evaluator(settings: Mapping[str, Any], url: str | None, model: str | None) -> dict[str, Any]:
    if (url is None) != (model is None):
        raise CliError("--openai-url and --openai-model belong together: give both or neither")
    if url is None:
        return {"checkpoint": _given(**settings)}
    return {"openai": _given(baseUrl=url, model=model, **settings)}


def _policy(path: Path) -> dict[str, Any]:
    try:
        content = read_yaml(path, "--policy")
        return policy_to_api(policy_of({} if content is None else content, f"--policy {path}"))
    except SettingsError as error:
        raise CliError(str(error)) from None


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


# -- the checkpoints -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Volume:
    """The volume of the checkpoints in words, the pods that have it, and what is wrong with it or ""."""

    says: str
    pods: str
    container: str
    warning: str = ""


def checkpoint_volume(spec: Mapping[str, Any], adapter: WorkloadAdapter, name: str) -> Volume | None:
    """The volume in which rank 0 of a workload with this spec saves; None: its template has not the shape.

    Raises:
        ManifestError: there is no such volume, or nothing can be kept in it; it names those that there are.
    """
    try:
        template = next(one for one in adapter.pod_templates(spec) if one.guarded)
        volumes: Sequence[Mapping[str, Any]] = pod_spec(spec, template).get("volumes", [])
    except TemplateError:
        return None  # the operator's own words follow
    known = {volume.get("name"): volume for volume in volumes}
    there = "it has " + (", ".join(f"{one.get('name')} ({_says(one)})" for one in volumes) or "no volumes")
    if name not in known:
        raise ManifestError(f"--checkpoints {name}: the pod of rank 0 has no volume of this name; {there}")
    found, claim = known[name], known[name].get("persistentVolumeClaim")
    if claim is not None and claim.get("readOnly") is True:
        raise ManifestError(f"--checkpoints {name}: the trainer cannot write there; {there}")
    passing = any(found.get(kind) is not None for kind in _PASSING)
    if claim is None and not passing:
        raise ManifestError(
            f"--checkpoints {name}: {_says(found)} is no persistent claim, so no checkpoint is kept; {there}"
        )
    warning = (
        f"the volume {name} is no persistent claim ({_says(found)}): the last good checkpoint goes with the "
        f"pod; {there}"
    )
    pods = f"the pods of {'.'.join(template.path[:-1])}" if template.path[:-1] else "its pods"
    return Volume(_says(found), pods, template.container, warning if passing else "")


def _says(volume: Mapping[str, Any]) -> str:
    """What a volume is, in a few words."""
    kind = next((key for key, value in volume.items() if key != "name" and value is not None), "of no kind")
    claim = volume.get("persistentVolumeClaim")
    if claim is None:
        return str(kind)
    return f"claim {claim.get('claimName')}" + (", read-only" if claim.get("readOnly") is True else "")
