"""Held-out evaluation of a checkpoint against plain batched `generate` of the same prompts, in the same run.

    python tests/bench/bench_evaluation.py [--items 128] [--tokens 24] [--rounds 3]

The evaluation is `EvaluationWorker.evaluate`: copying and hashing the checkpoint, loading it, generating in
the child process, scoring, and sending the outcomes back. Plain `generate` is a loop over the split in
batches of the same size with left padding, in a process as nice as the child; the model is loaded once,
before any clock runs, and nothing is scored. The same model on the same device; rounds of the two alternate,
so that other load on the machine hits both; the figure is the median of the rounds' ratios, and above 1 the
evaluation is faster. Part of it is that the evaluator sorts prompts by length, so a second figure gives plain
`generate` that advantage as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from guard_service.heldout.child import NICENESS
from guard_service.heldout.config import HeldoutSettings
from guard_service.heldout.worker import EvaluationRequest, EvaluationWorker
from tests.heldout.models import save_tiny_model

BATCH = 32


def make_prompts(count: int) -> list[str]:
    """Distinct prompts of 20 to 160 characters."""
    rng = random.Random(0)
    return [
        f"{i}. " + "".join(rng.choice("abcdefgh +-=0123456789") for _ in range(rng.randrange(20, 160)))
        for i in range(count)
    ]


class Plain:
    """`generate` as one would write it."""

    def __init__(self, path: Path, tokens: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._torch, self._tokens = torch, tokens
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        self._tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
        self._model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(self.device).eval()
        self.parameters = self._model.num_parameters()

    def complete(self, prompts: list[str]) -> list[str]:
        """Greedy completions, in order."""
        texts: list[str] = []
        for start in range(0, len(prompts), BATCH):
            batch = self._tokenizer(prompts[start : start + BATCH], return_tensors="pt", padding=True)
            batch = batch.to(self.device)
            with self._torch.inference_mode():
                out = self._model.generate(
                    input_ids=batch["input_ids"],
                    attention_mask=batch["attention_mask"],
                    max_new_tokens=self._tokens,
                    do_sample=False,
                )
            new = out[:, batch["input_ids"].shape[1] :]
            texts += self._tokenizer.batch_decode(new, skip_special_tokens=True)
        return texts


async def measure(folder: Path, items: int, tokens: int, rounds: int) -> None:
    model = save_tiny_model(folder / "model", width=256, layers=4, context=512)
    prompts = make_prompts(items)
    plain = Plain(model, tokens)
    answers = plain.complete(prompts)
    split = folder / "split.jsonl"
    rows = [
        {"id": f"i{n}", "prompt": p, "answer": a}
        for n, (p, a) in enumerate(zip(prompts, answers, strict=True))
    ]
    split.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = HeldoutSettings.model_validate(
        {
            "split": split,
            "evaluator": {"batch_size": BATCH, "max_new_tokens": tokens, "score_truncated": True},
        }
    )
    worker = EvaluationWorker(settings, folder / "scratch")
    await worker.start()
    os.nice(NICENESS)  # as the child, which is already running
    request = EvaluationRequest(0, 1, model)
    try:
        first = await worker.evaluate(request)  # the child has torch imported after this
        megabytes = (model / "model.safetensors").stat().st_size / 1e6
        print(
            f"{plain.parameters / 1e6:.1f} M parameters ({megabytes:.0f} MB), {plain.device}, {items} items, "
            f"{tokens} tokens each, batches of {BATCH}; outcomes agree on "
            f"{sum(map(bool, first.items))} of {items}"
        )
        times: list[tuple[float, float, float]] = []
        for _ in range(rounds):
            evaluation = (await worker.evaluate(request)).seconds
            times.append((evaluation, timed(plain, prompts), timed(plain, sorted(prompts, key=len))))
    finally:
        await worker.close()
    report(items, times)


def timed(plain: Plain, prompts: list[str]) -> float:
    start = time.monotonic()
    plain.complete(prompts)
    return time.monotonic() - start


def report(items: int, times: list[tuple[float, float, float]]) -> None:
    evaluation, in_order, by_length = (items / statistics.median(t) for t in zip(*times, strict=True))
    print(f"evaluation             {evaluation:7.1f} items/s")
    for name, rate, column in (("in order", in_order, 1), ("sorted by length", by_length, 2)):
        ratio = statistics.median(t[column] / t[0] for t in times)
        print(f"generate {name:18}  {rate:7.1f} items/s   evaluation / generate = {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=24, help="new tokens of each completion")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), args.items, args.tokens, args.rounds))


if __name__ == "__main__":
    main()
