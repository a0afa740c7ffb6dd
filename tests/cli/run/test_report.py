"""The report page: self-contained, escaped, and sensible for runs of every shape.

How it looks, and that its script runs, is in `tests/browser/test_report.py`.
"""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from rlguard.cli.report.local import page
from rlguard.cli.report.plot import draw
from rlguard.core.codes import Code
from rlguard.core.guard_log import symptoms_of_history
from rlguard.core.policy import Policy
from rlguard.core.wire import (
    EvaluationSummary,
    FiguresReport,
    Verdict,
)

FACTS = {
    "name": "my <i>run</i>",
    "exit_code": 3,
    "result": "fired",
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
    halt=False,
    stop=True,
    latch_attempt=0,
    latch_step=4,
    kl_hard_stop=0.08,
    steps=4,
    rounds=2,
    in_loop_ema=0.75,
    heldout_ema=0.375,
    proxy_real_gap=0.3125,
    max_proxy_real_gap=0.125,
    best_evaluation=EvaluationSummary(attempt=0, step=2, score=0.5, items=8, path="/c/2"),
)


def line(step, **values):
    plain = {"attempt": 0, "step": step, "reward": 0.5, "kl": 0.05, "kl_kind": "ref_token_mean"}
    return {**plain, "entropy": None, "reward_std": None, **values}


def evaluation(step, score, **values):
    known = {"attempt": 0, "step": step, "score": score, "items": 8, "path": f"/c/{step}", "evidence": {}}
    return (
        known | dict.fromkeys(("reward", "in_loop_ema", "heldout_ema", "proxy_real_gap", "kl_ema")) | values
    )


LINES = [line(1), line(2, heldout=0.5, items=[0.123456, 1.0]), line(3, kl=None), line(4, heldout=0.25)]
HISTORY = {
    "steps": [line(n) for n in range(1, 5)],
    "evaluations": [
        evaluation(2, 0.5, proxy_real_gap=0.0625, evidence={"decline": [1.5, 5.0]}),
        evaluation(4, 0.25, reward=0.875),
    ],
    "total_steps": 4,
}


def report(facts=FACTS, history=HISTORY, verdict=VERDICT, policy=None, best="", symptoms=None):
    picture = draw(LINES, verdict)
    return page(facts, history, verdict, policy or Policy(), picture, best, symptoms=symptoms)


class Rows(HTMLParser):
    """The rows of a page's proof, by their names; the decisive one is marked with *."""

    def __init__(self, text):
        super().__init__()
        self.rows, self._row, self._in = {}, [], False
        self.feed(text[text.index('<table class="proof">') :].partition("</table>")[0])

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self._row = ["*" if ("class", "decisive") in attributes else ""]
        self._in = tag in ("td", "th")

    def handle_data(self, data):
        if self._in:
            self._row.append(data)

    def handle_endtag(self, tag):
        self._in = False
        if tag == "tr" and len(self._row) > 1:
            self.rows[self._row[0] + self._row[1]] = self._row[2:]


def test_the_page_needs_nothing_else_and_tells_no_item():
    text = report(best="best_checkpoint")
    assert not re.search(r'(src|href)="(?!#|data:)', text.replace("xlink:href", "href"))
    assert "url(http" not in text
    assert "&lt;b&gt;too wide&lt;/b&gt;" in text
    assert "my &lt;i&gt;run&lt;/i&gt;" in text
    assert "<b>" not in text and "<i>" not in text
    assert "fire at step 4" in text
    assert "0.50 at its best (step 2)" in text
    assert "best_checkpoint/" in text
    assert "0.123456" not in text
    assert "python train.py --name" in text


def test_only_its_own_script_may_run():
    """Whatever got into the page as markup would be no script of this digest."""
    text = report()
    digest = re.search(r"script-src 'sha256-([^']+)'; style", text)[1]
    script = re.search(r'<script type="module">(.*?)</script>', text, re.DOTALL)[1]
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() == digest
    assert "default-src 'none'" in text


def test_no_text_of_a_run_ends_the_script_that_holds_it():
    hostile = "</script><script>alert(1)</script>{{headline}}\ud800"
    newest = VERDICT.best_evaluation.model_copy(update={"path": hostile[:-1]})
    facts = FACTS | {"name": hostile, "outcome": f"halted: {hostile}", "trainer": [hostile]}
    text = report(
        facts, verdict=VERDICT.model_copy(update={"reason": hostile[:-1], "last_evaluation": newest})
    )
    assert "<script>alert" not in text
    assert text.count("<script") == 4
    assert text.count("{{headline}}") >= 3, "what stands in a value is text, and no place of the template"
    text.encode()


def test_the_table_proves_the_sentence():
    """The limit, the start, the last good checkpoint, and the verdict's own figure, in the row that fired."""
    rows = Rows(report()).rows
    assert rows["*Hacking Gap (ceiling 0.125)"] == ["0.0625", "0.0625", "0.3125"]
    assert rows["In-loop reward, EMA"][-1] == "0.75"
    assert rows["Held-out score, first pass"] == ["0.50", "0.50", "0.25"]
    assert rows["In-loop reward, mean of the round"] == ["—", "—", "0.875"], "unknown is never 0"
    assert [name for name in rows if name.startswith("*")] == ["*Hacking Gap (ceiling 0.125)"]


def test_rounds_after_the_fire_are_not_taken_for_it():
    text = report(verdict=VERDICT.model_copy(update={"latch_step": 2}))
    rows = Rows(text).rows
    assert 'At the fire</th><th scope="col">At the end' in text
    assert rows["*Hacking Gap (ceiling 0.125)"] == ["0.0625", "0.0625", "0.0625", "0.3125"]
    between = report(verdict=VERDICT.model_copy(update={"latch_step": 3}))
    assert '"col">At the fire' not in between and "At the end" in between, (
        "it fired at a step, and at no round"
    )


def test_a_fall_is_proved_by_the_score_and_not_by_an_average():
    rows = Rows(report(verdict=VERDICT.model_copy(update={"code": Code.FELL_BELOW_START}))).rows
    assert rows["*Held-out score, first pass"] == ["0.50", "0.50", "0.25"]
    assert "EMA" not in "".join(name for name in rows if "KL" not in name), "no average of its own"


def symptoms_of_a_run(**figures):
    lines = [line(n, kl=0.01 * n, entropy=0.5, items=[1.0]) for n in range(1, 41)]
    steps = range(1, 41) if figures else ()
    return symptoms_of_history(lines, [FiguresReport(attempt=0, step=n, figures=figures) for n in steps])


def test_what_the_trainer_measured_is_looked_at_for_symptoms():
    seen = symptoms_of_a_run(**{"completions/clipped_ratio": 0.5, "step": 7.0, "kl": 9.0, "reward": 9.0})
    assert [one.name for one in seen.symptoms] == ["length_at_cap"]
    assert [one.name for one in seen.unseen] == ["components_part", "groups_without_spread"]
    text = report(symptoms=seen)
    assert "Length at its cap</th><td>50% of the completions were cut off" in text
    assert "Not looked for: reward components that part (fewer than two" in text


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("finished", "healthy"),
        ("fired", "fired"),
        ("finished with a warning", "warning"),
        ("not judged", "unknown"),
        ("interrupted", "unknown"),
    ],
)
def test_the_result_gives_the_colour_and_the_word(word, state):
    text = report(FACTS | {"result": word})
    assert f'id="verdict" data-state="{state}"' in text
    assert f'<p class="level" id="level">{word}</p>' in text
