"""The reporter goes on under every fault of an API server.

The API server here is a small one of our own that injects the faults; that a real one takes what is written
is proven in tests/operator/integration/test_guard_reporter.py.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import certifi
import pytest

from guard_core.codes import Level
from guard_core.judge import Latch
from guard_core.kept_steps import read_steps
from guard_core.policy import KlPolicy, Policy
from guard_core.wire import StepReport
from guard_operator.api.types import GuardStatus
from guard_service.cluster import client as client_module
from guard_service.cluster import reporter as reporter_module
from guard_service.cluster.client import JobStatus
from guard_service.cluster.reporter import StatusReporter, resume
from guard_service.cluster.settings import ClusterSettings
from guard_service.engine import Engine
from guard_service.errors import Problem, ProblemType
from guard_service.heldout.identity import as_one
from guard_service.store import EventLog, Note, NoteKind

pytestmark = pytest.mark.asyncio

Json = dict[str, Any]
UID = "uid-1"
PATH = "/apis/rlguard.dev/v1alpha1/namespaces/team/guardedtrainingjobs/run"
EARLIER = {"code": "hacking_gap", "reason": "gap", "attempt": 0, "step": 4, "at": "2026-01-01T00:00:00Z"}


class ApiServer:
    """Holds one job and refuses to un-latch it, as the CRD's rule does. `fault` answers in its place."""

    def __init__(self) -> None:
        self.uid, self.guard, self.token, self.version = UID, {}, "good", 1  # type: tuple[str, Json, str, int]
        self.conditions: list[Json] = []
        self.fault: Callable[[str], int | None] = lambda _method: None
        self.requests: list[str] = []
        self.ended = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.answer()

            def do_PATCH(self) -> None:
                self.answer()

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.requests.append(self.command)
                status, content = server.handle(self, json.loads(body or b"null"))
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                if status == 429:
                    self.send_header("Retry-After", "0")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    def handle(self, request: BaseHTTPRequestHandler, body: Any) -> tuple[int, Json]:
        fault = self.fault(request.command)
        if fault == 0:  # hang
            self.ended.wait(30)
        if fault is not None:
            return fault or 500, {"message": f"injected {fault}"}
        if request.headers["Authorization"] != f"Bearer {self.token}":
            return 401, {"message": "Unauthorized"}
        if request.command == "PATCH":
            url = urlsplit(request.path)
            assert url.path == f"{PATH}/status"
            assert parse_qs(url.query) == {"fieldManager": ["rlguard-guard"], "force": ["true"]}
            assert request.headers["Content-Type"] == "application/apply-patch+yaml"
            if body["metadata"]["resourceVersion"] != str(self.version):
                return 409, {"message": "the object has been modified"}
            guard = body["status"]["guard"]
            if "fire" in self.guard and guard.get("fire") != self.guard["fire"]:
                return 422, {"message": "status.guard.fire is latched"}
            self.guard = guard
            self.version += 1
        metadata = {"uid": self.uid, "resourceVersion": str(self.version)}
        guard = {"guard": self.guard} if self.guard else {}
        return 200, {"metadata": metadata, "status": guard | {"conditions": self.conditions}}

    def close(self) -> None:
        self.ended.set()
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture
def job(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], JobStatus]:
    """Makes clients of the API server; every time of the reporter is short."""
    monkeypatch.setattr(client_module, "REQUEST_SECONDS", 1.0)
    for name, seconds in {
        "CHANGE_SECONDS": 0.1,
        "HEARTBEAT_SECONDS": 0.3,
        "POLL_SECONDS": 0.02,
        "FIRST_RETRY_SECONDS": 0.02,
        "LAST_RETRY_SECONDS": 0.05,
        "GOODBYE_SECONDS": 0.5,
        "LATCH_GOODBYE_SECONDS": 2.0,
    }.items():
        monkeypatch.setattr(reporter_module, name, seconds)
    token = tmp_path / "token"
    token.write_text("good\n")
    settings = ClusterSettings(
        namespace="team",
        name="run",
        uid=UID,
        url=api.url,
        token_file=token,
        ca_file=Path(certifi.where()),
        last_word_file=tmp_path / "termination-log",
    )
    return lambda: JobStatus(settings)


POLICY = Policy(kl=KlPolicy(hard_stop=0.08, min_steps=5))


