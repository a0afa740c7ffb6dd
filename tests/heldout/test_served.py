"""Loading checkpoints into a server: where it is refused. `tests/vllm` has a real server that does it."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import load_file, save_file

from guard_core.wire import Adapters, FailureKind, Sampling
from guard_service.heldout.config import HeldoutSettings, OpenAIEvaluatorSettings
from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.evaluators import served
from guard_service.heldout.evaluators.frame import Frame
from guard_service.heldout.evaluators.openai import OpenAIEvaluator
from guard_service.heldout.evaluators.served import ServedVllm, refuse_other_frame
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.worker import EvaluationRequest, EvaluationWorker
from tests.heldout.faulty_endpoint import Endpoint, Reply, endpoint, says
from tests.heldout.models import save_tiny_model
from tests.heldout.test_checkpoint import change, spoil_a_weight

pytestmark = pytest.mark.torch

ITEMS = [HeldoutItem(id=f"i{n}", prompt=f"{n}+{n}=", answer=str(2 * n)) for n in range(3)]


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("policies")
    return {name: save_tiny_model(folder / name, seed=seed) for seed, name in enumerate(("start", "later"))}


def settings(server: Endpoint, **more: Any) -> OpenAIEvaluatorSettings:
    given = {"base_url": server.url, "model": "m", "load_checkpoints": True, **more}
    return OpenAIEvaluatorSettings.model_validate(given)


def ask(server: Endpoint, path: Path, scratch: Path) -> Any:
    scratch.mkdir(exist_ok=True)
    own = settings(server)
    request = EvaluationRequest(0, 1, path)
    return OpenAIEvaluator(own, ServedVllm(own, scratch)).complete(ITEMS, request)


def obeys(body: dict[str, Any], _: int) -> Reply:
    """A server of vLLM 0.32. It is asked to empty its cache without a body."""
    if "messages" in body:
        return says("1")
    return Reply(body={"results": [None]} if body else {"success": True})


def test_the_copy_that_was_hashed_is_loaded_before_the_first_question(
    policies: dict[str, Path], tmp_path: Path
) -> None:
    with endpoint(obeys) as server:
        server.models = {"data": [{"id": "m", "root": str(policies["start"])}]}
        done = ask(server, policies["later"], tmp_path / "scratch")
    paths = [path for path, _, _ in server.asked]
    assert paths == ["/collective_rpc", "/reset_prefix_cache", *["/v1/chat/completions"] * len(ITEMS)]
    _, _, loaded = server.asked[0]
    assert loaded == {"method": "reload_weights", "kwargs": {"weights_path": str(done.staged)}}
    assert done.sha256 is not None and done.said is None, "proven, so nothing is compared"
    assert done.staged.parent == tmp_path / "scratch" and done.seconds.keys() == {"stage", "load", "generate"}


@pytest.mark.parametrize(
    ("own", "sent"),
    [
        ({}, {"stop": ["</a>", "\n"], "include_stop_str_in_output": True}),
        ({"stop": ["END"]}, {"stop": ["END"]}),
        ({"temperature": 0, "max_new_tokens": 9}, {}),
    ],
    ids=["trainer", "settings", "nothing of the trainer counts"],
)
def test_vllm_ends_where_the_trainer_does_and_keeps_the_text(
    policies: dict[str, Path], tmp_path: Path, own: dict[str, Any], sent: dict[str, Any]
) -> None:
    def policy(body: dict[str, Any], number: int) -> Reply:
        kept = body.get("include_stop_str_in_output", False)
        return says("12</a>" if kept else "12 and more") if "messages" in body else obeys(body, number)

    with endpoint(policy) as server:
        server.models = {"data": [{"id": "m", "root": str(policies["start"])}]}
        given = settings(server, **own)
        trainer = Sampling(temperature=0.7, stop=("</a>", "\n"))
        request = EvaluationRequest(0, 1, policies["later"], sampling=trainer)
        done = OpenAIEvaluator(given, ServedVllm(given, tmp_path)).complete(ITEMS, request)
    names = ("stop", "include_stop_str_in_output")
    asked = [body for _, _, body in server.asked if "messages" in body]
    assert [{name: body[name] for name in names if name in body} for body in asked] == [sent] * len(ITEMS)
    assert {text for (text,) in done.texts} == {"12</a>" if not own else "12 and more"}


def test_what_the_server_was_started_with_is_read_again_only_if_its_files_are_others(
    policies: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, read = shutil.copytree(policies["start"], tmp_path / "started"), []
    frame = served.frame_of

    def noted(path: Path, shown: str) -> Frame:
        read.append(path)
        return frame(path, shown)

    monkeypatch.setattr(served, "frame_of", noted)
    with endpoint(obeys) as server:
        server.models = {"data": [{"id": "m", "root": str(started)}]}
        own = settings(server)
        evaluator = OpenAIEvaluator(own, ServedVllm(own, tmp_path))
        for step, name in enumerate(("start", "later", "start"), 1):
            evaluator.complete(ITEMS, EvaluationRequest(0, step, policies[name]))
        assert read.count(started) == 1
        change("config.json", max_position_embeddings=512)(started)
        with pytest.raises(EvaluationError, match="another configuration"):
            evaluator.complete(ITEMS, EvaluationRequest(0, 4, policies["later"]))
        assert read.count(started) == 2


def test_a_server_that_was_started_with_weights_that_are_none_of_the_model_is_given_none(
    policies: dict[str, Path], tmp_path: Path
) -> None:
    """vLLM may know such names, and every checkpoint of the same form would load them over the model's."""
    more = {name: shutil.copytree(policies[name], tmp_path / name) for name in ("start", "later")}
    for path in more.values():
        fused = {"model.layers.0.self_attn.qkv_proj.weight": np.zeros((2, 2), np.float32)}
        save_file(load_file(path / "model.safetensors") | fused, path / "model.safetensors", {"format": "pt"})
    with endpoint(obeys) as server:
        server.models = {"data": [{"id": "m", "root": str(more["start"])}]}
        own = settings(server)
        evaluator = OpenAIEvaluator(own, ServedVllm(own, tmp_path))
        with pytest.raises(EvaluationError, match="1 of its weights are none of a LlamaForCausalLM"):
            evaluator.complete(ITEMS, EvaluationRequest(0, 1, more["later"]))
        assert server.asked == []


