"""The log of the trainer's side, which also shows in a script that sets up no logging."""

from __future__ import annotations

import logging
import sys

log = logging.getLogger("rlguard.trainer")


class _Fallback(logging.StreamHandler):  # type: ignore[type-arg]
    """Prints to standard error where nobody else shows records."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("rlguard: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.setStream(sys.stderr)
            super().emit(record)


def show_by_default() -> None:
    """Print the log to standard error until the script configures logging itself."""
    if not any(isinstance(handler, _Fallback) for handler in log.handlers):
        log.addHandler(_Fallback())
    if log.level == logging.NOTSET and not logging.getLogger().handlers:
        log.setLevel(logging.INFO)


class WarnOnce:
    """Warns of each thing once."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def __call__(self, what: str, sentence: str) -> None:
        """Log the sentence, unless one was logged of this thing."""
        if what not in self._warned:
            self._warned.add(what)
            log.warning("%s", sentence)
