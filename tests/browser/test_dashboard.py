"""The dashboard in headless Chromium, drawn by a real guard process that is fed over HTTP.

Every page that a test opens is watched: a failed script, a violation of the content security policy, or a
request to anything but the guard fails the test (see `look` in conftest.py).
"""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from .conftest import INGEST_TOKEN, ITEMS, READ_TOKEN, Guard, stopped

pytestmark = [pytest.mark.nightly, pytest.mark.browser, pytest.mark.timeout(120)]

Start = Callable[..., Guard]
Look = Callable[..., Page]


def step(n: int, reward: float, kl: float | None = None, attempt: int = 0) -> dict[str, Any]:
    kind = "absent" if kl is None else "ref_token_mean"
    return {"attempt": attempt, "step": n, "reward": reward, "kl": kl, "kl_kind": kind}


def train(guard: Guard, rounds: int, rise: float = 0.0, kl: float | None = 0.02) -> None:
    """Report `rounds` rounds of five steps, each with an evaluation; reward rises by `rise` a round."""
    for round_ in range(rounds):
        first = 5 * round_
        guard.post([step(n, 0.4 + rise * round_ + 0.01 * (n % 3), kl) for n in range(first, first + 5)])
        guard.evaluate(first + 4)


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\0 &amp; \x1b[31m"


def write(guard: Guard, n: int, *completions: str) -> None:
    """Have rollouts go with a step, the first with the highest reward."""
    rollouts = [
        {"prompt": f"Say {n}. {HOSTILE}", "completion": text, "reward": 1.0 - 0.25 * i}
        for i, text in enumerate(completions)
    ]
    guard.show(n, rollouts=rollouts)


def measure(guard: Guard, steps: Sequence[int], *names: str) -> None:
    """Have further figures go with steps; those of an even step have one name more."""
    for n in steps:
        guard.show(n, figures={**dict.fromkeys(names, n / 10), **({} if n % 2 else {"constructor": 0.5})})


def fill_the_disk(guard: Guard) -> None:
    """From here on every write of the guard fails, and it has noticed."""
    resource.prlimit(guard.process.pid, resource.RLIMIT_FSIZE, (0, 0))
    assert guard.client.post("/v1/steps", json=step(999, 0.5)).status_code == 503


@pytest.fixture(scope="module")
def healthy(start_shared: Start) -> Guard:
    """A run of four rounds that learns."""
    guard = start_shared(right=lambda n: 20 + n // 2)
    train(guard, 4, rise=0.03)
    assert guard.verdict()["level"] == "healthy"
    return guard


def start_hacking(start: Start) -> Guard:
    """A run whose held-out score falls while its reward rises, until the guard fires."""
    guard = start(right=lambda n: max(4, 20 - n))
    for n in range(-1, 30, 5):
        write(guard, max(n, 0), f"written at {n}", HOSTILE, "x" * 2000, "")
    measure(guard, range(40), "rewards/format/mean", "completions/mean_length", HOSTILE)
    train(guard, 6, rise=0.08)
    assert guard.verdict()["fire"]
    return guard


@pytest.fixture(scope="module")
def fired(start_shared: Start) -> Guard:
    return start_hacking(start_shared)


def headline(page: Page) -> Any:
    return page.locator("#headline")


def chart(page: Page, title: str) -> Any:
    return page.locator("figure", has=page.get_by_role("heading", name=title))


def figure_value(page: Page, name: str) -> Any:
    return page.locator(f"#figures div:has(dt:text-is('{name}')) dd").first


class TestAnEmptyRun:
    @pytest.mark.always
    def test_is_unknown_and_has_no_numbers(self, start_guard: Start, look: Look) -> None:
        page = look(start_guard())
        expect(page.locator("#verdict")).to_have_attribute("data-state", "unknown")
        expect(headline(page)).to_have_text("Waiting for the first step")
        for name in ("Step", "In-loop reward", "Held-out score", "Hacking Gap", "KL to the reference"):
            expect(figure_value(page, name)).to_have_text("—")
        expect(chart(page, "In-loop reward against")).to_contain_text("No step has been reported yet.")
        expect(page.locator("#conditions")).to_contain_text("no_steps")
        expect(page.locator(".plot path")).to_have_count(0)


class TestARunningRun:
    @pytest.mark.always
    def test_says_what_the_guard_says(self, healthy: Guard, look: Look) -> None:
        page = look(healthy)
        expect(page.locator("#verdict")).to_have_attribute("data-state", "healthy")
        expect(page.locator("#level")).to_have_text("healthy")
        expect(headline(page)).to_have_text("No sign of reward hacking")
        verdict = healthy.verdict()
        expect(figure_value(page, "In-loop reward")).to_have_text(f"{verdict['in_loop_ema']:.3f}")
        score = verdict["last_evaluation"]["score"]
        expect(figure_value(page, "Held-out score")).to_have_text(f"{score:.2f}")
        expect(figure_value(page, "KL to the reference")).to_have_text(f"{verdict['kl_ema']:.3f}")
        expect(page.locator("#checkpoints")).to_contain_text("checkpoint-19")
        expect(page.locator("#checkpoints")).to_contain_text(f"on {ITEMS} items")
        expect(page.locator("#checkpoints")).to_contain_text(
            'temperature 0.000, up to 256 tokens or "\\nQ:" (default'
        )
        assert "item 7" not in page.content(), "no item of the split is on the page"
        row = page.locator("#policy tr", has_text="kl.hard_stop")
        expect(row.locator("td")).to_have_text("0.3")

    @pytest.mark.always
    def test_draws_the_curves_with_their_limits_and_units(self, healthy: Guard, look: Look) -> None:
        page = look(healthy)
        reward = chart(page, "In-loop reward against held-out score")
        for style in ("in-loop-raw", "in-loop", "heldout"):
            expect(reward.locator(f".plot path.{style}")).to_have_count(1)
        expect(reward.locator(".plot circle.heldout-raw")).to_have_count(4)
        expect(chart(page, "Hacking Gap").locator("text.limit")).to_have_text("ceiling 0.2")
        kl = chart(page, "KL to the reference")
        expect(kl.locator("text.limit")).to_have_text("hard stop 0.3 nats/token")
        for figure, unit in ((reward, "reward units"), (kl, "nats/token")):
            expect(figure.locator("text.tick", has_text=unit)).to_be_visible()
            expect(figure.locator("text.tick", has_text="training step")).to_be_visible()
        expect(page.locator(".plot path.mark")).to_have_count(0)

    def test_shows_what_each_detector_says(self, start_guard: Start, look: Look) -> None:
        guard = start_guard(extra_policy="detector: calibrated\ncalibrated: {baseline_passes: 2}\n")
        train(guard, 4)
        page = look(guard)
        readings = guard.verdict()["detectors"]
        expect(page.locator("#detectors li")).to_have_count(len(readings))
        for reading in readings:
            item = page.locator("#detectors li", has=page.locator(f"code:text-is('{reading['name']}')"))
            expect(item).to_contain_text(reading["message"][1:])
            known = reading["statistic"] is not None
            expect(item.locator("meter")).to_have_count(1 if known else 0)
        assert readings
        evidence = chart(page, "Evidence of the detectors")
        expect(evidence.locator("text.limit")).to_have_text("fires at 1")
        for reading in readings:
            known = reading["statistic"] is not None
            expect(evidence.locator(f".plot path.evidence-{reading['name']}")).to_have_count(int(known))

    @pytest.mark.always
    def test_follows_the_run_without_a_reload(self, start_guard: Start, look: Look) -> None:
        guard = start_guard()
        guard.post([step(0, 0.5)])
        page = look(guard)
        expect(figure_value(page, "Step")).to_have_text("0")
        guard.post([step(1, 0.5), step(2, 0.6)])
        expect(figure_value(page, "Step")).to_have_text("2")

    @pytest.mark.always
    def test_a_kl_that_is_not_reported_is_not_drawn_as_zero(self, start_guard: Start, look: Look) -> None:
        guard = start_guard()
        train(guard, 1, kl=None)
        page = look(guard)
        expect(figure_value(page, "KL to the reference")).to_have_text("not reported")
        kl = chart(page, "KL to the reference")
        expect(kl).to_contain_text("Not reported")
        expect(kl.locator(".plot path")).to_have_count(0)
        expect(page.locator("#conditions")).to_contain_text("There is no KL to the reference")

    def test_the_largest_values_that_the_guard_admits_fit_the_axis(
        self, start_guard: Start, look: Look
    ) -> None:
        guard = start_guard()
        guard.post([step(n, 1e100 * (-1) ** n, 1e100) for n in range(4)])
        page = look(guard)
        expect(chart(page, "In-loop reward").locator(".plot path.in-loop-raw")).to_have_count(1)
        assert max(len(text) for text in page.locator("text.tick").all_text_contents()) < 15
        assert "NaN" not in page.locator("#charts").inner_html()


class TestAFiredRun:
    @pytest.mark.always
    def test_says_so_in_colour_and_words(self, fired: Guard, look: Look) -> None:
        page = look(fired)
        expect(page.locator("#verdict")).to_have_attribute("data-state", "fired")
        expect(page.locator("#level")).to_have_text("fired")
        expect(headline(page)).to_have_text("Training must stop: evidence of reward hacking")
        expect(page.locator("#reason")).to_contain_text(fired.verdict()["reason"][1:])
        expect(page).to_have_title(re.compile("Training must stop"))

    def test_marks_the_fire_on_every_chart(self, fired: Guard, look: Look) -> None:
        page = look(fired)
        at = fired.verdict()["latch_step"]
        expect(page.locator(".plot path.mark")).to_have_count(9)
        for label in page.locator(".plot text.mark").all():
            expect(label).to_have_text(f"fired · step {at}")
        expect(page.locator("#since")).to_contain_text(f"Fired at step {at} of attempt 0")

    @pytest.mark.always
    def test_stays_in_view_when_the_store_is_lost(self, start_guard: Start, look: Look) -> None:
        fired = start_hacking(start_guard)
        page = look(fired)
        expect(page.locator("#verdict")).to_have_attribute("data-state", "fired")
        fill_the_disk(fired)
        expect(page.locator("#conditions")).to_contain_text("store_unavailable")
        expect(page.locator("#verdict")).to_have_attribute("data-state", "fired")


class TestWhatThePolicyWrites:
    def test_is_side_by_side_at_the_start_the_last_good_checkpoint_and_the_fire(
        self, fired: Guard, look: Look
    ) -> None:
        verdict = fired.verdict()
        page = look(fired)
        heads = page.locator("#rollouts h3")
        expect(heads).to_have_count(3)
        expect(heads.nth(0)).to_have_text("Startstep 0 of attempt 0")
        expect(heads.nth(1)).to_have_text(
            f"Last good checkpointstep {verdict['best_evaluation']['step']} of attempt 0"
        )
        expect(heads.nth(2)).to_have_text(f"At the firestep {verdict['latch_step']} of attempt 0")
        columns = page.locator("#rollouts > section")
        expect(columns.nth(2).locator(".completion").first).to_have_text(
            f"written at {verdict['latch_step']}"
        )
        expect(columns.nth(2).locator(".paid").first).to_have_text("reward 1.000")
        boxes = [column.bounding_box() for column in columns.all()]
        assert len({box["y"] for box in boxes}) == 1 and len({box["x"] for box in boxes}) == 3

    def test_is_text(self, fired: Guard, look: Look) -> None:
        page = look(fired)
        page.locator("#rollouts summary").first.click()
        shown = page.locator("#rollouts .completion").nth(1)
        assert shown.evaluate("node => node.textContent") == HOSTILE
        assert shown.evaluate("node => node.children.length") == 0
        expect(page.locator("#rollouts img, #rollouts script")).to_have_count(0)
        expect(page.locator("#rollouts .completion", has_text="(nothing)")).to_have_count(3)


class TestWhatElseTheTrainerMeasured:
    def test_is_a_small_chart_of_each_figure(self, fired: Guard, look: Look) -> None:
        page = look(fired)
        heads = page.locator("#plots figure:visible h2")
        expect(heads).to_have_count(4)
        expect(heads.nth(0)).to_have_text("Reward component: format")
        expect(heads.nth(1)).to_have_text("Length of training completions")
        plot = chart(page, "Reward component: format").locator(".plot")
        plot.focus()
        page.keyboard.press("End")
        expect(plot).to_have_attribute("aria-valuetext", re.compile("step 29, each step 2.900 reward units"))
        assert len(plot.locator("path.in-loop").get_attribute("d").split("L")) == 30  # the run has 30 steps
        charts = page.locator("#charts > figure:visible")
        below = charts.last.bounding_box()
        assert page.locator("#plots").bounding_box()["y"] > below["y"] + below["height"]

    def test_is_text_and_a_missing_value_breaks_the_line(self, fired: Guard, look: Look) -> None:
        page = look(fired)
        expect(page.locator("#plots figure:visible")).to_have_count(4)
        assert page.locator("#plots h2").nth(2).evaluate("node => node.textContent") == HOSTILE
        expect(page.locator("#plots img, #plots script")).to_have_count(0)
        assert chart(page, "constructor").locator("path.in-loop").count() == 15  # one of two steps has it


class TestWhatIsNotKnownIsNotShownAsHealthy:
    @pytest.mark.always
    def test_a_guard_that_went_away(self, start_guard: Start, look: Look) -> None:
        guard = start_guard()
        train(guard, 4)
        page = look(guard)
        expect(page.locator("#verdict")).to_have_attribute("data-state", "healthy")
        guard.end()
        expect(headline(page)).to_have_text(re.compile(r"No response from the guard since \d\d:\d\d:\d\d"))
        expect(page.locator("#verdict")).to_have_attribute("data-state", "lost")
        expect(page.locator("#level")).to_have_text("Unknown")
        expect(page.locator("#since")).to_contain_text("may no longer be true")
        expect(page).to_have_title(re.compile("No response"))
        assert "healthy" not in page.locator("body").inner_text().lower()
        assert float(page.locator("#run").evaluate("node => getComputedStyle(node).opacity")) < 1

        guard.start()
        expect(page.locator("#verdict")).to_have_attribute("data-state", "healthy")
        assert float(page.locator("#run").evaluate("node => getComputedStyle(node).opacity")) == 1

    @pytest.mark.slow
    def test_a_guard_that_hangs(self, start_guard: Start, look: Look) -> None:
        guard = start_guard()
        train(guard, 4)
        page = look(guard)
        expect(page.locator("#verdict")).to_have_attribute("data-state", "healthy")
        with stopped(guard):
            expect(headline(page)).to_have_text(re.compile("No response from the guard since"))

    def test_a_store_that_cannot_be_read(self, start_guard: Start, look: Look) -> None:
        guard = start_guard()
        guard.post([step(0, 0.5)])
        guard.end()
        (guard.state / "guard.db").write_bytes(b"this is no database" * 1000)
        guard.start()
        page = look(guard)
        expect(page.locator("#verdict")).to_have_attribute("data-state", "unknown")
        expect(page.locator("#conditions")).to_contain_text("The guard's store cannot be read or written.")
        expect(page.locator("#history-error")).to_contain_text("history is not available")
        expect(figure_value(page, "In-loop reward")).to_have_text("—")


class TestTheToken:
    @pytest.fixture
    def guard(self, start_guard: Start) -> Guard:
        guard = start_guard(ingest_token=INGEST_TOKEN, read_token=READ_TOKEN)
        guard.post([step(0, 0.5)])
        return guard

    @pytest.mark.always
    def test_is_asked_for_and_kept_in_the_session_only(self, guard: Guard, look: Look) -> None:
        page = look(guard)
        expect(headline(page)).to_have_text("The guard asks for its read token")
        expect(page.locator("#run")).to_be_hidden()
        page.get_by_role("textbox", name="Read token").fill(READ_TOKEN)
        page.get_by_role("button", name="Show the run").click()
        expect(figure_value(page, "Step")).to_have_text("0")
        expect(page.locator("#token-form")).to_be_hidden()
        assert READ_TOKEN not in page.url
        assert page.evaluate("Object.values(sessionStorage)") == [READ_TOKEN]
        assert page.evaluate("localStorage.length") == 0
        assert page.evaluate("document.cookie") == ""
        page.reload()
        expect(figure_value(page, "Step")).to_have_text("0")

    def test_is_taken_from_the_link_and_from_the_link_only(self, guard: Guard, look: Look) -> None:
        page = look(guard, "#token=wrong")
        expect(page.locator("#token-error")).to_have_text("The guard did not accept this token.")
        page.evaluate(f"location.hash = 'token={READ_TOKEN}'")  # a link that is pasted into the open page
        expect(figure_value(page, "Step")).to_have_text("0")
        assert page.url == page.evaluate("location.href") == guard.url + "/"
        assert page.evaluate("Object.values(sessionStorage)") == [READ_TOKEN]
        page.goto(f"{guard.url}/?token={READ_TOKEN}x")  # a query string is no place for it
        assert page.evaluate("Object.values(sessionStorage)") == [READ_TOKEN]

    @pytest.mark.parametrize("token", ["wrong", INGEST_TOKEN])
    def test_a_wrong_one_is_refused_and_forgotten(self, guard: Guard, look: Look, token: str) -> None:
        page = look(guard)
        page.get_by_role("textbox", name="Read token").fill(token)
        page.keyboard.press("Enter")
        expect(page.locator("#token-error")).to_have_text("The guard did not accept this token.")
        expect(page.get_by_role("textbox", name="Read token")).to_be_focused()
        assert page.evaluate("sessionStorage.length") == 0


class TestTheReader:
    @pytest.fixture
    def page(self, healthy: Guard, look: Look) -> Page:
        page = look(healthy)
        expect(chart(page, "KL to the reference").locator(".plot path.kl-raw")).to_have_count(1)
        return page

    def test_hovers_and_reads_the_values_of_a_step_on_all_charts(self, page: Page) -> None:
        plot = chart(page, "In-loop reward").locator(".plot")
        box = plot.bounding_box()
        page.mouse.move(box["x"] + 54 + (box["width"] - 68) * 7 / 19, box["y"] + 80)
        for title in ("In-loop reward", "Hacking Gap", "KL to the reference"):
            expect(chart(page, title).locator(".cursor text")).to_have_text("step 7")
        values = chart(page, "In-loop reward").locator(".legend output").all_text_contents()
        assert values[0] == "0.440"  # 0.4 + 0.03 of round 1 + 0.01 of step 7
        assert values[2] == "0.550"  # of the evaluation at step 4, the last at or before step 7
        page.mouse.move(5, 5)
        expect(page.locator(".cursor text")).to_have_count(0)

    def test_reads_a_chart_with_the_keyboard(self, page: Page) -> None:
        slider = page.get_by_role("slider", name="In-loop reward against held-out score: step")
        slider.focus()
        page.keyboard.press("Home")
        assert slider.get_attribute("aria-valuenow") == "0"
        page.keyboard.press("ArrowRight")
        text = slider.get_attribute("aria-valuetext")
        assert text.startswith("step 1, in-loop, each step 0.410 reward units")
        assert "held-out EMA not reported" in text
        page.keyboard.press("Escape")
        expect(page.locator(".cursor text")).to_have_count(0)


class TestEveryScreen:
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize("width", [360, 1600])
    def test_fits_and_can_be_read(self, fired: Guard, look: Look, width: int, scheme: str) -> None:
        page = look(fired, width=width, height=800, scheme=scheme)
        expect(page.locator(".plot path.mark")).to_have_count(9)
        expect(page.locator("#plots figure:visible")).to_have_count(4)
        for places in (page.locator("#plots figure").all(), page.locator("#rollouts > section").all()):
            columns = {box["x"] for place in places if (box := place.bounding_box())}
            assert (len(columns) == 1) == (width == 360)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CONTRAST) == []


#: Texts whose contrast with the background behind them is below 4.5 (WCAG AA), as "text: ratio".
CONTRAST = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (colour) => {
    const linear = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgba(colour).map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (rgba(colour)[3] === 255) return colour;
    }
    return "white";
  };
  const bad = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility() || node.closest("noscript")) continue;
    const style = getComputedStyle(node);
    const [a, b] = [luminance(node.closest("svg") ? style.fill : style.color), luminance(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(`${walker.currentNode.data.trim()}: ${ratio.toFixed(2)}`);
  }
  return bad;
}
"""


class TestThePageAlone:
    @pytest.mark.always
    def test_forbids_every_other_origin(self, healthy: Guard, browser: Browser) -> None:
        header = healthy.client.get("/").headers["content-security-policy"]
        assert "default-src 'none'" in header
        assert set(re.findall(r"(?:script|style|img|connect)-src ([^;]+)", header)) == {"'self'"}
        assert "unsafe" not in header
        page = browser.new_page()  # not `look`, which would fail on what is provoked here
        page.goto(healthy.url + "/")
        refused = page.evaluate(
            """() => new Promise((resolve) => {
              const told = (event) => resolve(event.effectiveDirective);
              document.addEventListener("securitypolicyviolation", told);
              fetch("http://127.0.0.2:9/").catch(() => {});
            })"""
        )
        page.context.close()
        assert refused == "connect-src"

    @pytest.mark.always
    def test_needs_no_token_and_holds_no_data(self, start_guard: Start) -> None:
        guard = start_guard(ingest_token=INGEST_TOKEN, read_token=READ_TOKEN)
        guard.post([step(0, 0.4242)])
        for path in ("/", "/dashboard/app.js", "/dashboard/charts.js", "/dashboard/style.css"):
            answer = guard.client.get(path, headers={"Authorization": ""})
            assert answer.status_code == 200
            assert "0.4242" not in answer.text
            assert not re.search(r"https?://(?!www\.w3\.org/)", answer.text)
