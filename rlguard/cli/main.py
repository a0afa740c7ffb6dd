"""`rlguard` and `kubectl rlguard`: find the command that was asked for and import that one only.

`rlguard --help` must be instant, so a command's module loads when it is called; the list shows its summary.
What a command needs is looked for before it is loaded, and a missing extra is one sentence.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence

from rlguard.cli.commands import KUBECTL, RLGUARD, Program
from rlguard.cli.errors import ExitCode
from rlguard.cli.output import lead_nowhere
from rlguard.core.extras import missing_extra
from rlguard.follow.errors import InputError


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line `rlguard`; ends with `SystemExit`."""
    _main(RLGUARD, sys.argv[1:] if argv is None else argv)


def kubectl() -> None:
    """Run `kubectl rlguard`, which kubectl finds by its name in the PATH; ends with `SystemExit`."""
    _main(KUBECTL, sys.argv[1:])


def _main(program: Program, argv: Sequence[str]) -> None:
    arguments = list(argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    command = program.commands.get(chosen or "")
    name = program.name if command is None else f"{program.name} {chosen}"
    missing = missing_extra(name, ("cli",) if command is None else command.extras)
    if missing is not None:
        print(missing, file=sys.stderr)
        raise SystemExit(ExitCode.USAGE)
    from rlguard.cli.app import build_app, run_program

    try:
        try:
            run_program(build_app(chosen, program), arguments, program)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except InputError as error:
        print(f"{name}: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EPIPE):
            raise
        lead_nowhere(sys.stdout)
        print(f"{name}: {error.strerror}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
