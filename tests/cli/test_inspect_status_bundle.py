"""`rlguard inspect`, `status` and `bundle` on real guards, running and ended; and what they leave out."""

from __future__ import annotations

import json
import os
import tarfile
import time
import timeit
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from guard_cli.bundle import _without_secrets
from guard_cli.cluster import connect
from tests.trainer.real_guard import INGEST, READ, TIGHT_KL, RealGuard

#: Planted wherever something of a held-out item, or a token, can be in the folder of a run.
CANARIES = {
    name: f"canary-{name}-7f3a" for name in ("prompt", "answer", "scorer", "ingest", "read", "log-token")
}


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


def state(tmp_path: Path) -> Path:
    return tmp_path / "run" / "state"


def test_a_running_guards_store_is_inspected(rlguard: Any, guard: RealGuard, tmp_path: Path) -> None:
    shown = rlguard("inspect", state(tmp_path))
    assert shown.returncode == 0, shown.stderr
    assert "7 step" in shown.stdout and "1 fire" in shown.stdout
    assert "attempt 0: 7 steps, 1 to 7" in shown.stdout and "fired (kl_hard_stop)" in shown.stdout
    found = json.loads(rlguard("inspect", state(tmp_path), "--json").stdout)
    said = guard.verdict() | {"checkpoint_root": None}  # which is no part of a store
    assert found["verdict"] == said, "what is read is what the guard says"
    guard.close()
    assert json.loads(rlguard("inspect", state(tmp_path), "--json").stdout) == found


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
    folder = rlguard("status", tmp_path / "run" / "state")
    assert folder.returncode == 0 and "fired (kl_hard_stop)" in folder.stdout


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "http://[", "http://127.0.0.1:99999"])
def test_a_guard_that_does_not_respond_is_a_sentence(rlguard: Any, url: str) -> None:
    shown = rlguard("status", "--url", url)
    assert shown.returncode == 1 and shown.stderr.startswith(f"rlguard status: no guard responds at {url}")
    assert shown.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("job", "--url", "http://127.0.0.1:1"), "ask for one of them"),
        (("job", "--token-file", "x"), "give --url, too"),
        ((".", "--namespace", "n"), "are of a cluster, and . is none"),
        (("--url", "http://127.0.0.1:1", "--kubeconfig", "x"), "are of a cluster"),
        (("--url", "http://127.0.0.1:1", "--context", "x"), "are of a cluster"),
    ],
)
def test_what_nobody_would_be_asked_with_is_refused(rlguard: Any, given: tuple[str, ...], said: str) -> None:
    done = rlguard("status", *given)
    assert done.returncode == 2 and said in done.stderr


def test_without_a_cluster_it_says_what_else_there_is(rlguard: Any, tmp_path: Path) -> None:
    shown = rlguard("status", "my-job", "--kubeconfig", tmp_path / "none")
    assert shown.returncode == 1 and "no cluster: " in shown.stderr and "--url" in shown.stderr


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


@pytest.mark.parametrize("current", ["", "current-context: gone\n"])
def test_a_context_that_is_named_needs_no_current_one(rlguard: Any, tmp_path: Path, current: str) -> None:
    (config := tmp_path / "config").write_text(CONTEXTS.replace("current-context: here\n", current))
    assert connect(None, config, "a file", "there").namespace == "theirs"
    done = rlguard("status", "my-job", "--kubeconfig", config)
    assert done.returncode == 1 and "no cluster: " in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("content", [b"{{{", b"[1]", b"x", b"{contexts: 1}", b"\xff"])
def test_a_kubeconfig_that_is_none_is_a_sentence(rlguard: Any, tmp_path: Path, content: bytes) -> None:
    (config := tmp_path / "config").write_bytes(content)
    done = rlguard("status", "my-job", "--kubeconfig", config)
    assert done.returncode == 1 and "no cluster: the kubeconfig cannot be read (" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_without_a_store_is_a_sentence(rlguard: Any, tmp_path: Path) -> None:
    for command in ("inspect", "status", "bundle"):
        shown = rlguard(command, tmp_path)
        assert shown.returncode == 2 and "holds no store of a guard" in shown.stderr


def test_what_is_only_advice_is_shown_too() -> None:
    from guard_cli.status import verdict_lines

    said = {"code": "hacking_gap", "advice": True, "message": "HeldOutGuard would have stopped the run"}
    of_guard = {"level": "healthy", "conditions": [{"code": "ok", "advice": False, "message": "fine"}, said]}
    assert [*verdict_lines(of_guard)][1:] == [f"advice (hacking_gap): {said['message']}"]
    of_job = {"level": "healthy", "advice": ["hacking_gap"], "adviceReason": said["message"]}
    assert [*verdict_lines(of_job)][1:] == [f"advice (hacking_gap): {said['message']}"]


def test_what_could_steer_a_terminal_is_not_printed() -> None:
    from guard_cli.status import verdict_lines
    from guard_core.terminal import plain

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


