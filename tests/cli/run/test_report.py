"""The report page: self-contained, escaped, and sensible for runs of every shape."""

import re

import pytest

from guard_cli.run.report import draw, page
from guard_core.wire import Code, DetectorReading, EvaluationSummary, Verdict

FACTS = {
    "exit_code": 3,
    "outcome": "fired at step 4: <b>too wide</b>",
    "trainer": ["python", "train.py", "--name", "a b"],
    "trainer_code": 143,
    "trainer_ended_itself": False,
    "started": 1.7e9,
    "seconds": 12.5,
}
VERDICT = Verdict(
    level="fired",
    code="hacking_gap",
    reason="too wide",
    fire=True,
    halt=True,
    latch_attempt=0,
    latch_step=4,
    kl_hard_stop=0.08,
    steps=4,
    rounds=2,
    proxy_real_gap=0.3,
    best_evaluation=EvaluationSummary(attempt=0, step=2, score=0.5, items=8, path="/c/2"),
)


def line(step, **values):
    plain = {"attempt": 0, "step": step, "reward": 0.5, "kl": 0.05, "kl_kind": "ref_token_mean"}
    return {**plain, "entropy": None, "reward_std": None, **values}


HISTORY = [line(1), line(2, heldout=0.5, items=[0.123456, 1.0]), line(3, kl=None), line(4, heldout=0.25)]


def test_the_page_needs_nothing_else_and_tells_no_item(tmp_path):
    text = page(FACTS, HISTORY, VERDICT, draw(HISTORY, VERDICT), tmp_path / "best_checkpoint")
    assert not re.search(r'(src|href)="(?!#)', text.replace("xlink:href", "href"))
    assert "url(http" not in text
    assert "&lt;b&gt;too wide&lt;/b&gt;" in text
    assert "<b>" not in text
    assert "fire at step 4" in text
    assert "step 2, held-out 0.500" in text
    assert "best_checkpoint/" in text
    assert "0.123456" not in text
    assert "python train.py --name" in text


@pytest.mark.parametrize(
    "history",
    [
        [],
        [line(1)],
        [line(1, reward=None, heldout=0.5, kl=None, kl_kind="absent")],
        [line(i, heldout=i / 1000) for i in range(1, 1000)],
        [line(0, heldout=0.4), line(1), line(1, attempt=1), line(2, attempt=1)],
    ],
    ids=["empty", "one step", "no reward", "long", "two attempts"],
)
@pytest.mark.parametrize("verdict", [None, VERDICT], ids=["no verdict", "fired"])
def test_every_shape_of_run_is_drawn(history, verdict):
    picture = draw(history, verdict)
    assert picture.startswith("<svg")
    assert page(FACTS, history, verdict, picture, None).endswith("</html>")


def test_detectors_are_shown_with_their_statistic():
    reading = DetectorReading(
        name="fast", level="fired", code=Code.HELDOUT_DECLINE, statistic=7.5, threshold=5.0, message="it fell"
    )
    verdict = VERDICT.model_copy(update={"detectors": (reading,)})
    text = page(FACTS, HISTORY, verdict, draw(HISTORY, verdict), None)
    assert "fired: it fell (7.50 of 5.00 nats)" in text


def test_a_run_without_kl_says_so():
    assert "no KL to the reference was reported" in draw([line(1, kl=3.0, kl_kind="behaviour")], None)


def test_the_same_run_gives_the_same_picture():
    assert draw(HISTORY, VERDICT) == draw(HISTORY, VERDICT)
