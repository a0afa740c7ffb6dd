"""The isolation table: what no pod of a run may have, because it reaches into the guard. Pure.

A key that only the guard's container mounts identifies the guard, so a trainer may be root, keep the usual
capabilities and own devices. What stays forbidden reaches that container, its volumes or its name. The
operator checks pods with `broken_rows`; the chart's admission policy (`tools.admission`) and
docs/reference/isolation.md are generated from the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rlguard.operator.adapters import at
from rlguard.operator.api.guard import GuardSpec
from rlguard.operator.api.names import (
    CERTIFICATE_KEY,
    GUARD_CONTAINER,
    INGEST_TOKEN_KEY,
    RESERVED_PREFIX,
    support_name,
)
from rlguard.operator.config import OperatorConfig
from rlguard.operator.reconcile.layout import TRAINER_ENV

#: Keys of the job's Secret that the trainer has, too: with them it reports and knows its guard.
SHARED_KEYS = (INGEST_TOKEN_KEY, CERTIFICATE_KEY)
#: Capabilities with which a container leaves its own file system and processes. Root has none of them.
HOST_CAPABILITIES = (
    "ALL", "BPF", "CHECKPOINT_RESTORE", "DAC_READ_SEARCH", "MAC_ADMIN", "MAC_OVERRIDE", "PERFMON",
    "SYS_ADMIN", "SYS_BOOT", "SYS_MODULE", "SYS_PTRACE", "SYS_RAWIO",
)  # fmt: skip


class On(StrEnum):
    """What a row is held against."""

    POD = "pod"
    VOLUME = "volume"
    CONTAINER = "container"


class Test(StrEnum):
    """How a row judges a value. A closed set: each has one line in Python here, and one in CEL."""

    TRUE = "is true"
    SET = "is set"
    ONE_OF = "is one of"
    STARTS_WITH = "starts with"
    CAPABILITY = "is a capability of"
    CLAIM = "names a claim of the guard"
    SECRET = "names a Secret of the guard"
    SECRET_KEY = "names a Secret of the guard, with a key that is not shared"
    CONFIG_MAP = "names a ConfigMap of the guard"
    ACCOUNT = "names the guard's ServiceAccount"
    NODE_DIRECTORY = "covers, or lies below, a directory of the node"
    API_TOKEN = "is a token that the API server may accept"


@dataclass(frozen=True, slots=True)
class Row:
    """What is forbidden, and why.

    Args:
        id: how the row is called in messages, tests and the reference.
        on: what `paths` start from.
        paths: fields; `[]` is each item of a list.
        test: a value for which it holds breaks the row.
        why: one sentence.
        values: of ONE_OF, STARTS_WITH and CAPABILITY.
        beside: only in the pod in which the guard runs.
        in_template: only before the operator has added its own; it writes such a value itself.
    """

    id: str
    on: On
    paths: tuple[str, ...]
    test: Test
    why: str
    values: tuple[str, ...] = ()
    beside: bool = False
    in_template: bool = False


_SPLIT = "the trainer could read the held-out split, or the guard's state and keys"
_NODE = "it opens the node, and with it the guard's volumes and memory"
_API = "with the pod's account the trainer could read Secrets, or delete its guard"
_LINUX = "the guard's image is for Linux"
_SEES = "the trainer would see the guard's processes and files"
_NAMED = "the guard's volumes are called so"
_OURS = (RESERVED_PREFIX,)
_NEW_CLAIM = "ephemeral.volumeClaimTemplate.spec"
_OF_A_DRIVER = (
    "azureFile.secretName", "cephfs.secretRef.name", "cinder.secretRef.name", "csi.nodePublishSecretRef.name",
    "flexVolume.secretRef.name", "iscsi.secretRef.name", "rbd.secretRef.name", "scaleIO.secretRef.name",
    "storageos.secretRef.name",
)  # fmt: skip


def _pod(id_: str, path: str, test: Test, why: str, *values: str, **options: bool) -> Row:
    return Row(id_, On.POD, (path,), test, why, values, **options)


def _volume(id_: str, path: str, test: Test, why: str, *values: str, **options: bool) -> Row:
    return Row(id_, On.VOLUME, (path,), test, why, values, **options)


def _container(id_: str, path: str, test: Test, why: str, *values: str, **options: bool) -> Row:
    return Row(id_, On.CONTAINER, (path,), test, why, values, **options)


# fmt: off
TABLE: tuple[Row, ...] = (
    _pod("host-pid", "hostPID", Test.TRUE, "the trainer would see every process of the node"),
    _pod("host-ipc", "hostIPC", Test.TRUE, "the trainer would share memory with every process of the node"),
    _pod("host-network", "hostNetwork", Test.TRUE,
         "the guard's port would be the node's; placement Pod admits it", beside=True),
    _pod("shared-processes", "shareProcessNamespace", Test.TRUE, f"{_SEES}; placement Pod admits it",
         beside=True),
    _pod("windows", "os.name", Test.ONE_OF, _LINUX, "windows"),
    _pod("windows-pod", "securityContext.windowsOptions", Test.SET, _LINUX),
    _pod("automatic-token", "automountServiceAccountToken", Test.TRUE, _API),
    Row("guard-account", On.POD, ("serviceAccountName", "serviceAccount"), Test.ACCOUNT,
        "the trainer would have the guard's cloud role"),

    _volume("volume-name", "name", Test.STARTS_WITH, _NAMED, *_OURS, in_template=True),
    _volume("claim", "persistentVolumeClaim.claimName", Test.CLAIM, _SPLIT),
    _volume("copied-claim", f"{_NEW_CLAIM}.dataSource.name", Test.CLAIM, _SPLIT),
    _volume("copied-claim-ref", f"{_NEW_CLAIM}.dataSourceRef.name", Test.CLAIM, _SPLIT),
    _volume("secret-volume", "secret.secretName", Test.SECRET, _SPLIT),
    _volume("secret-projected", "projected.sources[].secret.name", Test.SECRET, _SPLIT),
    Row("secret-driver", On.VOLUME, _OF_A_DRIVER, Test.SECRET, _SPLIT),
    _volume("config-map-volume", "configMap.name", Test.CONFIG_MAP, _SPLIT),
    _volume("config-map-projected", "projected.sources[].configMap.name", Test.CONFIG_MAP, _SPLIT),
    _volume("token", "projected.sources[].serviceAccountToken", Test.API_TOKEN,
            f"{_API}; automountServiceAccountToken: false keeps the automatic one out"),
    _volume("pod-certificate", "projected.sources[].podCertificate", Test.SET, _API),
    _volume("host-path", "hostPath.path", Test.NODE_DIRECTORY, _NODE),
    _volume("git-repo", "gitRepo", Test.SET, "the kubelet runs git for it, as root on the node"),

    _container("container-name", "name", Test.STARTS_WITH, "the operator's containers are called so", *_OURS),
    _container("mount", "volumeMounts[].name", Test.STARTS_WITH, _NAMED, *_OURS),
    _container("device", "volumeDevices[].name", Test.STARTS_WITH, _NAMED, *_OURS),
    _container("env-file", "env[].valueFrom.fileKeyRef.volumeName", Test.STARTS_WITH, _NAMED, *_OURS),
    _container("secret-env", "env[].valueFrom.secretKeyRef", Test.SECRET_KEY, _SPLIT),
    _container("secret-env-from", "envFrom[].secretRef.name", Test.SECRET, _SPLIT),
    _container("config-map-env", "env[].valueFrom.configMapKeyRef.name", Test.CONFIG_MAP, _SPLIT),
    _container("config-map-env-from", "envFrom[].configMapRef.name", Test.CONFIG_MAP, _SPLIT),
    _container("env-name", "env[].name", Test.ONE_OF, "the operator sets it: so the trainer finds its guard",
               *TRAINER_ENV, in_template=True),
    _container("privileged", "securityContext.privileged", Test.TRUE, _NODE),
    _container("capability", "securityContext.capabilities.add[]", Test.CAPABILITY, _NODE,
               *HOST_CAPABILITIES),
    _container("unmasked-proc", "securityContext.procMount", Test.ONE_OF,
               "root could change the node's kernel through /proc/sys", "Unmasked"),
    _container("windows-container", "securityContext.windowsOptions", Test.SET, _LINUX),
    _container("debugger", "targetContainerName", Test.ONE_OF, _SEES, GUARD_CONTAINER),
)
# fmt: on


@dataclass(frozen=True, slots=True)
class GuardObjects:
    """What only the guard of one job may have, and what the installation says of nodes and tokens.

    Args:
        support: name of the Secret and the ConfigMap that the operator makes for the job.
        claims, secrets, config_maps: names of all that the guard mounts.
        account: the guard's own ServiceAccount, if somebody named one.
        node_directories: see `OperatorConfig`.
        token_audiences: see `OperatorConfig`.
    """

    support: str
    claims: frozenset[str]
    secrets: frozenset[str]
    config_maps: frozenset[str]
    account: str | None
    node_directories: tuple[str, ...]
    token_audiences: tuple[str, ...]


def guard_objects_of(name: str, uid: str, guard: GuardSpec, config: OperatorConfig) -> GuardObjects:
    """Collect what is the guard's of the job with this name and UID."""
    volume, own = guard.heldout.volume, guard.own_pod
    support = support_name(name, uid)
    return GuardObjects(
        support,
        _names(volume.claim_name, guard.state.claim_name),
        _names(support, volume.secret_name),
        _names(support, volume.config_map_name),
        None if own is None else own.service_account_name,
        config.node_directories,
        config.token_audiences,
    )


