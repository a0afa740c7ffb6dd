"""A tiny Llama made on the spot, a data set of sums, and a GRPO trainer over both; no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, PrinterCallback
from trl import GRPOConfig, GRPOTrainer

CHARACTERS = "0123456789+=? abcdefghijklmnopqrstuvwxyz"


def make_model(directory: Path, layers: int = 2, width: int = 32) -> Path:
    """Save a Llama with a character tokenizer; return its directory."""
    vocabulary = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    vocabulary |= {c: i + 3 for i, c in enumerate(CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
    )
    fast.save_pretrained(directory)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def prompts(count: int = 64) -> Dataset:
    """Sums below ten with their answers."""
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10) for b in range(10)]
    return Dataset.from_list(rows[:count])


def digit_share(completions: list[str], **_: Any) -> list[float]:
    """Share of digits in the completion: never constant, easy to raise."""
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]


def grpo_config(output_dir: Path, **overrides: Any) -> GRPOConfig:
    settings: dict[str, Any] = {
        "output_dir": str(output_dir),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "gradient_checkpointing": False,
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 4,
        "max_steps": 4,
        "learning_rate": 1e-3,
        "beta": 0.04,
        "logging_steps": 1,
        "disable_tqdm": True,
        "seed": 7,
    }
    settings |= overrides
    # Once, at the end: a run of which no checkpoint is saved is refused by the guard's callback.
    return GRPOConfig(**({"save_steps": settings["max_steps"], "save_only_model": True} | settings))


def grpo_trainer(
    model: Path,
    output_dir: Path,
    trainer_class: type[GRPOTrainer] = GRPOTrainer,
    dataset: Dataset | None = None,
    trainer_kwargs: dict[str, Any] | None = None,
    **overrides: Any,
) -> GRPOTrainer:
    trainer = trainer_class(
        model=str(model),
        reward_funcs=digit_share,
        args=grpo_config(output_dir, **overrides),
        train_dataset=dataset or prompts(),
        **(trainer_kwargs or {}),
    )
    trainer.remove_callback(PrinterCallback)  # hundreds of lines in the report of a failed test
    return trainer
