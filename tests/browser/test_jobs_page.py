"""The operator's page of all jobs in Chromium: 1,000 of them, on a phone, in the dark, hostile ones."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from guard_operator.page.server import PageServer, Shown, TokenFile
from guard_operator.reconcile.slim import slim_job

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

Json = dict[str, Any]
TOKEN = "a-token-of-some-length"
EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
PHASES = ("Running", "Running", "Running", "Pending", "Succeeded", "Failed", "Stopped", "Stopping")


def stamp(seconds_ago: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds_ago))


def a_job(number: int, said: str = "no rule found anything", **changed: Any) -> Json:
    """A job in one of the phases; those that are stopped have fired."""
    phase = PHASES[number % len(PHASES)]
    rounds = [
        {"attempt": 0, "step": n, "reward": 0.4 + 0.01 * n, "heldout": 0.4 - 0.002 * n * (number % 3)}
        for n in range(50)
    ]
    fired = "True" if phase in {"Stopped", "Stopping"} else "False"
    reason, message = ("HackingGap", f"step 40: {said}") if fired == "True" else ("NotFired", "")
    condition = {"type": "Fired", "status": fired, "reason": reason, "message": message}
    guard = {
        "level": "healthy", "code": "ok", "reason": said, "heartbeat": stamp(10), "step": number,
        "announced": 50, "inLoopEma": 0.9, "heldoutEma": 0.4, "historyTail": rounds,
        "detectorState": "x" * 2000,
    }  # fmt: skip
    status = {"phase": phase, "conditions": [condition | {"lastTransitionTime": stamp(60)}], "guard": guard}
    status |= {"evidence": f"rlguard-run-{number}-evidence"} if fired == "True" else {}
    metadata = {
        "name": f"grpo-run-{number}", "namespace": f"team-{number % 20}", "uid": f"uid-{number}",
        "creationTimestamp": stamp(3600 + number),
    }  # fmt: skip
    return slim_job({"metadata": metadata | changed, "spec": {}, "status": status})


class Operator:
    """The page's server over jobs that a test may change."""

    def __init__(self, directory: Path) -> None:
        self.jobs: list[Json] = []
        self.unread: list[tuple[str, bool]] = [("", True)]
        token = directory / "token"
        token.write_text(TOKEN)
        shown = Shown(lambda: list(self.jobs), self._one, lambda: self.unread, lambda: 1.0)
        self._server = PageServer(("127.0.0.1", 0), TokenFile(token), shown)
        self.url = f"http://127.0.0.1:{self._server.port}"
        self.close = self._server.close

    def _one(self, key: tuple[str, str]) -> Json | None:
        return next(
            (j for j in self.jobs if (j["metadata"]["namespace"], j["metadata"]["name"]) == key), None
        )


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    monkeypatch.setattr("guard_operator.page.server.LIST_SECONDS", 0.0)
    made = Operator(tmp_path)
    yield made
    made.close()


Look = Callable[..., Page]


