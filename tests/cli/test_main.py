"""The command line as a whole: help, version, errors in one line, and that it starts fast."""

import json
import subprocess
import sys
import time

import pytest

from rlguard.cli.commands import COMMANDS

HEAVY = ("torch", "transformers", "numpy", "pydantic", "rich", "httpx", "matplotlib", "fastapi")


def test_help_lists_every_command_with_an_example(rlguard):
    done = rlguard("--help")
    assert done.returncode == 0
    assert "Examples:" in done.stdout
    for name, summary in ((name, command.summary) for name, command in COMMANDS.items()):
        assert f"  {name} " in done.stdout
        assert summary in done.stdout  # not cut off


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from rlguard.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print('loaded', sorted(set(sys.modules) & set(sys.argv[1:])))"
    )
    done = subprocess.run([sys.executable, "-c", code, *HEAVY], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded []"


def kubectl_rlguard(*arguments):
    code = "from rlguard.cli.main import kubectl; kubectl()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


def test_the_plugin_of_kubectl_has_the_commands_of_a_cluster():
    done = kubectl_rlguard("--help")
    assert done.returncode == 0 and "Usage: kubectl rlguard" in done.stdout
    listed = [name for name in COMMANDS if f"\n  {name} " in done.stdout]
    assert listed == ["wrap", "status", "report", "resume"]
    assert "Usage: kubectl rlguard status" in kubectl_rlguard("status", "--help").stdout
    assert "No such command 'run'" in kubectl_rlguard("run").stderr
    done = kubectl_rlguard("report", "job", "--kubeconfig", "/nonexistent")
    assert done.stderr.startswith("kubectl rlguard report: no cluster: ") and done.returncode == 1


def test_version(rlguard):
    from rlguard.core import __version__

    done = rlguard("--version")
    assert (done.returncode, done.stdout) == (0, f"rlguard {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-command"], "No such command"),
        ([], "Usage"),
        (["run", "--", "true"], "no held-out split"),
        (["run", "--heldout", "missing.jsonl", "--", "true"], "missing.jsonl: No such file"),
        (["run", "--heldout", "x", "--temperature", "warm", "--", "true"], "--temperature"),
        (["run", "--config", "missing.yaml", "--", "true"], "missing.yaml cannot be read"),
        (["serve"], "give --state-dir and --checkpoints, or the folder of a run that has ended"),
        (
            ["wrap", "-f", "no.yaml", "--heldout", "claim:h/x", "--checkpoints", "c"],
            "'no.yaml': No such file",
        ),
        (["split", "check", "--train", "a", "--heldout", "b"], "No such file"),
    ],
)
def test_wrong_use_exits_2_with_a_sentence(rlguard, tmp_path, arguments, message):
    done = rlguard(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("heldout: 5", "heldout in --config: Input should be a valid dictionary"),
        ("- heldout", "must be a mapping"),
        ("port: 80", "`port` is chosen by `rlguard run`"),
        ("Port: 99999", "Port in --config is not a setting: did you mean port?"),
    ],
)
def test_a_configuration_is_not_lost_beside_options(rlguard, tmp_path, text, said):
    """No section would be lost to an option of it, and another case would win over the option."""
    (tmp_path / "guard.yaml").write_text(text)
    options = ["--heldout", "h.jsonl", "--temperature", "1"]
    done = rlguard("run", "--config", "guard.yaml", *options, "--", "true", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr


@pytest.mark.parametrize(
    ("text", "arguments", "environment", "message"),
    [
        ("{temprature: 1}", [], {}, "evaluator.temprature in --config: Extra inputs are not permitted"),
        ("{temperature: hot}", [], {}, "evaluator.temperature in --config: Input should be a valid number"),
        ("{temperature: hot}", ["--temperature", "-1"], {}, "--temperature: Input should be greater than or"),
        ("{}", [], {"TEMPERATURE": "hot"}, "RLGUARD_GUARD_HELDOUT__EVALUATOR__TEMPERATURE: Input should be"),
        ("{}", ["--chat-template-kwargs", "[" * 9999], {}, "--chat-template-kwargs must be a JSON object"),
        ("{}", ["--vllm", "--device", "cpu"], {}, "--device: Extra inputs are not permitted"),
        ("{}", ["--stop", "x", "--stop", ""], {}, "--stop: String should have at least 1"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_as_it_was_written(
    rlguard, tmp_path, monkeypatch, text, arguments, environment, message
):
    (tmp_path / "guard.yaml").write_text(f"heldout: {{split: x, evaluator: {text}}}")
    for name, value in environment.items():
        monkeypatch.setenv(f"RLGUARD_GUARD_HELDOUT__EVALUATOR__{name}", value)
    done = rlguard("run", "--config", "guard.yaml", *arguments, "--", "true", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("rlguard run: ") and message in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["run", "--", "true"],
        ["serve", "--state-dir", "s", "--checkpoints", "c"],
        ["check"],
    ],
    ids=lambda command: command[0],
)
def test_vllm_that_is_not_installed_is_told_before_any_work(rlguard, tmp_path, command):
    """Every command that evaluates takes `--vllm`; vLLM is not in the environment of these tests."""
    (tmp_path / "held.jsonl").write_text('{"id": "a", "prompt": "1+1=", "answer": "2"}')
    (tmp_path / "m").mkdir()
    name, *rest = command
    done = rlguard(name, "--heldout", "held.jsonl", "--vllm", *rest, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "needs the package vllm" in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr


def test_one_option_changes_one_field_and_keeps_the_others(tmp_path, monkeypatch):
    from rlguard.cli.guard_settings import heldout_options, make_settings

    (tmp_path / "held.jsonl").write_text('{"id": "a", "prompt": "1+1=", "answer": "2"}')
    heldout = {"split": tmp_path / "held.jsonl", "evaluator": {"seed": 3}}
    options = {"heldout": heldout_options(heldout=None, train_prompts=None, max_new_tokens=7)}
    monkeypatch.setenv("RLGUARD_GUARD_HELDOUT__EVALUATOR__TIMEOUT_SECONDS", "9")
    base = {"state_dir": "s", "checkpoint_root": "c", "allow_unauthenticated_loopback": True}
    evaluator = make_settings({**base, "heldout": heldout}, options).heldout.evaluator
    assert (evaluator.kind, evaluator.max_new_tokens, evaluator.timeout_seconds) == ("hf", 7, 9.0)
    assert evaluator.seed == 3


def test_split_make_then_check(rlguard, tmp_path):
    rows = "".join(f'{{"prompt": "Tell me story number {i} please", "answer": "{i}"}}\n' for i in range(100))
    (tmp_path / "data.jsonl").write_text(rows)
    made = rlguard(
        *("split", "make", "data.jsonl", "--train", "t.jsonl", "--heldout", "h.jsonl", "--fraction", "0.2"),
        cwd=tmp_path,
    )
    assert made.returncode == 0, made.stderr
    assert "training rows in t.jsonl" in made.stdout
    overlapping = rlguard("split", "check", "--train", "data.jsonl", "--heldout", "h.jsonl", cwd=tmp_path)
    assert overlapping.returncode == 1
    assert "not disjoint" in overlapping.stderr
    assert "exact 1.00" in overlapping.stderr


def test_split_check_drops_what_overlaps_and_the_rule_can_be_set(rlguard, tmp_path):
    (tmp_path / "train.jsonl").write_text('{"question": "Please name the capital of France"}\n')
    rows = [
        f'{{"id": "{i}", "prompt": "{p}", "answer": "1"}}\n'
        for i, p in enumerate(["name the capital of France", "2+2="])
    ]
    (tmp_path / "held.jsonl").write_text("".join(rows))
    check = (
        "split",
        "check",
        "--train",
        "train.jsonl",
        "--heldout",
        "held.jsonl",
        "--prompt-column",
        "question",
    )
    assert rlguard(*check, cwd=tmp_path).returncode == 1
    assert rlguard(*check, "--exact-only", cwd=tmp_path).returncode == 0
    dropped = rlguard(*check, "--drop", "out.jsonl", cwd=tmp_path)
    assert dropped.returncode == 0, dropped.stderr
    assert "1 items in out.jsonl, 1 left out" in dropped.stdout
    assert (tmp_path / "out.jsonl").read_text() == rows[1]


def test_serve_runs_a_guard_until_it_is_told_to_stop(tmp_path):
    process = subprocess.Popen(
        [
            *(
                sys.executable,
                "-m",
                "rlguard.cli.main",
                "serve",
                "--state-dir",
                "state",
                "--checkpoints",
                ".",
            ),
            *("--port", "0", "--ingest-token-file", "ingest", "--read-token-file", "read"),
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "state" / "endpoint.json").exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.05)
        said = [process.stdout.readline() for _ in range(4)]
        url = json.loads((tmp_path / "state" / "endpoint.json").read_text())["url"]
        read = (tmp_path / "read").read_text()
        assert said[0] == f"# state: dashboard {url}/#token={read}\n"
        assert said[1] == f"export RLGUARD_URL={url}\n"
        shell = subprocess.run(
            ["sh", "-c", f"{said[1]}{said[2]}env"], capture_output=True, text=True, cwd="/", check=True
        ).stdout.splitlines()
        assert f"RLGUARD_TOKEN={(tmp_path / 'ingest').read_text()}" in shell and f"RLGUARD_URL={url}" in shell
        assert str(tmp_path / "ingest") in said[3] and str(tmp_path / "read") in said[3]
        assert (tmp_path / "ingest").read_text() != (tmp_path / "read").read_text()
        assert (tmp_path / "ingest").stat().st_mode & 0o777 == 0o600
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def test_links_and_lines_can_be_copied_whatever_is_in_them(tmp_path):
    from rlguard.cli.links import dashboard_link, export_lines, reachable

    assert (
        dashboard_link("http://127.0.0.1:8470", "a+b/&#c") == "http://127.0.0.1:8470/#token=a%2Bb%2F%26%23c"
    )
    assert dashboard_link("http://127.0.0.1:8470", None) == "http://127.0.0.1:8470/"
    file = tmp_path / "it's a token"
    file.write_text("t0ken")
    lines = export_lines("http://127.0.0.1:1", file)
    shell = subprocess.run(
        ["sh", "-c", "; ".join([*lines, "env"])], capture_output=True, text=True, check=True
    )
    assert "RLGUARD_TOKEN=t0ken" in shell.stdout.splitlines() and "t0ken" not in "".join(lines).replace(
        str(file), ""
    )
    assert export_lines("http://127.0.0.1:1", None) == ["export RLGUARD_URL=http://127.0.0.1:1"]
    assert "0.0.0.0" not in reachable("http://0.0.0.0:8470") and reachable("http://[::]:8470").endswith(
        ":8470"
    )


def test_a_full_stdout_is_a_sentence():
    command = [sys.executable, "-m", "rlguard.cli.main", "--version"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "rlguard: No space left on device\n")
