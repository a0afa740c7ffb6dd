"""A real kube-apiserver on a real etcd, as two child processes. No controller, scheduler or kubelet runs.

So nothing garbage-collects, no pod starts, and a pod with a node name stays Terminating until a test ends it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

BUILD = Path(__file__).parents[1] / "controlplane" / "build.sh"
BUILD_SECONDS = 1800  # once per machine
START_SECONDS = 60


class Child:
    """A process that may be killed and started again, with the same command."""

    def __init__(self, log: Path, command: list[str | Path]) -> None:
        self._log, self._command = log, [str(part) for part in command]
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "GOGC": "50"}
            )

    def runs(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: nothing of it is kept, so it need not end gracefully."""
        self._process.kill()
        self._process.wait(30)

    def said(self) -> str:
        """The end of its log."""
        return self._log.read_text()[-2000:]


@dataclass(frozen=True)
class ControlPlane:
    """Where the API server is and how to be its administrator."""

    url: str
    ca_file: Path
    token: str
    crds: Path
    etcd: Child
    api_server: Child
    etcd_url: str

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def kubeconfig(self, path: Path, server: str | None = None, token: str | None = None) -> Path:
        """A kubeconfig file; `server` points it somewhere else, such as at a proxy."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [
                {
                    "name": "test",
                    "cluster": {"server": server or self.url, "certificate-authority": str(self.ca_file)},
                }
            ],
            "users": [{"name": "test", "user": {"token": token or self.token}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path


@contextmanager
def control_plane(directory: Path) -> Iterator[ControlPlane]:
    """Start both; end both on exit."""
    if shutil.which("openssl") is None:
        raise RuntimeError("the integration tests make a key with openssl: install the package openssl")
    built = subprocess.run([BUILD], stdout=subprocess.PIPE, text=True, timeout=BUILD_SECONDS, check=False)
    if built.returncode != 0:
        raise RuntimeError(f"{BUILD} failed; what it said is above. Run `make test-tools` to try alone.")
    assets, crds = (Path(line) for line in built.stdout.split())
    token = secrets.token_hex(16)
    etcd_port, etcd_peer, api_port = free_ports(3)
    key, tokens = directory / "sa.key", directory / "tokens.csv"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    tokens.write_text(f"{token},admin,admin,system:masters\n")
    with ExitStack() as stack:
        etcd_url = f"http://127.0.0.1:{etcd_port}"
        etcd = Child(
            directory / "etcd.log",
            [
                assets / "etcd",
                f"--data-dir={directory / 'etcd'}",
                f"--listen-client-urls={etcd_url}",
                f"--advertise-client-urls={etcd_url}",
                f"--listen-peer-urls=http://127.0.0.1:{etcd_peer}",
                "--unsafe-no-fsync",
                f"--quota-backend-bytes={8 << 30}",  # benchmarks fill more than the 2 GiB of a default
                "--log-level=error",
            ],
        )
        stack.callback(etcd.kill)
        url = f"https://127.0.0.1:{api_port}"
        server = Child(
            directory / "kube-apiserver.log",
            [
                assets / "kube-apiserver",
                f"--etcd-servers={etcd_url}",
                "--bind-address=127.0.0.1",
                f"--secure-port={api_port}",
                f"--cert-dir={directory / 'certs'}",
                f"--token-auth-file={tokens}",
                "--authorization-mode=RBAC",
                "--allow-privileged=true",  # as every cluster has it: refusing it is our own policy
                "--service-cluster-ip-range=10.0.0.0/24",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}",
                # No controller makes the default ServiceAccount that this plug-in waits for.
                "--disable-admission-plugins=ServiceAccount",
            ],
        )
        stack.callback(server.kill)
        plane = ControlPlane(url, directory / "certs" / "apiserver.crt", token, crds, etcd, server, etcd_url)
        _wait_ready(plane)
        yield plane


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens at now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _wait_ready(plane: ControlPlane) -> None:
    deadline = time.monotonic() + START_SECONDS
    request = urllib.request.Request(
        f"{plane.url}/readyz", headers={"Authorization": f"Bearer {plane.token}"}
    )
    while plane.api_server.runs() and time.monotonic() < deadline:
        try:
            context = ssl.create_default_context(cafile=str(plane.ca_file))
            with urllib.request.urlopen(request, timeout=2, context=context):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.1)
    raise RuntimeError(f"kube-apiserver did not become ready: {plane.api_server.said()}")
