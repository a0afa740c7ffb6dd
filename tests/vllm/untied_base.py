"""The demo's starting policy, with output embeddings of its own: `python untied_base.py DIRECTORY`.

vLLM loads the weights of such a model over those of the checkpoint before; of one whose embeddings are one
tensor each checkpoint takes an engine of its own. It runs in the trainer's environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from guard_cli.demo import command, train
from guard_cli.demo.tasks import load_task, split_problems

#: So that the two are not the same values: logits are a thousandth larger.
APART = 1.001

if __name__ == "__main__":
    path = Path(sys.argv[1])
    task = load_task("addition")
    problems, _ = split_problems(task, command.HELDOUT_ITEMS, 0)
    train.make_policy(task, problems, path, steps=train.WARMUP_STEPS, seed=0)
    model = AutoModelForCausalLM.from_pretrained(path)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(APART * model.get_input_embeddings().weight.detach().clone())
    model.save_pretrained(path)
