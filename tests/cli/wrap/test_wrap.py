"""`rlguard wrap`: a manifest in, the guarded manifest out, or one sentence."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import yaml

Run = Callable[..., subprocess.CompletedProcess[str]]
Json = dict[str, Any]
HELDOUT = "claim:held/a/heldout.jsonl"

SPEC = """\
# what runs
spec:
  # how often
  backoffLimit: 3
  template:
    spec:
      restartPolicy: "Never"   # quoted
      containers:
      - name: 'x'
        image: i
        # how
        command: [sh, -c, "a"]
        args:
        - |
          # no comment
          echo a

          # the last line
        volumeMounts: [{name: ck, mountPath: /ck}]
        # the last of it
      volumes:
      - name: ck
        persistentVolumeClaim: {claimName: saved}   # mine
      - {name: config, configMap: {name: c}}
"""
JOB = f"""\
# my run
apiVersion: batch/v1   # the version
# what it is
kind: Job
metadata:   # who
  # its name
  name: my-run   # short
  namespace: team
  uid: abc   # of the cluster
  # of the team
  labels:
    team: a   # us
  ownerReferences:
  - {{name: x}}

{SPEC}# of another time
status:
  active: 1
"""
WRAPPED = f"""\
# my run
apiVersion: rlguard.dev/v1alpha1
kind: GuardedTrainingJob
metadata:
  # its name
  name: my-run   # short
  namespace: team
spec:
  template:
    apiVersion: batch/v1   # the version
    # what it is
    kind: Job
    metadata:   # who
      # of the team
      labels:
        team: a   # us
{indent(SPEC, "    ")}\
  guard:
    heldout:
      volume:
        claimName: held
      split: a/heldout.jsonl
      evaluator:
        hf: {{}}
    checkpoints:
      volume: ck
"""
#: The same kind of job in as few words as it can be made of.
SHORT = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: run}
spec:
  pytorchReplicaSpecs:
    Worker:
      template:
        spec:
          securityContext: {runAsNonRoot: true}
          containers:
          - {name: pytorch, image: i, volumeMounts: [{name: ck, mountPath: /ck}]}
          volumes:
          - {name: ck, persistentVolumeClaim: {claimName: saved}}
"""


@pytest.fixture
def wrap(rlguard: Run, tmp_path: Path) -> Run:
    """Wraps a text or bytes, with these further options."""

    def run(content: str | bytes, *more: str, heldout: str = HELDOUT, checkpoints: str = "ck") -> Any:
        file = tmp_path / "job.yaml"
        file.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
        return rlguard("wrap", "-f", file, "--heldout", heldout, "--checkpoints", checkpoints, *more)

    return run


def wrapped(done: subprocess.CompletedProcess[str]) -> Json:
    """The object that was printed."""
    assert done.returncode == 0, done.stderr
    [job] = [one for one in yaml.safe_load_all(done.stdout) if one and one["kind"] == "GuardedTrainingJob"]
    return job


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """What was said; nothing may be on stdout then."""
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    assert done.stderr.startswith("rlguard wrap: ")
    return done.stderr


def in_spec(line: str) -> str:
    return SHORT.replace("spec:\n", f"spec:\n  {line}\n", 1)


def with_image(text: str) -> str:
    return SHORT.replace("image: i", f"image: {text}")


# -- what is printed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("kind: ConfigMap   # first\ndata: {a:   x}\n---\n", "---\nkind: Secret\n\n# end\n"),
        ("---\n---   # nothing\n---\n", "---\n"),
        ("kind: ConfigMap\ndata:\n  a: |+\n    ---x\n\n---\n", '---\n{"kind":\t1}'),
    ],
)
def test_comments_order_and_quotes_stay_and_other_documents_as_they_are(
    wrap: Run, before: str, after: str
) -> None:
    assert wrap(f"{before}{JOB}{after}").stdout == f"{before}{WRAPPED}{after}"


FURTHER_IN = """\
spec:
  template:
    spec:
      containers:
        - name: x
          # how
          command:
            # first
            - a   # of all
            - b
          volumeMounts: [{name: ck, mountPath: /ck}]
      volumes:
        # ours
        - name: ck
          persistentVolumeClaim: {claimName: saved}
"""