def wide(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def test_a_thousand_jobs(operator: Operator, look: Look) -> None:
    operator.jobs = [a_job(n) for n in range(1000)]
    begun = time.monotonic()
    page = look(operator, f"#token={TOKEN}")
    rows = page.locator(".job")
    expect(rows).to_have_count(1000)
    expect(page.locator("#count")).to_have_text("1,000 of 1,000 jobs")
    seconds = time.monotonic() - begun
    assert page.url == f"{operator.url}/", "the token is not in the address"
    size = page.evaluate("performance.getEntriesByName(location.origin + '/v1/jobs')[0].transferSize")
    print(f"1,000 jobs: shown in {seconds:.2f} s, {size / 1024:.0f} KiB on the wire")
    assert seconds < 10 and size < 200 * 1024

    expect(rows.first.locator(".phase")).to_have_text("Stopping")
    expect(rows.first.locator(".state")).to_have_text("fired")
    assert "to 0.89" in str(rows.first.locator(".spark").get_attribute("aria-label"))

    typed = page.evaluate(
        """() => { const begun = performance.now(); const field = document.forms.filter.elements.q;
        field.value = 'run-99'; field.dispatchEvent(new Event('input', { bubbles: true }));
        document.body.offsetHeight; return performance.now() - begun; }"""
    )
    print(f"a search over them: {typed:.0f} ms")
    assert typed < 1000
    expect(page.locator("#count")).to_have_text("11 of 1,000 jobs")
    page.get_by_label("Search").fill("")
    page.get_by_label("Namespace").select_option("team-7")
    page.get_by_label("Phase").select_option("Stopping")
    expect(page.locator("#count")).to_have_text("25 of 1,000 jobs")
    assert "namespace=team-7&phase=Stopping" in page.url
    page.reload()
    expect(page.locator("#count")).to_have_text("25 of 1,000 jobs")
    expect(page.locator(".job:visible")).to_have_count(25)


def test_the_way_to_the_evidence(operator: Operator, look: Look) -> None:
    operator.jobs = [a_job(0), a_job(6)]
    page = look(operator, f"#token={TOKEN}")
    fired = page.locator(".job", has_text="grpo-run-6")
    fired.get_by_role("link", name="evidence").click()
    expect(fired.locator("pre")).to_contain_text(
        "kubectl -n team-6 get configmap rlguard-run-6-evidence -o yaml"
    )
    expect(fired.locator(".conditions")).to_contain_text("Fired=True HackingGap: step 40")
    assert page.url.endswith("/#team-6/grpo-run-6")
    expect(page.locator(".job", has_text="grpo-run-0").get_by_role("link", name="evidence")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_every_width_and_scheme(operator: Operator, look: Look, width: int, scheme: str) -> None:
    operator.jobs = [a_job(n, said="a verdict with-a-very-long-word-" + "x" * 200) for n in range(30)]
    page = look(operator, f"#token={TOKEN}", width=width, height=800, scheme=scheme)
    expect(page.locator(".job")).to_have_count(30)
    page.locator(".job summary").first.click()
    expect(page.locator(".job pre").first).to_be_visible()
    assert not wide(page)
    for part in (".name", ".phase", ".state", ".verdict", ".age", ".namespace"):
        assert contrast(page, f".job {part}") >= 4.5, part
    dark = (
        sum(page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")) < 200
    )
    assert dark == (scheme == "dark")


def contrast(page: Page, selector: str) -> float:
    """WCAG contrast of an element's text with the ground under it."""
    text, ground = page.evaluate(
        """(selector) => {
          const style = (node) => getComputedStyle(node);
          let under = document.querySelector(selector);
          const text = style(under).color;
          while (style(under).backgroundColor === 'rgba(0, 0, 0, 0)') under = under.parentElement;
          return [text, style(under).backgroundColor].map((c) => c.match(/[\\d.]+/g).map(Number));
        }""",
        selector,
    )

    def light(colour: list[float]) -> float:
        parts = [c / 255 for c in colour[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dim = sorted((light(text), light(ground)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def test_a_hostile_status_is_text(operator: Operator, look: Look) -> None:
    """Whoever may write a status writes what he likes; the browser of an administrator runs none of it."""
    hostile = a_job(6, said=EVIL)
    status = hostile["status"]
    status["conditions"].append({"type": EVIL, "status": "True", "reason": EVIL, "message": EVIL})
    status["guard"]["bestCheckpoint"] = {"step": 1, "score": 0.5, "path": EVIL}
    status["phase"] = EVIL
    operator.jobs = [hostile]
    page = look(operator, f"#token={TOKEN}")
    expect(page.locator(".verdict")).to_contain_text(EVIL)
    page.locator(".job summary").click()
    expect(page.locator(".conditions")).to_contain_text(EVIL)
    expect(page.locator(".pairs")).to_contain_text(EVIL)
    expect(page.locator("main img, main script")).to_have_count(0)
    assert page.evaluate("window.hacked") is None


def test_the_token_is_asked_for(operator: Operator, look: Look) -> None:
    operator.jobs = [a_job(0)]
    page = look(operator)
    expect(page.get_by_label("Token of this page")).to_be_focused()
    expect(page.locator(".job")).to_have_count(0)
    page.get_by_label("Token of this page").fill("wrong")
    page.get_by_role("button").click()
    expect(page.locator("#token-error")).to_have_text("The operator did not accept this token.")
    page.get_by_label("Token of this page").fill(TOKEN)
    page.get_by_role("button").click()
    expect(page.locator(".job")).to_have_count(1)
    assert TOKEN not in page.url


def test_it_follows_what_happens(operator: Operator, look: Look) -> None:
    operator.jobs = [a_job(0), a_job(1), a_job(2)]
    page = look(operator, f"#token={TOKEN}")
    expect(page.locator(".job")).to_have_count(3)
    changed = json.loads(json.dumps(a_job(2)))
    changed["status"]["conditions"][0] |= {"status": "True", "reason": "HackingGap", "message": "step 7: gap"}
    operator.jobs = [a_job(0), changed]
    operator.unread = [("", True), ("team-9", False)]
    expect(page.locator(".job")).to_have_count(2)
    expect(page.locator(".job").first).to_contain_text("step 7: gap")
    expect(page.locator("#notice")).to_have_text(
        "Jobs are missing here: the operator cannot read team-9 yet."
    )
    threading.Thread(target=operator.close).start()
    expect(page.locator("#live")).to_have_text("no response · trying again")
    expect(page.locator("#notice")).to_contain_text("the last that it sent")
