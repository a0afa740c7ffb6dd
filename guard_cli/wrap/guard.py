"""What the options say: `spec.guard` as it is written, and which volume holds the checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic.alias_generators import to_camel

from guard_cli.errors import CliError
from guard_cli.guard_settings import given
from guard_operator.adapters import TemplateError, WorkloadAdapter, dotted
from guard_operator.api.types import Isolation, policy_to_api
from guard_operator.reconcile.refusals import pod_spec
from guard_service.errors import SettingsError
from guard_service.heldout.errors import SplitError
from guard_service.heldout.scorers import BUILT_IN, load_scorer
from guard_service.policy_file import load_policy

#: How `--heldout` names what holds the split -> the field of `spec.guard.heldout.volume`.
SOURCES = {"claim": "claimName", "secret": "secretName", "configmap": "configMapName"}
#: Volumes that can be written and go with their pod, and those that nobody can write.
_PASSING = ("emptyDir", "ephemeral")
_READ_ONLY = ("configMap", "secret", "projected", "downwardAPI", "image")


def guard_section(
    *,
    heldout: str,
    train_prompts: str | None,
    checkpoints: str,
    metrics: Mapping[str, Any] | None,
    scoring: Mapping[str, Any],
    base_model: str | None,
    policy: Path | None,
    relaxed: bool,
    placement: str | None,
    state: Mapping[str, Any],
) -> dict[str, Any]:
    """`spec.guard` as these options say it; what was not given is left to its default.

    Args:
        heldout: see `SOURCES`, such as claim:NAME/PATH.
        train_prompts: path beside the split.
        checkpoints: name of the volume.
        metrics: what the guard reads, see `metrics_section`; None: the trainer reports.
        scoring: settings of the guard, as `heldout_options` has them: its scorers and its evaluator.
        base_model: path beside the split.
        policy: a file with the policy.
        relaxed: whether the template may have what Strict refuses and Relaxed admits.
        placement: where the guard runs; None: beside the trainer.
        state: where the guard keeps what it knows, and whether the best checkpoint, too.

    Raises:
        CliError: an option cannot be used.
    """
    volume, split = _source(heldout)
    guard: dict[str, Any] = {
        "heldout": given(
            volume=volume,
            split=split,
            trainPrompts=train_prompts,
            **_in_api(scoring, base_model),
        ),
        "checkpoints": {"volume": checkpoints},
        **given(metrics=metrics, placement=placement, state=dict(state) or None),
    }
    if relaxed:
        guard["isolation"] = Isolation.RELAXED.value
    return guard if policy is None else guard | {"policy": _policy(policy)}


def metrics_section(
    follow: str | None, format_: str, folder: str, layout: str | None
) -> dict[str, Any] | None:
    """`spec.guard.metrics`: the log, and where and how the trainer saves; None: it reports itself.

    Raises:
        CliError: an option says how a log is read that is not followed.
    """
    if follow is not None:
        saved = given(path=folder or None, layout=layout)
        return {"follow": {"path": follow, "format": format_}, **given(checkpoints=saved or None)}
    if format_ != "auto":
        raise CliError(f"--format {format_} is for a guard that reads a log: give --follow, too")
    if layout is not None:
        raise CliError(f"--layout {layout} is for a guard that reads a log: give --follow, too")
    if folder:
        raise CliError(
            f"--checkpoints …/{folder}: only a guard that reads a log looks there: give --follow, too"
        )
    return None


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


def _in_api(scoring: Mapping[str, Any], base_model: str | None) -> dict[str, Any]:
    """The guard's settings under the names that `spec.guard.heldout` has for them; the evaluator is last."""
    settings = {"base_model": base_model, **scoring.get("evaluator", {})}
    kind = settings.pop("kind", "hf")
    others = {to_camel(name): value for name, value in scoring.items() if name != "evaluator"}
    return others | {"evaluator": {kind: given(**{to_camel(name): one for name, one in settings.items()})}}


def _policy(path: Path) -> dict[str, Any]:
    try:
        return policy_to_api(load_policy(path, "--policy"))
    except SettingsError as error:
        raise CliError(str(error)) from None


def unknown_scorer(name: str | None) -> str:
    """What `rlguard run` would say of a scorer's name; "" of one of ours and of module:function.

    It is no refusal: a package in the guard's image may bring a scorer that is not installed here.
    """
    if name is None or name in BUILT_IN or ":" in name:
        return ""
    try:
        load_scorer(name)
    except SplitError as error:
        return f"{error}. A package in the guard's image may bring it; here it is not installed"
    return ""


def counted_restarts(spec: Mapping[str, Any], adapter: WorkloadAdapter) -> str:
    """What restarts of a guard beside rank 0 of a workload with this spec count for; "": for nothing.

    The operator has found nothing to refuse in it.
    """
    limit = next(one.limit for one in adapter.pod_templates(spec) if one.guarded)
    if not limit:
        return ""
    return (
        f"{dotted(limit)} counts restarts of every container, the guard's too: a guard that runs out of "
        "memory may fail a healthy run (docs/operator.md)"
    )


# -- the checkpoints -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Volume:
    """The volume of the checkpoints in words, and the pods and the container that have it.

    `wrong`: why no checkpoint can be kept in it; `warning`: what is to be known of one that can; or "".
    """

    says: str
    pods: str
    container: str
    wrong: str
    warning: str


def checkpoint_volume(spec: Mapping[str, Any], adapter: WorkloadAdapter, name: str) -> Volume | None:
    """The volume in which rank 0 of a workload with this spec saves; None: its template has not the shape."""
    try:
        template = next(one for one in adapter.pod_templates(spec) if one.guarded)
        volumes: Sequence[Mapping[str, Any]] = pod_spec(spec, template).get("volumes", [])
    except TemplateError:
        return None  # the operator's own words follow
    there = "it has " + (", ".join(f"{one.get('name')} ({_says(one)})" for one in volumes) or "no volumes")
    found = next((volume for volume in volumes if volume.get("name") == name), None)
    pods = f"the pods of {dotted(template.path[:-1])}" if template.path[:-1] else "its pods"
    if found is None:
        wrong = f"the pod of rank 0 has no volume of this name; {there}"
        return Volume("", pods, template.container, wrong, "")
    says, why = _says(found), _wrong(found)
    warning = (
        f"the volume {name} is no persistent claim ({says}): the last good checkpoint goes with the pod; "
        f"{there}"
        if _kind(found) in _PASSING
        else ""
    )
    return Volume(says, pods, template.container, f"{why}; {there}" if why else "", warning)


def _wrong(volume: Mapping[str, Any]) -> str:
    """Why no checkpoint can be kept in a volume; "" if one can."""
    kind = _kind(volume)
    if kind is None or kind in _READ_ONLY:
        return f"no trainer can save in a volume {f'of the kind {kind}' if kind else 'of no kind'}"
    source = volume[kind]
    if isinstance(source, Mapping) and source.get("readOnly") is True:
        return "the trainer cannot write there"
    if kind == "persistentVolumeClaim" and not source.get("claimName"):
        return "its claimName is not set"
    return ""


def _kind(volume: Mapping[str, Any]) -> str | None:
    return next((str(key) for key, value in volume.items() if key != "name" and value is not None), None)


def _says(volume: Mapping[str, Any]) -> str:
    """What a volume is, in a few words."""
    kind = _kind(volume) or "of no kind"
    source = volume.get(kind)
    read_only = ", read-only" if isinstance(source, Mapping) and source.get("readOnly") is True else ""
    claim = volume.get("persistentVolumeClaim")
    return (kind if claim is None else f"claim {claim.get('claimName') or 'without a name'}") + read_only
