"""Tests of the tests: each mutant breaks a rule of scorers with a limit, and a test must notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutant, Rule, survivors

HERE = Path(__file__).resolve().parent
POOLED = HERE / "test_pool.py"
POOL, SCORING_PROCESS, LIMITED, COUNTED, PARENT = (
    Rule("guard_service", f"heldout/{name}.py", POOLED, (HERE / "limited_scorers.py",))
    for name in ("pool", "scoring_process", "scorers", "child", "parent")
)

MUTANTS: list[Mutant] = [
    (POOL, "async with asyncio.timeout(limits.seconds):", "async with asyncio.timeout(None):"),
    (POOL, "range(min(limits.at_once, len(questions)))", "range(len(questions))"),
    (POOL, "        process.over = True\n        return late", "        return late"),
    (POOL, "islice(waiting, limits.at_once - len(under_way))", "waiting"),
    (PARENT, "os.killpg(process.pid, signal.SIGKILL)", "process.kill()"),
    (PARENT, "            pipe.close()\n", "            pass\n"),
    (POOL, ' or response.get("place") != place', ""),
    (POOL, "        process.over = True\n        how", "        how"),
    (POOL, "contextlib.suppress(ConnectionError, ValueError)", "contextlib.suppress(ConnectionError)"),
    (POOL, '("ready" in response or _is_answer(response))', "True"),
    (SCORING_PROCESS, "        if os.getpid() != own:", "        if False:"),
    (
        SCORING_PROCESS,
        "        if not limit.expired():\n            return Said(",
        "        if False:\n            return Said(",
    ),
    (LIMITED, "if name.isidentifier() and len(name) <= MAX_NAME else", "if True else"),
    (
        POOL,
        "            if process is not None:\n                await process.end()\n\n",
        "            pass\n\n",
    ),
    (SCORING_PROCESS, "asyncio.timeout(seconds) as limit", "asyncio.timeout(None) as limit"),
    (SCORING_PROCESS, " or limit.expired()", ""),
    (LIMITED, "not self.is_async and (limits.seconds is None", "(limits.seconds is None"),
    (LIMITED, "limits.seconds is None or self.function in _ALWAYS_END", "limits.seconds is None"),
    (LIMITED, "_ALWAYS_END = (exact, numeric)", "_ALWAYS_END = (exact, numeric, regex)"),
    (LIMITED, "_ALWAYS_END = (exact, numeric)", "_ALWAYS_END = (exact, numeric, math_verify)"),
    (LIMITED, "(scorer, getattr(type(scorer)", "(scorer, scorer, getattr(type(None)"),
    (LIMITED, "if not (said.late and limits.late_is_wrong):", "if not said.late:"),
    (LIMITED, "Graded(0.0, late=True)", "Graded(1.0, late=True)"),
    (LIMITED, "if late > MAX_LATE * len(asked):", "if False:"),
    (LIMITED, "if late > MAX_LATE * len(asked):", "if late >= MAX_LATE * len(asked) > 0:"),
    (
        LIMITED,
        "            if said.late:\n                raise SplitError(",
        "            if False:\n                raise SplitError(",
    ),
    (COUNTED, "a.late or b.late for", "a.late for"),
    (COUNTED, "a.late or b.late for", "b.late for"),
    (COUNTED, "self._timed_out(right, paid or right)", "self._timed_out(right, right)"),
    (COUNTED, "if self._limits.seconds is None:", "if False:"),
    (COUNTED, 'settings.on_scorer_timeout == "wrong"', "True"),
    (COUNTED, "            settings.scorer_concurrency,\n", ""),
]


@pytest.mark.slow
@pytest.mark.timeout(3600)  # most of it is waiting: a mutant of a limit hangs
def test_every_broken_rule_fails_a_test(tmp_path: Path) -> None:
    assert survivors(MUTANTS, tmp_path, __file__) == ""
