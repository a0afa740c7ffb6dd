"""The guard's side of held-out evaluation: one child process that loads models and scores.

The child (`guard_service.heldout.child`) gets requests as JSON lines on its stdin and responds on its stdout.
It is the only process that imports torch or a user's scorer, or reads a tokenizer, so ingest waits for none
of them, and a crash, an out-of-memory kill or a time-out costs one evaluation and not the guard. A fresh
child is started for the next request. Where the kernel ends the whole container instead (cgroup v2), the next
guard begins that evaluation again, a few times (`guard_service.evaluations`).

The child's stderr goes to `worker.log` in the scratch directory, readable by the guard only, and not to the
guard's log: what a library or a scorer prints may quote a prompt (invariant 8).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from guard_service.heldout.config import HeldoutSettings
from guard_service.heldout.errors import KINDS, EvaluationError, SplitError, StartAgainError, failing_as
from guard_service.heldout.identity import ANYTHING, Expected
from guard_service.heldout.processes import LineProcess
from guard_service.heldout.scorable import why_unscorable
from rlguard.core.policy import Policy
from rlguard.core.preflight import evaluations_needed
from rlguard.core.rounds import Evaluation
from rlguard.core.wire import Adapters, EvaluationsNeeded, FailureKind, Sampling

log = logging.getLogger("rlguard.guard")

PROGRAM = "guard_service.heldout.child"
MAX_RESPONSE_BYTES = 1 << 28  # one line: about 20 bytes per held-out item
MAX_LOG_BYTES = 1 << 20
STAGE_PREFIX = "stage-"
PINS = "pins"  # asks the child for them, and names them in its response
#: Attempt, step and directory of a checkpoint.
CheckpointAt = tuple[int, int, Path]
_OWN_SETTINGS = ("RLGUARD_GUARD_", "RLGUARD_TOKEN")


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """Score the checkpoint at `path`. `pass_index` > 0 repeats it with other sampling noise.

    `sampling`: what the trainer said of its own when the run began; None: nothing.
    `expected`: what the checkpoint must be to be scored. It grows while the request waits, and is no part of
    what is asked for.
    """

    attempt: int
    step: int
    path: Path
    pass_index: int = 0
    sampling: Sampling | None = None
    expected: Expected = field(default=ANYTHING, compare=False)

    @property
    def checkpoint(self) -> CheckpointAt:
        """Which checkpoint it is of."""
        return self.attempt, self.step, self.path

    def to_json(self) -> dict[str, Any]:
        """As the child gets it."""
        message: dict[str, Any] = TypeAdapter(EvaluationRequest).dump_python(self, mode="json")
        return message

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> EvaluationRequest:
        """Rebuild from `to_json`."""
        return TypeAdapter(EvaluationRequest).validate_python(message)


@dataclass(frozen=True, slots=True)
class Readiness:
    """What an evaluation process found when it started.

    `items`: of the split; items of one group are one.
    `answers_tried`: items whose own answer was tried with their scorer.
    `grader_pay`: what the training grader pays on average for right answers, and for wrong ones; None: it was
    not tried.
    `split`, `base_model`, `scorer_code`: digests of the files.
    """

    items: int
    split: str
    base_model: str | None
    scorer_code: Mapping[str, str]
    answers_tried: int = 0
    grader_pay: tuple[float, float | None] | None = None


class EvaluationWorker:
    """Runs one evaluation at a time in a child process. All methods belong to one event loop.

    Args:
        settings: split, scorer and evaluator.
        scratch_dir: for what is staged, and the child's log.
        policy: what the scores are for; None where nobody is judged by them.
    """

    def __init__(self, settings: HeldoutSettings, scratch_dir: Path, policy: Policy | None = None) -> None:
        self._settings = settings
        self._scratch = scratch_dir
        self._policy = policy
        #: How many evaluations the policy takes with these items; None before `start`.
        self.needed: EvaluationsNeeded | None = None
        self._child: LineProcess | None = None
        self._lock = asyncio.Lock()
        #: What the first process found; None before `start`.
        self.found: Readiness | None = None
        #: Folder with the files that were hashed and scored last. It is removed at the next request that is
        #: no further pass of them; link its files to keep them.
        self.staged: Path | None = None

    @property
    def split_digest(self) -> str | None:
        """Digest of the split; None before `start`."""
        return None if self.found is None else self.found.split

    @property
    def measure(self) -> Mapping[str, Any]:
        """What decides a score, beside the split; once started with the digests of the base model and of
        scorers that are not ours, if there are any.
        """
        found = {} if self.found is None else asdict(self.found)
        digests = {name: found[name] for name in ("base_model", "scorer_code") if found.get(name)}
        return self._settings.measure() | digests

    @property
    def adapters(self) -> Adapters:
        """What becomes of a checkpoint that is an adapter."""
        return Adapters.REFUSED if self._settings.base_model is None else Adapters.APPLIED

    @property
    def pid(self) -> int | None:
        """Of the child's supervisor; None where no child runs."""
        return None if self._child is None else self._child.pid

    @property
    def log_path(self) -> Path:
        """Where the child's stderr goes."""
        return self._scratch / "worker.log"

    async def start(self) -> None:
        """Start the child, and check there the split, the scorers with the items' own answers, and the
        disjointness from training.

        The check against 100,000 training prompts takes tens of seconds; await it beside the server.

        Raises:
            SplitError: the split, a scorer or the training prompts must be mended first.
            EvaluationError: the child could not be started.
        """
        async with self._lock:
            try:
                self._scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                raise EvaluationError(f"{self._scratch} cannot be made: {error.strerror}") from error
            found = await self._start_child()
            if found.base_model is not None:
                log.info("the base model %s has the sha256 %s", self._settings.base_model, found.base_model)
            if self._policy is not None:
                sampling = self._settings.evaluator.sampling_ahead()
                self.needed = await asyncio.to_thread(evaluations_needed, self._policy, found.items, sampling)

    def unfit(self, checkpoint: Path) -> str:
        """Why it can never be scored, or ""; blocking, but quick."""
        return why_unscorable(checkpoint, self._settings.base_model)

    async def pins(self, request: EvaluationRequest) -> Mapping[str, str]:
        """Digests of what the run's further checkpoints must have too.

        Raises:
            CheckpointGoneError: it is no longer there.
            EvaluationError: it cannot be scored.
        """
        async with self._lock:
            with failing_as(FailureKind.CHECKPOINT):
                message = request.to_json() | {PINS: True}
                response = await self._ask_running(message, FailureKind.OUT_OF_MEMORY)
        return dict(response[PINS])

    async def evaluate(self, request: EvaluationRequest) -> Evaluation:
        """Score one checkpoint.

        Raises:
            CheckpointGoneError: it is no longer there.
            EvaluationError: there is no outcome; the message says why and names no prompt or answer.
        """
        async with self._lock:
            started = time.monotonic()
            try:
                response = await self._ask_running(request.to_json())
            except StartAgainError:
                response = await self._ask_running(request.to_json())
            if response["proxy_items"] == []:
                log.warning(
                    "the proxy_scorer failed; the evaluation goes on without it, see %s", self.log_path
                )
            self.staged = Path(response["staged"])
            # The response says how it was sampled, the request how the trainer samples.
            known = request.to_json() | response | {"seconds": time.monotonic() - started}
            return TypeAdapter(Evaluation).validate_python(known)

    async def _ask_running(
        self, message: Mapping[str, Any], killed: FailureKind = FailureKind.UNDERWAY
    ) -> dict[str, Any]:
        """Ask the child, which is started again if it has ended."""
        if self._child is None or self._child.exit_code is not None:
            with failing_as(FailureKind.EVALUATOR):
                try:
                    await self._start_child()
                except SplitError as error:  # may be several lines, and an evaluation failed of one
                    raise EvaluationError(" ".join(str(error).split())) from error
        return await self._ask(message, killed)

    async def close(self) -> None:
        """End the child and remove what it staged. An evaluation under way is given up."""
        await self._kill()
        clear_stages(self._scratch)

    async def _start_child(self) -> Readiness:
        """Start a child. Until one has been ready, it checks the whole split: no score comes without."""
        await self._kill()
        try:
            log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
        except OSError as error:
            raise EvaluationError(f"{self.log_path} cannot be written: {error.strerror}") from error
        try:
            environment = _child_environment()
            self._child = await LineProcess.start(PROGRAM, MAX_RESPONSE_BYTES, log, environment)
        except OSError as error:
            raise EvaluationError(f"the evaluation process could not be started: {error}") from error
        finally:
            os.close(log)
        first = {
            "settings": self._settings.model_dump(mode="json"),
            "scratch": str(self._scratch.absolute()),
            "first": self.found is None,
        }
        response = await self._ask(first, FailureKind.OUT_OF_MEMORY)
        ready = TypeAdapter(Readiness).validate_python(response)
        self.found = self.found or ready
        for what, before, now in (
            (self._settings.split, self.found.split, ready.split),
            (f"the base model in {self._settings.base_model}", self.found.base_model, ready.base_model),
            ("the file of a scorer", self.found.scorer_code, ready.scorer_code),
        ):
            if before != now:
                await self._kill()
                raise SplitError(
                    f"{what} changed while the guard ran: its scores cannot be compared with the earlier "
                    "ones; restore it, or start a new run"
                )
        return ready

    async def _ask(self, message: Mapping[str, Any], killed: FailureKind) -> dict[str, Any]:
        """Send a request, await its response. Whatever goes wrong, no child is left half-way through.

        `killed`: how a SIGKILL is told, which comes of too little memory: as that, unless an item may matter.
        """
        assert self._child is not None
        child, limit, response = self._child, self._settings.evaluator.timeout_seconds, None
        try:
            response = await child.ask(message, limit)
        except TimeoutError:
            raise EvaluationError(
                f"no response from the evaluation process within timeout_seconds={limit:g}: raise it, or "
                "shorten the split, max_new_tokens or samples"
            ) from None
        finally:
            if response is None:
                await self._kill()
        if response is None:
            raise EvaluationError(
                f"the evaluation process ended ({child.how_it_ended()}) before it responded; its last words "
                f"are in {self.log_path}",
                killed if child.exit_code == -signal.SIGKILL else FailureKind.UNDERWAY,
            )
        self._trim_log()
        if error := response.get("error"):
            if error["over"]:
                await self._kill()
            with failing_as(FailureKind(error["failure"])):
                raise KINDS[error["kind"]](error["message"])
        return response

    async def _kill(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.end()

    def _trim_log(self) -> None:
        with contextlib.suppress(OSError):
            if self.log_path.stat().st_size > MAX_LOG_BYTES:
                os.truncate(self.log_path, 0)


def clear_stages(scratch: Path) -> None:
    """Remove what was staged."""
    for stage in scratch.glob(f"{STAGE_PREFIX}*"):
        shutil.rmtree(stage, ignore_errors=True)


def _child_environment() -> dict[str, str]:
    """The guard's environment without its own settings, which hold its tokens; no hub, no telemetry.

    A Service of the namespace that is called `vllm` comes as VLLM_PORT=tcp://..., and vLLM refuses that.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_OWN_SETTINGS)
        and not (name.startswith("VLLM_PORT") and value.startswith("tcp://"))
    }
    return kept | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
