"""Run the evaluation process's own code on completions that a test says; wait for processes to end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from guard_service.heldout import child
from guard_service.heldout.config import HeldoutSettings
from guard_service.heldout.evaluators.completions import Completion, Completions
from guard_service.heldout.evaluators.hf import HfEvaluator
from guard_service.heldout.worker import EvaluationRequest
from rlguard.core.wire import EvaluationSampling, SamplingSource

SAMPLING = EvaluationSampling(temperature=0.0, max_new_tokens=8, samples=1, source=SamplingSource.SETTINGS)


def evaluate(
    folder: Path, items: Sequence[Mapping[str, Any]], made: Sequence[Sequence[Completion]], **settings: Any
) -> dict[str, Any]:
    """The response to a request for these items, whose completions are `made`; `settings`: of `heldout`."""
    rows = ({"id": f"i{n}", "prompt": f"{n}+1=", "answer": "1"} | one for n, one in enumerate(items))
    (folder / "split").write_text("".join(json.dumps(row) + "\n" for row in rows))

    class Said(HfEvaluator):
        def complete(self, items: Any, request: EvaluationRequest) -> Completions:
            return Completions(made, SAMPLING, "0" * 64, folder, {})

    config = HeldoutSettings.model_validate({"split": folder / "split", **settings})
    evaluation = child.HeldoutEvaluation(config, folder, first=False, engine=Said)
    return {**evaluation.run(EvaluationRequest(0, 1, folder)), "ready": evaluation.ready()}


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and is not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], object]) -> None:
    """Wait for what takes much less than a minute."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