@pytest.mark.parametrize("by", ["  ", "    "])
def test_indentation_stays(wrap: Run, by: str) -> None:
    spec = FURTHER_IN.replace("  ", by).replace("- ", "-" + by[1:])
    done = wrap(f"apiVersion: batch/v1\nkind: Job\nmetadata: {{name: run}}\n{spec}")
    assert indent(spec, "    ") in done.stdout, done.stderr


SAME_MEANING = {
    "JSON": json.dumps(yaml.safe_load(JOB) | {"x": "\N{SNAKE}"}, indent="\t"),
    "an anchor that is left behind": JOB.replace("# my run", "x: &r Never").replace('"Never"', "*r"),
    "anchors of metadata": JOB.replace("team: a", "team: &t a")
    .replace("'x'", "*t")
    .replace("my-run", "&n my-run"),
    "all of it indented": "".join(f" {line}\n" for line in JOB.splitlines()),
    "other ends of lines": JOB.replace("# what runs", "# what\x85# \u2028# runs").replace("\n", "\r\n"),
    "a byte order mark": "\ufeff" + JOB,
}


@pytest.mark.parametrize("text", SAME_MEANING.values(), ids=SAME_MEANING.keys())
def test_any_spelling_of_the_job_means_the_same(wrap: Run, text: str) -> None:
    job, expected = wrapped(wrap(text)), yaml.safe_load(WRAPPED)
    if "*t" in text:
        expected["spec"]["template"]["spec"]["template"]["spec"]["containers"][0]["name"] = "a"
    assert job == expected


def test_values_are_written_as_they_were(wrap: Run) -> None:
    """What they mean is for kubectl to say."""
    values = ["1e-6", '"1e-6"', "0o17", "y", "'y'", "2026-01-02", "1:30", "08", "True", "~"]
    listed = "".join(f"\n  - {value}" for value in values)
    assert indent(listed[1:], "    ") in wrap(in_spec(f"nprocPerNode:{listed}")).stdout


def test_placeholders_stay_and_are_named_also_where_a_number_must_be(wrap: Run) -> None:
    indexed = "completionMode: Indexed\n  parallelism: $NUM_NODES\n  completions: $NUM_NODES"
    done = wrap(JOB.replace("backoffLimit: 3", indexed).replace("image: i", "image: ${IMAGE}"))
    assert wrapped(done)["spec"]["template"]["spec"]["parallelism"] == "$NUM_NODES"
    assert "fill in $NUM_NODES, ${IMAGE} before you apply it: its value was not checked" in done.stderr
    assert "passes the checks" not in done.stderr and "passes the checks" in wrap(JOB).stderr
    assert "fill in" not in wrap(JOB.replace('"a"', "$A")).stderr, "that is the shell's"
    words = JOB.replace("backoffLimit: 3", "parallelism: many")
    assert "parallelism must be a whole number" in refused(wrap(words))


def test_what_belongs_to_the_cluster_is_left_out_and_named(wrap: Run) -> None:
    noted = "annotations: {kubectl.kubernetes.io/last-applied-configuration: '{}'}"
    done = wrap(JOB.replace("uid: abc", f"{noted}\n  uid: abc"))
    assert done.stdout == WRAPPED
    left_out = (
        "status, metadata.uid, metadata.ownerReferences, metadata.annotations.kubectl.kubernetes.io/last-app"
    )
    assert f"left out: {left_out}" in done.stderr
    assert "left out" not in wrap(SHORT).stderr


def test_labels_and_annotations_are_those_of_the_workload(wrap: Run) -> None:
    job = wrapped(wrap(SHORT.replace("{name: run}", "{name: run, labels: {q: r}, annotations: {a: b}}")))
    assert job["metadata"] == {"name": "run"}
    assert job["spec"]["template"]["metadata"] == {"labels": {"q": "r"}, "annotations": {"a": "b"}}
    for metadata in ("{name: run}", "{name: run, labels: }", "{name: run, labels: null}"):
        job = wrapped(wrap(SHORT.replace("{name: run}", metadata)))
        assert "metadata" not in job["spec"]["template"]


