"""Held-out evaluation with vLLM against plain `LLM.generate`, and against the evaluator `hf`.

    python tests/bench/bench_vllm.py [--items 128] [--tokens 64] [--rounds 3]

Run in the environment of `make test-vllm`, on the CPU there. The evaluation is `EvaluationWorker.evaluate`:
the checkpoint is copied and hashed, its weights are loaded over those of the one before, completions are made
in the evaluation process and scored. Plain `LLM.generate` has its weights loaded before any clock runs,
scores nothing, and takes the same prompts with the same settings, in a process as nice. Rounds of the three
alternate, so that other load on the machine hits all; two checkpoints of different weights do, too, so that
every evaluation loads. A figure is the median of the rounds' ratios, and above 1 the evaluation with vLLM is
faster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from guard_service.heldout.child import NICENESS
from guard_service.heldout.config import HeldoutSettings
from guard_service.heldout.evaluators.vllm import ENVIRONMENT
from guard_service.heldout.worker import EvaluationRequest, EvaluationWorker
from rlguard.core.rounds import Evaluation
from tests.bench.bench_evaluation import make_prompts
from tests.heldout.models import save_tiny_model

SEQUENCES = 64
PARTS = ("stage", "load", "generate", "score")


class Plain:
    """`LLM.generate` as one would write it."""

    def __init__(self, path: Path, tokens: int) -> None:
        from vllm import LLM, SamplingParams

        self._llm: Any = LLM(str(path), dtype="float32", enforce_eager=True, max_num_seqs=SEQUENCES)
        self._params = SamplingParams(temperature=0, max_tokens=tokens)

    def complete(self, prompts: Sequence[str]) -> list[str]:
        """Greedy completions, in order."""
        self._llm.reset_prefix_cache()  # every checkpoint has prompts that nobody has seen before
        return [out.outputs[0].text for out in self._llm.generate(prompts, self._params, use_tqdm=False)]


async def measure(folder: Path, items: int, tokens: int, rounds: int) -> None:
    policies = [
        save_tiny_model(folder / name, seed=seed, width=256, layers=4, context=512)
        for seed, name in enumerate(("a", "b"))
    ]
    prompts = make_prompts(items)
    split = folder / "split.jsonl"
    rows = [{"id": f"i{n}", "prompt": prompt, "answer": "42"} for n, prompt in enumerate(prompts)]
    split.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = Plain(policies[0], tokens)
    os.nice(NICENESS)  # as the evaluation processes

    def worker(**evaluator: Any) -> EvaluationWorker:
        settings = {"max_new_tokens": tokens, "dtype": "float32", "score_truncated": True, **evaluator}
        heldout = HeldoutSettings.model_validate({"split": split, "evaluator": settings})
        return EvaluationWorker(heldout, folder / str(evaluator["kind"]))

    by_vllm = worker(kind="vllm", enforce_eager=True, batch_size=SEQUENCES)
    by_transformers = worker(kind="hf")
    try:
        for one in (by_vllm, by_transformers):
            await one.start()
            await one.evaluate(EvaluationRequest(0, 0, policies[1]))  # everything is imported after this
        plain.complete(prompts)
        made: list[tuple[Evaluation, float, Evaluation]] = []
        for number in range(rounds):
            request = EvaluationRequest(0, number, policies[number % 2])
            ours = await by_vllm.evaluate(request)
            start = time.monotonic()
            plain.complete(prompts)
            peer = time.monotonic() - start
            made.append((ours, peer, await by_transformers.evaluate(request)))
    finally:
        await by_vllm.close()
        await by_transformers.close()
    report(items, tokens, made)


def report(items: int, tokens: int, made: list[tuple[Evaluation, float, Evaluation]]) -> None:
    seconds = statistics.median(ours.seconds for ours, _, _ in made)
    print(f"{items} items, {tokens} tokens each: evaluation with vLLM {items / seconds:.1f} items/s")
    against_plain = statistics.median(peer / ours.seconds for ours, peer, _ in made)
    against_ours = statistics.median(other.seconds / ours.seconds for ours, _, other in made)
    print(f"evaluation / plain LLM.generate             {against_plain:.2f}")
    print(f"evaluation / that of evaluator `hf` {against_ours:.2f}")
    for name, place in (("vllm", 0), ("hf", 2)):
        results = [round_[place] for round_ in made]
        shares = {part: statistics.median(r.parts[part] / r.seconds for r in results) for part in PARTS}
        print(f"where the time goes, {name:10}", *(f"{part} {share:.1%}" for part, share in shares.items()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each completion")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "CUDA_VISIBLE_DEVICES": "", **ENVIRONMENT}
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"  # its log goes to stdout
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), args.items, args.tokens, args.rounds))


if __name__ == "__main__":
    main()
