"""Which variables of an environment Kubernetes has made of a Service, and which are somebody's own."""

from __future__ import annotations

import pytest

from guard_core.service_links import is_service_link, without_service_links
from tests.service_links import service_links

PORTS = (("http", 80, "TCP"), ("dns-2", 53, "UDP"), ("m3ua", 2905, "SCTP"))


@pytest.mark.parametrize(
    "name", ["rlguard-guard", "rlguard-guard-heldout--split", "vllm", "a1", "kubernetes"]
)
@pytest.mark.parametrize("address", ["10.0.0.7", "fd00:10:96::1a"])
@pytest.mark.parametrize("ports", [(("", 8470, "TCP"),), PORTS])
def test_whatever_a_service_is_called_it_is_known(
    name: str, address: str, ports: tuple[tuple[str, int, str], ...]
) -> None:
    links = service_links(name, address, ports)
    assert [one for one in links.items() if not is_service_link(*one)] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RLGUARD_GUARD_PORT", "8470"),
        ("RLGUARD_GUARD_PORT", "http://10.0.0.7:8470"),
        ("RLGUARD_GUARD_PORT", "tcp://10.0.0.7"),
        ("RLGUARD_GUARD_HOST", "10.0.0.7"),
        ("RLGUARD_GUARD_METRIC_PORT", "9090"),
        ("RLGUARD_GUARD_PORT_8470_TCPS", "tcp://10.0.0.7:8470"),
        ("RLGUARD_GUARD_PORTS", "tcp://10.0.0.7:8470"),
        ("RLGUARD_URL", "tcp://10.0.0.7:8470"),
        ("X_SERVICE_HOST", "guard.example.org"),
        ("X_SERVICE_PORT", "http"),
        ("X_PORT_80_TCP_PROTO", "http"),
        ("X_PORT_80_TCP_PORT", "tcp"),
        ("X_PORT_80_TCP_ADDR", "here"),
        ("SERVICE_HOST", "10.0.0.7"),
        ("PORT", "tcp://10.0.0.7:8470"),
        ("x_SERVICE_HOST", "10.0.0.7"),
        ("X_SERVICE_HOST", "10.0.0.7\n"),
    ],
)
def test_what_has_only_the_name_or_only_the_value_is_somebodys_own(name: str, value: str) -> None:
    assert not is_service_link(name, value)


def test_an_environment_keeps_the_rest() -> None:
    own = {"PATH": "/bin", "RLGUARD_GUARD_PORT": "8470"}
    assert without_service_links(service_links("rlguard-guard") | own) == own
