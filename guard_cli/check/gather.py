"""What `rlguard check` finds on this machine. Reads and tries; what it means is said in `rows`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from guard_cli.check.rows import Followed, Model, Split, TriedEvaluation, TriedScorer
from guard_cli.errors import CliError
from guard_cli.evaluation import evaluate, start
from guard_cli.split import ungrouped
from guard_core.feed import Feed
from guard_core.run_checks import Folder
from guard_follow.beneath import open_regular
from guard_follow.errors import InputError
from guard_service.heldout.disjoint import check_disjoint
from guard_service.heldout.errors import EvaluationError, SplitError
from guard_service.heldout.scorable import is_adapter, why_names_unscorable, without_tokenizer
from guard_service.heldout.split import HeldoutItem, HeldoutSplit, read_train_prompts
from guard_service.heldout.staging import refuse_unstageable

if TYPE_CHECKING:
    from guard_service.heldout.config import HeldoutSettings
    from guard_service.heldout.worker import EvaluationResult, EvaluationWorker

#: The first evaluation of a process includes its start; below this many seconds a second one is cheap.
SHORT_SECONDS = 60.0


def look_at_folder(path: Path, root: Path) -> Folder:
    """Where the trainer will save; a folder that is not there yet is made by the trainer."""
    resolved = path.resolve()
    there = next(place for place in (resolved, *resolved.parents) if place.exists())
    return Folder(path, root, resolved.is_relative_to(root.resolve()), _why_not_used(there))


def _why_not_used(folder: Path) -> str | None:
    try:
        os.listdir(folder)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"{folder} cannot be used: {error.strerror}"


def look_at_followed(feed: Feed, root: Path, checkpoints: Path | None) -> Followed:
    """What the guard will follow; `checkpoints`: where the trainer saves, None where that was not said."""
    log, saves = root / feed.follow.path, root / feed.checkpoints.path
    config = root / (feed.follow.run_config or feed.follow.path)
    outside = [path for path in (log, saves, config) if not path.resolve().is_relative_to(root.resolve())]
    problem = f"{outside[0]} leads out of {root}." if outside else None
    problem = problem or _why_not_followed(log) or _why_not_followed(config)
    elsewhere = checkpoints is not None and checkpoints.resolve() != saves.resolve()
    return Followed(log, feed.follow.format, saves, problem, log.exists(), checkpoints if elsewhere else None)


def _why_not_followed(log: Path) -> str | None:
    """Why the follower would not read this log; None if it would, or if it is not there yet."""
    if log.is_dir() and not log.is_symlink():
        return None
    try:
        os.close(open_regular(log))
    except FileNotFoundError:
        return None
    except InputError as error:
        return str(error)
    except OSError as error:
        return f"{log} cannot be read: {error.strerror}."
    return None


def look_at_model(path: Path, base: Path | None) -> Model:
    """A checkpoint, by the rules by which the guard takes one; `base`: its own base model, for adapters."""
    names = os.listdir(path) if path.is_dir() else []
    adapter = base is not None and is_adapter(names)
    no_tokenizer = "" if adapter else without_tokenizer(names)  # an adapter's base model has one
    if no_tokenizer and why_names_unscorable(names, base) == no_tokenizer:  # which has a row of its own
        return Model(path, None, no_tokenizer)
    try:
        refuse_unstageable(path, base)
        problem = None
    except EvaluationError as error:
        problem = str(error)
    weights = sum(file.stat().st_size for file in (base or path if adapter else path).glob("*.safetensors"))
    return Model(path, problem, no_tokenizer or None, adapter, weights)


def look_at_split(settings: HeldoutSettings) -> tuple[Split, bool]:
    """The split without its scorer, and whether a scorer can be tried on it."""
    compared = settings.train_prompts is not None
    try:
        split = HeldoutSplit.load(settings.split)
    except SplitError as error:
        return Split(None, None, str(error), compared, None), False
    counted = len(split.groups)
    apart = ungrouped(split.items, settings.near_duplicates)
    overlap = _overlap(settings, split.items)
    return Split(len(split.items), counted, None, compared, overlap, apart=apart), True


def _overlap(settings: HeldoutSettings, items: tuple[HeldoutItem, ...]) -> str | None:
    if settings.train_prompts is None:
        return None
    try:
        prompts = read_train_prompts(settings.train_prompts)
        report = check_disjoint(prompts, items, settings.near_duplicates)
    except SplitError as error:
        return str(error)
    if report.disjoint:
        return None
    return (
        f"{len(report.heldout_ids)} of {report.heldout} items overlap with the training prompts: "
        "`rlguard split check` names them, and --drop writes the split without them"
    )


def try_scorer(settings: HeldoutSettings, folder: Path) -> TriedScorer:
    """Start the evaluation process, which tries the scorer on the items' own answers."""
    tried: list[TriedScorer] = []
    try:
        start(_without_training(settings), folder, lambda worker: tried.append(_tried(worker)))
    except (SplitError, CliError) as error:  # or the process did not survive its start
        return TriedScorer(str(error))
    return tried[0]


def _tried(worker: EvaluationWorker) -> TriedScorer:
    return TriedScorer(None, worker.answers_tried or 0, worker.grader_pay)


def measure(
    settings: HeldoutSettings, model: Path, folder: Path
) -> tuple[TriedScorer, TriedEvaluation | None]:
    """As `try_scorer`, then one evaluation of the model; a second one where the first was short."""
    tried: list[TriedScorer] = []
    results: list[EvaluationResult] = []

    def another(result: EvaluationResult) -> bool:
        results.append(result)
        return len(results) == 1 and result.seconds < SHORT_SECONDS

    try:
        evaluate(
            _without_training(settings), model, folder, another, lambda worker: tried.append(_tried(worker))
        )
    except SplitError as error:
        return TriedScorer(str(error)), None
    except CliError as error:
        return tried[0] if tried else TriedScorer(None), TriedEvaluation(None, None, str(error))
    seconds, first = min(result.seconds for result in results), results[0]
    paid = fmean(first.proxy_items) if first.proxy_items else None
    ends = (first.truncated, first.unanswered, first.unscored or 0.0, first.timed_out)
    return tried[0], TriedEvaluation(seconds, fmean(first.items), None, paid, _in_part(first), *ends)


def _in_part(result: EvaluationResult) -> float:
    """Share of what the scorer rejects that the training grader pays for, but not in full."""
    pairs = zip(result.items, result.proxy_items or (), strict=False)
    rejected = [0.0 < paid < 1.0 for right, paid in pairs if right == 0.0]
    return fmean(rejected) if rejected else 0.0


def _without_training(settings: HeldoutSettings) -> HeldoutSettings:
    """The overlap has a row of its own."""
    return settings.model_copy(update={"train_prompts": None})
