"""The trainer of each sample, taken out of its guard and wrapped again, is what the sample means."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlguard.operator.api.guard import Resources
from rlguard.operator.api.types import Spec
from tests.docs.blocks import blocks

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "k8s" / "samples"
NUMERIC = ("--scorer", "numeric")
ON_CPU = ("--device", "cpu", "--batch-size")
CLAIM = "claim:heldout/heldout.jsonl"
FOLLOWED = ("--follow", "metrics.jsonl", "--format", "verl")
POLICY = ("--policy", str(ROOT / "rlguard/cli/demo/policy.yaml"))
OWN_POD = ("--placement", "Pod", "--state-claim", "guard-pod-state")
WAYS = {
    "single-gpu.yaml": (CLAIM, (*NUMERIC, *ON_CPU, "8")),
    "batch-job.yaml": (CLAIM, (*NUMERIC, *ON_CPU, "8")),
    "multi-node.yaml": (CLAIM, (*NUMERIC, *ON_CPU, "8")),
    "jobset.yaml": (CLAIM, (*NUMERIC, *ON_CPU, "8")),
    "rayjob.yaml": (CLAIM, (*NUMERIC, *ON_CPU, "8")),
    "followed-job.yaml": (
        CLAIM,
        (*NUMERIC, *ON_CPU, "8", "--max-new-tokens", "512", *FOLLOWED),
    ),
    "guard-pod.yaml": (CLAIM, (*NUMERIC, "--vllm", *OWN_POD)),
    "cpu-demo/job.yaml": ("secret:cpu-demo-heldout/heldout.jsonl", (*ON_CPU, "256", *POLICY)),
}
#: Written by hand: `wrap` makes a job of a workload that is to be made.
BY_HAND = ("attached-raycluster.yaml", "attached-trainjob.yaml")


def without_guard(text: str) -> tuple[str, dict[str, Any]]:
    """A sample's file with its job alone, as it is without a guard, and the sample's own object."""
    documents = list(yaml.safe_load_all(text))
    [guarded] = [one for one in documents if one["kind"] == "GuardedTrainingJob"]
    job = {**guarded["spec"]["template"], "metadata": {"name": guarded["metadata"]["name"]}}
    return yaml.safe_dump_all([job if one is guarded else one for one in documents]), guarded


def meant(guarded: dict[str, Any]) -> Spec:
    """The spec, without what `wrap` leaves to others: image and resources of the guard, and its node."""
    spec = Spec.model_validate(guarded["spec"])
    guard = spec.guard.model_copy(update={"image": None, "resources": Resources(), "pod": None})
    return spec.model_copy(update={"guard": guard})


@pytest.mark.parametrize("sample", WAYS)
def test_wrapped_again_it_means_the_same(
    rlguard: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, sample: str
) -> None:
    bare, own = without_guard((SAMPLES / sample).read_text("utf-8"))
    file = tmp_path / "job.yaml"
    file.write_text(bare)
    heldout, options = WAYS[sample]
    done = rlguard("wrap", "-f", file, "--heldout", heldout, "--checkpoints", "checkpoints", *options)
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    [made] = [one for one in documents if one["kind"] == "GuardedTrainingJob"]
    assert meant(made) == meant(own)
    assert made["metadata"]["name"] == own["metadata"]["name"]
    assert [one for one in documents if one is not made] == [
        one
        for one in yaml.safe_load_all(bare)
        if one["kind"] not in ("PyTorchJob", "Job", "RayJob", "JobSet")
    ]


def test_the_page_shows_what_is_printed(
    rlguard: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    page = list(blocks(ROOT / "docs" / "quickstart-kubernetes.md"))
    [given] = [one for one in page if one.title == "job.yaml"]
    [shown] = [one for one in page if "kind: GuardedTrainingJob" in one.text]
    [command] = [line for one in page for line in one.commands if line.startswith("rlguard wrap")]
    (tmp_path / "job.yaml").write_text(given.text)
    words = shlex.split(command.partition(" > ")[0].replace("job.yaml", str(tmp_path / "job.yaml")))
    assert rlguard(*words[1:]).stdout == f"{shown.text}\n"


def test_every_sample_is_tried() -> None:
    found = {path for path in SAMPLES.rglob("*.yaml") if "kind: GuardedTrainingJob" in path.read_text()}
    assert found == {SAMPLES / name for name in (*WAYS, *BY_HAND)}
