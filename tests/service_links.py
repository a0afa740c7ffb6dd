"""What a kubelet makes of a Service, as `pkg/kubelet/envvars` of Kubernetes does."""

from __future__ import annotations

from collections.abc import Sequence


def service_links(
    name: str, address: str = "10.0.0.7", ports: Sequence[tuple[str, int, str]] = (("", 8470, "TCP"),)
) -> dict[str, str]:
    """The variables of a Service with this cluster IP. `ports`: name, number and protocol of each."""
    prefix = _variable(name)
    host = f"[{address}]" if ":" in address else address
    made = {f"{prefix}_SERVICE_HOST": address, f"{prefix}_SERVICE_PORT": str(ports[0][1])}
    made |= {f"{prefix}_SERVICE_PORT_{_variable(named)}": str(number) for named, number, _ in ports if named}
    made[f"{prefix}_PORT"] = f"{ports[0][2].lower()}://{host}:{ports[0][1]}"
    for _, number, protocol in ports:
        one = f"{prefix}_PORT_{number}_{protocol}"
        made |= {one: f"{protocol.lower()}://{host}:{number}", f"{one}_PROTO": protocol.lower()}
        made |= {f"{one}_PORT": str(number), f"{one}_ADDR": address}
    return made


def _variable(name: str) -> str:
    return name.upper().replace("-", "_")
