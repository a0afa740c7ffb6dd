"""Each import contract is red when it is broken: one import that it forbids is added for each, at once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
CONTRACTS = [contract["name"] for contract in LINTER["contracts"]]
#: How a contract's name begins, a module, and what it may not import.
BREAKS = {
    "guard_core imports no other": ("guard_core.wire", "guard_client.errors"),
    "the client knows": ("guard_client.client", "httpx"),
    "the guard does not know": ("guard_service.server", "guard_client.errors"),
    "the trainer does not know": ("trainer_image.ranks", "guard_service.errors"),
    "the operator knows": ("guard_operator.config", "guard_client.errors"),
    "the face shows": ("rlguard", "guard_cli.errors"),
    "nothing that ships": ("guard_cli.links", "tools.chart"),
    "vLLM is": ("guard_service.heldout.evaluators.evaluator", "vllm"),
    "the follower knows": ("guard_follow.config", "guard_service.errors"),
    "the follower: its": ("guard_follow.columns", "guard_follow.steps"),
    "no circle": ("guard_follow.config", "guard_follow.follower"),
    "the operator: decisions": ("guard_operator.runtime.queue", "guard_operator.api.names"),
    "one reconcile": ("guard_operator.reconcile.gather", "guard_operator.reconcile.decide"),
    "the guard: HTTP": ("guard_service.run", "guard_service.engine"),
    "the held-out evaluation": ("guard_service.heldout.split", "guard_service.heldout.worker"),
    "the client: what": ("guard_client.samples", "guard_client.guard"),
    "the trainer's side": ("trainer_image.figures", "trainer_image.callback"),
    "the command": ("guard_cli.logs.table", "guard_cli.replay.run"),
    "core": ("guard_core.wire", "guard_core.judge"),
}


def complaints(root: Path) -> dict[str, str]:
    """What the linter says of each contract that does not hold in the packages under `root`."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "500"}
    ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert f"{len(CONTRACTS) - ran.stdout.count(' BROKEN')} kept" in ran.stdout, ran.stdout + ran.stderr
    _, *parts = re.split(rf"^({'|'.join(map(re.escape, CONTRACTS))})\n-+$", ran.stdout, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_each_contract_that_is_broken_is_reported(tmp_path: Path) -> None:
    for package in LINTER["root_packages"]:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert complaints(tmp_path) == {}
    for importer, imported in BREAKS.values():
        path = tmp_path / importer.replace(".", "/")
        with (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).open("a") as source:
            source.write(f"import {imported}\n")
    said = complaints(tmp_path)
    assert sorted(said) == sorted(CONTRACTS) and len(BREAKS) == len(CONTRACTS)
    for start, (importer, imported) in BREAKS.items():
        (complaint,) = (text for name, text in said.items() if name.startswith(start))
        siblings = f".{importer.rpartition('.')[2]} -> .{imported.rpartition('.')[2]} (1 import)"
        assert f"{importer} -> {imported} (l." in complaint or siblings in complaint, start


def test_a_new_module_must_be_given_its_layer() -> None:
    layered = [contract for contract in LINTER["contracts"] if contract["type"] == "layers"]
    assert len(layered) > 8
    assert [contract["name"] for contract in layered if not contract.get("exhaustive")] == []
