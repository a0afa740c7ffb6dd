"""The webhooks of controllers, which they rely on: these fill in defaults, and refuse."""

from __future__ import annotations

import base64
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rlguard.operator.runtime.client import APPLY, Client, Resource

Json = dict[str, Any]
GROUP = "admissionregistration.k8s.io"
KINDS = {
    "mutate": Resource(GROUP, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    "validate": Resource(GROUP, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
}
#: JobSet's own way to certificates needs a Service and its pods. Trainer looks for them below the directory
#: for temporary files.
CONFIGS = {
    "jobset": """\
apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
internalCertManagement: {{enable: false}}
webhook: {{host: 127.0.0.1, port: {port}, certDir: "{folder}"}}
""",
    "trainer": """\
apiVersion: config.trainer.kubeflow.org/v1alpha1
kind: Configuration
health: {{healthProbeBindAddress: "0"}}
metrics: {{bindAddress: "0"}}
leaderElection: {{leaderElect: false}}
certManagement: {{enable: false}}
webhook: {{host: 127.0.0.1, port: {port}}}
""",
}


class Webhooks:
    """A port and a certificate for those of this controller, which was built into `directory`."""

    def __init__(self, name: str, directory: Path, folder: Path) -> None:
        self.name, self._directory = name, directory
        folder = folder / name
        folder.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.certificate = folder / "tls.crt"
        subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
        files = ["-keyout", folder / "tls.key", "-out", self.certificate]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject, *files]
        subprocess.run(command, check=True, capture_output=True)
        (folder / "k8s-webhook-server").mkdir()
        (folder / "k8s-webhook-server" / "serving-certs").symlink_to(folder)
        self.environment = {"TMPDIR": str(folder)}
        self.config = folder / "config.yaml"
        self.config.write_text(CONFIGS[name].format(port=self.port, folder=folder))

    def register(self, client: Client, within: float) -> None:
        """Have the API server ask them, as soon as they answer."""
        deadline = time.monotonic() + within
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, f"{self.name}'s webhooks do not answer"
                time.sleep(0.2)
        for verb, kind in KINDS.items():
            path = kind.path(None, self.name)
            body = {
                "apiVersion": kind.api_version,
                "kind": kind.kind,
                "metadata": {"name": self.name},
                "webhooks": list(
                    self._of_jobset(verb) if self.name == "jobset" else self._of_manifests(kind)
                ),
            }
            client.request("PATCH", path, query={"fieldManager": "test"}, body=body, content_type=APPLY)

    def _of_jobset(self, verb: str) -> Iterator[Json]:
        rule = {"apiGroups": ["jobset.x-k8s.io"], "apiVersions": ["v1alpha2"], "resources": ["jobsets"]}
        yield {
            "name": "jobset.example.com",
            "clientConfig": self._reached(f"/{verb}-jobset-x-k8s-io-v1alpha2-jobset"),
            "rules": [{**rule, "operations": ["CREATE", "UPDATE"]}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail",
        }

    def _of_manifests(self, kind: Resource) -> Iterator[Json]:
        """As its own manifests have them."""
        for document in yaml.safe_load_all((self._directory / "webhooks.yaml").read_text()):
            for one in document["webhooks"] if document["kind"] == kind.kind else ():
                yield {**one, "clientConfig": self._reached(one["clientConfig"]["service"]["path"])}

    def _reached(self, path: str) -> Json:
        bundle = base64.b64encode(self.certificate.read_bytes()).decode()
        return {"url": f"https://127.0.0.1:{self.port}{path}", "caBundle": bundle}