def test_another_name(wrap: Run) -> None:
    done = wrap(JOB, "--name", "second")
    assert done.stdout == WRAPPED.replace("my-run", "second")
    assert "kubectl delete job my-run -n team --ignore-not-found" in done.stderr
    assert 'name: "on"' in wrap(JOB, "--name", "on").stdout, "for kubectl that would be `true`"
    generated = SHORT.replace("{name: run}", "{generateName: run-}")
    assert "metadata.name is not set: give the job a name with --name" in refused(wrap(generated))
    done = wrap(generated, "--name", "other")
    assert wrapped(done)["metadata"] == {"name": "other"} and "kubectl delete" not in done.stderr
    assert "--name gives it another" in refused(wrap(SHORT.replace("{name: run}", "{name: my.run}")))


# -- files of any kind -------------------------------------------------------------------------------------

BOMB = "".join(
    f"  {b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
NO_JOB = (
    "it has no PyTorchJob (kubeflow.org/v1), Job (batch/v1), RayJob (ray.io/v1) or JobSet "
    "(jobset.x-k8s.io/v1alpha2)"
)
HEAD = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\n"


HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "a list": ("- a\n- b", NO_JOB),
    "an object beside its dashes": (f"{SHORT}---  a: 1", "it is not YAML at line 14, column 1"),
    "a tab": ("a:\n\tb: 1", "it is not YAML at line 2, column 1: found character '\\t'"),
    "half of an escaped pair": (with_image('"\\ud83d"'), "surrogates not allowed"),
    "too large": ("#" * (1 << 20) + "\n" + SHORT, "larger than 1 MiB"),
    "too deep": (f"{HEAD}spec: {'{a: ' * 300}{'}' * 300}", "nested too deeply"),
    "an alias of itself": (f"{HEAD}spec: &a {{template: *a}}", "Circular reference"),
    "aliases of aliases": (f"{HEAD}spec:\n  a: &a [1, 2]\n{BOMB}", "written out it is larger than 1 MiB"),
    "another kind": ("apiVersion: v1\nkind: Pod", f"{NO_JOB}: it has Pod (v1)"),
    "a kind whose pods take no guard": (
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob",
        "it has TrainJob (trainer.kubeflow.org/v1alpha1); a TrainJob is guarded where it exists",
    ),
    "two jobs": (f"{SHORT}---\n{SHORT}", "2 training jobs (PyTorchJob at line 1, PyTorchJob at line 15)"),
    "a key twice": (in_spec("py: 1\n  py: 2"), 'line 6, column 3: found duplicate key "py"'),
    "an object of Python": (with_image("!!python/name:os.system x"), "it is not YAML at line 11"),
    "an endless number": (with_image("9" * 5000), "a number in it is none"),
    "a merge into the root": (f"x: &x {{a: b}}\n<<: *x\n{SHORT}", "write out its anchors and `<<`"),
    "metadata of the pod that are the job's": (
        SHORT.replace("{name: run}", "&m {name: run, labels: {a: b}}").replace(
            "template:\n", "template:\n        metadata: *m\n"
        ),
        "write out its anchors and `<<`",
    ),
    "no metadata": ("apiVersion: batch/v1\nkind: Job\nspec: {}", "metadata is missing"),
    "a number as a name": (SHORT.replace("{name: run}", "{name: 1}"), "metadata.name is no text"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "said"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_file_that_cannot_be_used_is_a_sentence(wrap: Run, content: str | bytes, said: str) -> None:
    assert said in refused(wrap(content)) and "Traceback" not in said


def test_a_wrong_value_at_any_place_of_the_job_breaks_nothing(wrap: Run) -> None:
    """What the operator has no word against is for the API server's schema to see."""
    for number, line in enumerate(lines := SHORT.splitlines(keepends=True)):
        if number < 4 or not line.rstrip().endswith(":"):
            continue
        for value in ("null", "1", "[1]", "{name: 1}"):
            depth = len(line) - len(line.lstrip())
            rest = [one for one in lines[number + 1 :] if len(one) - len(one.lstrip()) < depth]
            done = wrap("".join([*lines[:number], f"{line.rstrip()} {value}\n", *rest]))
            assert (done.returncode == 2) == (done.stdout == ""), done.stderr


def test_stdin(rlguard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(JOB.encode())))
    words = ("wrap", "--heldout", HELDOUT, "--checkpoints", "ck", "-f", "-")
    assert rlguard(*words).stdout == WRAPPED


def test_a_file_that_cannot_be_read(rlguard: Run, tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "none.yaml"):
        done = rlguard("wrap", "-f", file, "--heldout", HELDOUT, "--checkpoints", "ck")
        assert done.returncode == 2 and f"'{file}': " in done.stderr


@pytest.mark.parametrize("name", ["$(id)", "--all"])
def test_no_name_is_a_command_of_a_shell(wrap: Run, name: str) -> None:
    text = SHORT.replace("{name: run}", f'{{name: "{name}"}}')
    done = wrap(text, "--name", "other")
    assert wrapped(done) and "kubectl delete" not in done.stderr
    said = refused(wrap(SHORT.replace("{name: run}", f'{{name: run, namespace: "{name}"}}')))
    assert "metadata.namespace must be a DNS label" in said


def test_what_is_said_steers_no_terminal(wrap: Run) -> None:
    text = SHORT.replace(
        "{name: ck, per", '{name: "rlguard-\\e[31m", emptyDir: {}}\n          - {name: ck, per'
    )
    assert "\x1b" not in refused(wrap(text)) and "[31m" in refused(wrap(text))


# -- the guard ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heldout", "volume", "split"),
    [
        ("claim:held/a/b.jsonl", {"claimName": "held"}, "a/b.jsonl"),
        ("secret:held/heldout.jsonl", {"secretName": "held"}, "heldout.jsonl"),
        ("configmap:held/1e5", {"configMapName": "held"}, "1e5"),
        ("configmap:held/y", {"configMapName": "held"}, "y"),
    ],
)
def test_where_the_split_lies(wrap: Run, heldout: str, volume: Json, split: str) -> None:
    done = wrap(SHORT, heldout=heldout)
    found = wrapped(done)["spec"]["guard"]["heldout"]
    assert (found["volume"], found["split"]) == (volume, split)
    assert "split: y" not in done.stdout, "for kubectl that would be `true`"


