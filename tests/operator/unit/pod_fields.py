"""The rows of pod_fields.yaml, and how a pod gets the field of a row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]
TABLES: dict[str, dict[str, Json]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


#: Rows that are allowed where the guard has a pod of its own: they matter beside it alone.
ONLY_BESIDE = (
    "PodSpec.shareProcessNamespace refused",
    "PodSecurityContext.runAsUser refused",
    "PodSecurityContext.sysctls relaxed",
    "SecurityContext.runAsUser refused",
    "ContainerPort.containerPort refused",
)


@dataclass(frozen=True)
class Row:
    """A field of an object (by its OpenAPI name) with a value, and what becomes of it under Strict."""

    schema: str
    field: str
    outcome: str
    value: Any

    def __str__(self) -> str:
        return f"{self.schema}.{self.field} {self.outcome}"

    def becomes(self, placement: str) -> str:
        """The outcome where the guard runs as `spec.guard.placement` says."""
        return "allowed" if placement == "Pod" and str(self) in ONLY_BESIDE else self.outcome

    def put(self, pod: Json) -> None:
        """Give the field to a pod; where needed, with an object around it."""
        _PUT[self.schema](pod, {self.field: self.value})


ROWS = [
    Row(schema, field, outcome, value)
    for schema, fields in TABLES.items()
    for field, outcomes in fields.items()
    for outcome, value in outcomes.items()
]


def _merge(target: Json, values: Json) -> None:
    for field, value in values.items():
        if isinstance(value, list):
            target[field] = [*target.get(field, []), *value]
        else:
            target[field] = target[field] | value if isinstance(target.get(field), dict) else value


def _volume(pod: Json, values: Json) -> None:
    # A volume of nothing but a name is an emptyDir.
    pod["volumes"].append({"name": "extra", **({"emptyDir": {}} if "name" in values else {}), **values})


def _container(pod: Json, values: Json) -> None:
    sidecar = "restartPolicy" in values or "restartPolicyRules" in values
    pod["containers"].append({"name": "extra", "image": "busybox", **values})
    if "volumeDevices" in values:
        claim = {"claimName": "block"}
        pod["volumes"].append({"name": "block", "persistentVolumeClaim": claim})
    if sidecar:
        pod["containers"][-1].setdefault("restartPolicy", "Never")
    if "stdinOnce" in values:
        pod["containers"][-1]["stdin"] = True


def _mount(pod: Json, values: Json) -> None:
    _volume(pod, {"emptyDir": {}})
    _container(pod, {"volumeMounts": [{"name": "extra", "mountPath": "/extra"} | values]})


def _device(pod: Json, values: Json) -> None:
    _volume(pod, {"persistentVolumeClaim": {"claimName": "block"}})
    _container(pod, {"volumeDevices": [{"name": "extra", "devicePath": "/dev/extra"} | values]})


def _environment(pod: Json, values: Json) -> None:
    _volume(pod, {"emptyDir": {}})
    _container(pod, {"env": [{"name": "A", "valueFrom": values}]})


def _claim(pod: Json, values: Json) -> None:
    base = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    _volume(pod, {"ephemeral": {"volumeClaimTemplate": {"spec": base | values}}})


def _pod_security(pod: Json, values: Json) -> None:
    security = pod.setdefault("securityContext", {})
    if "runAsNonRoot" in values:  # with a user it says nothing
        security.pop("runAsUser", None)
    _merge(security, values)


def _security(pod: Json, values: Json) -> None:
    _container(pod, {"securityContext": values})
    if values.get("procMount") == "Unmasked":  # the API server wants it so
        pod["hostUsers"] = False


_PUT = {
    "PodSpec": _merge,
    "PodSecurityContext": _pod_security,
    "Volume": _volume,
    "VolumeProjection": lambda pod, values: _volume(pod, {"projected": {"sources": [values]}}),
    "PersistentVolumeClaimSpec": _claim,
    "Container": _container,
    "SecurityContext": _security,
    "EnvVarSource": _environment,
    "EnvFromSource": lambda pod, values: _container(
        pod, {"envFrom": [({"configMapRef": {"name": "x"}} if "prefix" in values else {}) | values]}
    ),
    "VolumeMount": _mount,
    "VolumeDevice": _device,
    "ContainerPort": lambda pod, values: _container(pod, {"ports": [{"containerPort": 1234} | values]}),
}
