"""The demo's trainer with a LoRA adapter, and its options."""

from __future__ import annotations

import functools

import trl
from peft import LoraConfig

from trainer_image.demo import train

if __name__ == "__main__":
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    trl.GRPOTrainer = functools.partial(trl.GRPOTrainer, peft_config=lora)
    train.LEARNING_RATE = 2e-3  # an adapter of a tiny model moves less
    train.main()
