"""A vLLM server on this machine, into which the guard loads each checkpoint before it asks.

The endpoints that load weights run any method of the server's workers, so they are asked at a loopback
address alone. What is loaded is the guard's own copy, which it has hashed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from guard_core.wire import FailureKind
from guard_service.heldout.config import OpenAIEvaluatorSettings
from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.evaluators.frame import Frame, frame_of, tensors
from guard_service.heldout.evaluators.local import taken
from guard_service.heldout.evaluators.weights import loading, not_finite, refuse_not_finite, whole_model
from guard_service.heldout.staging import Staged
from guard_service.heldout.worker import EvaluationRequest

_HINTS = {
    401: "check api_key_file or api_key_env",
    404: "start the server with VLLM_SERVER_DEV_MODE=1, for this guard alone",
    500: "see the server's log; it must be able to read the guard's state directory",
}
#: The cache of prompts is not emptied while a request runs, such as one of an evaluation that was given up.
RESET_TRIES = 10
SECONDS_BETWEEN_RESETS = 1.0


#: What tells the files of a directory from others: path, inode, size and time of each.
Files = tuple[tuple[str, int, int, int], ...]


class ServedVllm:
    """Loads checkpoints into the server of these settings. `scratch`: where they are copied to."""

    def __init__(self, settings: OpenAIEvaluatorSettings, scratch: Path) -> None:
        self._settings, self._scratch = settings, scratch
        self._started: tuple[Files, Frame] | None = None

    def take(self, request: EvaluationRequest) -> Staged:
        """A copy of the checkpoint; see `taken`."""
        return taken(request, self._scratch)

    def load(self, staged: Staged, request: EvaluationRequest, headers: Mapping[str, str]) -> None:
        """Have the server take these weights in the place of those that it has.

        Raises:
            EvaluationError: they cannot be loaded over what the server was started with, or it refuses.
        """
        shown = f"checkpoint {request.path}"
        frame = frame_of(staged.path, shown)
        with loading(shown, FailureKind.WEIGHTS):
            wrong = not_finite(tensors(staged.path))
        refuse_not_finite(wrong, shown)
        model = self._settings.model_name(
            attempt=request.attempt, step=request.step, checkpoint=request.path.name
        )
        url = httpx.URL(self._settings.base_url).copy_with(path="/", query=None)
        # No proxy of the environment: what is asked here is for this machine alone.
        with httpx.Client(
            base_url=url, headers=headers, timeout=self._settings.timeout_seconds, trust_env=False
        ) as server:
            refuse_other_frame(frame, self._started_with(server, model), shown)
            arguments = {"method": "reload_weights", "kwargs": {"weights_path": str(staged.path.absolute())}}
            _ask(server, "POST", "collective_rpc", arguments)
            _empty_the_cache(server)

    def _started_with(self, server: httpx.Client, model: str) -> Frame:
        """The frame of the directory that the server was started with."""
        response = _ask(server, "GET", "v1/models")
        try:
            roots = {one["id"]: one.get("root") for one in response.json()["data"]}
        except (ValueError, LookupError, TypeError, AttributeError):
            roots = {}
        root = roots.get(model)
        if not isinstance(root, str) or not Path(root).is_dir():
            raise EvaluationError(
                f"{server.base_url} does not say from which directory it loaded the model {model!r}: it must "
                "be a vLLM on this machine, started with the directory of the starting policy",
                FailureKind.EVALUATOR,
            )
        return self._frame_in(Path(root), f"{root}, with which {server.base_url} was started,")

    def _frame_in(self, root: Path, shown: str) -> Frame:
        """The frame of a directory, which is read again only if another, or if its files are others."""
        with loading(shown, FailureKind.EVALUATOR):
            files = _files(root)
        if self._started is None or self._started[0] != files:
            whole_model(root, shown, nothing_else=True, device_map="meta")
            self._started = files, frame_of(root, shown)
        return self._started[1]


def _files(root: Path) -> Files:
    found = [(path, path.stat()) for path in sorted(root.iterdir())]
    return tuple((str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in found)


def refuse_other_frame(frame: Frame, started_with: Frame, shown: str) -> None:
    """Refuse weights that a reload would mix with those that are there. Pure.

    Raises:
        EvaluationError: what to do instead.
    """
    if frame.tied or started_with.tied:
        raise EvaluationError(
            f"{shown}: its output embeddings are its input embeddings, and a reload of vLLM keeps those of "
            "the checkpoint before: use the evaluator vllm, which starts an engine for each, or save the "
            "policy with embeddings of its own",
            FailureKind.WEIGHTS,
        )
    if frame.digest != started_with.digest:
        raise EvaluationError(
            f"{shown} has another configuration, or tensors of other names, types or shapes, than what the "
            "server was started with: start the server with a checkpoint of this run",
            FailureKind.WEIGHTS,
        )


def _empty_the_cache(server: httpx.Client) -> None:
    """Have the server forget what earlier weights made of prompts. Its status is 200 also where it did not.

    Raises:
        EvaluationError: it does not say that it did, so the next completions may begin with those.
    """
    for tried in range(RESET_TRIES):
        time.sleep(SECONDS_BETWEEN_RESETS if tried else 0.0)
        if _is_success(_ask(server, "POST", "reset_prefix_cache")):
            return
    raise EvaluationError(
        f"{server.base_url}reset_prefix_cache did not say in {RESET_TRIES} tries that the server's cache of "
        "prompts is empty, so completions may be of the checkpoint before, and none is asked for: let nobody "
        "else use the server, see its log for requests that do not end, and start it again if they do not; "
        "vLLM 0.32 says it",
        FailureKind.EVALUATOR,
    )


def _is_success(response: httpx.Response) -> bool:
    try:
        said = response.json()
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("success") is True


def _ask(
    server: httpx.Client, method: str, path: str, body: Mapping[str, Any] | None = None
) -> httpx.Response:
    """The response, if it is 200.

    Raises:
        EvaluationError: it is another, or there is none.
    """
    try:
        response = server.request(method, path, json=body)
    except httpx.TransportError as error:
        problem, hint = type(error).__name__, "is the server running?"
    else:
        if response.status_code == httpx.codes.OK:
            return response
        problem = f"status {response.status_code}"
        hint = _HINTS.get(response.status_code, "see the server's log")
    raise EvaluationError(
        f"{server.base_url}{path} responded {problem}, so the checkpoint is not loaded: {hint}",
        FailureKind.EVALUATOR,
    )
