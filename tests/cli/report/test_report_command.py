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

from guard_cli.errors import CliError
from guard_cli.report.command import _page, report
from guard_cli.report.ending import heading_of
from guard_cli.report.evidence import read_evidence
from guard_cli.report.local import page as page_of_one_machine
from guard_cli.saved import read_object
from guard_core.codes import Code, Level
from guard_core.evaluation import HfEvaluation
from guard_core.guard_log import symptoms_of_history
from guard_core.kept_steps import written_steps
from guard_core.policy import Policy
from guard_core.wire import EvaluationSummary, FiguresReport, KlKind, Sampling, StepReport, Verdict
from guard_operator.api.status import Status
from guard_operator.api.types import Spec
from guard_operator.guards.reading import guard_status
from guard_operator.reconcile.evidence import build_evidence
from guard_operator.reconcile.snapshot import Job

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
    assert not evidence.history["cut_off"]


def test_what_the_policy_wrote_comes_back() -> None:
    body = kept()
    assert read_evidence(body).rollouts == ()
    one = {
        "moments": ["start"],
        "attempt": 0,
        "step": 1,
        "prompt": "2+2=",
        "completion": "<i>5",
        "reward": 1.5,
    }
    odd = [one | {"moments": ["of_tomorrow"]}, one | {"reward": "much"}, {}, None, one | {"novelty": 1}]
    body["data"]["rollouts.json"] = json.dumps([one, *odd])
    found = read_evidence(body)
    assert [(told.step, told.rollouts[0].completion) for told in found.rollouts] == [(1, "<i>5")] * 2
    assert "\\u003ci>5" in _page(found)
    for text in ("{}", "[", "7"):
        body["data"]["rollouts.json"] = text
        assert read_evidence(body).rollouts == ()


def test_the_steps_come_back_beside_the_rounds() -> None:
    evidence = read_evidence(with_steps(total=400))
    history = evidence.history
    assert history["steps"] == [one.model_dump(mode="json") for one in STEPS]
    assert (history["total_steps"], history["of_rounds"], history["averaged"]) == (400, False, False)
    assert [one["step"] for one in history["evaluations"]] == [one["step"] for one in ROUNDS]
    scores = [(o["step"], o["heldout"], o["reward"], o["kl"]) for o in evidence.lines if "heldout" in o]
    assert scores == [(one["step"], one["heldout"], None, None) for one in ROUNDS]
    assert len(evidence.lines) == len(STEPS) + len(ROUNDS)


def test_the_page_has_the_sections_of_one_machine() -> None:
    """Of the same run: its steps, what else its trainer measured, and its symptoms, word for word."""
    evidence = read_evidence(with_steps())
    ours = _page(evidence)
    lines = [one.model_dump(mode="json") for one in STEPS]
    history = evidence.history | {"of_rounds": False}
    facts = {
        "name": "n",
        "outcome": "o",
        "exit_code": 3,
        "result": "fired",
        "started": 0.0,
        "seconds": 1.0,
        "trainer": ["t"],
    }
    seen = symptoms_of_history(lines, FIGURES)
    theirs = page_of_one_machine(
        facts | {"trainer_ended_itself": False, "trainer_code": 1},
        history,
        FIRED,
        Policy(),
        "<svg/>",
        "",
        (),
        FIGURES,
        seen,
    )
    assert seen is not None and [one.name for one in seen.symptoms][:2] == [
        "components_part",
        "length_at_cap",
    ]
    assert _section(ours, "Symptoms") == _section(theirs, "Symptoms") != ""
    assert "&lt;b&gt;up" in _section(ours, "Symptoms")
    titles = [re.findall("<h2[^>]*>(.*?)</h2>", page) for page in (ours, theirs)]
    assert titles[0] == titles[1]
    ours_data, theirs_data = (_frozen(page) for page in (ours, theirs))
    assert ours_data["history"]["steps"] == theirs_data["history"]["steps"] == lines
    assert ours_data["figures"] == theirs_data["figures"] and HOSTILE in ours_data["figures"][0]["figures"]
    assert "<script>alert" not in ours and "<b>" not in ours and "<i>" not in ours
    assert "what follows is its evaluation rounds and its steps." in ours and "not kept" not in ours
    assert "(mean of 8 kept steps)" in ours and "held-out score" in ours
    few = _page(read_evidence(with_steps(total=4000)))
    assert "what follows is its evaluation rounds and 40 of its 4,000 steps." in few


def _section(page: str, title: str) -> str:
    found = re.search(f"<section[^>]*><h2>{title}</h2>.*?</section>", page, re.DOTALL)
    return found[0] if found else ""


def _frozen(page: str) -> Any:
    (text,) = re.findall(r'<script type="application/json" id="frozen">(.*?)</script>', page)
    return json.loads(text)


