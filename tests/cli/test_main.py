"""The command line as a whole: help, version, errors in one line, and that it starts fast."""

import subprocess
import sys
import time

import pytest

from guard_cli.main import COMMANDS

HEAVY = ("torch", "transformers", "numpy", "pydantic", "rich", "httpx", "matplotlib", "fastapi")


def rlguard(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "guard_cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_help_lists_every_command_with_an_example():
    done = rlguard("--help")
    assert done.returncode == 0
    assert "Examples:" in done.stdout
    for name, (_, summary) in COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert summary in done.stdout  # not cut off


def test_help_imports_nothing_heavy_and_is_fast():
    code = (
        "import sys, time; begun = time.process_time()\n"
        "from guard_cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print('loaded', sorted(set(sys.modules) & set(sys.argv[1:])), time.process_time() - begun)"
    )
    done = subprocess.run([sys.executable, "-c", code, *HEAVY], capture_output=True, text=True, check=True)
    loaded, seconds = done.stdout.splitlines()[-1].removeprefix("loaded ").rsplit(" ", 1)
    assert loaded == "[]"
    assert float(seconds) < 0.5


@pytest.mark.parametrize(
    "command", [[name] for name in COMMANDS if name != "split"] + [["split", "make"], ["split", "check"]]
)
def test_every_command_has_help_with_an_example(command):
    done = rlguard(*command, "--help")
    assert done.returncode == 0, done.stderr
    assert "Example" in done.stdout
    assert f"rlguard {' '.join(command)}" in " ".join(done.stdout.split())


def test_version():
    from guard_core import __version__

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
        (["run", "--heldout", "x", "--openai-url", "http://h/v1", "--", "true"], "--openai-model"),
        (["demo", "--task", "poetry"], "unknown task 'poetry'"),
        (["serve"], "--state-dir is not set"),
        (["split", "check", "--train", "a", "--heldout", "b"], "No such file"),
        (["split", "make", "missing.jsonl", "--train", "a", "--heldout", "b"], "missing.jsonl"),
    ],
)
def test_wrong_use_exits_2_with_a_sentence(tmp_path, arguments, message):
    done = rlguard(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_list_is_no_configuration(tmp_path):
    (tmp_path / "guard.yaml").write_text("- heldout")
    done = rlguard("run", "--config", "guard.yaml", "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert "must be a mapping" in done.stderr


def test_the_supervisors_own_settings_are_refused_in_a_configuration(tmp_path):
    (tmp_path / "guard.yaml").write_text("port: 80\nheldout: {split: x}")
    done = rlguard("run", "--config", "guard.yaml", "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert "`port` is chosen by `rlguard run`" in done.stderr


def test_split_make_then_check(tmp_path):
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


def test_serve_runs_a_guard_until_it_is_told_to_stop(tmp_path):
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "guard_cli.main", "serve", "--state-dir", "state", "--checkpoints", "."),
            *("--port", "0", "--ingest-token-file", "ingest", "--read-token-file", "read"),
        ],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "state" / "endpoint.json").exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.05)
        assert (tmp_path / "ingest").read_text() != (tmp_path / "read").read_text()
        assert (tmp_path / "ingest").stat().st_mode & 0o777 == 0o600
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()
