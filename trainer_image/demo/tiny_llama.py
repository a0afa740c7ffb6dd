"""A tiny Llama and its character tokenizer, made on the spot: nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PAD, EOS = "<pad>", "<eos>"


def build_tokenizer(alphabet: str) -> Any:
    """A fast tokenizer with one token for each character of `alphabet`, padding on the left."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([PAD, EOS, *sorted(set(alphabet))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: Any, seed: int) -> Any:
    """A Llama with 3 layers of width 96 (about 0.3 million parameters) and random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def save(model: Any, tokenizer: Any, directory: Path) -> None:
    """Write model and tokenizer as a Hugging Face directory (TRL loads its reference model from there)."""
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
