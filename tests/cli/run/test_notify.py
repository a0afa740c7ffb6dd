"""Webhooks of a local run, against a real HTTP server."""

import time
from datetime import UTC, datetime

import pytest

from guard_cli.errors import CliError
from guard_cli.run import notify
from guard_cli.run.notify import RunNotifier, from_environment
from guard_core.notices import Shape
from guard_core.wire import Code, Level, Verdict
from guard_operator.runtime import webhook
from guard_operator.runtime.webhook import Webhook
from tests.receiver import Receiver

FIRED = Verdict(
    level=Level.FIRED, code=Code.HACKING_GAP, reason="the gap is 0.3", fire=True, halt=False, stop=True
)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(webhook, "SECONDS", 0.3)
    monkeypatch.setattr(notify, "PAUSES", (0.0,))


def notifier(receiver, tmp_path, notes):
    return RunNotifier((Webhook(Shape.SLACK, receiver.url),), "my-run", tmp_path, notes.append)


def test_a_fire_and_its_stop_are_told_once(quick, tmp_path):
    notes = []
    with Receiver() as receiver:
        some = notifier(receiver, tmp_path, notes)
        some.latched(None)
        some.latched(FIRED.model_copy(update={"fire": False, "stop": False}))
        for _ in range(3):
            some.latched(FIRED)
        some.stopped("hacking_gap")
        some.finish()
    first, second = sorted(body["text"] for body in receiver.bodies)
    assert first.startswith("RLGuard: my-run fired (hacking_gap)\nthe gap is 0.3\nMore: rlguard status")
    assert second.startswith("RLGuard: my-run stopped (hacking_gap)")
    assert notes == []


@pytest.mark.parametrize("answer", ["hang", 500, 302])
def test_trouble_is_said_and_waited_for_in_bounds(quick, monkeypatch, tmp_path, answer):
    monkeypatch.setattr(webhook, "SECONDS", 3.0)
    monkeypatch.setattr(notify, "PAUSES", ())
    monkeypatch.setattr(notify, "FINISH_SECONDS", 6.0)
    notes = []
    with Receiver(answer) as receiver:
        some = notifier(receiver, tmp_path, notes)
        begun = time.monotonic()
        some.latched(FIRED)
        assert time.monotonic() - begun < 2.5
        some.finish()
        assert time.monotonic() - begun < 20
    assert len(notes) == 1 and "nobody was told" in notes[0] and "SECRET" not in notes[0]


def test_the_urls_come_from_the_environment(monkeypatch):
    monkeypatch.delenv("RLGUARD_NOTIFY_ALERTMANAGER_URL", raising=False)
    monkeypatch.setenv("RLGUARD_NOTIFY_SLACK_URL", "")
    assert from_environment() == ()
    monkeypatch.setenv("RLGUARD_NOTIFY_ALERTMANAGER_URL", "http://127.0.0.1:9093/api/v2/alerts")
    assert [one.shape for one in from_environment()] == [Shape.ALERTMANAGER]
    monkeypatch.setenv("RLGUARD_NOTIFY_SLACK_URL", "http://example.com/SECRET")
    with pytest.raises(CliError, match="must begin with https") as refused:
        from_environment()
    assert "SECRET" not in str(refused.value)


def test_a_run_that_fires_is_stopped_although_the_webhook_hangs(workplace, monkeypatch):
    with Receiver("hang") as receiver:
        monkeypatch.setenv("RLGUARD_NOTIFY_SLACK_URL", receiver.url)
        begun = datetime.now(UTC)
        seen = workplace.path / "environ.json"
        steps = [f"step=0.5,{9 + i}" for i in range(6)]
        done = workplace.run("checkpoint", f"environ={seen}", "step=0.5,0.01", *steps, "sleep=600")
    assert done.returncode == 3, done.stderr
    assert receiver.bodies and (datetime.now(UTC) - begun).total_seconds() < 90
    assert "nobody was told" in done.stderr and "SECRET" not in done.stderr
    everything = "".join(
        path.read_text(errors="replace") for path in workplace.out.rglob("*") if path.is_file()
    )
    assert "SECRET" not in everything + seen.read_text(), "no file of the run has the URL"
