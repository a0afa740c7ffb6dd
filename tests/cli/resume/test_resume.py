"""`rlguard resume`: the job that goes on from a checkpoint of a run that is over."""

from __future__ import annotations

import copy
import json
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlguard.cli.errors import CliError
from rlguard.cli.resume.manifest import next_name, resume_job

Json = dict[str, Any]
Run = Callable[..., subprocess.CompletedProcess[str]]
POD = {
    "securityContext": {"runAsNonRoot": True},
    "containers": [
        {"name": "pytorch", "image": "t:1", "volumeMounts": [{"name": "ck", "mountPath": "/ckpt"}]}
    ],
    "volumes": [{"name": "ck", "persistentVolumeClaim": {"claimName": "saved"}}],
}
BEST = {"attempt": 0, "step": 20, "score": 0.625, "items": 128, "path": "/ckpt/run/checkpoint-20"}
JOB: Json = {
    "apiVersion": "rlguard.dev/v1alpha1",
    "kind": "GuardedTrainingJob",
    "metadata": {
        "name": "run",
        "namespace": "training",
        "uid": "u-1",
        "resourceVersion": "7",
        "generation": 1,
        "managedFields": [{}],
        "labels": {"kueue.x-k8s.io/queue-name": "gpus"},
        "annotations": {"team": "a", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
    },
    "spec": {
        "template": {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": {"spec": POD}}}},
        },
        "guard": {
            "heldout": {"volume": {"claimName": "heldout"}, "evaluator": {"hf": {}}},
            "checkpoints": {"volume": "ck"},
        },
        "onFire": "Report",
    },
    "status": {"phase": "Stopped", "guard": {"bestCheckpoint": BEST}, "evidence": "run-evidence"},
}


def job(**status: Any) -> Json:
    changed = copy.deepcopy(JOB)
    changed["status"] |= status
    return changed


def test_it_has_the_template_and_the_guard_and_starts_at_the_last_good_checkpoint() -> None:
    given = job()
    resumed = resume_job(given, None, None)
    assert given == JOB
    origin = {"name": "run", "uid": "u-1", "step": 20, "checkpoint": BEST["path"]}
    assert resumed.manifest == {
        "apiVersion": JOB["apiVersion"],
        "kind": JOB["kind"],
        "metadata": {
            "name": "run-2",
            "namespace": "training",
            "labels": {"kueue.x-k8s.io/queue-name": "gpus"},
            "annotations": {"team": "a"},
        },
        "spec": JOB["spec"] | {"resumedFrom": origin},
    }
    assert (resumed.old, resumed.step, resumed.score) == ("run", 20, 0.625)


def test_what_others_made_is_started_by_them() -> None:
    given = job()
    del given["spec"]["template"]
    given["spec"]["targetRef"] = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "verl"}
    with pytest.raises(CliError) as refused:
        resume_job(given, None, None)
    said = f"run is attached to RayCluster verl, which others made. Start that from {BEST['path']}"
    assert str(refused.value).startswith(said)


def test_another_checkpoint_has_no_step_that_is_known() -> None:
    resumed = resume_job(job(guard={}), None, "/ckpt/other")
    assert resumed.manifest["spec"]["resumedFrom"] == {
        "name": "run",
        "uid": "u-1",
        "checkpoint": "/ckpt/other",
    }
    assert (resumed.step, resumed.score) == (None, None)
    assert resume_job(job(), None, str(BEST["path"])).step == 20


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("run", "run-2"),
        ("run-9", "run-10"),
        ("run-1", "run-1-2"),
        ("grpo-7b-2026", "grpo-7b-2026-2"),
        ("r" * 44 + "-ab", "r" * 44 + "-2"),
    ],
)
def test_the_next_name_is_numbered_and_short_enough(old: str, new: str) -> None:
    assert next_name(old) == new