def run_folder(tmp_path: Path) -> Path:
    """The folder of a run, with something planted in every place that can hold an item or a token."""
    folder = tmp_path / "folder"
    os.rename(tmp_path / "run", folder)
    (folder / "state").rename(folder / "guard")
    (folder / "guard" / "scratch").mkdir(exist_ok=True)
    (folder / "guard" / "scratch" / "worker.log").write_text(CANARIES["scorer"])
    (folder / "guard" / "heldout.jsonl").write_text(
        json.dumps({"id": "a", "prompt": CANARIES["prompt"], "answer": CANARIES["answer"]})
    )
    (folder / "history.jsonl").write_text(
        json.dumps({"step": 1, "items": [0.123456789], "x": CANARIES["prompt"]})
    )
    for role in ("ingest", "read"):
        (folder / "guard" / f"{role}.token").write_text(CANARIES[role])
    secrets = f"token {CANARIES['ingest']}\nAuthorization: Bearer {CANARIES['log-token']}\nhttp://h/#token={CANARIES['read']}"
    (folder / "trainer.log").write_text(f"RLGUARD_TOKEN={CANARIES['log-token']}\n{secrets}\nloss 0.5\n")
    (folder / "guard.log").write_text(f"{secrets}\nlistening\n")
    facts = {
        "name": "maths",
        "outcome": "fired at step 7",
        "trainer": ["train", f"--token={CANARIES['log-token']}"],
    }
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "Authorization: Basic S3CR3T",
        "{'HF_TOKEN': 'S3CR3T', 'n': 1}",
        "export WANDB_API_KEY=S3CR3T",
        "AWS_SECRET_ACCESS_KEY: S3CR3T",
        "train --hf-token S3CR3T --steps 5",
        json.dumps(["train", "--token", "S3CR3T"], indent=2),
        "https://user:S3CR3T@mirror/simple",
    ],
)
def test_a_secret_is_left_out_in_whatever_shape_it_stands(line: str) -> None:
    assert "S3CR3T" not in _without_secrets(line, [])


@pytest.mark.parametrize(
    "line", ["listening at http://127.0.0.1:8470", "num_tokens: 5120", "--max-tokens 64", "2 tokens of 5"]
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert _without_secrets(line, []) == line


@pytest.mark.parametrize("part", ["-", "--a-", "--token", "://a:", "Bearer "])
def test_no_log_is_slow_to_clean_for_its_length(part: str) -> None:
    def seconds(text: str) -> float:
        clean = partial(_without_secrets, text, [])
        # Of the processor: other tests run beside this one.
        return min(timeit.repeat(clean, timer=time.process_time, number=1, repeat=3))

    log = (part * 30_000)[:30_000]
    assert seconds(log * 4) < 12 * seconds(log)


def test_a_damaged_store_is_named_where_it_is(rlguard: Any, tmp_path: Path) -> None:
    (tmp_path / "guard.db").touch()
    shown = rlguard("inspect", tmp_path)
    assert shown.returncode == 1 and f"{tmp_path / 'guard.db'} is empty" in shown.stderr


def test_a_bundle_has_what_helps_and_no_item_and_no_token(
    rlguard: Any, guard: RealGuard, tmp_path: Path
) -> None:
    guard.close()
    folder, out = run_folder(tmp_path), tmp_path / "bundle.tar.gz"
    shown = rlguard("bundle", folder, "--out", out)
    assert shown.returncode == 0, shown.stderr
    with tarfile.open(out) as archive:
        texts = {entry.name: archive.extractfile(entry).read().decode() for entry in archive.getmembers()}
    names = (
        "verdict.json",
        "store.json",
        "policy.json",
        "versions.json",
        "run.json",
        "guard.log",
        "trainer.log",
    )
    assert texts.keys() == {f"rlguard-bundle/{name}" for name in names}
    everything = "\n".join(texts.values())
    assert [name for name, canary in CANARIES.items() if canary in everything] == []
    assert "0.123456789" not in everything
    assert "loss 0.5" in everything and "listening" in everything and "kl_hard_stop" in everything
    assert json.loads(texts["rlguard-bundle/verdict.json"])["fire"] is True
    assert json.loads(texts["rlguard-bundle/store.json"])["events"]["step"] == 7
    assert rlguard("status", folder).stdout.startswith("maths: fired at step 7\n")
    again = rlguard("bundle", folder, "--out", out)
    assert again.returncode == 2 and "cannot be written" in again.stderr, "nothing is overwritten"


def test_the_guard_logs_json_if_it_is_asked_to(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("RLGUARD_GUARD_LOG_FORMAT", "json")
    running = RealGuard(tmp_path / "run", tmp_path / "out")
    running.close()
    lines = [json.loads(line) for line in (tmp_path / "run" / "guard.log").read_text().splitlines()]
    assert any(line["message"].startswith("listening at http") for line in lines)
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