def test_each_option_of_an_evaluation_has_its_place(wrap: Run) -> None:
    words = (
        "--scorer math --proxy-scorer grader:of --scorer-timeout 5 --on-scorer-timeout error "
        "--max-new-tokens 9 --temperature 1 --stop no --samples 4 --batch-size 8 --device cpu "
        "--base-model base --no-chat --system-prompt be --answer-after </think> --backlog newest"
    )
    variables = ("--chat-template-kwargs", '{"enable_thinking": false, "a_b": {"c_d": 1}}')
    heldout = wrapped(wrap(SHORT, *words.split(), *variables))["spec"]["guard"]["heldout"]
    assert {key: value for key, value in heldout.items() if key not in ("volume", "split", "evaluator")} == {
        **{"scorer": "math", "proxyScorer": "grader:of", "scorerTimeoutSeconds": 5.0},
        **{"onScorerTimeout": "error", "backlog": "newest"},
    }
    assert heldout["evaluator"]["hf"] == {
        **{"maxNewTokens": 9, "temperature": 1.0, "stop": ["no"], "samples": 4, "batchSize": 8},
        **{"device": "cpu", "baseModel": "base", "chat": False, "systemPrompt": "be"},
        **{"answerAfter": "</think>", "chatTemplateKwargs": {"enable_thinking": False, "a_b": {"c_d": 1}}},
    }


REFUSED_OPTIONS = {
    "--heldout held.jsonl": "write claim:NAME/PATH",
    "--heldout secret:held/a/b": "a/b is no key of a secret",
    "--heldout claim:Held/a": "spec.guard.heldout.volume.claimName",
    "--on-scorer-timeout wrong": "without a limit means nothing",
    "--samples 2 --temperature 0": "set a temperature above 0",
    "--chat-template-kwargs [1]": "must be a JSON object",
    "--keep-best": "keepBest needs state.claimName",
    "--state-claim held": "must not be the claim of the held-out split",
    "--follow m.jsonl --format varl": "did you mean verl",
    "--follow m.jsonl --checkpoints ck/../x": "spec.guard.metrics.checkpoints.path",
    "--format verl": "--format verl is for a guard that reads a log: give --follow, too",
}


@pytest.mark.parametrize("options", REFUSED_OPTIONS)
def test_an_option_that_cannot_be_used_is_refused(wrap: Run, options: str) -> None:
    assert REFUSED_OPTIONS[options] in refused(wrap(SHORT, *options.split()))


