"""Each rule of `rlguard run` that is broken on purpose fails a test that stands beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutant, Rule, survivors

HERE = Path(__file__).parent
GUARD = Rule("guard_cli", "run/guard.py", HERE / "test_guard_process.py", (HERE / "conftest.py",))
OUTPUT = Rule("guard_cli", "output.py", HERE / "test_output.py")
PROGRESS = OUTPUT._replace(source="run/progress.py")
REPORT = OUTPUT._replace(source="run/folder.py")
COMMAND = OUTPUT._replace(source="run/command.py")
DEMO = OUTPUT._replace(source="demo/command.py")
FOLLOW = OUTPUT._replace(source="follow.py")
SESSION = Rule("guard_cli", "run/session.py", HERE / "test_session.py")

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
    # What cannot be shown ends nothing.
    (OUTPUT, "if stream is None:", "if False:"),
    (OUTPUT, 'encoding, "replace")', 'encoding, "strict")'),
    (OUTPUT, "            stream.flush()\n", ""),
    (OUTPUT, "except (OSError, ValueError)", "except OSError"),
    (OUTPUT, "except (OSError, ValueError)", "except (BrokenPipeError, ValueError)"),
    (OUTPUT, "            self._stream = None\n", ""),
    (OUTPUT, "            _lead_nowhere(stream)\n", ""),
    (OUTPUT, "suppress(OSError, ValueError)", "suppress(OSError)"),
    (OUTPUT, "self._stream is not None and self._stream.isatty()", "self._stream.isatty()"),
    (PROGRESS, 'cast("IO[str]", said)', "sys.stderr"),
    (PROGRESS, "with suppress(OSError), log", "with log"),
    (PROGRESS, "        except OSError:", "        except FileNotFoundError:"),
    (
        REPORT,
        '        say(f"rlguard: {what} could',
        '        __import__("typer").secho(err=True, message=f"rlguard: {what} could',
    ),
    (
        COMMAND,
        '    say(f"rlguard: {finished.outcome',
        '    typer.secho(err=True, message=f"rlguard: {finished.outcome',
    ),
    (DEMO, '    say(f"rlguard: {_opening', '    typer.secho(err=True, message=f"rlguard: {_opening'),
    (FOLLOW, '    say(f"rlguard follow', '    typer.secho(err=True, message=f"rlguard follow'),
    # An error of this program ends the trainer as a stop does.
    (SESSION, "trainer.stop(signal.SIGTERM, plan.grace", "trainer.stop(signal.SIGKILL, plan.grace"),
    (SESSION, "trainer.stop(signal.SIGTERM, plan.grace", "trainer.stop(signal.SIGTERM, 0.0"),
    (SESSION, "trainer.stop(signal.SIGTERM, plan.grace", "trainer.stop(signal.SIGTERM, 60.0"),
)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_each_broken_rule_is_noticed(tmp_path: Path) -> None:
    assert survivors(MUTANTS, tmp_path, __file__) == ""
