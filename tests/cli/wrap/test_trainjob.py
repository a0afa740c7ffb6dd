"""`rlguard wrap` of a TrainJob, whose pods are made of a runtime: in the same file, or given beside it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

Run = Callable[..., subprocess.CompletedProcess[str]]
JOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: run}
spec:
  runtimeRef: {name: torch}   # the platform's
  trainer: {image: mine, env: [{name: A, value: b}]}
  runtimePatches:
  - manager: example.com/me
    trainingRuntimeSpec:
      template:
        spec:
          replicatedJobs:
          - name: node
            template:
              spec:
                template:
                  spec:
                    containers:
                    - {name: node, volumeMounts: [{name: ck, mountPath: /ck}]}
                    volumes:
                    - {name: ck, persistentVolumeClaim: {claimName: saved}}
"""
RUNTIME = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: torch}
spec:
  mlPolicy: {torch: {}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
            template:
              spec:
                securityContext: {runAsNonRoot: true}
                containers:
                - {name: node, image: i}
"""


@pytest.fixture
def wrap(rlguard: Run, tmp_path: Path) -> Run:
    """Wraps a text, with a text of its runtime beside it."""

    def run(job: str, runtime: str | bytes | None = None) -> subprocess.CompletedProcess[str]:
        (tmp_path / "job.yaml").write_text(job)
        options = ["-f", tmp_path / "job.yaml", "--heldout", "claim:held/h.jsonl", "--checkpoints", "ck"]
        if runtime is not None:
            content = runtime if isinstance(runtime, bytes) else runtime.encode()
            (tmp_path / "runtime.yaml").write_bytes(content)
            options += ["--runtime", tmp_path / "runtime.yaml"]
        return rlguard("wrap", *options)

    return run


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    assert done.stderr.startswith("rlguard wrap: ") and "Traceback" not in done.stderr
    return done.stderr


def test_in_the_same_file_the_runtime_stays_as_it_is(wrap: Run) -> None:
    done = wrap(f"{RUNTIME}---\n{JOB}")
    assert done.returncode == 0, done.stderr
    runtime, job = yaml.safe_load_all(done.stdout)
    assert runtime == yaml.safe_load(RUNTIME)
    template = job["spec"]["template"]
    assert template["spec"] == yaml.safe_load(JOB)["spec"] and "# the platform's" in done.stdout
    assert "checkpoints: volume ck, claim saved" in done.stderr
    assert "beside the container node" in done.stderr
    assert "its pods: of ClusterTrainingRuntime torch as that is when the job is created" in done.stderr


@pytest.mark.parametrize("other", ["", "---\n" + RUNTIME.replace("name: torch", "name: other")])
def test_without_it_is_said_how_to_get_it(wrap: Run, other: str) -> None:
    said = refused(wrap(f"{JOB}{other}"))
    assert (
        "its pods are made of the ClusterTrainingRuntime torch: give it with --runtime (`kubectl get " in said
    )


def test_what_the_runtime_opens_is_refused_with_its_place(wrap: Run) -> None:
    said = refused(wrap(JOB, RUNTIME.replace("runAsNonRoot: true", "windowsOptions: {}")))
    assert "`runtime` there its runtime with its patches" in said
    assert "runtime.template.spec.replicatedJobs[0].template.spec.template.spec.securityContext" in said


def test_what_the_job_says_over_it_is_refused(wrap: Run) -> None:
    for old, new, said in (
        ("{name: A,", "{name: RLGUARD_URL,", "RLGUARD_URL"),
        ("- name: node", "- name: nodes", "must name a replicatedJob"),
        ("{name: torch}", "{kind: X, name: torch}", "must be a ClusterTrainingRuntime"),
        ("name: ck, persist", "name: other, persist", "has no volume of this name"),
    ):
        assert said in refused(wrap(JOB.replace(old, new), RUNTIME))


def test_a_wrong_value_at_any_place_of_the_runtime_breaks_nothing(wrap: Run) -> None:
    for number, line in enumerate(lines := RUNTIME.splitlines(keepends=True)):
        if number < 3 or not line.rstrip().endswith(":"):
            continue
        for value in ("null", "1", "[1]", "{name: 1}"):
            depth = len(line) - len(line.lstrip())
            rest = [one for one in lines[number + 1 :] if len(one) - len(one.lstrip()) < depth]
            refused(wrap(JOB, "".join([*lines[:number], f"{line.rstrip()} {value}\n", *rest])))


def test_a_runtime_that_is_no_yaml(wrap: Run) -> None:
    assert "runtime.yaml: it is not YAML" in refused(wrap(JOB, "a: [b"))
    assert "runtime.yaml: it is not UTF-8" in refused(wrap(JOB, b"\xff"))
    assert "Circular reference" in refused(wrap(JOB, RUNTIME.replace("spec:\n", "spec: &a\n  x: *a\n", 1)))


def test_a_limit_in_the_runtime_that_counts_restarts_of_the_guard_is_warned_of(wrap: Run) -> None:
    restarts = RUNTIME.replace(
        "securityContext:", "restartPolicy: OnFailure\n                securityContext:"
    )
    limit = "runtime.template.spec.replicatedJobs[0].template.spec.backoffLimit"
    assert (
        f"warning: {limit} counts restarts of every container, the guard's too" in wrap(JOB, restarts).stderr
    )
    assert "counts restarts" not in wrap(JOB, RUNTIME).stderr


def test_a_queue_that_knows_no_trainjob_is_warned_of(wrap: Run) -> None:
    """Kueue v0.11.9 neither suspends nor counts it."""
    queued = JOB.replace("{name: run}", "{name: run, labels: {kueue.x-k8s.io/queue-name: q}}")
    said = wrap(queued, RUNTIME).stderr
    assert "warning: Kueue v0.11.9, with which this is tested, knows no TrainJob" in said
    assert "Kueue" not in wrap(JOB, RUNTIME).stderr