class Run:
    """An engine with a reporter, as the process has them."""

    def __init__(self, job: JobStatus, directory: Path) -> None:
        self.engine = Engine(
            state_dir=directory / "state",
            checkpoint_root=directory,
            policy=POLICY,
            resume=lambda: resume(job, POLICY),
        )
        self.reporter = StatusReporter(self.engine, job)

    async def __aenter__(self) -> Run:
        await self.engine.start()
        self.reporter.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.reporter.close()
        await self.engine.close()

    async def steps(self, first: int, count: int, kl: float) -> None:
        reports = [
            StepReport(attempt=0, step=n, reward=0.5, kl=kl, kl_kind="ref_token_mean")
            for n in range(first, first + count)
        ]
        async with asyncio.timeout(60):
            while True:
                try:
                    await self.engine.add_steps(reports)
                except Problem as problem:
                    if problem.status != 503:
                        raise
                    await asyncio.sleep(0.02)  # the store is not open yet: send it again
                else:
                    return

    async def fire(self) -> None:
        await self.steps(99, 1, 0.01)  # a KL that is high from the first step on is where limits count from
        await self.steps(100, 60, 2.0)
        assert self.engine.verdict.fire

    @property
    def failures(self) -> float:
        value = self.engine.metrics.registry.get_sample_value("rlguard_guard_report_failures_total")
        assert value is not None
        return value


async def until(probe: Callable[[], Any], seconds: float = 60.0) -> Any:
    async with asyncio.timeout(seconds):
        while not (value := probe()):  # noqa: ASYNC110 - of any kind, so there is no event
            await asyncio.sleep(0.005)
    return value


async def test_a_change_is_written_soon_and_the_heartbeat_without_one(
    api: ApiServer, job: Callable[[], JobStatus], tmp_path: Path
) -> None:
    async with Run(job(), tmp_path) as run:
        await until(lambda: api.guard)
        await run.steps(0, 5, 0.01)
        await until(lambda: api.guard.get("step") == 4)
        beat = api.guard["heartbeat"]
        await until(lambda: api.guard["heartbeat"] != beat)
        assert run.failures == 0 and run.engine.metrics.last_report is not None


@pytest.mark.parametrize("fault", [400, 401, 403, 404, 409, 422, 429, 500, 503, 0])
async def test_a_fire_is_tried_until_it_is_accepted(
    api: ApiServer, job: Callable[[], JobStatus], tmp_path: Path, fault: int
) -> None:
    async with Run(job(), tmp_path) as run:
        await until(lambda: api.guard)
        api.fault = lambda _method: fault
        await run.fire()
        await until(lambda: run.failures >= 3)
        assert run.engine.verdict.fire and "fire" not in api.guard
        api.fault = lambda _method: None
        fire = await until(lambda: api.guard.get("fire"))
        assert fire["code"] == "kl_hard_stop"