def _names(*names: str | None) -> frozenset[str]:
    return frozenset(name for name in names if name)


@dataclass(frozen=True, slots=True)
class Violation:
    """A field that is refused.

    Args:
        field: its path, from `place` if there is one.
        message: what is wrong with it.
        row: the row of the table that it breaks; "" if it is none of those.
        place: path of the pod template in which it is.
    """

    field: str
    message: str
    row: str = ""
    place: str = ""


def broken_rows(
    pod: Mapping[str, Any], own: GuardObjects, *, beside: bool = False, template: bool = False
) -> tuple[Violation, ...]:
    """Find every row that the pod of a trainer breaks.

    Args:
        pod: the spec of the pod.
        own: what is the guard's.
        beside: whether the guard runs in this pod, or will.
        template: whether the operator has added nothing yet.
    """
    found = list[Violation]()
    for where, value, on in _objects_of(pod, template=template):
        for row in TABLE:
            if row.on is not on or (row.beside and not beside) or (row.in_template and not template):
                continue
            for path in row.paths:
                for field, content in values_at(value, path):
                    if _BREAKS[row.test](content, row, own):
                        found.append(Violation(f"{where}{field}", _message(row, content, own), row.id))
    return tuple(found)


def _objects_of(pod: Mapping[str, Any], *, template: bool) -> Iterator[tuple[str, Mapping[str, Any], On]]:
    """Every object that rows are held against, but those that are the guard's, with where it is."""
    yield "", pod, On.POD
    for index, volume in enumerate(_list(pod.get("volumes"))):
        if template or not str(volume.get("name", "")).startswith(RESERVED_PREFIX):
            yield f"volumes[{index}].", volume, On.VOLUME
    for key in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(_list(pod.get(key))):
            if template or key != "initContainers" or container.get("name") != GUARD_CONTAINER:
                yield f"{key}[{index}].", container, On.CONTAINER


