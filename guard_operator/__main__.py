"""`python -m guard_operator`: the operator process. Settings are flags; `--help` lists them."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import threading
import uuid

from kubernetes.config import ConfigException

from guard_operator.app import LeaseName, Operator
from guard_operator.config import OperatorConfig
from guard_operator.runtime.client import load_configuration
from guard_operator.runtime.lease import LeaseTiming
from guard_operator.runtime.manager import ManagerConfig

_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def parser() -> argparse.ArgumentParser:
    """The flags of the operator."""
    flags = argparse.ArgumentParser(
        prog="python -m guard_operator",
        description="Runs GuardedTrainingJobs and tears them down when their guard fires.",
    )
    add = flags.add_argument
    add("--guard-image", required=True, help="guard image of jobs that name none")
    add(
        "--namespace", action="append", default=[], help="watch this namespace; may be repeated; default: all"
    )
    add(
        "--relaxed-host-path",
        action="append",
        default=[],
        help="directory that a template may mount under isolation Relaxed; may be repeated",
    )
    add("--kubeconfig", help="default: the pod's service account, else ~/.kube/config")
    add(
        "--lease-namespace",
        default=os.environ.get("POD_NAMESPACE", "rlguard-system"),
        help="namespace of the Lease (default: $POD_NAMESPACE, else rlguard-system)",
    )
    add("--lease-name", default="rlguard-operator", help="name of the Lease (default rlguard-operator)")
    add("--lease-seconds", type=float, default=15.0, help="how long a lost leader blocks its successor")
    add("--workers", type=_positive, default=8, help="jobs reconciled at once (default 8)")
    add("--bind", default="0.0.0.0", help="address of /healthz, /readyz and /metrics")  # noqa: S104
    add("--port", type=int, default=8080, help="their port; 0 takes a free one (default 8080)")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    return flags


def main(arguments: list[str] | None = None) -> int:
    """Run the operator; the exit code."""
    options = parser().parse_args(arguments)
    # Every thread inherits this mask, so that the signals wait for the one thread that takes them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(threadName)s %(message)s"
    )
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
    configuration = load_configuration(options.kubeconfig)
    timing = _lease_timing(options.lease_seconds)
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"
    return Operator(
        configuration,
        OperatorConfig(
            guard_image=options.guard_image,
            namespaces=tuple(options.namespace),
            relaxed_host_paths=tuple(options.relaxed_host_path),
        ),
        LeaseName(options.lease_namespace, identity, options.lease_name, timing),
        (options.bind, options.port),
        ManagerConfig(workers=options.workers),
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


def _lease_timing(seconds: float) -> LeaseTiming:
    """The proportions of client-go's defaults: 15 s, renewed within 10 s, tried every 2 s."""
    if seconds < 1:
        raise ValueError(f"--lease-seconds must be at least 1, got {seconds:g}")
    return LeaseTiming(seconds, seconds * 2 / 3, seconds * 2 / 15, seconds * 4 / 15)


if __name__ == "__main__":
    sys.exit(main())