def refuses(path: str, status: int) -> Callable[[dict[str, Any], int], Reply]:
    def reply(body: dict[str, Any], number: int) -> Reply:
        wrong = ("method" in body) == (path == "collective_rpc") and "messages" not in body
        return Reply(status, {"error": "no"}) if wrong else obeys(body, number)

    return reply


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("collective_rpc", 404, "start the server with VLLM_SERVER_DEV_MODE=1"),
        ("collective_rpc", 500, "able to read the guard's state directory"),
        ("reset_prefix_cache", 500, "reset_prefix_cache responded status 500"),
    ],
)
def test_a_server_that_does_not_load_is_asked_nothing(
    policies: dict[str, Path], tmp_path: Path, path: str, status: int, told: str
) -> None:
    with endpoint(refuses(path, status)) as server:
        server.models = {"data": [{"id": "m", "root": str(policies["start"])}]}
        with pytest.raises(EvaluationError, match=told) as caught:
            ask(server, policies["later"], tmp_path / "scratch")
    assert caught.value.kind is FailureKind.EVALUATOR
    assert all("messages" not in body for _, _, body in server.asked)


@pytest.mark.parametrize("said", [{"success": False}, {"success": 1}, {}, [True], b"", b"no"], ids=repr)
def test_a_server_that_does_not_say_that_its_cache_is_empty_is_asked_nothing(
    policies: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    """vLLM says so with status 200, while requests run."""
    monkeypatch.setattr(served, "SECONDS_BETWEEN_RESETS", 0.0)

    def busy(body: dict[str, Any], number: int) -> Reply:
        reply = obeys(body, number)
        return reply if body else Reply(body=said)

    with endpoint(busy) as server:
        server.models = {"data": [{"id": "m", "root": str(policies["start"])}]}
        with pytest.raises(EvaluationError, match="reset_prefix_cache did not say in 10 tries") as caught:
            ask(server, policies["later"], tmp_path / "scratch")
    assert caught.value.kind is FailureKind.EVALUATOR
    assert all("messages" not in body for _, _, body in server.asked)


def test_a_cache_that_is_in_use_for_a_moment_is_emptied_then(
    policies: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "SECONDS_BETWEEN_RESETS", 0.0)

    def in_a_moment(body: dict[str, Any], number: int) -> Reply:
        return obeys(body, number) if body or number > 2 else Reply(body={"success": False})

    with endpoint(in_a_moment) as server:
        server.models = {"data": [{"id": "m", "root": str(policies["start"])}]}
        ask(server, policies["later"], tmp_path / "scratch")
    assert [path for path, _, _ in server.asked].count("/reset_prefix_cache") == 3


@pytest.mark.parametrize(
    "models",
    [
        None,
        {"data": []},
        {"data": [{"id": "m"}]},
        {"data": [{"id": "m", "root": "org/name"}]},
        {"data": [{"id": "another", "root": "/"}]},
        {"data": [{"id": "m", "root": 7}]},
    ],
    ids=str,
)
def test_a_server_whose_start_is_not_known_is_not_loaded_over(
    policies: dict[str, Path], tmp_path: Path, models: Any
) -> None:
    with endpoint(obeys) as server:
        server.models = models
        with pytest.raises(EvaluationError, match="does not say from which directory"):
            ask(server, policies["later"], tmp_path / "scratch")
    assert server.asked == []


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (spoil_a_weight(math.nan), "infinite or not a number"),
        (change("config.json", rope_theta=99.0), "has another configuration"),
        (change("config.json", tie_word_embeddings=True), "use the evaluator vllm"),
    ],
)
def test_what_cannot_be_loaded_over_another_never_reaches_the_server(
    policies: dict[str, Path], tmp_path: Path, spoil: Any, told: str
) -> None:
    bad = shutil.copytree(policies["later"], tmp_path / "bad")
    spoil(bad)
    with endpoint(obeys) as server:
        server.models = {"data": [{"id": "m", "root": str(policies["start"])}]}
        with pytest.raises(EvaluationError, match=told) as caught:
            ask(server, bad, tmp_path / "scratch")
    assert caught.value.kind is FailureKind.WEIGHTS and server.asked == []


