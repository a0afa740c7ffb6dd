"""What Kubernetes makes of the Services of a namespace in the environment of every container. Pure.

The kubelet adds it unless a pod says `enableServiceLinks: false`, and whoever may create a Service chooses
its name: `rlguard-guard` comes as `RLGUARD_GUARD_PORT=tcp://10.0.0.7:8470`, among the guard's settings. What
a container itself sets wins over it; what it leaves out does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ADDRESS = r"[\da-fA-F.:]+"
_PROTOCOL = "tcp|udp|sctp"
_URL = rf"(?:{_PROTOCOL})://\S+:\d+"
_NUMBERED = rf"PORT_\d+_(?:{_PROTOCOL.upper()})"
#: How the name of a variable ends, after that of the Service, and what its value is. By the name alone a
#: setting such as RLGUARD_GUARD_PORT would be one.
_FORMS = tuple(
    (re.compile(rf"[A-Z0-9_]+_{name}"), re.compile(value))
    for name, value in (
        ("SERVICE_HOST", _ADDRESS),
        (r"SERVICE_PORT(?:_[A-Z0-9_]+)?", r"\d+"),
        (rf"(?:PORT|{_NUMBERED})", _URL),
        (rf"{_NUMBERED}_PROTO", _PROTOCOL),
        (rf"{_NUMBERED}_PORT", r"\d+"),
        (rf"{_NUMBERED}_ADDR", _ADDRESS),
    )
)


def is_service_link(name: str, value: str) -> bool:
    """Whether this variable of an environment is of a Service."""
    return any(of.fullmatch(name) and what.fullmatch(value) for of, what in _FORMS)


def without_service_links(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that are of no Service."""
    return {name: value for name, value in environ.items() if not is_service_link(name, value)}
