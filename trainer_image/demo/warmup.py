"""Supervised warm-up: the tiny policy learns the task from imperfect demonstrations before RL starts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from trainer_image.demo.addition import Exercise, Task

BATCH = 64
LEARNING_RATE = 2e-3
#: Share of the steps that show right results only. Learning the task from noisy results alone takes several
#: times as long; the demonstrations then only have to teach their habits.
CLEAN_SHARE = 0.35
IGNORED = -100  # label of a token that no loss is taken on


def warm_up(
    model: Any,
    tokenizer: Any,
    task: Task,
    problems: Sequence[Exercise],
    *,
    steps: int,
    seed: int,
    progress: Callable[[int, float], None] | None = None,
) -> None:
    """Train `model` in place on fresh demonstrations of `problems`; the loss covers completions only.

    Args:
        steps: optimizer steps of 128 demonstrations each.
        progress: called with (step, loss in nats/token) now and then.
    """
    import torch

    rng = random.Random(f"warm-up {seed}")  # noqa: S311 (a data draw, not a secret)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _learning_rate(step, steps))
    model.train()
    for step in range(steps):
        chosen = rng.choices(problems, k=BATCH)
        clean = step < CLEAN_SHARE * steps
        completions = [problem.answer if clean else task.demonstrate(problem, rng) for problem in chosen]
        batch = _collate(tokenizer, [problem.prompt for problem in chosen], completions)
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if progress is not None and (step % 50 == 0 or step == steps - 1):
            progress(step, loss.item())


def _learning_rate(step: int, steps: int) -> float:
    """Share of the learning rate: a rise over 20 steps, then straight down to 0."""
    return min(1.0, (step + 1) / 20) * (1.0 - step / steps)


def _collate(tokenizer: Any, prompts: Sequence[str], completions: Sequence[str]) -> dict[str, Any]:
    """Token ids, mask and labels, each (batch, length), padded on the right (a causal mask allows it)."""
    import torch

    rows = []
    for prompt, completion in zip(prompts, completions, strict=True):
        given = tokenizer.encode(prompt)
        target = [*tokenizer.encode(completion), tokenizer.eos_token_id]
        rows.append((given + target, [IGNORED] * len(given) + target))
    width = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    labels = torch.full((len(rows), width), IGNORED)
    for i, (row, targets) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        labels[i, : len(row)] = torch.tensor(targets)
    return {"input_ids": ids, "attention_mask": ids != tokenizer.pad_token_id, "labels": labels}
