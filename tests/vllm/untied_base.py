"""A starting policy for the demo's task that vLLM can serve on a CPU: `python untied_base.py DIRECTORY`.

It is the demo's own but for two things. Its heads have a size that vLLM's CPU kernels know. And its output
embeddings are its own, so that the weights of a checkpoint are loaded over those of the one before; else
each checkpoint would take an engine of its own. This runs in the trainer's environment. Importing it
makes the demo's warm-up begin with such a model.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from trainer_image.demo import tiny_llama, train
from trainer_image.demo.addition import TASK, split_problems

HEADS = 3  # of 32


def build_model(tokenizer: Any, seed: int, demos: Any = tiny_llama.build_model) -> Any:
    """The demo's, with heads and embeddings as above."""
    config = demos(tokenizer, seed).config
    config.update({"num_attention_heads": HEADS, "num_key_value_heads": HEADS, "tie_word_embeddings": False})
    config.head_dim = config.hidden_size // HEADS
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


tiny_llama.build_model = build_model

if __name__ == "__main__":
    from rlguard.cli.demo import command  # not in the demo's files on a cluster

    problems, _ = split_problems(TASK, command.HELDOUT_ITEMS, 0)
    train.make_policy(TASK, problems, Path(sys.argv[1]), steps=train.WARMUP_STEPS, seed=0)
