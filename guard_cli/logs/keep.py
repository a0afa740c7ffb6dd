"""Which columns of a log are kept."""

from __future__ import annotations

from collections.abc import Collection

from guard_core.frameworks import figure_of
from guard_follow import names


class Keep:
    """Which columns of a log are kept: those that are judged or mapped, and so many with further figures."""

    def __init__(self, overrides: Collection[str] = ()) -> None:
        self._overrides, self._figures = frozenset(overrides), set[str]()

    def __call__(self, column: str) -> bool:
        """Whether this column is kept."""
        return self._judged(column) or self.is_figure(column)

    def is_figure(self, column: str) -> bool:
        """Whether it is kept although nothing is judged by it: what is no number in it is only not known."""
        if self._judged(column) or not figure_of(column):
            return False
        if len(self._figures) < names.MOST_FIGURES:
            self._figures.add(column)
        return column in self._figures

    def _judged(self, column: str) -> bool:
        return column in self._overrides or names.wanted(column)
