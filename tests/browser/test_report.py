"""The report of a real run in headless Chromium: the dashboard, frozen.

Aspects: it shows what the dashboard of the same run shows, to the last curve; it asks nobody; it can be read
at a phone's width, in the dark and without scripts; what a run has written into it is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from guard_service.display_data import DisplayData
from guard_service.event_log import stored_policy
from guard_service.history import export_history, thinned_history
from rlguard.cli.report.command import report as report_of_cluster
from rlguard.cli.report.local import page as report_page
from rlguard.cli.report.plot import draw
from rlguard.core.display import side_by_side
from rlguard.core.guard_log import symptoms_of_history
from rlguard.core.kept_steps import written_steps
from rlguard.core.symptoms import TITLES, Examined, Symptom
from rlguard.core.wire import FiguresReport, Verdict

from .conftest import Guard
from .test_dashboard import HOSTILE as WRITTEN
from .test_dashboard import chart, start_hacking

pytestmark = [pytest.mark.nightly, pytest.mark.browser, pytest.mark.timeout(120)]

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
#: What both pages draw: figures, curves, conditions, detectors, evaluations, and the tables.
DRAWN = """() => [...document.querySelectorAll(
    "#figures, #rollouts, #charts .plot, #charts .legend, #charts h2, #conditions, #detectors, #checkpoints, "
    + ".scroll table"
)].map((node) => node.innerHTML)"""


class Written:
    """The report of a run whose guard has ended, and what the dashboard had drawn of it before."""

    def __init__(self, guard: Guard, directory: Path, browser: Browser) -> None:
        verdict = Verdict.model_validate(guard.verdict(), strict=False)
        self.drawn = self._dashboard(guard, browser)
        guard.end()
        facts = {
            "name": HOSTILE,
            "exit_code": 3,
            "result": "fired",
            "outcome": f"fired at step {verdict.latch_step}: {verdict.reason}",
            "trainer": ["python", "train.py", HOSTILE],
            "trainer_code": 143,
            "trainer_ended_itself": False,
            "started": 1.7e9,
            "seconds": 12.5,
        }
        lines = list(export_history(guard.state))
        history, policy = thinned_history(guard.state, 2000), stored_policy(guard.state)
        self.path = directory / "report.html"
        shown = DisplayData.read(guard.state)
        rollouts, figures = side_by_side(shown.rollouts, verdict), shown.figures
        self.unseen = (symptoms_of_history(lines, figures) or Examined((), ())).unseen
        symptom = Symptom("entropy_collapse", f"{HOSTILE} entropy was 0.8 nats/token", 1, 9, (("end", 0.0),))
        seen = Examined((symptom,), self.unseen)
        page = report_page(facts, history, verdict, policy, draw(lines, verdict), "", rollouts, figures, seen)
        self.path.write_text(page)

    @staticmethod
    def _dashboard(guard: Guard, browser: Browser) -> Any:
        with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
            page = context.new_page()
            page.goto(guard.url)
            expect(page.locator("#evaluations tbody tr")).to_have_count(6)
            expect(page.locator("#policy tbody")).to_have_count(1)
            expect(page.locator("#rollouts h3")).to_have_count(3)
            expect(page.locator("#plots figure")).to_have_count(4)
            return page.evaluate(DRAWN)


@pytest.fixture(scope="module")
def written(
    start_shared: Callable[..., Guard], tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> Written:
    return Written(start_hacking(start_shared), tmp_path_factory.mktemp("report"), browser)


@pytest.fixture
def look(browser: Browser, written: Written) -> Iterator[Callable[..., Page]]:
    """Open the report. At the end: no script failed, no policy was violated, nothing else was asked for."""
    contexts, opened, asked, errors = [], [], [], []

    def open_report(width: int = 1280, path: Path = written.path, **settings: Any) -> Page:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **settings))
        contexts[-1].on("request", lambda request: asked.append(request.url))
        contexts[-1].on("weberror", lambda error: errors.append(str(error.error)))
        contexts[-1].on("console", lambda message: errors.append(message.text))
        contexts[-1].on("dialog", lambda dialog: errors.append(dialog.message))
        page = contexts[-1].new_page()
        page.goto(path.as_uri())
        opened.append(path.as_uri())
        return page

    yield open_report
    for context in contexts:
        context.close()
    assert errors == []
    assert {url.partition(":")[0] for url in asked} <= {"file", "data"}
    assert {url for url in asked if url.startswith("file")} == set(opened)


def test_it_is_what_the_dashboard_drew(written: Written, look: Callable[..., Page]) -> None:
    drawn = look().evaluate(DRAWN)
    assert len(drawn) == len(written.drawn) >= 14
    assert drawn == written.drawn


FIRE = {"code": "reward_without_gain", "reason": HOSTILE, "attempt": 0, "step": 30}


def of_cluster(folder: Path, **more: str) -> Path:
    """The report of a run on a cluster, of whose evidence four rounds were kept, and more."""
    rounds = [{"attempt": 0, "step": 10 * n, "reward": 0.2 * n, "heldout": 0.5} for n in range(1, 5)]
    verdict = {"level": "fired", "code": FIRE["code"], "reason": "", "fire": FIRE, "rounds": 90}
    data = {"verdict.json": json.dumps(verdict), "history.jsonl": "\n".join(map(json.dumps, rounds))} | more
    path, file = folder / "report.html", folder / "evidence.yaml"
    file.write_text(json.dumps({"metadata": {"labels": {"rlguard.dev/job": HOSTILE}}, "data": data}))
    report_of_cluster(str(file), out=path)
    return path


def test_the_report_of_a_run_on_a_cluster_draws_the_steps_that_were_kept(
    tmp_path: Path, look: Callable[..., Page]
) -> None:
    lines = [
        {"attempt": 0, "step": n, "reward": n / 40, "kl": n / 100, "kl_kind": "ref_token_mean"}
        for n in range(1, 41)
    ]
    figures = [
        FiguresReport(attempt=0, step=n, figures={HOSTILE: 1.0, f"rewards/{HOSTILE}up/mean": n / 40})
        for n in range(1, 41)
    ]
    page = look(path=of_cluster(tmp_path, **{"steps.jsonl": written_steps(lines, figures, 4000) or ""}))
    legend = page.locator("#charts .legend").first
    expect(legend).to_contain_text("in-loop, each step")
    expect(legend).not_to_contain_text("EMA")
    reward = chart(page, "In-loop reward against held-out score")
    expect(reward.locator("path.in-loop")).to_have_count(1)
    expect(reward.locator("path.heldout")).to_have_count(1)
    expect(page.locator("#thinned")).to_have_text("40 of 4,000 steps are drawn, evenly chosen.")
    expect(page.locator("figure", has_text="Hacking Gap:")).to_be_hidden()
    expect(page.locator("#steps tbody tr")).to_have_count(40)
    expect(page.locator("#plots figure h2")).to_have_text([HOSTILE, f"Reward component: {HOSTILE}up"])
    expect(page.locator("section:has(h2:text-is('Symptoms'))")).to_contain_text("Not looked for: ")


def test_the_sentence_stands_above_the_table_that_proves_it(look: Callable[..., Page]) -> None:
    page = look()
    expect(page.locator("#verdict")).to_have_attribute("data-state", "fired")
    expect(page.locator("#headline")).to_have_text("Fired at step 14")
    row = page.locator(".proof tr.decisive")
    expect(row).to_have_count(1)
    expect(row.locator("th")).to_have_text("Hacking Gap (ceiling 0.2)")
    expect(chart(page, "Hacking Gap").locator("text.limit")).to_have_text("ceiling 0.2")
    over = page.locator("#figures div:has(dt:text-is('Hacking Gap')) dd").first
    assert float(row.locator("td").last.inner_text()) == pytest.approx(float(over.inner_text()), abs=1e-3)


@pytest.mark.always
def test_what_a_run_wrote_is_text(look: Callable[..., Page]) -> None:
    page = look()
    expect(page.locator("#run-name")).to_have_text(HOSTILE)
    expect(page.locator("code", has_text="train.py")).to_contain_text(HOSTILE)
    expect(page.locator("img")).to_have_count(1)  # the sign of RLGuard


def test_the_symptoms_are_advice_and_text(written: Written, look: Callable[..., Page]) -> None:
    card = look().locator("section:has(h2:text-is('Symptoms'))")
    expect(card).to_contain_text("Nothing is stopped for them")
    expect(card.locator("tr")).to_have_text([f"Entropy collapse{HOSTILE} entropy was 0.8 nats/token"])
    assert written.unseen, "some of its few steps are too few"
    for one in written.unseen:
        expect(card).to_contain_text(f"{TITLES[one.name]} ({one.why})")


@pytest.mark.always
def test_what_the_policy_wrote_is_text(look: Callable[..., Page]) -> None:
    page = look()
    expect(page.locator("#rollouts h3")).to_have_text(
        [re.compile(h) for h in ("Start", "Last good", "At the fire")]
    )
    page.locator("#rollouts summary").last.click()
    shown = page.locator("#rollouts > section").last.locator(".completion").nth(1)
    assert shown.evaluate("node => node.textContent") == WRITTEN
    expect(page.locator("#rollouts img, #rollouts script, #plots img, #plots script")).to_have_count(0)
    assert page.locator("#plots h2").nth(2).evaluate("node => node.textContent") == WRITTEN


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_fits_and_can_be_read(look: Callable[..., Page], width: int, scheme: str) -> None:
    page = look(width, color_scheme=scheme)
    for details in page.locator("details").all():
        details.evaluate("node => { node.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    expect(page.locator(".proof tr").first.locator("th")).to_have_count(4)  # it went on after the fire
    for cell in page.locator(".proof td, .proof th").all():
        assert cell.evaluate("node => node.scrollWidth <= node.clientWidth"), cell.inner_text()
    proof = page.locator(".wide:has(.proof)")
    assert proof.evaluate("node => node.scrollWidth <= node.clientWidth"), (
        "the last column is the point of it"
    )
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) > 380) == (scheme == "light")
    for plot in page.locator("#charts figure:visible .plot").all():
        assert plot.bounding_box()["width"] > 250