def test_vllm_and_a_pod_of_its_own(wrap: Run) -> None:
    done = wrap(
        SHORT,
        "--vllm",
        "--placement",
        "Pod",
        "--state-claim",
        "st",
        "--keep-best",
        "--train-prompts",
        "t.jsonl",
    )
    guard = wrapped(done)["spec"]["guard"]
    assert (guard["placement"], guard["state"]) == ("Pod", {"claimName": "st", "keepBest": True})
    assert guard["heldout"]["trainPrompts"] == "t.jsonl"
    assert "the guard: in a pod of its own" in done.stderr and "beside the container" not in done.stderr
    assert "rlguard/guard-vllm" in done.stderr


def test_a_policy(wrap: Run, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("kl: {hard_stop: -1}")
    assert "kl.hard_stop: Input should be greater than 0" in refused(wrap(SHORT, "--policy", policy))
    policy.write_text("detector: heldout_guard\nkl: {hard_stop: 0.5}\nsilent: {action: stop}\n")
    done = wrap(SHORT, "--policy", policy)
    expected = {"detector": "HeldoutGuard", "kl": {"hardStop": 0.5}, "silent": {"action": "Stop"}}
    assert wrapped(done)["spec"]["guard"]["policy"] == expected


def test_a_log_is_followed_and_its_checkpoints_found(wrap: Run) -> None:
    """The layout is named where the format does not say it: a framework without one."""
    options = ("--follow", "run/m.jsonl", "--format", "roll", "--layout", "verl", "--checkpoints", "ck/run/7")
    done = wrap(SHORT, *options)
    guard = wrapped(done)["spec"]["guard"]
    assert guard["checkpoints"] == {"volume": "ck"}
    assert guard["metrics"] == {
        "follow": {"path": "run/m.jsonl", "format": "roll"},
        "checkpoints": {"path": "run/7", "layout": "verl"},
    }
    said = "in the volume ck, let the trainer write its log to run/m.jsonl and save in run/7 as verl does"
    assert said in done.stderr and "report reward and checkpoints" not in done.stderr
    assert "metrics" not in wrapped(wrap(SHORT))["spec"]["guard"]


def test_what_was_decided_and_is_still_to_be_done_is_said(wrap: Run) -> None:
    said = wrap(JOB.replace("backoffLimit: 3", "suspend: true"), "--scorer", "numerc").stderr
    for one in (
        "GuardedTrainingJob my-run in namespace team;",
        "the guard: in its pods, beside the container x",
        "checkpoints: volume ck, claim saved",
        "docs/tasks/guard-a-script.md",
        "user 64532",
        "warning: its spec says suspend",
        "warning: scorer 'numerc' is unknown: did you mean numeric?",
    ):
        assert one in said
    temporary = wrap(SHORT.replace("persistentVolumeClaim: {claimName: saved}", "emptyDir: {}")).stderr
    assert "warning: the volume ck is temporary (emptyDir)" in temporary
    assert "in the pods of pytorchReplicaSpecs.Worker, beside the container pytorch" in temporary


# -- what the operator refuses ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("claimName: saved", "claimName: held", ["TemplateRefused", "held"]),
        ("{name: ck, pers", "{name: other, pers", ["TemplateRefused", "must have the volume ck"]),
        ("name: pytorch", "name: main", ["TemplateRefused", "must have a container named pytorch"]),
        (
            "image: i",
            "image: i, env: [{name: RLGUARD_TOKEN, value: x}]",
            ["TemplateRefused", "RLGUARD_TOKEN"],
        ),
        ("{name: run}", "{name: 1run}", ["InvalidSpec", "metadata.name must", "--name gives it another"]),
    ],
)
def test_what_the_operator_would_refuse_is_refused(wrap: Run, old: str, new: str, said: list[str]) -> None:
    assert SHORT.count(old) == 1
    told = refused(wrap(SHORT.replace(old, new)))
    assert all(one in told for one in said), told


def test_relaxed_admits_everything_and_says_what_is_not_isolated(wrap: Run) -> None:
    text = SHORT.replace("securityContext:", "shareProcessNamespace: true\n          securityContext:")
    assert "shareProcessNamespace must not be true" in refused(wrap(text))
    done = wrap(text, "--relaxed")
    assert wrapped(done)["spec"]["guard"]["isolation"] == "Relaxed"
    [told] = [line for line in done.stderr.splitlines() if line.startswith("warning: not isolated: ")]
    assert "shareProcessNamespace" in told
