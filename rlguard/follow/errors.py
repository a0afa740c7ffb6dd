"""What ends following."""

from __future__ import annotations


class InputError(Exception):
    """What was given, or what a trainer wrote, cannot be used. One sentence, shown without a traceback.

    `exit_code`: of a process that ends with it; 2 for wrong arguments or files, 1 where a guard does not
    respond or refuses a token.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = int(exit_code)
