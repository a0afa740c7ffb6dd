"""What an evaluation takes on a GPU: the formula of `cost.py`, and plain `LLM.generate` beside it.

    python -m tests.bench.bench_gpu [--policies 1.5B 7B] [--items 256] [--tokens 512]

Policies of random weights in the shapes of Qwen2.5, with an output of their own, in bfloat16: no completion
ends before its last token. The evaluation is `EvaluationWorker.evaluate`, with vLLM as users start it. Its
first one starts the engine, and those after load the weights over those that are there. With `release_memory`
the engine sleeps in between. Plain `LLM.generate` takes the same prompts with the same settings in a process
of its own, and scores nothing. A ratio to the formula above 1 is slower than computed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from guard_service.heldout.config import HeldoutSettings
from guard_service.heldout.worker import EvaluationRequest, EvaluationWorker
from rlguard.core.rounds import Evaluation
from tests.bench.bench_evaluation import make_prompts
from tests.bench.cost import GPUS, TRANSFORMERS, Demand, Gpu, Transformer, cost
from tests.heldout.models import make_tokenizer

PROMPT = 256  # tokens
PARTS = ("stage", "load", "generate", "score")
SHAPES: dict[str, dict[str, int]] = {
    "1.5B": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    },
    "7B": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
}


def save_policy(path: Path, name: str) -> int:
    """Random weights of this shape; gives their number back."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        **SHAPES[name],
        num_hidden_layers=TRANSFORMERS[name].layers,
        vocab_size=151936,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(config)
    model.save_pretrained(path)
    make_tokenizer().save_pretrained(path)
    return sum(weight.numel() for weight in model.parameters())


def plain(path: Path, prompts: list[str], tokens: int) -> float:
    """Seconds of `LLM.generate` as one would write it, after a first pass of it."""
    from vllm import LLM, SamplingParams

    llm: Any = LLM(str(path), max_num_seqs=256, skip_tokenizer_init=True)
    ids = make_tokenizer()(prompts)["input_ids"]
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    for _ in range(2):
        llm.reset_prefix_cache()
        start = time.monotonic()
        llm.generate([{"prompt_token_ids": one} for one in ids], params, use_tqdm=False)
        seconds = time.monotonic() - start
    return seconds


def show(what: str, result: Evaluation) -> None:
    parts = ", ".join(f"{name} {result.parts[name]:.1f}" for name in PARTS if name in result.parts)
    print(f"{what}: {result.seconds:.1f} s ({parts})", flush=True)


async def evaluated(folder: Path, path: Path, split: Path, tokens: int, *, release: bool) -> Evaluation:
    """The last of three evaluations."""
    evaluator = {"kind": "vllm", "max_new_tokens": tokens, "score_truncated": True}
    heldout = HeldoutSettings.model_validate({"split": split, "evaluator": evaluator})
    worker = EvaluationWorker(heldout, folder / f"scratch-{release}")
    try:
        await worker.start()
        for number in range(3):
            result = await worker.evaluate(EvaluationRequest(0, number, path))
            show(f"evaluation {number + 1}, {'asleep' if release else 'awake'} between", result)
        return result
    except BaseException:
        print(worker.log_path.read_text()[-8_000:])
        raise
    finally:
        await worker.close()


def measure(folder: Path, name: str, items: int, tokens: int, *, peers: bool) -> None:
    path = folder / name
    weights = int(own(f"print(save_policy(Path({str(path)!r}), {name!r}))"))
    prompts = [(prompt * PROMPT)[:PROMPT] for prompt in make_prompts(items)]
    split = folder / "split.jsonl"
    rows = [{"id": f"i{n}", "prompt": prompt, "answer": "42"} for n, prompt in enumerate(prompts)]
    split.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shape = TRANSFORMERS[name]
    model = Transformer(weights, shape.layers, shape.heads, shape.head)
    device, sheet = sheet_of_the_gpu()
    computed = cost(model, sheet, Demand(items, PROMPT, tokens))
    print(f"{name}: {weights / 1e9:.2f}e9 weights, {items} completions of {tokens} tokens, {device}")
    print(f"computed: load {computed.load:.1f} s, generate {computed.generate:.1f} s", flush=True)
    for release in (False, True) if peers else (False,):
        result = asyncio.run(evaluated(folder, path, split, tokens, release=release))
        generate, load = result.parts["generate"], result.parts["stage"] + result.parts["load"]
        print(f"load {load:.1f} s, measured / computed {load / computed.load:.2f}")
        print(f"generate {generate:.1f} s, measured / computed {generate / computed.generate:.2f}")
        print(f"{items * tokens / generate:,.0f} tokens/s", flush=True)
        if peers and not release:
            peer = float(own(f"print(plain(Path({str(path)!r}), {prompts!r}, {tokens}))"))
            print(f"plain LLM.generate {peer:.1f} s; it / generate of the evaluation {peer / generate:.2f}")


def sheet_of_the_gpu() -> tuple[str, Gpu]:
    """The name of the GPU, and its data sheet: that of the same name and memory."""
    ask = "import torch; d = torch.cuda.get_device_properties(0); print(d.total_memory, d.name)"
    memory, name = own(ask).split(maxsplit=1)
    for known, gpu in GPUS.items():
        named = re.search(rf"\b{known.split()[0]}\b", name) is not None
        if named and 0.9 < int(memory) / gpu.memory < 1.1:
            return name, gpu
    sys.exit(f"cost.py has no data sheet of this GPU, {name} with {int(memory) / 1e9:.0f} GB: add it to GPUS")


def own(code: str) -> str:
    """The last line that this code prints, in a process that gives its memory on the device back."""
    start = f"from pathlib import Path\nfrom {__spec__.name} import plain, save_policy\n"
    made = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, check=False)
    if made.returncode:
        sys.exit(made.stderr[-8_000:])
    return made.stdout.splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policies", nargs="+", choices=SHAPES, default=["1.5B"])
    parser.add_argument("--items", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=512, help="new tokens of each completion")
    parser.add_argument("--no-peers", action="store_true", help="neither LLM.generate nor a sleeping engine")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in args.policies:
            measure(Path(folder), name, args.items, args.tokens, peers=not args.no_peers)


if __name__ == "__main__":
    main()
