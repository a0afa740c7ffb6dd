"""`rlguard report`: what an operator kept of a run becomes the page; of any other file a sentence is said."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rlguard.cli.ending import heading_of
from rlguard.cli.errors import CliError
from rlguard.cli.report.command import report
from rlguard.cli.report.evidence import read_evidence
from rlguard.core.codes import Code, Level
from rlguard.core.evaluation import HfEvaluation
from rlguard.core.kept_steps import written_steps
from rlguard.core.policy import Policy
from rlguard.core.wire import EvaluationSummary, FiguresReport, KlKind, Sampling, StepReport, Verdict
from rlguard.operator.api.status import Status
from rlguard.operator.api.types import Spec
from rlguard.operator.guards.reading import guard_status
from rlguard.operator.reconcile.evidence import build_evidence
from rlguard.operator.reconcile.snapshot import Job

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SPEC = {
    "template": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}},
    "guard": {
        "heldout": {"volume": {"claimName": "h"}, "evaluator": {"hf": {}}},
        "checkpoints": {"volume": "c"},
    },
}
BEST = EvaluationSummary(
    attempt=0,
    step=20,
    score=0.5,
    items=64,
    path="/ckpt/20",
    sha256="5" * 64,
    truncated=0.25,
    unanswered=0.125,
    timed_out=0.0625,
    proxy_score=0.75,
    sampling=HfEvaluation().sampling_with(Sampling(temperature=0.7, top_p=0.9, max_new_tokens=300)),
)
FIRED = Verdict(
    level=Level.FIRED,
    code=Code.REWARD_WITHOUT_GAIN,
    reason="the reward rose & <b>nothing</b> else did",
    fire=True,
    halt=False,
    stop=True,
    latch_attempt=1,
    latch_step=40,
    latched_at=NOW,
    attempt=1,
    step=41,
    steps=41,
    rounds=4,
    announced=4,
    evaluated=4,
    in_loop_ema=0.75,
    heldout_ema=0.25,
    proxy_real_gap=0.5,
    last_evaluation=BEST.model_copy(update={"step": 40, "score": 0.25, "attempt": 1}),
    best_evaluation=BEST,
)
ROUNDS = [
    {"attempt": 0, "step": 10 * n, "heldout": 0.5 - n / 16, "reward": n / 4, "kl": 0.5} for n in range(4)
]


STEPS = [
    StepReport(
        attempt=1,
        step=n,
        reward=0.5 + n / 1000,
        kl=n / 100,
        kl_kind=KlKind.REF_TOKEN_MEAN,
        entropy=1.5,
        reward_std=0.25,
    )
    for n in range(1, 41)
]
HOSTILE = "</script><script>alert(1)</script>\u202e\0"
FIGURES = [
    FiguresReport(
        attempt=1,
        step=n,
        figures={
            HOSTILE: 1.0,
            "completions/clipped_ratio": 0.5,
            "rewards/<b>up/mean": n / 40,
            "rewards/<i>down/mean": (40 - n) / 40,
        },
    )
    for n in range(1, 41)
]


def with_steps(total: int = 40) -> dict[str, Any]:
    """Evidence of a guard that told its steps with its last word."""
    lines = [one.model_dump(mode="json") for one in STEPS]
    return kept(steps=written_steps(lines, FIGURES, total))


def condition(kind: str, reason: str, message: str, status: str = "True") -> dict[str, str]:
    said = {"type": kind, "status": status, "reason": reason, "message": message}
    return said | {"lastTransitionTime": NOW.isoformat()}


def kept(
    verdict: Verdict = FIRED,
    policy: Policy | None = None,
    steps: str | None = None,
    ended: tuple[str, str, str] | None = None,
) -> dict[str, Any]:
    """The ConfigMap that the operator keeps of what the guard reported. `ended`: type, reason and message."""
    conditions = [condition("Guarded", "WorkloadCreated", "its guard"), condition("Failed", "x", "", "False")]
    conditions += [condition(*ended)] if ended else []
    status = Status.model_validate({"guard": guard_status(verdict, {}, NOW), "conditions": conditions})
    spec = Spec.model_validate(SPEC | {"guard": SPEC["guard"] | {"policy": policy or Policy()}})
    job = Job("my-job", "ns", "0123456789", 1, "1", {}, spec, status)
    told = {"history.jsonl": "\n".join(map(json.dumps, ROUNDS)), "steps.jsonl": steps or ""}
    body = build_evidence(job, told, {"trainer.log": "bye"}, NOW)
    return dict(json.loads(json.dumps(body)))


def page_of(body: Any, tmp_path: Path) -> str:
    """The page that `rlguard report` makes of this object in a file."""
    file, out = tmp_path / "evidence.yaml", tmp_path / "page.html"
    file.write_text(json.dumps(body))
    report(str(file), out=out)
    return out.read_text()


def test_what_the_guard_said_comes_back() -> None:
    policy = Policy.model_validate({"detector": "heldout_guard"})
    evidence = read_evidence(kept(policy=policy))
    assert evidence.verdict == FIRED.model_copy(update={"needed": None})
    assert evidence.policy == policy
    assert (evidence.job, evidence.collected_at) == ("my-job", "2026-01-02T00:00:00.000+00:00")
    assert [(one["step"], one["score"]) for one in evidence.history["evaluations"]] == [
        (one["step"], one["heldout"]) for one in ROUNDS
    ]
    assert [(one["reward"], one["kl"]) for one in evidence.history["steps"]] == [
        (one["reward"], 0.5) for one in ROUNDS
    ]


def test_the_page_of_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = page_of(kept(), tmp_path)
    assert capsys.readouterr().out == f"{tmp_path}/page.html: Fired at step 40: evidence of reward hacking\n"
    assert "<b>" not in page and "my-job" in page and "/ckpt/20" in page
    assert "evidence of 2026-01-02T00:00:00.000+00:00" in page
    assert "(mean of 8 rounds)" in page and "First that was kept" not in page
    assert "its evaluation rounds; its steps were not kept." in page
    assert "Symptoms</h2>" not in page


def test_the_page_of_steps_and_of_what_the_policy_wrote(tmp_path: Path) -> None:
    body = with_steps(total=4000)
    place, odd = {"moments": ["start"], "attempt": 0, "step": 1}, {"moments": ["of_tomorrow"]}
    paid = {"prompt": "2+2=", "completion": "<i>5", "reward": 1.5}
    body["data"]["rollouts.json"] = json.dumps([place | paid, place | paid | odd, {}])
    page = page_of(body, tmp_path)
    [text] = re.findall(r'<script type="application/json" id="frozen">(.*?)</script>', page)
    frozen = json.loads(text)
    assert frozen["history"]["steps"] == [one.model_dump(mode="json") for one in STEPS]
    assert HOSTILE in frozen["figures"][0]["figures"]
    assert [one["rollouts"][0]["completion"] for one in frozen["rollouts"]] == ["<i>5"]
    assert "<script>alert" not in page and "<b>" not in page and "<i>" not in page
    assert "what follows is its evaluation rounds and 40 of its 4,000 steps." in page
    assert "&lt;b&gt;up" in page[page.index("Symptoms</h2>") :]
    assert "(mean of 8 kept steps)" in page and "held-out score" in page


WELL = FIRED.model_copy(
    update={"fire": False, "stop": False, "latch_step": None, "latch_attempt": None, "code": Code.OK}
    | {"level": Level.HEALTHY, "reason": "no rule has found anything"}
)
HALTED = FIRED.model_copy(
    update={"fire": False, "halt": True, "code": Code.STALE, "level": Level.WARNING, "reason": "old"}
)


@pytest.mark.parametrize(
    ("verdict", "ended", "state", "word", "headline"),
    [
        (FIRED, ("Halted", "x", "y"), "fired", "fired", "Fired at step 40: evidence of reward hacking"),
        (HALTED, None, "warning", "halted", "Halted at step 40"),
        (WELL, ("Fired", "HackingGap", "y"), "fired", "fired", "Fired (HackingGap); last verdict healthy"),
        (WELL, ("Halted", "GuardSilent", "y"), "warning", "halted", "Halted (GuardSilent); last verdict he"),
        (WELL, ("Failed", "WorkloadFailed", "y"), "unknown", "failed", "The trainer failed by itself"),
        (WELL, ("Disrupted", "Evicted", "y"), "unknown", "disrupted", "Disrupted (Evicted)"),
        (WELL, ("Succeeded", "NotJudged", "y"), "unknown", "not judged", "The trainer finished, but NOT JUD"),
        (
            WELL,
            ("Succeeded", "WorkloadSucceeded", "y"),
            "healthy",
            "finished",
            "The trainer finished without",
        ),
        (
            *(WELL, ("Succeeded", "FinishedWithWarning", "y"), "warning", "finished with a warning"),
            "The trainer finished with a warning",
        ),
        (WELL, None, "unknown", "unknown", "How it ended is not kept; last verdict healthy"),
    ],
    ids=str,
)
def test_how_it_ended_comes_before_the_last_verdict(
    verdict: Verdict, ended: Any, state: str, word: str, headline: str
) -> None:
    """A run that was halted for its guard's silence has a healthy verdict, and was not well."""
    evidence = read_evidence(kept(verdict, ended=ended))
    said = heading_of(evidence.verdict, evidence.conditions)
    assert (said.state, said.word) == (state, word) and said.headline.startswith(headline)
    assert said.reason == (ended[2] if ended and verdict is WELL else verdict.reason)