@pytest.mark.parametrize("steps", [None, "", "{", "{}", "[" * 100_000], ids=str)
def test_evidence_without_steps_says_so_and_draws_rounds(steps: str | None) -> None:
    body = kept()
    assert "steps.jsonl" not in body["data"]
    if steps is not None:
        body["data"]["steps.jsonl"] = steps
    evidence = read_evidence(body)
    assert evidence.steps is None and evidence.history["of_rounds"]
    assert evidence.lines == evidence.history["steps"] and len(evidence.lines) == len(ROUNDS)
    page = _page(evidence)
    assert "its evaluation rounds; its steps were not kept." in page
    assert '<th scope="row">Steps</th><td>not kept: its guard told none with its last word' in page
    assert "Symptoms</h2>" not in page and "(mean of 8 rounds)" in page


def test_a_halt_and_a_run_that_ended_well() -> None:
    halted = FIRED.model_copy(
        update={"fire": False, "halt": True, "code": Code.STALE, "level": Level.WARNING, "reason": "old"}
    )
    evidence = read_evidence(kept(halted))
    assert evidence.verdict == halted
    page = _page(evidence)
    assert 'data-state="warning"' in page and '<p class="level" id="level">halted</p>' in page
    well = halted.model_copy(
        update={"halt": False, "stop": False, "latch_step": None, "latch_attempt": None, "latched_at": None}
        | {"level": Level.HEALTHY, "code": Code.OK, "reason": "fine"}
    )
    assert read_evidence(kept(well)).verdict == well


WELL = FIRED.model_copy(
    update={"fire": False, "stop": False, "latch_step": None, "latch_attempt": None, "code": Code.OK}
    | {"level": Level.HEALTHY, "reason": "no rule has found anything"}
)


@pytest.mark.parametrize(
    ("ended", "state", "word", "headline"),
    [
        (("Halted", "GuardSilent", "not heard"), "warning", "halted", "Halted (GuardSilent)"),
        (("Failed", "WorkloadFailed", "exit 137"), "unknown", "failed", "The trainer failed by itself"),
        (("Disrupted", "Evicted", "pod run-0"), "unknown", "disrupted", "Disrupted (Evicted)"),
        (
            ("Succeeded", "NotJudged", "2 of 5"),
            "unknown",
            "not judged",
            "The trainer finished, but NOT JUDGED",
        ),
        (
            ("Succeeded", "CheckpointsLeft", "2"),
            "unknown",
            "not judged",
            "The trainer finished, but NOT JUDGED",
        ),
        (
            ("Succeeded", "WorkloadSucceeded", "all judged"),
            "healthy",
            "finished",
            "The trainer finished without a fire, and all of it was judged",
        ),
        (
            ("Succeeded", "FinishedWithWarning", "it fell"),
            "warning",
            "finished with a warning",
            "The trainer finished with a warning",
        ),
        (("Fired", "HackingGap", "step 4: gap"), "fired", "fired", "Fired (HackingGap)"),
    ],
    ids=str,
)
def test_how_it_ended_comes_before_the_last_verdict(
    ended: tuple[str, str, str], state: str, word: str, headline: str
) -> None:
    """A run that was halted for its guard's silence has a healthy verdict, and was not well."""
    evidence = read_evidence(kept(WELL, ended=ended))
    page = _page(evidence)
    said = f"{headline}; last verdict healthy"
    assert (heading_of(evidence).headline, heading_of(evidence).state) == (said, state)
    assert f'data-state="{state}"' in page and f'<p class="level" id="level">{word}</p>' in page
    assert f">{said}</" in page and f">{ended[2]}</" in page
    assert "healthy: no rule has found anything" in page, "the verdict is told as one of a row"


def test_a_fire_comes_before_however_it_ended_else() -> None:
    for ended in (("Halted", "GuardSilent", "x"), ("Succeeded", "WorkloadSucceeded", "x"), None):
        evidence = read_evidence(kept(ended=ended))
        assert heading_of(evidence).headline == "Fired at step 40: evidence of reward hacking"
        assert heading_of(evidence).reason == FIRED.reason
    both = kept(WELL, ended=("Halted", "GuardSilent", "x"))
    said = [condition("Failed", "WorkloadFailed", "y"), *json.loads(both["data"]["conditions.json"])]
    both["data"]["conditions.json"] = json.dumps(said)
    assert heading_of(read_evidence(both)).word == "halted"


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "{}", "[]", "7", "[1]", '[{"type": ["Failed"], "status": "True"}]', "[" * 100_000],
    ids=str,
)
def test_evidence_that_does_not_say_how_it_ended_is_not_healthy(text: str | None) -> None:
    """That of an older operator has no conditions."""
    body = kept(WELL)
    del body["data"]["conditions.json"]
    if text is not None:
        body["data"]["conditions.json"] = text
    evidence = read_evidence(body)
    page = _page(evidence)
    said = heading_of(evidence)
    assert said.headline == "How it ended is not kept; last verdict healthy" and said.state is Level.UNKNOWN
    assert f">{said.headline}</" in page
    assert ">no rule has found anything</" in page


