"""Keep the guard's port out of a service mesh: its peers check the certificate themselves. Pure."""

from __future__ import annotations

from rlguard.operator.runtime.client import Json

#: Annotations of a pod, each a list of ports with commas, by which Istio and Linkerd leave a port alone.
EXCLUDED_PORTS = (
    "traffic.sidecar.istio.io/excludeInboundPorts",
    "traffic.sidecar.istio.io/excludeOutboundPorts",
    "config.linkerd.io/skip-inbound-ports",
    "config.linkerd.io/skip-outbound-ports",
)


def exclude_port(metadata: Json, port: int) -> None:
    """Add the port to these annotations of a pod, after what its template has there."""
    annotations = dict(metadata.get("annotations") or {})
    for name in EXCLUDED_PORTS:
        given = str(annotations.get(name) or "")
        annotations[name] = ",".join(filter(None, (given, str(port))))
    metadata["annotations"] = annotations
