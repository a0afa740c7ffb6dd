"""`rlguard status` of a real guard, of the folder of a run, and of a cluster that cannot be asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rlguard.cli.cluster import connect
from tests.trainer.real_guard import INGEST, READ, TIGHT_KL, RealGuard


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[RealGuard]:
    """A guard with five steps, whose KL has fired."""
    running = RealGuard(tmp_path / "run", tmp_path / "out", TIGHT_KL)
    steps = [
        {"attempt": 0, "step": n, "reward": 0.5, "kl": n / 10, "kl_kind": "ref_token_mean"}
        for n in range(1, 8)
    ]
    headers = {"Authorization": f"Bearer {INGEST}"}
    httpx.post(f"{running.url}/v1/steps", json=steps, headers=headers, trust_env=False).raise_for_status()
    yield running
    running.close()


def test_a_guard_is_asked_for_its_status(
    rlguard: Any, guard: RealGuard, tmp_path: Path, monkeypatch: Any
) -> None:
    file = tmp_path / "read"
    file.write_text(READ + "\n")
    shown = rlguard("status", "--url", guard.url, "--token-file", file)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("state: guard ") and "fired (kl_hard_stop)" in shown.stdout
    monkeypatch.setenv("RLGUARD_READ_TOKEN", READ)
    found = json.loads(rlguard("status", "--url", guard.url, "--json").stdout)
    assert found["name"] == "state" and found["verdict"] == guard.verdict()
    monkeypatch.setenv("RLGUARD_READ_TOKEN", "wrong")
    refused = rlguard("status", "--url", guard.url)
    assert refused.returncode == 1 and "--token-file" in refused.stderr and "wrong" not in refused.stderr
    monkeypatch.delenv("RLGUARD_READ_TOKEN")
    state = tmp_path / "run" / "state"
    (state / "read.token").write_text(READ)
    folder = rlguard("status", state)
    assert folder.returncode == 0 and "fired (kl_hard_stop)" in folder.stdout, folder.stderr
    guard.close()
    gone = rlguard("status", state)
    assert gone.returncode == 1 and f"no guard responds at {guard.url}" in gone.stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "http://["])
def test_a_guard_that_does_not_respond_is_a_sentence(rlguard: Any, url: str) -> None:
    shown = rlguard("status", "--url", url)
    assert shown.returncode == 1 and shown.stderr.startswith(f"rlguard status: no guard responds at {url}")
    assert shown.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("job", "--url", "http://127.0.0.1:1"), "ask for one of them"),
        (("job", "--token-file", "x"), "give --url, too"),
    ],
)
def test_what_nobody_would_be_asked_with_is_refused(rlguard: Any, given: tuple[str, ...], said: str) -> None:
    done = rlguard("status", *given)
    assert done.returncode == 2 and said in done.stderr


CONTEXTS = """\
apiVersion: v1
kind: Config
current-context: here
clusters:
- {name: a, cluster: {server: "http://127.0.0.1:9/a"}}
- {name: b, cluster: {server: "http://127.0.0.1:9/b"}}
users: [{name: me, user: {}}]
contexts:
- {name: here, context: {cluster: a, user: me, namespace: mine}}
- {name: there, context: {cluster: b, user: me, namespace: theirs}}
"""


def test_another_context_is_another_cluster_and_its_namespace(rlguard: Any, tmp_path: Path) -> None:
    (config := tmp_path / "config").write_text(CONTEXTS)
    found = [connect(None, config, "a file", context) for context in (None, "here", "there")]
    assert [(one.client.configuration.host[-1], one.namespace) for one in found] == [
        ("a", "mine"),
        ("a", "mine"),
        ("b", "theirs"),
    ]
    for command in ("status", "report", "resume"):
        done = rlguard(command, "my-job", "--kubeconfig", config, "--context", "nowhere")
        assert done.returncode == 1 and "no cluster: " in done.stderr and "nowhere" in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("content", [None, b"{{{", b"[1]", b"{contexts: 1}", b"\xff"])
def test_a_kubeconfig_that_is_none_is_a_sentence(rlguard: Any, tmp_path: Path, content: bytes | None) -> None:
    config = tmp_path / "config"
    if content is not None:
        config.write_bytes(content)
    done = rlguard("status", "my-job", "--kubeconfig", config)
    assert done.returncode == 1 and "no cluster: " in done.stderr and "--url" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_without_a_run_is_a_sentence(rlguard: Any, tmp_path: Path) -> None:
    shown = rlguard("status", tmp_path)
    assert shown.returncode == 2 and f"{tmp_path} holds no run" in shown.stderr


def test_what_is_only_advice_is_shown_too() -> None:
    from rlguard.cli.status import verdict_lines

    words = "HeldOutGuard would have stopped the run"
    said = {"code": "hacking_gap", "level": "fired", "advice": True, "message": words}
    for more in ({"conditions": [said]}, {"advice": ["hacking_gap"], "adviceReason": words}):
        healthy = {"level": "healthy", "code": "ok", **more}
        assert any("hacking_gap" in line and words in line for line in verdict_lines(healthy)), more


def test_what_could_steer_a_terminal_is_not_printed() -> None:
    from rlguard.cli.status import verdict_lines
    from rlguard.core.terminal import plain

    assert plain("a\x1b[2Jb\r\nc\u202e") == "a\ufffd[2Jb\ufffd\ufffdc\ufffd"
    hostile = {
        "level": "\x1b[31m",
        "reason": "x\ny",
        "step": "\x07",
        "in_loop_ema": "\x1b",
        "best_evaluation": [1],
        "conditions": [1, {"advice": True, "code": "\x1b[2J", "message": "a\nb"}],
        "advice": ["\x1b"],
    }
    assert all(line.isprintable() for line in verdict_lines(hostile))


def test_the_report_of_a_run_that_has_ended_is_its_status(rlguard: Any, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"name": "maths", "outcome": "fired at step 7"}))
    verdict = {"level": "fired", "code": "kl_hard_stop", "reason": "too far", "step": 7}
    (tmp_path / "verdict.json").write_text(json.dumps(verdict))
    shown = rlguard("status", tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[:2] == ["maths: fired at step 7", "  fired (kl_hard_stop): too far"]
    assert json.loads(rlguard("status", tmp_path, "--json").stdout)["verdict"] == verdict
    (tmp_path / "run.json").write_text(json.dumps({"name": "maths", "outcome": "fired at step 7: too far"}))
    assert rlguard("status", tmp_path).stdout.count("too far") == 1
    (tmp_path / "verdict.json").unlink()
    assert "no verdict yet" in rlguard("status", tmp_path).stdout
    (tmp_path / "run.json").write_text("[1]")
    unreadable = rlguard("status", tmp_path)
    assert unreadable.returncode == 2 and f"{tmp_path / 'run.json'} cannot be read" in unreadable.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("report", "guard.db does not exist"),
        ("resume", "has no best_checkpoint"),
    ],
)
def test_a_folder_of_which_a_part_is_gone_is_one_line(
    rlguard: Any, tmp_path: Path, command: str, said: str
) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"name": "maths", "outcome": "fired at step 7"}))
    shown = rlguard(command, tmp_path)
    assert shown.returncode in (1, 2) and shown.stderr.count("\n") == 1 and said in shown.stderr
