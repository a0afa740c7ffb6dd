"""JobSet's webhooks for JobSets, which its controller relies on: they fill in defaults, and refuse."""

from __future__ import annotations

import base64
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from guard_operator.runtime.client import APPLY, Client, Resource

GROUP = "admissionregistration.k8s.io"
KINDS = {
    "mutate": Resource(GROUP, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    "validate": Resource(GROUP, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
}
#: Its own way to certificates needs a Service and its pods.
CONFIG = """\
apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
internalCertManagement: {{enable: false}}
webhook: {{host: 127.0.0.1, port: {port}, certDir: "{folder}"}}
"""


class Webhooks:
    """A port and a certificate for them."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.certificate = folder / "tls.crt"
        name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
        files = ["-keyout", folder / "tls.key", "-out", self.certificate]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *name, *files]
        subprocess.run(command, check=True, capture_output=True)
        self.config = folder / "jobset.yaml"
        self.config.write_text(CONFIG.format(port=self.port, folder=folder))

    def register(self, client: Client, within: float) -> None:
        """Have the API server ask them, as soon as they answer."""
        deadline = time.monotonic() + within
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "JobSet's webhooks do not answer"
                time.sleep(0.2)
        for verb, kind in KINDS.items():
            path = kind.path(None, "jobset")
            query = {"fieldManager": "test"}
            client.request("PATCH", path, query=query, body=self._body(verb, kind), content_type=APPLY)

    def _body(self, verb: str, kind: Resource) -> dict[str, Any]:
        rule = {"apiGroups": ["jobset.x-k8s.io"], "apiVersions": ["v1alpha2"], "resources": ["jobsets"]}
        url = f"https://127.0.0.1:{self.port}/{verb}-jobset-x-k8s-io-v1alpha2-jobset"
        bundle = base64.b64encode(self.certificate.read_bytes()).decode()
        webhook = {
            "name": "jobset.example.com",
            "clientConfig": {"url": url, "caBundle": bundle},
            "rules": [{**rule, "operations": ["CREATE", "UPDATE"]}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail",
        }
        metadata = {"name": "jobset"}
        return {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": metadata,
            "webhooks": [webhook],
        }
