"""A real node of Ray ends under a program that does not listen, by the setting that nodes of a RayJob get.

`tests/operator/unit/test_kinds.py` says that every node of one gets it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SOON = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "3"}
#: An actor that has the node's only CPU and goes on, whatever happens.
PROGRAM = """\
import sys, time, ray
ray.init(log_to_driver=False)

@ray.remote(num_cpus=1)
class Trainer:
    def train(self, beat):
        while True:
            open(beat, "w").write(str(time.time()))
            time.sleep(0.05)

ray.get(Trainer.remote().train.remote(sys.argv[1]))
"""


def appears(what: Callable[[], bool], within: float = 600) -> None:
    end = time.monotonic() + within
    while not what():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_a_node_ends_although_its_program_goes_on(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    log, beat = tmp_path / "node.log", tmp_path / "beat"
    command = [Path(sys.executable).parent / "ray", "start", "--head", "--block", "--include-dashboard=false"]
    command += ["--num-cpus=1", "--object-store-memory=80000000", f"--port={address.rpartition(':')[2]}"]
    environ = os.environ | SOON
    with log.open("wb") as out:
        node = subprocess.Popen(command, env=environ, stdout=out, stderr=out, start_new_session=True)
    try:
        appears(lambda: "Ray runtime started" in log.read_text() or node.poll() is not None)
        assert node.poll() is None, log.read_text()
        program = [sys.executable, "-c", PROGRAM, str(beat)]
        trainer = subprocess.Popen(program, env=os.environ | {"RAY_ADDRESS": address})
        try:
            appears(beat.exists)
            node.send_signal(signal.SIGTERM)
            node.wait(600)
        finally:
            trainer.kill()
            trainer.wait()
    finally:
        with suppress(ProcessLookupError):  # what it started, where it did not end
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()
    assert "Draining for up to 3.0 seconds" in log.read_text()
