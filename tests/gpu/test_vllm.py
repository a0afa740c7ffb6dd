"""The evaluator `vllm` on a GPU, as users start it: compiled, with captured graphs.

Greedy completions are compared with those of transformers on the same device. The kernels of the two add in
another order, so a near tie may fall the other way, in bfloat16 more often: of each checkpoint's items most
must be its own, and of the other checkpoint's none is, or nearly none.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from guard_service.heldout.base_model import look_at
from guard_service.heldout.config import HeldoutSettings, HfEvaluatorSettings
from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.evaluators.hf import HfEvaluator
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.worker import EvaluationRequest, EvaluationWorker
from rlguard.core.wire import FailureKind
from tests.heldout.models import save_tiny_model
from tests.heldout.test_adapters import save_adapter
from tests.vllm.test_vllm import in_turns, settings_for, tied

ITEMS = [HeldoutItem(id=f"i{n}", prompt=f"{n * 7}+{n}=" + "?" * (n * 5 % 11), answer="") for n in range(64)]
#: Share of the items that two ways to compute the same agree in, at least, and the tokens of a completion.
AGREE = {"float32": (0.8, 24), "bfloat16": (0.5, 6)}
AS_USED = {"enforce_eager": False, "gpu_memory_utilization": 0.3, "score_truncated": True}
GIB = 2**30

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Pair:
    """Two checkpoints, and a split: each item has what one of them says and the other does not, in turns."""

    paths: tuple[Path, Path]
    heldout: HeldoutSettings

    def request(self, which: int, step: int) -> EvaluationRequest:
        return EvaluationRequest(0, step, self.paths[which])

    def is_of(self, which: int, items: Sequence[float]) -> bool:
        own, others = items[which::2], items[1 - which :: 2]
        print(f"of its own {sum(own):.0f}/{len(own)}, of the other's {sum(others):.0f}/{len(others)}")
        enough, _ = AGREE[self.heldout.evaluator.dtype]
        return sum(own) >= enough * len(own) and sum(others) <= 0.1 * len(others)


def paired(
    paths: tuple[Path, Path], folder: Path, base: Path | None = None, dtype: str = "float32", **own: Any
) -> Pair:
    _, tokens = AGREE[dtype]
    settings = HfEvaluatorSettings(max_new_tokens=tokens, dtype=dtype)
    local = HfEvaluator(settings, folder, base and look_at(base))
    asked = in_turns(local, ITEMS, paths)
    assert len(asked) > len(ITEMS) / 2
    more = {} if base is None else {"base_model": str(base)}
    own |= {"max_new_tokens": tokens, "dtype": dtype}
    return Pair(paths, settings_for(asked, folder, **{**AS_USED, **own, **more}))


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("policies")
    first, second = (save_tiny_model(folder / f"{seed}", seed=seed, width=256, layers=4) for seed in (0, 1))
    return first, second


def with_worker(
    heldout: HeldoutSettings, act: Callable[[EvaluationWorker], Awaitable[None]], at: Path
) -> None:
    async def acted() -> None:
        worker = EvaluationWorker(heldout, at / "scratch")
        await worker.start()
        try:
            await act(worker)
        except BaseException:
            print(worker.log_path.read_text()[-20_000:])
            raise
        finally:
            await worker.close()

    asyncio.run(acted())


def pid_of(worker: EvaluationWorker) -> int:
    assert worker.pid is not None
    return worker.pid


def free() -> int:
    """Bytes that nobody has of the device's memory."""
    import torch

    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


def capacity() -> int:
    """Bytes of the device's memory."""
    import torch

    return int(torch.cuda.mem_get_info()[1])


@pytest.mark.parametrize("dtype", AGREE)
def test_checkpoints_that_alternate_in_one_engine_with_captured_graphs(
    policies: tuple[Path, Path], tmp_path: Path, dtype: str
) -> None:
    """A graph replays on the addresses that it was captured with: weights must be loaded into these."""
    alternate(paired(policies, tmp_path, dtype=dtype), tmp_path)


