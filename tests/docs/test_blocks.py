"""Every command in the documentation is run here, or says why it is not, and does what the page shows."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import string
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import typer
import yaml

from rlguard.cli.commands import COMMANDS
from tests.docs.blocks import REASONS, Block, blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])]
ALL = [block for page in PAGES for block in blocks(page)]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def is_make(block: Block) -> bool:
    """Targets of the Makefile are looked up in it; they set up this very environment."""
    called = (
        [re.sub(r"^(?:[A-Z0-9_]+=\S+ )*", "", command) for command in block.commands]
        if block.is_shell
        else []
    )
    return bool(called) and all(command.startswith("make ") for command in called)


def is_run(block: Block) -> bool:
    return block.runs and block.not_run is None and not is_make(block)


#: The script of the quickstart, shortened as there.
TRAINER = next(b.in_the_test for b in blocks(ROOT / "docs/quickstart.md") if b.title == "train.py")


# -- the sandbox in which a page is run ------------------------------------------------------------------


@pytest.fixture(scope="session")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages take for granted: data, a starting policy of some 300,000 weights, a script, a run."""
    from trainer_image.demo import tiny_llama

    folder = tmp_path_factory.mktemp("materials")
    draw = random.Random(0)
    things = ["apples", "pears", "coins", "books", "stones", "shells", "cups", "nails", "plums", "rings"]
    names = ["Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jun"]
    with (folder / "data.jsonl").open("w") as data, (folder / "gsm8k.jsonl").open("w") as other:
        for _ in range(300):
            a, b = draw.randrange(50), draw.randrange(50)
            prompt = f"{draw.choice(names)} has {a} {draw.choice(things)} and finds {b} more. How many now?"
            data.write(json.dumps({"prompt": prompt, "answer": str(a + b)}) + "\n")
            other.write(json.dumps({"question": prompt, "answer": f"{a} + {b}\n#### {a + b}"}) + "\n")
    tokenizer = tiny_llama.build_tokenizer(string.ascii_letters + string.digits + " .?#")
    model = tiny_llama.build_model(tokenizer, 0)
    model.config.max_position_embeddings = 512
    tiny_llama.save(model, tokenizer, folder / "start-model")
    (folder / "train.py").write_text(TRAINER)
    run = folder / "rlguard-runs" / "20260101-120000"
    run.mkdir(parents=True)
    for place in (folder, run):
        shutil.copy(ROOT / "tests/data/runs/addition-hack-38.jsonl", place / "history.jsonl")
    (run / "policy.yaml").write_text("detector: calibrated\n")
    (folder / "out").mkdir()
    log = [{"step": s, "reward": 0.5 + s / 100, "kl": 0.01, "eval_reward": 0.4} for s in range(1, 30)]
    (folder / "out" / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    (folder / "rewards.py").write_text("def graded(completion, answer, meta):\n    return 0.5\n")
    return folder


@pytest.fixture
def sandbox(materials: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(materials, tmp_path / "sandbox"))


def environment() -> dict[str, str]:
    own = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "120", "TOKENIZERS_PARALLELISM": "false"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RLGUARD_")}
    return kept | own | {"PATH": path}


def run(block: Block, folder: Path) -> str:
    """Run a block as a reader would; its output. What it ends with must be what the page says."""
    script = block.in_the_test
    if block.language == "python":
        words = [sys.executable, "-c", script]
    else:
        words = ["bash", "-euo", "pipefail", "-c", "\n".join(block.commands)]
    done = subprocess.run(
        words, cwd=folder, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == block.exit_code, f"{block} ended with {done.returncode}:\n{script}\n{said}"
    return said


def missing_lines(expected: list[str], output: str) -> list[str]:
    """The lines that the page shows and that did not come, in their order; spaces and line breaks aside."""
    rest = " ".join(output.split())
    missing = []
    for line in expected:
        text = " ".join(line.split())
        _, found, after = rest.partition(text)
        if found:
            rest = after
        else:
            missing.append(line)
    return missing


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", [p for p in PAGES if any(map(is_run, blocks(p)))], ids=name_of)
def test_a_page_can_be_followed_from_its_first_line_to_its_last(page: Path, sandbox: Path) -> None:
    for block in blocks(page):
        if block.title is not None and block.not_run is None:
            (sandbox / block.title).write_text(block.in_the_test + "\n")
        elif is_run(block):
            said = run(block, sandbox)
            if block.checks_output:
                assert missing_lines(block.output, said) == [], f"{block}:\n{said}"


# -- and all of them ---------------------------------------------------------------------------------------


def test_there_are_blocks() -> None:
    assert len(ALL) > 60
    assert sum(map(is_run, ALL)) > 15


@pytest.mark.parametrize("block", [b for b in ALL if b.not_run is not None], ids=str)
def test_a_block_that_is_not_run_says_why(block: Block) -> None:
    assert block.not_run in REASONS, f"{block}: known reasons are {', '.join(REASONS)}"
    assert block.runs or block.title is not None, f"{block} is nothing that could be run"


@pytest.mark.parametrize("block", [b for b in ALL if is_make(b)], ids=str)
def test_a_target_of_make_exists(block: Block) -> None:
    for command in block.commands:
        words = [word for word in shlex.split(command.partition("#")[0]) if "=" not in word]
        for target in words[1:]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), (
                f"{block}: {target}"
            )


def calls() -> Iterator[tuple[Block, list[str]]]:
    """Every call of `rlguard` in a block, whether it is run or not."""
    for block in ALL:
        for line in block.commands if block.is_shell else ():
            for part in re.split(r"\s*(?:\||&&|;)\s*", line.partition(" # ")[0]):
                words = shlex.split(part)
                if words[:1] == ["rlguard"] and words[1:2] and words[1] in COMMANDS:
                    yield block, words[1:]


def application(name: str) -> typer.Typer:
    """The application of one command: that of its module, or of `command` in its package."""
    module = import_module(f"rlguard.cli.{name}")
    app = getattr(module, "app", None) or import_module(f"rlguard.cli.{name}.command").app
    assert isinstance(app, typer.Typer)
    return app


@pytest.mark.parametrize(("block", "words"), [pytest.param(b, w, id=f"{b} {w[0]}") for b, w in calls()])
def test_an_option_in_a_command_exists(block: Block, words: list[str]) -> None:
    command = typer.main.get_command(application(words[0]))
    own = words[: words.index("--")] if "--" in words else words
    for word in own:
        command = getattr(command, "commands", {}).get(word, command)
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    used = {word.partition("=")[0] for word in own if word.startswith("--")} - {"--help", "--version"}
    assert used <= known, f"{block}: `rlguard {words[0]}` has no {', '.join(used - known)}"


@pytest.mark.parametrize("block", [b for b in ALL if b.language in ("yaml", "jsonl")], ids=str)
def test_yaml_and_json_can_be_read(block: Block) -> None:
    if block.language == "yaml":
        list(yaml.safe_load_all(block.text))
    else:
        [json.loads(line) for line in block.text.splitlines()]


@pytest.mark.parametrize("block", [b for b in ALL if b.is_shell], ids=str)
def test_a_command_names_nothing_that_only_the_writers_run_had(block: Block) -> None:
    for command in block.commands:
        assert not re.search(r"-[0-9a-f]{8}(?:-|\b)", command), f"{command!r}: a reader's UID is another"
