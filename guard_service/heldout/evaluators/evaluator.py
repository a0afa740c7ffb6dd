"""What both engines share: copy and hash a checkpoint, read its tokenizer, complete every prompt."""

from __future__ import annotations

import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from guard_service.heldout.base_model import BaseModel
from guard_service.heldout.errors import EvaluationError, SplitError, failing_as
from guard_service.heldout.evaluators.completions import (
    Completion,
    CompletionJob,
    Completions,
    Stops,
    Tokenization,
    refuse_without_template,
)
from guard_service.heldout.scorable import without_tokenizer
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.staging import Staged, stage
from guard_service.heldout.worker import STAGE_PREFIX, CheckpointAt, EvaluationRequest, clear_stages
from rlguard.core.evaluation import LocalEvaluation
from rlguard.core.wire import EvaluationSampling, FailureKind


class BrokenGenerationError(Exception):
    """What the model made is no completion of the policy; the message goes after the checkpoint's name."""


class LoadedPolicy(Protocol):
    """A policy that is loaded."""

    tokenization: Tokenization

    def generate(self, jobs: Sequence[CompletionJob], sampling: EvaluationSampling) -> list[list[int]]:
        """Generate the tokens of each job, in their order; those after its end are left out or ignored.

        Raises:
            BrokenGenerationError: logits were infinite or not a number.
            EvaluationError: it could not be made.
        """

    def release(self) -> None:
        """Give back what the next checkpoint needs."""


class Evaluator(ABC):
    """Completes the held-out prompts with the policy of a checkpoint.

    Args:
        settings: how completions are made.
        scratch: where checkpoints are copied to.
        base: the guard's own base model, to which adapters are applied; None refuses them.
    """

    def __init__(self, settings: LocalEvaluation, scratch: Path, base: BaseModel | None = None) -> None:
        self._settings = settings
        self._scratch = scratch
        self._base = base
        self._copy: tuple[CheckpointAt, Staged] | None = None

    def check(self, items: Sequence[HeldoutItem]) -> None:
        """Refuse, at start, settings and items that can never work.

        Raises:
            SplitError: what must be installed or set.
        """
        if missing := self._missing():
            raise SplitError(missing)
        refuse_without_template(items, self._settings, chat=self._settings.chat)

    @abstractmethod
    def warm_up(self) -> None:
        """Do, between start and the first checkpoint, what every evaluation would wait for."""

    @abstractmethod
    def _missing(self) -> str | None:
        """What must still be installed, in one sentence; None: nothing. It is looked for, not imported."""

    @abstractmethod
    def _load(self, staged: Staged, tokenization: Tokenization, shown: str) -> LoadedPolicy:
        """Load the policy without looking at an item; raises EvaluationError."""

    def complete(self, items: Sequence[HeldoutItem], request: EvaluationRequest) -> Completions:
        """Complete every prompt; raises EvaluationError, and never leaves an item out."""
        sampling = self._settings.sampling_with(request.sampling)
        shown = f"checkpoint {request.path}"
        seconds: dict[str, float] = {}
        with timed(seconds, "stage"):
            staged = self._stage(request)
        with timed(seconds, "load"):
            stops = Stops.of(self._settings, sampling)
            policy = self._load(staged, self._tokenization(staged, shown, stops), shown)
        try:
            with timed(seconds, "generate"):
                rows = self._generate(policy, items, sampling, request.pass_index)
        except BrokenGenerationError as error:
            raise EvaluationError(f"{shown}: {error}") from error
        finally:
            policy.release()
        return Completions(rows, sampling, staged.sha256, staged.path, seconds)

    def _stage(self, request: EvaluationRequest) -> Staged:
        """Copy the checkpoint; a further pass takes the copy of the pass before, if it is still there."""
        copied, self._copy = self._copy, None
        if request.pass_index and copied and copied[0] == request.checkpoint and copied[1].path.is_dir():
            staged = copied[1]
        else:
            clear_stages(self._scratch)
            target = self._scratch / f"{STAGE_PREFIX}{uuid.uuid4().hex}"
            with failing_as(FailureKind.CHECKPOINT):
                base = None if self._base is None else self._base.path
                staged = stage(request.path, target, base, request.expected)
        if staged.adapter is not None and self._base is not None:
            self._base.refuse_changed()
        self._copy = request.checkpoint, staged
        return staged

    def _tokenization(self, staged: Staged, shown: str, stops: Stops) -> Tokenization:
        """Read the tokenizer; of an adapter without one, that of the base model."""
        if staged.adapter is None:
            return Tokenization.load(staged.path, staged.path, shown, stops)
        assert self._base is not None, "an adapter is not staged without a base model"
        own = not without_tokenizer(os.listdir(staged.path))
        return Tokenization.load(self._base.path, staged.path if own else self._base.path, shown, stops)

    def _generate(
        self,
        policy: LoadedPolicy,
        items: Sequence[HeldoutItem],
        sampling: EvaluationSampling,
        pass_index: int,
    ) -> list[list[Completion]]:
        """Make the completions, shape (n_items, samples)."""
        tokenization = policy.tokenization
        jobs = tokenization.jobs(items, self._settings, sampling, pass_index)
        completions: dict[tuple[int, int], Completion] = {}
        some_tokens = False
        for job, tokens in zip(jobs, policy.generate(jobs, sampling), strict=True):
            written = tokenization.before_end(tokens)
            cut_off = len(written) == len(tokens)
            completions[job.item, job.sample] = tokenization.decode(written, job.mark, truncated=cut_off)
            some_tokens = some_tokens or bool(written)
        if some_tokens and not any(completion.text for completion in completions.values()):
            raise BrokenGenerationError(
                "tokens were generated, and no completion has a text: the tokenizer is not of this model"
            )
        return [[completions[i, k] for k in range(sampling.samples)] for i in range(len(items))]


@contextmanager
def timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Write down how long this part of an evaluation takes."""
    start = time.monotonic()
    yield
    seconds[part] = time.monotonic() - start
