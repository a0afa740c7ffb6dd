"""The processes that `bench_operator.py` measures: our operator, and the real training-operator beside it."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import yaml
from fleet import IMAGE, OPERATOR_NAMESPACE, ROOT, Json

sys.path.insert(0, str(ROOT / "tests" / "operator"))

from integration.conftest import NAMESPACES
from integration.waiting import eventually

from rlguard.operator.runtime.client import Client

PATIENCE_SECONDS = 300.0
#: Of the training-operator.
WEBHOOKS, SECRET = "manifests/base/webhook/manifests.yaml", "training-operator-webhook-cert"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


class Measured:
    """A process under measurement."""

    def __init__(self, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.started = time.monotonic()
        self._log, self._popen = log, popen

    def works(self) -> bool:
        """Whether the process is there: one that lost its Lease ends, and nobody starts another here."""
        if (code := self._popen.poll()) is not None:
            end = "\n".join(self._log.read_text().splitlines()[-20:])
            raise SystemExit(f"the operator ended with {code}; its log ends so:\n{end}")
        return True

    def memory(self, field: str = "VmRSS") -> float:
        """Resident memory, MiB; `VmHWM`: the most there has been."""
        found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{self._popen.pid}/status").read_text())
        assert found
        return int(found[1]) / 1024

    def processor(self) -> float:
        """Processor time used so far, seconds."""
        fields = Path(f"/proc/{self._popen.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self._popen.terminate()
        self._popen.wait(60)


class Process(Measured):
    """Our operator."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        command = [
            sys.executable, "-m", "rlguard.operator", f"--kubeconfig={kubeconfig}", f"--guard-image={IMAGE}",
            f"--lease-namespace={OPERATOR_NAMESPACE}", "--lease-seconds=30", "--bind=127.0.0.1", "--port=0",
        ]  # fmt: skip
        popen = subprocess.Popen(command, stdout=log.open("wb"), stderr=subprocess.STDOUT, cwd=ROOT)
        super().__init__(popen, log)

    def leading_after(self) -> float:
        """Seconds from the start of the process until it leads."""
        eventually(lambda: "leading as" in self._log.read_text(), "it leads", within=PATIENCE_SECONDS)
        return time.monotonic() - self.started

    def settled_after(self) -> float:
        """Seconds from the start until it has looked at everything."""

        def idle() -> bool:
            self.works()
            page = self.metrics()
            idle = ("workqueue_depth", "controller_runtime_active_workers")
            return all(re.search(rf"^{name}{{.*}} 0\.0$", page, re.MULTILINE) for name in idle)

        eventually(idle, "its queue is empty", within=PATIENCE_SECONDS)
        return time.monotonic() - self.started

    def metrics(self) -> str:
        """Its page of metrics."""
        found = re.search(r"probes and metrics on port (\d+)", self._log.read_text())
        assert found, self._log.read_text()
        with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/metrics", timeout=60) as answer:
            return str(answer.read().decode())


class Peer(Measured):
    """The real training-operator, with its defaults, for PyTorchJobs alone."""

    NAMESPACE = "kubeflow"
    #: Where it expects its webhook's certificate to be mounted, wherever it runs.
    CERTIFICATES = Path("/tmp/k8s-webhook-server/serving-certs")

    def __init__(self, client: Client, kubeconfig: Path, log: Path, program: Path) -> None:
        (webhooks,) = yaml.safe_load_all((program.parent / WEBHOOKS).read_text())
        webhooks["metadata"]["name"] = "validator.training-operator.kubeflow.org"
        for one in webhooks["webhooks"]:
            one["failurePolicy"] = "Ignore"
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.NAMESPACE}}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}}
        client.request("POST", NAMESPACES.path(), body=namespace)
        client.request("POST", f"/api/v1/namespaces/{self.NAMESPACE}/secrets", body=secret)
        client.request("POST", f"{ADMISSION}/validatingwebhookconfigurations", body=webhooks)
        command = [
            str(program), "--enable-scheme=pytorchjob", f"--kubeconfig={kubeconfig}",
            "--metrics-bind-address=0", "--health-probe-bind-address=0",
            "--webhook-server-port=19443", "--zap-log-level=error",
        ]  # fmt: skip
        environment = os.environ | {"MY_POD_NAMESPACE": self.NAMESPACE}
        popen = subprocess.Popen(command, stdout=log.open("wb"), stderr=subprocess.STDOUT, env=environment)
        super().__init__(popen, log)
        self._mount(client)

    def _mount(self, client: Client) -> None:
        """What a kubelet does: the Secret, which this operator itself fills, as files."""
        path = f"/api/v1/namespaces/{self.NAMESPACE}/secrets/{SECRET}"
        found: Json = {}

        def filled() -> bool:
            found.update(client.request("GET", path).get("data") or {})
            return self.works() and "tls.key" in found

        eventually(filled, "its certificate", PATIENCE_SECONDS)
        self.CERTIFICATES.mkdir(parents=True, exist_ok=True)
        for name, value in found.items():
            (self.CERTIFICATES / name).write_bytes(base64.b64decode(value))

    def settled_after(self) -> float:
        """Seconds from the start until it has worked, and then for ten seconds hardly did."""
        eventually(lambda: self.works() and self.processor() > 1, "it works", PATIENCE_SECONDS)
        eventually(lambda: share(self, 10) < 2, "it has looked at everything", PATIENCE_SECONDS)
        return time.monotonic() - self.started - 10

    def end(self) -> None:
        super().end()
        shutil.rmtree(self.CERTIFICATES.parent)


def share(operator: Measured, seconds: float) -> float:
    """Of one core, in these seconds, percent."""
    before, started = operator.processor(), time.monotonic()
    time.sleep(seconds)
    return 100 * (operator.processor() - before) / (time.monotonic() - started)