def test_what_is_missing_or_beyond_all_bounds_is_unknown_and_never_0(tmp_path: Path) -> None:
    body = kept(FIRED.model_copy(update={"rounds": 60}))
    without = {key: value for key, value in ROUNDS[0].items() if key != "kl"}
    odd = [ROUNDS[0] | {"reward": reward} for reward in (10**400, 1e300, True, "1")]
    body["data"]["history.jsonl"] = "\n".join(map(json.dumps, [without, *ROUNDS[1:], *odd]))
    steps = read_evidence(body).history["steps"]
    assert [one["kl"] for one in steps] == [None, 0.5, 0.5, 0.5]
    page = page_of(body, tmp_path)
    assert "<td>4 of 60 evaluation rounds</td>" in page
    assert "First that was kept" in page and '<th scope="col">Start</th>' not in page
    verdict = json.loads(body["data"]["verdict.json"]) | {"level": "superb", "fire": None}
    body["data"]["verdict.json"] = json.dumps(verdict)
    assert read_evidence(body).verdict.level is Level.UNKNOWN


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ([], "no evidence of a run"),
        ({"data": {"policy.yaml": "{}"}}, "no evidence of a run"),
        ({"data": {"verdict.json": "[" * 100_000}}, "had reported no verdict"),
        ({"data": {"verdict.json": '{"code": "of_tomorrow"}'}}, "had reported no verdict"),
    ],
    ids=["a list", "no verdict", "deep", "unknown"],
)
def test_what_is_no_evidence_is_said(changed: Any, said: str) -> None:
    with pytest.raises(CliError, match=said):
        read_evidence(changed)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: [", "is not YAML"),
        (b"\xff", "cannot be read"),
        (b"[" * 100_000, "is not YAML"),
        (b"x" * (9 << 20), "too large for an object of a cluster"),
    ],
    ids=["open", "bytes", "deep", "large"],
)
def test_a_file_that_kubectl_did_not_write(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "evidence.yaml"
    file.write_bytes(content)
    with pytest.raises(CliError, match=said):
        report(str(file))


def test_a_file_that_is_not_there_is_no_job(tmp_path: Path) -> None:
    for name in ("evidence.yaml", str(tmp_path / "evidence"), f"./{'a' * 300}", "a\0/b"):
        with pytest.raises(CliError, match="no such file"):
            report(name)
    with pytest.raises(CliError, match="not a regular file"):
        report("/dev/null")
    with pytest.raises(CliError) as asked:  # of a cluster, which is not there
        report("a" * 300, kubeconfig=tmp_path / "none")
    assert "no such file" not in str(asked.value)


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "evidence.yaml"
    file.write_text(yaml.safe_dump(kept()))
    with pytest.raises(CliError, match=r"--out .* cannot be written: Is a directory"):
        report(str(file), out=tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = sorted(json.loads(kept()["data"]["verdict.json"]))


@settings(deadline=None)
@given(
    field=st.sampled_from(FIELDS), value=JSON, line=st.dictionaries(st.sampled_from(list(ROUNDS[0])), JSON)
)
def test_whatever_a_part_holds_the_rest_is_drawn(field: str, value: Any, line: Any) -> None:
    body = kept()
    verdict = json.loads(body["data"]["verdict.json"]) | {field: value}
    body["data"]["verdict.json"] = json.dumps(verdict)
    body["data"]["history.jsonl"] += "\n" + json.dumps(line) + "\n{"
    try:
        evidence = read_evidence(body)
    except CliError:
        assert field in ("code", "fire")
        return
    assert len(evidence.history["steps"]) >= len(ROUNDS)
    assert evidence.verdict.best_evaluation == BEST
    assert field == "fire" or evidence.verdict.fire, "a fire that was kept is told"
    json.dumps(evidence.history, allow_nan=False)
    json.dumps(evidence.verdict.model_dump(mode="json"), allow_nan=False)