def _list(value: Any) -> list[Mapping[str, Any]]:
    return [one if isinstance(one, dict) else {} for one in value] if isinstance(value, list) else []


def values_at(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every value at a path, with the field in which it is; nothing where a part is missing."""
    name, _, rest = path.partition(".")
    inner = value.get(name.removesuffix("[]")) if isinstance(value, dict) else None
    if not name.endswith("[]"):
        items = [] if inner is None else [(name, inner)]
    else:
        items = [(f"{name[:-2]}[{i}]", v) for i, v in enumerate(inner if isinstance(inner, list) else ())]
    for field, item in items:
        if rest:
            yield from ((f"{field}.{deeper}", found) for deeper, found in values_at(item, rest))
        else:
            yield field, item


#: Whether a value breaks a row.
_BREAKS: Mapping[Test, Callable[[Any, Row, GuardObjects], bool]] = {
    Test.TRUE: lambda value, _row, _own: value is True,
    Test.SET: lambda _value, _row, _own: True,
    Test.ONE_OF: lambda value, row, _own: value in row.values,
    Test.STARTS_WITH: lambda value, row, _own: str(value).startswith(row.values),
    Test.CAPABILITY: lambda value, row, _own: str(value).upper().replace("CAP_", "", 1) in row.values,
    Test.CLAIM: lambda value, _row, own: value in own.claims,
    Test.SECRET: lambda value, _row, own: value in own.secrets,
    Test.SECRET_KEY: lambda value, _row, own: (
        at(value, "name") in own.secrets
        and not (at(value, "name") == own.support and at(value, "key") in SHARED_KEYS)
    ),
    Test.CONFIG_MAP: lambda value, _row, own: value in own.config_maps,
    Test.ACCOUNT: lambda value, _row, own: value == own.account,
    Test.NODE_DIRECTORY: lambda value, _row, own: reached_directory(value, own.node_directories) is not None,
    Test.API_TOKEN: lambda value, _row, own: at(value, "audience") not in own.token_audiences,
}


def _message(row: Row, value: Any, own: GuardObjects) -> str:
    """What is wrong with a value that breaks a row, and why that matters."""
    match row.test:
        case Test.TRUE:
            wrong = "true"
        case Test.SET | Test.API_TOKEN:
            wrong = "set"
        case Test.NODE_DIRECTORY:
            wrong = f"{str(value)[:80]}, which reaches {reached_directory(value, own.node_directories)}"
        case Test.SECRET_KEY:
            wrong = str(at(value, "name"))[:80]
        case _:
            wrong = str(value)[:80]
    return f"must not be {wrong}: {row.why}"


def reached_directory(path: str, directories: Sequence[str]) -> str | None:
    """Which of these directories a host path covers or lies below; None if it reaches none."""
    parts = [part for part in str(path).split("/") if part not in ("", ".")]
    if ".." in parts:
        return "another folder by .."
    cleaned = "/" + "".join(f"{part}/" for part in parts)
    for directory in directories:
        ended = f"{directory.rstrip('/')}/"
        if ended.startswith(cleaned) or cleaned.startswith(ended):
            return directory
    return None


def sentences(violations: Iterable[Violation]) -> tuple[str, ...]:
    """Say each violation; what several templates share is said once."""
    places = dict[tuple[str, str], list[str]]()
    for one in violations:
        places.setdefault((one.field, one.message), []).append(one.place)
    return tuple(
        f"{where[0]}.{field}".strip(".") + f" {message}{_also(where)}"
        for (field, message), where in places.items()
    )


def _also(where: Sequence[str]) -> str:
    if len(where) == 1:
        return ""
    return f" (also in {where[1]})" if len(where) == 2 else f" (also in {len(where) - 1} other templates)"
