"""A mean outcome in place of the outcomes themselves: how many independent items it is worth. Pure.

A mean m of n independent outcomes in {0, 1} has the variance m (1 - m)/n. So a mean with its standard error
is judged as n outcomes, each of them m.
"""

from __future__ import annotations

#: Least m (1 - m): near 0 and 1 one odd outcome must not be infinite evidence.
LEAST_VARIANCE = 0.005


def independent_items(mean: float, standard_error: float, most: int) -> int:
    """How many independent items a mean in [0, 1] with this standard error is worth: 1 to `most`."""
    return min(max(round(max(mean * (1 - mean), LEAST_VARIANCE) / standard_error**2), 1), most)


def expected_error(mean: float, items: int) -> float:
    """The standard error of a mean in [0, 1] of so many independent items."""
    return float((max(mean * (1 - mean), LEAST_VARIANCE) / items) ** 0.5)
