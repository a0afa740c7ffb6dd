"""Each rule of `rlguard run` that is broken on purpose fails a test that stands beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutant, Rule, survivors

HERE = Path(__file__).parent
GUARD = Rule("guard_cli", "run/guard.py", HERE / "test_guard_process.py", (HERE / "conftest.py",))

MUTANTS: tuple[Mutant, ...] = (
    (GUARD, 'update={"listen_fd": descriptor}', "update={}"),
    (GUARD, "self._listener.close()  # from", "pass  # from"),
    (GUARD, "                self.stop()\n                raise", "                raise"),
    # Who is started again, and how often.
    (GUARD, "        if died := self._start():", "        if (died := self._start()) and self._restarts:"),
    (GUARD, "        while why:", "        if why:"),
    (GUARD, "            self._restarts += 1", "            self._restarts = 1"),
    (GUARD, "            why = self._start()", "            self._start()"),
    (GUARD, "if code == REFUSED:", "if code == REFUSED and not self._restarts:"),
    (GUARD, "for said in told[-1:]", "for said in ()"),
)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_each_broken_rule_is_noticed(tmp_path: Path) -> None:
    assert survivors(MUTANTS, tmp_path, __file__) == ""
