"""What the evaluators of local checkpoints have in common: all but how a model is loaded and generates."""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from guard_core.evaluation import LocalEvaluation
from guard_core.wire import EvaluationSampling, FailureKind
from guard_service.heldout.asking import Stops, refuse_without_template
from guard_service.heldout.base_model import BaseModel
from guard_service.heldout.errors import EvaluationError, SplitError, failing_as
from guard_service.heldout.evaluators import Completion, Completions, timed
from guard_service.heldout.evaluators.codec import Codec, CompletionJob
from guard_service.heldout.fitness import without_tokenizer
from guard_service.heldout.identity import pinned, refuse_others
from guard_service.heldout.named_files import drop_named_files
from guard_service.heldout.split import HeldoutItem
from guard_service.heldout.staging import Staged, stage
from guard_service.heldout.worker import STAGE_PREFIX, CheckpointAt, EvaluationRequest


def taken(request: EvaluationRequest, scratch: Path, base: Path | None = None) -> Staged:
    """A copy of the checkpoint, hashed, which is what was announced and one that the run may be judged by.

    `base`: the guard's own base model, to which an adapter is applied; None refuses adapters.

    Raises:
        CheckpointGoneError: it is no longer there.
        EvaluationError: it cannot be scored.
    """
    with failing_as(FailureKind.CHECKPOINT):
        target = scratch / f"{STAGE_PREFIX}{uuid.uuid4().hex}"
        staged = stage(request.path, target, base, request.expected.manifest)
        refuse_others(request.path, pinned(staged.path), staged.sha256, request.expected)
        # Not before: the pins are of what the trainer has saved.
        drop_named_files(staged.path, f"checkpoint {request.path}")
    return staged


class BrokenGenerationError(Exception):
    """What the model made is no completion of the policy; the message goes after the checkpoint's name."""


class LoadedPolicy(Protocol):
    """A policy that is loaded."""

    codec: Codec

    def generate(self, jobs: Sequence[CompletionJob], sampling: EvaluationSampling) -> list[list[int]]:
        """Tokens of each completion, in the order of the jobs; those after its end are left out or ignored.

        Raises:
            BrokenGenerationError: logits were infinite or not a number.
            EvaluationError: it could not be made.
        """

    def release(self) -> None:
        """Give back what the next checkpoint needs."""


class LocalEvaluator(ABC):
    """Scores what it has copied and hashed itself."""

    def __init__(self, settings: LocalEvaluation, scratch: Path, base: BaseModel | None = None) -> None:
        self._settings = settings
        self._scratch = scratch
        self._base = base
        self._copy: tuple[CheckpointAt, Staged] | None = None

    @property
    def over(self) -> bool:
        """See `Evaluator.over`."""
        return False

    def check(self, items: Sequence[HeldoutItem]) -> None:
        """See `Evaluator.check`."""
        if missing := self._missing():
            raise SplitError(missing)
        refuse_without_template(items, self._settings, chat=self._settings.chat)

    @abstractmethod
    def _missing(self) -> str | None:
        """What must still be installed, in one sentence; None: nothing. It is looked for, not imported."""

    @abstractmethod
    def _load(self, staged: Staged, codec: Codec, shown: str) -> LoadedPolicy:
        """The policy; raises EvaluationError. It looks at no item."""

    def complete(self, items: Sequence[HeldoutItem], request: EvaluationRequest) -> Completions:
        """See `Evaluator.complete`."""
        sampling = self._settings.sampling_with(request.sampling)
        shown = f"checkpoint {request.path}"
        seconds: dict[str, float] = {}
        with timed(seconds, "stage"):
            staged = self._stage(request)
        with timed(seconds, "load"):
            model = self._load(staged, self._codec(staged, shown, Stops.of(self._settings, sampling)), shown)
        try:
            with timed(seconds, "generate"):
                made = self._generate(model, items, sampling, request.pass_index)
        except BrokenGenerationError as error:
            raise EvaluationError(f"{shown}: {error}") from error
        finally:
            model.release()
        return Completions(made, sampling, staged.sha256, staged.path, seconds)

    def _stage(self, request: EvaluationRequest) -> Staged:
        """A copy of the checkpoint; for a further pass that of the pass before, if it is still there."""
        base = self._base
        copied, self._copy = self._copy, None
        if request.pass_index and copied and copied[0] == request.checkpoint and copied[1].path.is_dir():
            staged = copied[1]
        else:
            staged = taken(request, self._scratch, None if base is None else base.path)
        if staged.adapter is not None and base is not None:
            now = base.as_it_is_now()
            if now is None:
                raise EvaluationError(
                    f"the base model in {base.path} is no longer the one that the guard started with: "
                    "restore it, or start a new run",
                    FailureKind.EVALUATOR,
                )
            self._base = now
        self._copy = request.checkpoint, staged
        return staged

    def _codec(self, staged: Staged, shown: str, ending: Stops) -> Codec:
        """Of an adapter without a tokenizer: that of the base model."""
        if staged.adapter is None:
            return Codec.load(staged.path, staged.path, shown, ending)
        assert self._base is not None, "an adapter is not staged without a base model"
        own = not without_tokenizer(os.listdir(staged.path))
        return Codec.load(self._base.path, staged.path if own else self._base.path, shown, ending)

    def _generate(
        self, model: LoadedPolicy, items: Sequence[HeldoutItem], sampling: EvaluationSampling, pass_index: int
    ) -> list[list[Completion]]:
        """Completions, shape (n_items, samples)."""
        codec = model.codec
        jobs = codec.jobs(items, self._settings, sampling, pass_index)
        completions: dict[tuple[int, int], Completion] = {}
        silent = True
        for job, tokens in zip(jobs, model.generate(jobs, sampling), strict=True):
            said = codec.said(tokens)
            cut_off = len(said) == len(tokens)
            completions[job.item, job.sample] = codec.decode(said, job.mark, truncated=cut_off)
            silent = silent and not said
        if not silent and not any(completion.text for completion in completions.values()):
            raise BrokenGenerationError(
                "tokens were generated, and no completion has a text: the tokenizer is not of this model"
            )
        return [[completions[i, k] for k in range(sampling.samples)] for i in range(len(items))]