def test_tied_embeddings_alternate_in_one_engine_with_captured_graphs(
    policies: tuple[Path, Path], tmp_path: Path
) -> None:
    first, second = (tied(path, tmp_path / path.name) for path in policies)
    alternate(paired((first, second), tmp_path), tmp_path)


def alternate(pair: Pair, at: Path) -> None:
    """Six evaluations by one engine; each checkpoint's scores are the same each time."""

    async def act(worker: EvaluationWorker) -> None:
        pids, said = set(), {}
        for step, which in enumerate((0, 1, 0, 1, 1, 0)):
            result = await worker.evaluate(pair.request(which, step))
            print(step, which, f"{result.seconds:.2f} s", result.parts)
            assert pair.is_of(which, result.items)
            assert said.setdefault(which, result.items) == result.items, "the same each time"
            pids.add(pid_of(worker))
        assert len(pids) == 1

    with_worker(pair.heldout, act, at)


def test_a_device_without_room_is_told_as_that_and_the_next_evaluation_is_made(
    policies: tuple[Path, Path], tmp_path: Path
) -> None:
    import torch

    pair = paired(policies, tmp_path, gpu_memory_utilization=0.9)

    async def act(worker: EvaluationWorker) -> None:
        others = torch.empty(int(free() * 0.5), dtype=torch.uint8, device="cuda")
        with pytest.raises(EvaluationError) as caught:
            await worker.evaluate(pair.request(0, 1))
        print(caught.value)
        assert caught.value.kind is FailureKind.OUT_OF_MEMORY
        del others
        free()
        assert pair.is_of(0, (await worker.evaluate(pair.request(0, 1))).items)

    with_worker(pair.heldout, act, tmp_path)


def test_an_engine_that_is_killed_leaves_nothing_on_the_device(
    policies: tuple[Path, Path], tmp_path: Path
) -> None:
    pair = paired(policies, tmp_path, enforce_eager=True)
    before = free()

    async def act(worker: EvaluationWorker) -> None:
        assert pair.is_of(0, (await worker.evaluate(pair.request(0, 1))).items)
        assert before - free() > 0.15 * capacity()
        os.kill(pid_of(worker), signal.SIGKILL)
        end = time.monotonic() + 30
        while before - free() > GIB / 4:
            assert time.monotonic() < end
            await asyncio.sleep(0.1)
        assert pair.is_of(1, (await worker.evaluate(pair.request(1, 2))).items)

    with_worker(pair.heldout, act, tmp_path)


def test_adapters_share_an_engine_with_captured_graphs(policies: tuple[Path, Path], tmp_path: Path) -> None:
    adapters = (tmp_path / "one", tmp_path / "other")
    for path, targets in zip(adapters, ("all-linear", ["q_proj", "up_proj"]), strict=True):
        save_adapter(policies[0], path, target_modules=targets)
    pair = paired(adapters, tmp_path, policies[0])

    async def act(worker: EvaluationWorker) -> None:
        for step, which in enumerate((0, 1, 0)):
            result = await worker.evaluate(pair.request(which, step))
            print(step, which, f"{result.seconds:.2f} s", result.parts)
            assert pair.is_of(which, result.items)

    with_worker(pair.heldout, act, tmp_path)


def test_more_gpus_than_there_are_is_no_fault_of_the_checkpoint(
    policies: tuple[Path, Path], tmp_path: Path
) -> None:
    import torch

    pair = paired(policies, tmp_path, tensor_parallel_size=torch.cuda.device_count() + 1)

    async def act(worker: EvaluationWorker) -> None:
        with pytest.raises(EvaluationError) as caught:
            await worker.evaluate(pair.request(0, 1))
        print(caught.value)
        assert caught.value.kind is FailureKind.EVALUATOR

    with_worker(pair.heldout, act, tmp_path)
