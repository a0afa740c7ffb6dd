"""The part of a kubelet that serves container logs to the API server, for pods that have none behind them."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rlguard.operator.runtime.client import MERGE, Client, Resource

from .controlplane import ControlPlane

NODES = Resource("", "v1", "nodes", "Node")


class Kubelet:
    """Serves `logs["pod/container"]` or `logs[container]`, or nothing at all while `hangs` is set."""

    def __init__(self, plane: ControlPlane) -> None:
        self.logs: dict[str, str] = {}
        self.hangs = threading.Event()
        self._closed = threading.Event()
        kubelet = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if kubelet.hangs.is_set():
                    kubelet._closed.wait(600)
                    return
                # /containerLogs/<namespace>/<pod>/<container>?tailLines=...
                pod, container = self.path.split("?")[0].rsplit("/", 2)[1:]
                data = (kubelet.logs.get(f"{pod}/{container}") or kubelet.logs[container]).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(plane.ca_file, plane.ca_file.with_suffix(".key"))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def kubelet_of_node(plane: ControlPlane, client: Client, node: str) -> Iterator[Kubelet]:
    """A kubelet for a node of this name, which is made and removed."""
    kubelet = Kubelet(plane)
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}
    client.request("POST", NODES.path(), body=body)
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}},
    }
    client.request("PATCH", NODES.path(None, node, "status"), body={"status": status}, content_type=MERGE)
    try:
        yield kubelet
    finally:
        client.request("DELETE", NODES.path(None, node))
        kubelet.close()
