"""When the reporter writes, how it backs off, where the API server is, and which settings are refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from guard_service.cluster.client import in_cluster_url
from guard_service.cluster.reporter import backoff, is_due
from guard_service.cluster.settings import ClusterSettings
from guard_service.errors import SettingsError


@pytest.mark.parametrize(
    ("since", "changed", "latched", "due"),
    [
        (None, False, False, True),
        (0.0, True, False, False),
        (4.9, True, False, False),
        (5.0, True, False, True),
        (14.9, False, False, False),
        (15.0, False, False, True),
        (0.0, False, True, True),
    ],
)
def test_when_to_write(since: float | None, changed: bool, latched: bool, due: bool) -> None:
    assert is_due(since, changed, latched) is due


@pytest.mark.parametrize(
    ("failures", "retry_after", "chance", "seconds"),
    [
        (1, None, 0.0, 0.25),
        (1, None, 1.0, 0.5),
        (2, None, 1.0, 1.0),
        (5, None, 1.0, 8.0),
        (1_000_000, None, 1.0, 8.0),
        (1, 3.0, 1.0, 3.5),
        (1, 1e9, 0.0, 30.25),
    ],
)
def test_backoff(failures: int, retry_after: float | None, chance: float, seconds: float) -> None:
    assert backoff(failures, retry_after, chance) == seconds


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}, "https://10.0.0.1:6443"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "https://10.0.0.1:443"),
        ({"KUBERNETES_SERVICE_HOST": "fd00::1"}, "https://[fd00::1]:443"),
    ],
)
def test_where_the_api_server_is(environ: dict[str, str], url: str) -> None:
    assert in_cluster_url(environ) == url


def test_outside_of_a_cluster_the_url_is_asked_for() -> None:
    with pytest.raises(SettingsError, match="RLGUARD_GUARD_CLUSTER__URL"):
        in_cluster_url({})


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "http://10.0.0.1"},  # would carry the token in clear
        {"url": "ftp://x"},
        {"url": "https://"},
        {"name": "../../secrets"},
        {"namespace": ""},
        {"uid": ""},
        {"replica_index": -1},
        {"tokn": "x"},
    ],
)
def test_settings_that_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ClusterSettings.model_validate({"namespace": "team", "name": "run", "uid": "uid-1"} | wrong)