@pytest.mark.parametrize("key", ["attempt", "step", "sha256"])
def test_weights_that_were_saved_over_the_last_good_ones_are_not_them(key: str) -> None:
    best = BEST | {"sha256": "a" * 64}
    other = best | {key: "b" * 64 if key == "sha256" else 40}
    given = job(guard={"bestCheckpoint": best, "lastEvaluation": other})
    with pytest.raises(CliError, match=r"where that of step .* has been saved since"):
        resume_job(given, None, None)
    assert resume_job(given, None, "/ckpt/copy").checkpoint == "/ckpt/copy"
    kept = job(guard={"bestCheckpoint": best, "lastEvaluation": best})
    assert resume_job(kept, None, None).manifest["spec"]["resumedFrom"]["sha256"] == "a" * 64
    elsewhere = job(guard={"bestCheckpoint": best, "lastEvaluation": other | {"path": "/ckpt/40"}})
    assert resume_job(elsewhere, None, None).step == 20


def test_what_other_tools_know_their_objects_by_is_left_out() -> None:
    given = job()
    given["metadata"]["labels"] |= {"app.kubernetes.io/instance": "x", "team": "a", "odd": 7}
    given["metadata"]["annotations"] |= {"argocd.argoproj.io/tracking-id": "x"}
    metadata = resume_job(given, None, None).manifest["metadata"]
    assert metadata["labels"] == {"kueue.x-k8s.io/queue-name": "gpus", "team": "a"}
    assert metadata["annotations"] == {"team": "a"}


@pytest.mark.parametrize("best", [{"score": 10**400}, {"score": "much"}, {"step": True}, {"step": "x"}])
def test_what_a_stranger_wrote_of_a_checkpoint_is_not_known(best: Json) -> None:
    resumed = resume_job(job(guard={"bestCheckpoint": BEST | best}), None, None)
    assert getattr(resumed, *best) is None
    assert resumed.manifest["spec"]["resumedFrom"].get("step") == (20 if "score" in best else None)


@pytest.mark.parametrize("phase", ["Running", "Stopping", None, {}])
def test_what_has_not_ended_is_not_gone_on_from(phase: Any) -> None:
    with pytest.raises(CliError, match="run has not ended: its phase is"):
        resume_job(job(phase=phase), None, None)


@pytest.mark.parametrize("guard", [None, {"bestCheckpoint": {"path": 7}}, []])
def test_without_a_checkpoint_that_was_scored_it_says_what_to_do(guard: Any) -> None:
    with pytest.raises(CliError, match=r"no checkpoint of run has been scored.*--checkpoint"):
        resume_job(job(guard=guard), None, None)


@pytest.mark.parametrize(
    "given", [None, [], JOB | {"kind": "PyTorchJob"}, JOB | {"metadata": {}}, {"items": [JOB]}]
)
def test_what_is_no_such_job(given: Any) -> None:
    with pytest.raises(CliError, match="this is no GuardedTrainingJob"):
        resume_job(given, None, None)


# -- the command -------------------------------------------------------------------------------------------


@pytest.fixture
def resume(rlguard: Run, tmp_path: Path) -> Run:
    """`rlguard resume` of a job in a file, with these options."""

    def run(given: Json, *options: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(given))
        return rlguard("resume", tmp_path / "job.yaml", *options)

    return run


def test_the_object_goes_to_stdout_and_words_to_stderr(resume: Run) -> None:
    done = resume(job())
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout) == resume_job(job(), None, None).manifest
    assert "run-2 starts from the checkpoint of step 20 of run, held-out 0.6250: /ckpt/run" in done.stderr
    assert "a reward that was hacked will be again" in done.stderr
    assert "look before you create it: the old run's trainer may" in done.stderr
    assert done.stderr.endswith("once it is created: rlguard status run-2 -n training\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--checkpoint", "/elsewhere/20"], "spec.resumedFrom.checkpoint must be in the volume ck"),
        (["--checkpoint", "/ckpt/../secret"], "spec.resumedFrom.checkpoint must be in the volume ck"),
        (["--checkpoint", "ckpt/20"], "spec.resumedFrom.checkpoint"),
        (["--name", "Run_2"], "metadata.name must be a DNS-1035 label"),
    ],
)
def test_what_the_operator_would_refuse_is_not_printed(resume: Run, options: list[str], said: str) -> None:
    done = resume(job(), *options)
    assert done.returncode == 2 and done.stdout == ""
    assert "the operator would refuse it" in done.stderr and said in done.stderr
    assert "so nothing is printed" in done.stderr