def test_a_model_with_one_embedding_is_not_loaded_even_over_itself() -> None:
    own, tied = Frame("a", False, True), Frame("a", True, False)
    refuse_other_frame(own, own, "it")
    for frame, other in ((tied, own), (own, tied)):
        with pytest.raises(EvaluationError, match="keeps those of the checkpoint before"):
            refuse_other_frame(frame, other, "it")


@pytest.mark.parametrize("url", ["http://10.0.0.7/v1", "http://127.0.0.1.example.com/v1", "https://vllm/v1"])
def test_what_loads_weights_is_asked_on_this_machine_alone(url: str) -> None:
    given = {"base_url": url, "model": "m", "load_checkpoints": True}
    with pytest.raises(ValidationError, match="is not a loopback address"):
        OpenAIEvaluatorSettings.model_validate(given)
    OpenAIEvaluatorSettings.model_validate(given | {"load_checkpoints": False})
    for own in ("http://localhost:1/v1", "http://[::1]:1/v1", "http://127.0.0.1/v1"):
        OpenAIEvaluatorSettings.model_validate(given | {"base_url": own})


def test_what_the_guard_takes_itself_it_looks_at_when_it_is_announced(tmp_path: Path) -> None:
    for loads, adapters in ((True, Adapters.REFUSED), (False, None)):
        server = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "m"}
        given = {"split": tmp_path / "s.jsonl", "evaluator": {**server, "load_checkpoints": loads}}
        worker = EvaluationWorker(HeldoutSettings.model_validate(given), tmp_path)
        assert worker.adapters is adapters
        assert bool(worker.unfit(tmp_path)) is loads, "an empty directory"
