"""The engine `hf` of a test: stages as the real one does, and asks an endpoint for completions."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Sequence

from guard_service.heldout.errors import EvaluationError
from guard_service.heldout.evaluators.completions import Completion, Completions, answer_after, answer_in
from guard_service.heldout.evaluators.evaluator import Evaluator, timed
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.worker import EvaluationRequest


class HfEvaluator(Evaluator):
    """Asks the policy at STUB_POLICY_URL."""

    def _missing(self):
        return None

    def _load(self, staged, tokenization, shown):
        raise NotImplementedError

    def warm_up(self) -> None:
        """Nothing to do."""

    def complete(self, items: Sequence[HeldoutItem], request: EvaluationRequest) -> Completions:
        sampling = self._settings.sampling_with(request.sampling)
        seconds: dict[str, float] = {}
        with timed(seconds, "stage"):
            staged = self._stage(request)
        with timed(seconds, "generate"):
            rows = [[self._ask(item, request) for _ in range(sampling.samples)] for item in items]
        return Completions(rows, sampling, staged.sha256, staged.path, seconds)

    def _ask(self, item: HeldoutItem, request: EvaluationRequest) -> Completion:
        said = {"prompt": item.conversation[-1]["content"], "step": request.step, "pass": request.pass_index}
        said["temperature"] = self._settings.sampling_with(request.sampling).temperature
        try:
            with urllib.request.urlopen(os.environ["STUB_POLICY_URL"], json.dumps(said).encode()) as response:
                answer = json.load(response)
        except (OSError, ValueError) as error:
            raise EvaluationError(
                f"the policy says nothing to item {item.id!r}: {type(error).__name__}"
            ) from error
        mark = answer_after(item, self._settings)
        return Completion(answer["text"], answer_in(answer["text"], mark), answer["truncated"])