async def test_a_fire_is_left_for_the_kubelet_even_if_no_api_server_ever_takes_it(
    api: ApiServer, job: Callable[[], JobStatus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = tmp_path / "termination-log"
    word.write_text("what another container left there, which was longer" * 50)
    monkeypatch.setattr(reporter_module, "LATCH_GOODBYE_SECONDS", 0.1)
    async with Run(job(), tmp_path) as run:
        await until(lambda: api.guard)
        api.fault = lambda _method: 503
        await run.fire()
    assert "fire" not in api.guard
    (latch,) = run.engine.latches
    fire = GuardStatus.model_validate_json(word.read_text()).fire
    assert fire is not None and (fire.code, fire.step, fire.reason) == (latch.code, latch.step, latch.message)


async def test_a_latch_and_the_end_at_one_moment_end_the_reporter(
    job: Callable[[], JobStatus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer stops by the answer that says fire, and the kubelet stops the guard after it."""
    monkeypatch.setattr(reporter_module, "POLL_SECONDS", 60.0)  # it waits for the latch
    async with Run(job(), tmp_path) as run:
        await until(lambda: run.engine.metrics.last_report)
        run.engine.on_latch()
        async with asyncio.timeout(30):
            await run.reporter.close()


async def test_a_fire_that_only_the_status_knows_is_adopted_and_kept(
    api: ApiServer, job: Callable[[], JobStatus], tmp_path: Path
) -> None:
    async with Run(job(), tmp_path) as run:  # the store is not empty any more
        await run.steps(0, 3, 0.01)
    api.guard = {"fire": EARLIER}
    async with Run(job(), tmp_path) as run:
        await until(lambda: run.engine.verdict.fire)
        await until(lambda: api.guard.get("step") == 2)
        assert api.guard["fire"] == EARLIER
    api.guard = {}
    async with Run(job(), tmp_path) as run:
        assert run.engine.verdict.fire, "it is in the store now"
        await until(lambda: "fire" in api.guard)
        assert {k: api.guard["fire"][k] for k in ("code", "step")} == {"code": "hacking_gap", "step": 4}


async def test_a_fire_of_another_guard_in_mid_run_is_adopted(
    api: ApiServer, job: Callable[[], JobStatus], tmp_path: Path
) -> None:
    async with Run(job(), tmp_path) as run:
        await until(lambda: api.guard)
        api.guard = {"fire": EARLIER}
        await until(lambda: run.engine.verdict.fire)  # the apply was refused, the status read again
        await until(lambda: api.guard.get("level") == "fired")
        assert api.guard["fire"] == EARLIER


async def test_an_empty_store_is_fired_from_the_first_answer(
    api: ApiServer, job: Callable[[], JobStatus], tmp_path: Path
) -> None:
    api.guard = {"fire": EARLIER}
    async with Run(job(), tmp_path) as run:
        assert run.engine.verdict.fire and run.engine.verdict.stop
        api.fault = lambda _method: 500
    async with Run(job(), tmp_path) as run:
        assert run.engine.verdict.fire


async def test_a_trainer_whose_pod_is_made_again_may_choose_no_other_tokenizer(
    api: ApiServer, job: Callable[[], JobStatus], tmp_path: Path
) -> None:
    """Its store was in the pod; what every checkpoint must have is in the status."""
    pins = {"tokenizer.json": "a" * 64}
    (tmp_path / "first" / "state").mkdir(parents=True)
    with closing(EventLog(tmp_path / "first" / "state", POLICY)) as store:
        store.append([Note(NoteKind.PINS, pins)])
    async with Run(job(), tmp_path / "first") as run:
        await run.steps(1, 10, 0.01)
        await until(lambda: (api.guard or {}).get("steps") == 10)
    async with Run(job(), tmp_path / "second") as run:
        await until(lambda: run.engine.verdict.steps == 10)
        assert run.engine.pins == as_one(pins)
    with closing(EventLog(tmp_path / "second" / "state", POLICY)) as store:
        assert store.newest_note(NoteKind.PINS) == Note(NoteKind.PINS, as_one(pins))


@pytest.mark.parametrize("fault", [401, 403, 404, 500, 0])
async def test_an_empty_store_knows_nothing_until_the_status_is_read(
    api: ApiServer, job: Callable[[], JobStatus], tmp_path: Path, fault: int
) -> None:
    api.guard, api.fault = {"fire": EARLIER}, lambda _method: fault
    async with Run(job(), tmp_path) as run:
        assert run.engine.verdict.level is Level.UNKNOWN
        assert "may hold a fire" in run.engine.not_ready.reason
        api.fault = lambda _method: None
        await until(lambda: run.engine.verdict.fire)


async def test_another_object_of_the_same_name_is_not_resumed_from(
    api: ApiServer, job: Callable[[], JobStatus], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api.uid, api.guard = "uid-2", {"fire": EARLIER}
    async with Run(job(), tmp_path) as run:
        assert run.engine.verdict.level is Level.UNKNOWN and not run.engine.verdict.fire
        await until(lambda: run.failures >= 2)
    assert "PATCH" not in api.requests
    assert caplog.text.count("status.guard was not written") == 1, "a failure is told once, not at every try"


async def test_a_job_that_is_replaced_is_not_written(
    api: ApiServer, job: Callable[[], JobStatus], tmp_path: Path
) -> None:
    async with Run(job(), tmp_path) as run:
        await until(lambda: api.guard)
        api.uid, api.guard, api.version = "uid-2", {}, 99
        await run.fire()
        await until(lambda: run.failures >= 3)
    assert api.guard == {}


async def test_the_steps_come_with_the_fire_and_no_heartbeat_before_it_has_them(
    api: ApiServer, job: Callable[[], JobStatus], tmp_path: Path
) -> None:
    async with Run(job(), tmp_path) as run:
        await run.steps(0, 50, 0.01)
        await until(lambda: api.guard.get("step") == 49)
        assert "keptSteps" not in api.guard
        accept, told = api.handle, list[Json]()

        def listening(request: BaseHTTPRequestHandler, body: Any) -> tuple[int, Json]:
            told.append(body["status"]["guard"] if body else {})
            return accept(request, body)

        api.handle = listening  # type: ignore[method-assign]
        await run.fire()
        beat = (await until(lambda: api.guard.get("fire") and api.guard))["heartbeat"]
        kept = read_steps(api.guard["keptSteps"])
        assert kept is not None and kept.total == len(kept.steps) > 50 and kept.steps[0].step == 0
        await until(lambda: api.guard["heartbeat"] != beat)
    assert all(("fire" in guard) == ("keptSteps" in guard) for guard in told if guard)
    assert {guard["keptSteps"] for guard in told if "fire" in guard} == {api.guard["keptSteps"]}


@pytest.mark.parametrize(
    "defect", [ValueError("odd"), Problem(ProblemType.STORE_UNAVAILABLE, "full"), None], ids=str
)
async def test_steps_that_cannot_be_had_hold_no_fire_up(
    api: ApiServer,
    job: Callable[[], JobStatus],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    defect: Exception | None,
) -> None:
    monkeypatch.setattr(reporter_module, "STEPS_SECONDS", 0.1)

    async def gather(_engine: Engine) -> str:
        if defect is not None:
            raise defect
        await asyncio.sleep(600)
        return ""

    monkeypatch.setattr(Engine, "kept_steps", gather)
    async with Run(job(), tmp_path) as run:
        await run.fire()
        await until(lambda: api.guard.get("fire"))
        assert "keptSteps" not in api.guard and run.failures == 0


async def test_a_latch_is_not_given_up_on_exit(
    api: ApiServer, job: Callable[[], JobStatus], tmp_path: Path
) -> None:
    async with Run(job(), tmp_path) as run:
        await until(lambda: api.guard)
        api.fault = lambda _method: 503
        await run.fire()
        asyncio.get_running_loop().call_later(0.3, setattr, api, "fault", lambda _method: None)
    assert api.guard["fire"]["code"] == "kl_hard_stop"


@pytest.mark.parametrize("broken_part", ["kept_rounds", "compact_state"])
async def test_a_defect_does_not_end_the_reports(
    api: ApiServer,
    job: Callable[[], JobStatus],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken_part: str,
) -> None:
    """Neither one of a report, nor one of what decides whether a report is due."""
    async with Run(job(), tmp_path) as run:
        await until(lambda: api.guard)
        with monkeypatch.context() as broken:
            broken.setattr(run.engine, broken_part, lambda *_: 1 / 0)
            await run.fire()
            await until(lambda: run.failures >= 1)
        await until(lambda: api.guard.get("fire"))


async def test_a_latch_is_adopted_while_the_store_fails(
    api: ApiServer, job: Callable[[], JobStatus], tmp_path: Path
) -> None:
    async with Run(job(), tmp_path) as run:
        await run.steps(0, 3, 0.01)
        (tmp_path / "state" / "guard.db").rename(tmp_path / "away")
        await run.engine.adopt_latch(Latch(True, "hacking_gap", "gap", 0, 2))
        assert run.engine.verdict.fire
        (tmp_path / "away").rename(tmp_path / "state" / "guard.db")
        await until(lambda: run.engine.store_works)
    async with Run(job(), tmp_path) as run:
        assert run.engine.verdict.fire


async def test_a_fire_that_could_not_be_reported_has_the_time_at_which_it_latched_also_after_a_restart(
    api: ApiServer, job: Callable[[], JobStatus], tmp_path: Path
) -> None:
    async with Run(job(), tmp_path) as run:
        await run.fire()
        latched = run.engine.latched_at[True]
    api.guard = {}  # as if it had never been taken
    await asyncio.sleep(0.5)
    async with Run(job(), tmp_path):
        fire = await until(lambda: api.guard.get("fire"))
    assert abs((datetime.fromisoformat(fire["at"]) - latched).total_seconds()) < 0.3