class Handler(BaseHTTPRequestHandler):
    """An API server that has a job, and takes no other request than to read it."""

    def do_GET(self) -> None:
        content = json.dumps(job()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def test_the_job_of_a_cluster_is_printed_under_the_next_name(rlguard: Run, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "training"}}],
            "current-context": "x",
        }
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        done = rlguard("resume", "run", "--kubeconfig", str(tmp_path / "config"))
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout) == resume_job(job(), None, None).manifest
    assert done.stderr.endswith("once it is created: rlguard status run-2 -n training\n")


# -- what is said ------------------------------------------------------------------------------------------


def test_a_path_of_a_stranger_steers_no_terminal_and_no_object(resume: Run) -> None:
    for path in ("/ckpt/\x1b[2Jx", "/ckpt/\x9b2J", "/ckpt/\x7f", "/ckpt/a\nkind: Pod", "/ckpt/" + "x" * 5000):
        done = resume(job(guard={"bestCheckpoint": BEST | {"path": path}}))
        assert done.returncode == 2 and done.stdout == "" and "\x1b" not in done.stderr
    odd = '/ckpt/\u202eit\'s "0o17" # $(HOME): {x}'
    done = resume(job(guard={"bestCheckpoint": BEST | {"path": odd}}))
    assert "\u202e" not in done.stderr
    assert yaml.safe_load(done.stdout)["spec"]["resumedFrom"]["checkpoint"] == odd


def keeping(**status: Any) -> Json:
    """A job whose guard keeps the best weights in a claim."""
    given = job(**status)
    given["spec"]["guard"]["state"] = {"claimName": "state", "keepBest": True}
    return given


def test_no_copy_is_named_of_what_the_guard_did_not_keep(resume: Run) -> None:
    assert "the guard kept" not in resume(job()).stderr
    without = job()
    without["spec"]["guard"]["state"] = {"claimName": "state"}
    assert "the guard kept" not in resume(without).stderr
    other = resume(keeping(), "--checkpoint", "/ckpt/run/checkpoint-10")
    assert other.returncode == 0 and "the guard kept" not in other.stderr


def test_the_copy_is_named_where_other_weights_were_saved_over_the_last_good_ones() -> None:
    over = {"bestCheckpoint": BEST, "lastEvaluation": BEST | {"step": 40}}
    with pytest.raises(CliError, match=r"The guard kept a copy in u-1/best of the claim state.*--checkpoint"):
        resume_job(keeping(guard=over), None, None)
    with pytest.raises(CliError, match=r"saved since\. If you have a copy of it, name that"):
        resume_job(job(guard=over), None, None)


@pytest.mark.parametrize(
    ("format_", "said"),
    [
        ("verl", f"verl starts there with `actor_rollout_ref.model.path={BEST['path']} "),
        ("roll", "there are no settings for ROLL: "),
        ("trl", ""),
    ],
)
def test_a_trainer_that_is_followed_has_to_be_told_by_its_command(
    resume: Run, format_: str, said: str
) -> None:
    given = job()
    followed = {"follow": {"path": "log.jsonl", "format": format_}}
    given["spec"]["guard"]["metrics"] = followed | {"checkpoints": {"path": "run", "layout": "verl"}}
    done = resume(given)
    assert done.returncode == 0, done.stderr
    assert "starts at that checkpoint only if its command says so" in done.stderr
    assert "new FOLDER" in done.stderr and said in done.stderr
    assert "followed" not in resume(job()).stderr
