"""Then: what a user must see. Each waits for it with a limit, or fails with what it saw last."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from .kube import COMMAND, STOP, TRAINER, Json, Run, container_status, fire_of

T = TypeVar("T")

POLL_SECONDS = 0.5


def eventually(probe: Callable[[], T], what: str, within: float) -> T:
    """The first truthy value of `probe`; a failed assertion counts as not yet."""
    deadline = time.monotonic() + within
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = probe()
        except AssertionError as error:
            last = error
        else:
            if last:
                return last
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"not within {within:g} s: {what}; last seen: {last!r}")


@contextmanager
def showing_status(run: Run) -> Iterator[None]:
    """A failure within it shows the job's status, too."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error}\n{json.dumps(run.status, indent=1)}") from None


def the_trainer_says(run: Run, line: str, within: float = COMMAND) -> None:
    what = f"{run.name}'s trainer says {line!r}"
    with showing_status(run):
        eventually(lambda: line in run.log().splitlines(), what, within)


def the_trainer_has_ended(run: Run, exit_code: int, within: float = STOP) -> None:
    def ended() -> Json | None:
        return container_status(run.pod, TRAINER)["state"].get("terminated")

    how = eventually(ended, f"{run.name}'s trainer has ended", within)
    assert how is not None and how["exitCode"] == exit_code, how


def the_phase_is(run: Run, phase: str, within: float = STOP) -> None:
    wanted = f"--for=jsonpath={{.status.phase}}={phase}"
    with showing_status(run):
        run.namespace.kubectl(
            "wait", wanted, f"gtj/{run.name}", f"--timeout={within}s", within=within + COMMAND
        )


def the_guard_has_fired(run: Run, within: float = STOP) -> Json:
    """The latch is in the status; the latch."""
    with showing_status(run):
        fire = eventually(lambda: run.fire, f"status.guard.fire of {run.name}", within)
    assert fire is not None
    return fire


def the_run_is_stopped(run: Run, within: float = STOP) -> None:
    """The phase says so, no pod is left, and the job still says that it fired."""
    the_phase_is(run, "Stopped", within)
    assert run.pods == [], [pod["metadata"]["name"] for pod in run.pods]
    assert run.fire is not None, run.status


def the_run_never_fired(run: Run) -> None:
    assert run.fire is None, run.fire


@contextmanager
def the_latch_never_opens(run: Run) -> Iterator[None]:
    """The run fires inside the `with`, and in no later version of the job is fire or end another."""
    watch = run.namespace.cluster.command(
        "kubectl", "--namespace", run.namespace.name, "get", "gtj", run.name, "--watch", "--output=json"
    )
    with tempfile.TemporaryFile("w+") as seen:
        process = subprocess.Popen(watch, stdout=seen)
        try:
            yield
        finally:
            process.terminate()
            process.wait()
        seen.seek(0)
        versions = list(_objects(seen.read()))
    fires = [fire_of(job) for job in versions]
    first = next((i for i, fire in enumerate(fires) if fire is not None), None)
    assert first is not None, f"never fired in {len(versions)} versions"
    assert all(fire == fires[first] for fire in fires[first:]), fires[first:]
    phases = [job["status"].get("phase") for job in versions[first:]]
    ended = phases.index("Stopped") if "Stopped" in phases else len(phases)
    assert set(phases[ended:]) <= {"Stopped"}, phases


def _objects(text: str) -> Iterator[Json]:
    """JSON objects that stand one after the other."""
    decoder, text = json.JSONDecoder(), text.strip()
    while text:
        try:
            one, end = decoder.raw_decode(text)
        except ValueError:  # kubectl was ended within it
            return
        yield one
        text = text[end:].lstrip()


def told(run: Run) -> Counter[str]:
    """How often each kind of Event was told about this job, repetitions included."""
    uid = run.job["metadata"]["uid"]
    counted: Counter[str] = Counter()
    for event in run.namespace.items("events"):
        if event["involvedObject"].get("uid") == uid:
            counted[event["reason"]] += event.get("count") or 1
    return counted


def the_stop_was_told_once(run: Run, before: Counter[str]) -> None:
    """Since then there is one Event of each kind, whoever acted and however often."""
    since = told(run) - before
    assert since and set(since.values()) == {1}, since
