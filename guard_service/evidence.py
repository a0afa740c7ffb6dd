"""What stays of a run when its guard is gone: files by name, which `rlguard report` draws. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlguard.core.wire import MomentRollouts

MAX_PROMPT, MAX_COMPLETION = 300, 1_000
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
CUT = "\n[…]\n"


def evidence_files(
    rounds: Sequence[Mapping[str, Any]], steps: str | None, moments: Sequence[MomentRollouts]
) -> dict[str, str]:
    """The evaluation rounds, the steps that are kept, and what the model wrote; a file that is empty is none.

    Args:
        rounds: each with attempt, step, reward, heldout and, if known, kl.
        steps: as `kept_steps.written_steps` writes them.
        moments: rollouts of the training.
    """
    written = [_rollout(one) for one in moments]
    files = {
        "history.jsonl": "\n".join(json.dumps(one) for one in rounds),
        "steps.jsonl": steps or "",
        "rollouts.json": json.dumps(written, indent=2, ensure_ascii=False) if written else "",
    }
    return {name: content for name, content in files.items() if content}


def _rollout(moment: MomentRollouts) -> dict[str, Any]:
    """The best-rewarded rollout of a moment, cut. A policy or a trainer wrote it."""
    best = moment.rollouts[0]
    return {
        "moments": [one.value for one in moment.moments],
        "attempt": moment.attempt,
        "step": moment.step,
        "prompt": _written(best.prompt, MAX_PROMPT),
        "completion": _written(best.completion, MAX_COMPLETION),
        "reward": best.reward,
    }


def _written(text: str, limit: int) -> str:
    """The text without control characters; of a longer one its beginning and its end."""
    plain = _CONTROLS.sub("\ufffd", text)
    half = (limit - len(CUT)) // 2
    return plain if len(plain) <= limit else f"{plain[:half]}{CUT}{plain[-half:]}"
