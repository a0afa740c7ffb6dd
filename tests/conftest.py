"""For the whole suite: its order, and that no test is a matter of how fast the machine is."""

from __future__ import annotations

from contextlib import suppress

import pytest


def pytest_configure() -> None:
    """An example of Hypothesis takes as long as it takes: some run at the lowest priority, beside others."""
    with suppress(ImportError):  # it is not in the environment of tests/vllm
        from hypothesis import HealthCheck, settings

        settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, lest a worker be alone with one at the end; the tests of a file stay."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)
