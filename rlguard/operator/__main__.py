"""`python -m rlguard.operator`: the operator process. Settings are flags; `--help` lists them.

Exit codes:
    0  a signal ended it
    1  it lost its Lease or a part of it failed: Kubernetes starts it again
    2  a flag is wrong, a package is missing, or there is no configuration for an API server
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import sys
import threading
import uuid
from typing import TYPE_CHECKING

from pydantic import ValidationError

from rlguard.core import log_lines
from rlguard.core.extras import missing_extra
from rlguard.core.wording import format_errors
from rlguard.operator.api.guard import Resources
from rlguard.operator.config import NODE_DIRECTORIES, TOKEN_AUDIENCES, OperatorConfig, default_guard_resources

if TYPE_CHECKING:  # what the extra `operator` brings is looked for before it is loaded
    from rlguard.operator.app import Operator
    from rlguard.operator.runtime.client import Json
    from rlguard.operator.runtime.lease import LeaseTiming

_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def parser() -> argparse.ArgumentParser:
    """The flags of the operator."""
    flags = argparse.ArgumentParser(
        prog="python -m rlguard.operator",
        description="Runs GuardedTrainingJobs and tears them down when their guard fires.",
        allow_abbrev=False,
    )
    add = flags.add_argument
    add("--guard-image", required=True, help="guard image of jobs that name none")
    add(
        "--guard-pull-policy",
        choices=("Always", "IfNotPresent", "Never"),
        help="pull policy of the guards of jobs that name none (default: that of Kubernetes)",
    )
    add(
        "--guard-resources",
        type=_resources,
        default=default_guard_resources(),
        metavar="JSON",
        help='resources of the guards of jobs that name none, such as {"limits": {"memory": "4Gi"}}',
    )
    add(
        "--namespace", action="append", default=[], help="watch this namespace; may be repeated; default: all"
    )
    add(
        "--kind",
        action="append",
        default=[],
        help="guard workloads of this kind, such as RayJob; may be repeated; default: every kind",
    )
    add(
        "--node-directory",
        action="append",
        default=[],
        help="directory of the node that no host path may cover or lie below; may be repeated; default: "
        "those of the kubelet, the runtimes and the system",
    )
    add(
        "--token-audience",
        action="append",
        default=[],
        help="audience of projected tokens that a trainer may have; may be repeated; default: "
        f"{', '.join(TOKEN_AUDIENCES)}",
    )
    add("--kubeconfig", help="default: the pod's service account, else ~/.kube/config")
    add(
        "--lease-namespace",
        default=os.environ.get("POD_NAMESPACE", "rlguard-system"),
        help="namespace of the Lease (default: $POD_NAMESPACE, else rlguard-system)",
    )
    add("--lease-name", default="rlguard-operator", help="name of the Lease (default rlguard-operator)")
    add("--lease-seconds", type=float, default=15.0, help="how long a lost leader blocks its successor")
    add("--workers", type=_positive, default=4, help="jobs reconciled at once (default 4)")
    add(
        "--bind",
        default="::",
        help="address of /healthz, /readyz and /metrics (default ::, all of IPv6 and IPv4)",
    )
    add("--port", type=int, default=8080, help="their port; 0 takes a free one (default 8080)")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    add(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="log lines: text, or one JSON object a line (default text)",
    )
    return flags


def main(arguments: list[str] | None = None) -> int:
    """Run the operator; the exit code."""
    options = parser().parse_args(arguments)
    if (missing := missing_extra("python -m rlguard.operator", ["operator"])) is not None:
        print(missing, file=sys.stderr)
        return 2
    from kubernetes.config import ConfigException

    # Every thread inherits this mask, so that the signals wait for the one thread that takes them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    lines = log_lines.handler(options.log_format, "%(asctime)s %(levelname)s %(threadName)s %(message)s")
    logging.basicConfig(level=options.log_level.upper(), handlers=[lines])
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # its retries are ours
    try:
        operator = _operator(options)
    except (ConfigException, OSError, ValueError) as error:
        print(f"rlguard-operator: {error}", file=sys.stderr)
        return 2
    threading.Thread(target=_stop_on_signal, args=(operator,), name="signals", daemon=True).start()
    logging.info("probes and metrics on port %d", operator.port)
    return operator.run()


def _operator(options: argparse.Namespace) -> Operator:
    """The operator of these options.

    Raises:
        ConfigException, OSError, ValueError: an option or the cluster's configuration cannot be used.
    """
    from rlguard.operator.adapters import ADAPTERS
    from rlguard.operator.app import LeaseName, Operator
    from rlguard.operator.runtime.client import load_configuration

    kinds = [one.resource.kind for one in ADAPTERS]
    if unknown := [one for one in options.kind if one not in kinds]:
        raise ValueError(f"--kind {unknown[0]}: must be one of {', '.join(kinds)}")
    configuration = load_configuration(options.kubeconfig)
    timing = _lease_timing(options.lease_seconds)
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"
    return Operator(
        configuration,
        OperatorConfig(
            guard_image=options.guard_image,
            namespaces=tuple(options.namespace),
            kinds=tuple(options.kind),
            node_directories=tuple(options.node_directory) or NODE_DIRECTORIES,
            token_audiences=tuple(options.token_audience) or TOKEN_AUDIENCES,
            guard_resources=options.guard_resources,
            guard_pull_policy=options.guard_pull_policy,
        ),
        LeaseName(options.lease_namespace, identity, options.lease_name, timing),
        (options.bind, options.port),
        options.workers,
    )


def _stop_on_signal(operator: Operator) -> None:
    """Stop at the first signal. A handler might interrupt a thread that holds the very lock it needs."""
    signal.sigwait(_SIGNALS)
    operator.stop()


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _resources(text: str) -> Json:
    try:
        given = json.loads(text)
        if isinstance(given, dict):
            return Resources.model_validate(given).model_dump(mode="json", exclude_defaults=True)
        said = "it is no mapping"
    except json.JSONDecodeError as error:
        said = f"it is not JSON: {error}"
    except ValidationError as error:
        said = format_errors(error)
    raise argparse.ArgumentTypeError(f"must be requests and limits as JSON: {said}")


def _lease_timing(seconds: float) -> LeaseTiming:
    """The proportions of client-go's defaults: 15 s, renewed within 10 s, tried every 2 s."""
    from rlguard.operator.runtime.lease import LeaseTiming

    if seconds < 1:
        raise ValueError(f"--lease-seconds must be at least 1, got {seconds:g}")
    return LeaseTiming(seconds, seconds * 2 / 3, seconds * 2 / 15, seconds * 4 / 15)


if __name__ == "__main__":
    sys.exit(main())
