"""What `rlguard check` finds on this machine. Reads and tries; what it means is said in `rows`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING

from guard_service.heldout.disjoint import check_disjoint
from guard_service.heldout.errors import EvaluationError, GraderError, SplitError
from guard_service.heldout.scorable import is_adapter, why_names_unscorable, without_tokenizer
from guard_service.heldout.split import HeldoutItem, HeldoutSplit, read_train_prompts
from guard_service.heldout.staging import refuse_unstageable
from guard_service.heldout.worker import EvaluationRequest, EvaluationWorker
from rlguard.cli.check.rows import Model, Split, TriedEvaluation, TriedScorer
from rlguard.cli.split import ungrouped
from rlguard.core.feed import Feed
from rlguard.core.preflight import CheckLevel, CheckRow
from rlguard.core.run_checks import Folder
from rlguard.follow.errors import InputError
from rlguard.follow.safe_open import open_regular

if TYPE_CHECKING:
    from guard_service.heldout.config import HeldoutSettings
    from rlguard.core.rounds import Evaluation

#: The first evaluation of a process includes its start; below this many seconds a second one is cheap.
SHORT_SECONDS = 60.0


def look_at_folder(path: Path, root: Path) -> Folder:
    """Where the trainer will save; a folder that is not there yet is made by the trainer."""
    resolved, problem = path.resolve(), None
    there = next(place for place in (resolved, *resolved.parents) if place.exists())
    try:
        os.listdir(there)
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        problem = f"{there} cannot be used: {error.strerror}"
    return Folder(path, root, resolved.is_relative_to(root.resolve()), problem)


def look_at_followed(feed: Feed, root: Path, checkpoints: Path | None) -> CheckRow:
    """Whether the guard will read what the trainer writes; `checkpoints`: where that saves."""
    name = "followed log"
    log, saves = root / feed.follow.path, root / feed.checkpoints.path
    config = root / (feed.follow.run_config or feed.follow.path)
    outside = [path for path in (log, saves, config) if not path.resolve().is_relative_to(root.resolve())]
    problem = f"{outside[0]} leads out of {root}." if outside else None
    if problem := problem or _why_not_followed(log) or _why_not_followed(config):
        return CheckRow(name, CheckLevel.REFUSE, f"{problem} Nothing would be read, or judged")
    if checkpoints is not None and checkpoints.resolve() != saves.resolve():
        looks = f"the guard looks for checkpoints in {saves}: set metrics.checkpoints.path"
        return CheckRow(name, CheckLevel.WARN, f"the trainer saves in {checkpoints}, and {looks}")
    old = "; what stands there already counts as of another run" if log.exists() else ""
    return CheckRow(name, CheckLevel.OK, f"{log} ({feed.follow.format}), and checkpoints in {saves}{old}")


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
    return Model(path, problem, no_tokenizer or None, adapter)


def look_at_split(settings: HeldoutSettings) -> Split:
    """The split without its scorer."""
    compared = settings.train_prompts is not None
    try:
        split = HeldoutSplit.load(settings.split)
    except SplitError as error:
        return Split(None, None, str(error), "not compared" if compared else None)
    apart = ungrouped(split.items, settings.near_duplicates)
    overlap = _overlap(settings.train_prompts, split.items, settings.near_duplicates)
    return Split(len(split.items), len(split.groups), overlap=overlap, apart=apart)


def _overlap(train_prompts: Path | None, items: tuple[HeldoutItem, ...], near: bool) -> str | None:
    """Why the split is not disjoint from the training prompts; "" if it is, None without them."""
    if train_prompts is None:
        return None
    try:
        report = check_disjoint(read_train_prompts(train_prompts), items, near)
    except SplitError as error:
        return str(error)
    if report.disjoint:
        return ""
    return (
        f"{len(report.heldout_ids)} of {report.heldout} items overlap with the training prompts: "
        "`rlguard split check` names them, and --drop writes the split without them"
    )


def try_evaluation(
    settings: HeldoutSettings, model: Path | None, folder: Path
) -> tuple[TriedScorer, TriedEvaluation | None]:
    """Try the scorers on the items' own answers, and evaluate a model: again where that was short.

    `folder`: where a copy of the model lies meanwhile, and the log of what failed stays.
    """
    without_training = settings.model_copy(update={"train_prompts": None})  # which has a row of its own
    try:
        with TemporaryDirectory(prefix="rlguard-", dir=folder, ignore_cleanup_errors=True) as scratch:
            tried, results, failure = asyncio.run(_evaluate(without_training, model, Path(scratch)))
            log = Path(scratch, "worker.log")
            if failure and log.exists() and log.stat().st_size:
                failure = f"{failure} (log: {log.rename(folder / f'{Path(scratch).name}.log')})"
    except OSError as error:
        return TriedScorer(f"{folder} cannot be used: {error.strerror}"), None
    if failure and tried.answers is None:  # the process did not survive its start
        return TriedScorer(failure), None
    if failure:
        return tried, TriedEvaluation(None, None, failure)
    if not results:
        return tried, None
    seconds, first = min(result.seconds or 0.0 for result in results), results[0]
    paid = fmean(first.proxy_items) if first.proxy_items else None
    ends = (first.truncated, first.unanswered, first.unscored or 0.0, first.timed_out)
    return tried, TriedEvaluation(seconds, fmean(first.items), None, paid, _in_part(first), *ends)


async def _evaluate(
    settings: HeldoutSettings, model: Path | None, scratch: Path
) -> tuple[TriedScorer, list[Evaluation], str]:
    """What came of the guard's own evaluation process, and why it failed; "" if it did not."""
    worker, tried = EvaluationWorker(settings, scratch), TriedScorer()
    results: list[Evaluation] = []
    failure = ""
    try:
        await worker.start()
        assert worker.found is not None
        tried = TriedScorer(answers=worker.found.answers_tried, pay=worker.found.grader_pay)
        while model is not None and (not results or _is_one_short(results)):
            results.append(await worker.evaluate(EvaluationRequest(0, 0, model, len(results))))
    except GraderError as error:
        tried = TriedScorer(grader_problem=str(error))
    except SplitError as error:
        tried = TriedScorer(str(error))
    except EvaluationError as error:
        failure = str(error)
    finally:
        await worker.close()
    return tried, results, failure


def _is_one_short(results: Sequence[Evaluation]) -> bool:
    return len(results) == 1 and (results[0].seconds or 0.0) < SHORT_SECONDS


def _in_part(result: Evaluation) -> float:
    """Share of what the scorer rejects that the training grader pays for, but not in full."""
    pairs = zip(result.items, result.proxy_items or (), strict=False)
    rejected = [0.0 < paid < 1.0 for right, paid in pairs if right == 0.0]
    return fmean(rejected) if rejected else 0.0