def test_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "evidence.yaml", tmp_path / "page.html"
    file.write_text(yaml.safe_dump(kept()))
    report(str(file), out=out)
    page = out.read_text()
    assert capsys.readouterr().out == f"{out}: Fired at step 40: evidence of reward hacking\n"
    assert "<b>" not in page and "my-job" in page and "/ckpt/20" in page
    assert "evidence of 2026-01-02T00:00:00.000+00:00" in page
    assert "At the fire" in page or "At the end" in page
    assert "(mean of 8 rounds)" in page and "First that was kept" not in page


def test_a_level_that_cannot_be_read_is_not_healthy() -> None:
    body = kept()
    body["data"]["verdict.json"] = json.dumps({"level": "superb", "code": "ok", "reason": "fine"})
    assert read_evidence(body).verdict.level is Level.UNKNOWN
    body = kept()
    fired = json.loads(body["data"]["verdict.json"]) | {"level": "unknown"}  # its guard lost its store
    body["data"]["verdict.json"] = json.dumps(fired)
    assert read_evidence(body).verdict.level is Level.FIRED


def test_a_kl_that_is_missing_is_not_0() -> None:
    body = kept()
    body["data"]["history.jsonl"] = json.dumps({k: v for k, v in ROUNDS[0].items() if k != "kl"})
    assert [one["kl"] for one in read_evidence(body).history["steps"]] == [None]


def test_a_number_beyond_all_bounds_is_not_drawn() -> None:
    body = kept()
    for odd in (10**400, 1e300, 1e400, True):
        body["data"]["history.jsonl"] += "\n" + json.dumps(ROUNDS[0] | {"reward": odd})
    evidence = read_evidence(body)
    assert len(evidence.history["steps"]) == len(ROUNDS) and "<svg" in _page(evidence)


def test_rounds_that_are_gone_are_no_start() -> None:
    evidence = read_evidence(kept(FIRED.model_copy(update={"rounds": 60})))
    assert evidence.history["cut_off"]
    page = _page(evidence)
    assert "<td>4 of 60 evaluation rounds</td>" in page
    assert "First that was kept" in page and '<th scope="col">Start</th>' not in page


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (None, "no evidence of a run"),
        ([], "no evidence of a run"),
        ({"data": {"policy.yaml": "{}"}}, "no evidence of a run"),
        ({"data": {"verdict.json": "{"}}, "had reported no verdict"),
        ({"data": {"verdict.json": "null"}}, "had reported no verdict"),
        ({"data": {"verdict.json": "[" * 100_000}}, "had reported no verdict"),
        ({"data": {"verdict.json": '{"code": "of_tomorrow"}'}}, "'of_tomorrow', which this release"),
        ({"data": {"verdict.json": '{"code": ["ok"]}'}}, "which this release does not know"),
    ],
    ids=str,
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
        (b"a: 2026-02-30", "is not YAML: day is out of range"),
        (b"a: 0x_", "is not YAML"),
        (b"a: " + b"9" * 5000, "is not YAML"),
    ],
    ids=["open", "bytes", "deep", "large", "no day", "no number", "endless"],
)
def test_a_file_that_kubectl_did_not_write(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(CliError, match=said):
        read_object(file)


def test_a_policy_that_cannot_be_read_is_left_out() -> None:
    for text in ("a: 2026-02-30", "a: 0x_", "[" * 9999, "- a"):
        body = kept()
        body["data"]["policy.yaml"] = text
        assert read_evidence(body).policy is None


def test_a_verdict_may_be_nested_to_any_depth() -> None:
    body = kept()
    for field in ("best_evaluation", "counts", "fire"):
        verdict = json.loads(body["data"]["verdict.json"])
        text = json.dumps(verdict | {field: "DEEP"}).replace('"DEEP"', '{"a": ' * 600 + "1" + "}" * 600)
        evidence = read_evidence(body | {"data": body["data"] | {"verdict.json": text}})
        assert evidence.verdict.fire and evidence.verdict.best_evaluation == BEST


def test_a_file_that_is_not_there_is_no_job(tmp_path: Path) -> None:
    for name in ("evidence.yaml", "evidence.json", str(tmp_path / "evidence"), f"./{'a' * 300}", "a\0/b"):
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
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
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
