"""Tests of the tests: each mutant breaks one rule, and the rule's own tests must notice.

Every mutant is one edit of the source, and the tests of that file run against it in a process of its own.
A mutant that survives means that a rule could be broken without any test failing.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

GUARD = ("heldout_guard.py", "test_heldout_guard.py")
MONITOR = ("step_monitor.py", "test_step_monitor.py")
JUDGE = ("judge.py", "test_judge.py")

MUTANTS: list[tuple[tuple[str, str], str, str]] = [
    (GUARD, "self._count < self.min_steps", "self._count <= self.min_steps"),
    (GUARD, "self._kl_ema > self.kl_hard_stop", "self._kl_ema >= self.kl_hard_stop"),
    (GUARD, "self._streak >= self.decline_patience", "self._streak > self.decline_patience"),
    (GUARD, "gap > self.max_proxy_real_gap", "gap >= self.max_proxy_real_gap"),
    (GUARD, "- self._heldout_ema <= self.rise_eps", "- self._heldout_ema < self.rise_eps"),
    (GUARD, "- prev_in_loop > self.rise_eps", "- prev_in_loop >= self.rise_eps"),
    (GUARD, "            self._streak = 0\n", "            pass\n"),
    (GUARD, "            self._streak += 1", "            self._streak = 1"),
    (GUARD, "if self._in_loop_baseline is None:", "if True:"),
    (
        GUARD,
        "self.ema_alpha * prev + (1.0 - self.ema_alpha) * x",
        "(1.0 - self.ema_alpha) * prev + self.ema_alpha * x",
    ),
    (GUARD, 'return self._fired_rule, f"latched: {self._fired_reason}"', "pass"),
    (GUARD, "min(factor * mean, self.kl_hard_stop)", "factor * mean"),
    (GUARD, "self._in_loop_baseline) - (self._heldout_ema", "self._in_loop_baseline) + (self._heldout_ema"),
    (GUARD, "if status is not None and status.fire:", "if status is not None and not status.fire:"),
    (MONITOR, "sorted(self._window)[MEDIAN_WINDOW // 2]", "max(self._window)"),
    (MONITOR, "self._kl_ema <= self.kl_hard_stop", "self._kl_ema < self.kl_hard_stop"),
    (MONITOR, 'return f"latched: {self._fired_reason}"', 'return ""'),
    (MONITOR, "len(self._window) == MEDIAN_WINDOW", "len(self._window) >= 1"),
    (JUDGE, "p[0] == attempt and p[1] <= step", "p[1] <= step"),
    (JUDGE, "median(kls) if kls", "fmean(kls) if kls"),
    (JUDGE, "kl if self._kl_armed else None", "kl"),
    (JUDGE, "kind is not KlKind.REF_TOKEN_MEAN", "False"),
    (JUDGE, "silent_for > silent.after_seconds", "silent_for >= silent.after_seconds"),
    (JUDGE, "        self._failures = 0\n        if evaluation", "        if evaluation"),
    (JUDGE, ">= self._best.score", "> self._best.score"),
    (JUDGE, "        if self._fire is None:\n", "        if True:\n"),
    (JUDGE, "halt=self.latch is not None", "halt=self._fire is not None"),
    (JUDGE, "in window]) if window else None", "in window]) if window else 0.0"),
]


def survives(mutant: tuple[tuple[str, str], str, str], room: Path) -> bool:
    """Whether the tests of the mutated file still pass."""
    (source, tests), old, new = mutant
    package = room / "guard_core"
    package.mkdir(parents=True)
    for file in (ROOT / "guard_core").rglob("*.py"):
        target = package / file.relative_to(ROOT / "guard_core")
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(file.read_bytes())
    text = (package / source).read_text()
    assert text.count(old) == 1, f"the mutant {old!r} no longer fits {source}: edit this list with the rule"
    (package / source).write_text(text.replace(old, new))
    (room / tests).write_bytes((ROOT / "tests" / "core" / tests).read_bytes())
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--rootdir", str(room), tests],
        cwd=room,
        env={"PYTHONPATH": str(room), "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return run.returncode == 0


def test_every_broken_rule_fails_a_test(tmp_path: Path) -> None:
    rooms = [tmp_path / str(i) for i in range(len(MUTANTS))]
    with ThreadPoolExecutor(2) as pool:
        alive = list(pool.map(survives, MUTANTS, rooms))
    assert [f"{m[0][0]}: {m[1]}" for m, a in zip(MUTANTS, alive, strict=True) if a] == []
