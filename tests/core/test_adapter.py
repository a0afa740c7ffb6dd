"""Which adapters can be applied, and whether one belongs to a base model: nothing that it says is trusted."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlguard.core.adapter import (
    MAX_ALPHA,
    MAX_NAME,
    MAX_PATTERNS,
    MAX_RANK,
    AdapterError,
    another_base,
    copied_module,
    misfits,
    read_adapter_config,
    read_shapes,
)

#: What PEFT 0.21 writes for a plain adapter, cut to what is not null.
PLAIN: dict[str, Any] = {
    "peft_type": "LORA",
    "auto_mapping": {"base_model_class": "LlamaForCausalLM", "parent_library": "os"},
    "base_model_name_or_path": "org/Base-7B",
    "bias": "none",
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "loftq_config": {},
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "r": 4,
    "rank_pattern": {},
    "alpha_pattern": {},
    "revision": None,
    "target_modules": "(a+)+$",
    "use_dora": False,
    "use_rslora": False,
}
MODULE = "model.layers.0.q_proj"
KEY = f"base_model.model.{MODULE}"
TENSORS = {f"{KEY}.lora_A.weight": (4, 32), f"{KEY}.lora_B.weight": (64, 4)}


def test_a_plain_adapter_is_taken_with_its_numbers() -> None:
    config = read_adapter_config(PLAIN)
    assert (config.r, config.lora_alpha) == (4, 16)
    assert read_shapes(config, TENSORS) == {MODULE: ((4, 32), (64, 4))}


def test_a_copy_of_the_bases_weight_is_told_from_the_adapters_own() -> None:
    """PEFT saves one of an output layer that it adapts."""
    tensors = TENSORS | {f"{KEY}.base_layer.weight": (64, 32)}
    assert read_shapes(read_adapter_config(PLAIN), tensors) == {MODULE: ((4, 32), (64, 4))}
    assert {name for name in tensors if copied_module(name) is not None} == {f"{KEY}.base_layer.weight"}
    assert copied_module(f"{KEY}.base_layer.weight") == MODULE
    assert copied_module("x.base_layer.weight") is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("r", 0),
        ("r", MAX_RANK + 1),
        ("r", True),
        ("r", "8"),
        ("lora_alpha", 0),
        ("lora_alpha", math.inf),
        ("lora_alpha", MAX_ALPHA * 2),
        ("rank_pattern", {"q_proj": 0}),
        ("rank_pattern", {"(a+)+$": 4}),
        ("rank_pattern", {"layers.[0-3].q_proj": 4}),
        ("rank_pattern", {"." * 290 + "b": 4}),
        ("rank_pattern", {"q" * (MAX_NAME + 1): 4}),
        ("rank_pattern", {f"p{i}": 4 for i in range(MAX_PATTERNS + 1)}),
        ("alpha_pattern", {"q_proj": math.inf}),
        ("alpha_pattern", {"(.*)*": 4}),
        ("bias", "all"),
        ("base_model_name_or_path", ["/etc"]),
        ("revision", 3),
        ("init_lora_weights", "pissa_niter_999999999"),
        ("init_lora_weights", {"corda": 1}),
        ("modules_to_save", ["embed_tokens"]),
        ("a_field_of_a_later_release", 0.5),
    ],
)
def test_what_cannot_be_applied_is_refused_with_its_name(field: str, value: Any) -> None:
    with pytest.raises(AdapterError) as refused:
        read_adapter_config(PLAIN | {field: value})
    assert field in str(refused.value) and len(str(refused.value)) < 1500


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({}, "adapts 0 modules"),
        ({f"{KEY}.lora_A.weight": (4, 32)}, "lacks one of lora_A and lora_B"),
        (
            TENSORS | {"base_model.model.lm_head.weight": (9, 9)},
            "holds 'base_model.model.lm_head.weight', which is no LoRA",
        ),
        (TENSORS | {"base_model.model.embed_tokens.lora_embedding_A": (4, 9)}, "an embedding"),
        (TENSORS | {f"{KEY}.lora_magnitude_vector": (64,)}, "use_dora is false"),
        (TENSORS | {f"{KEY}.lora_A.weight": (5, 32)}, r"its rank in adapter_config.json is 4"),
        (TENSORS | {f"{KEY}.lora_B.weight": (64,)}, r"its rank in adapter_config.json is 4"),
        (
            TENSORS | {"base_model.model.lm_head.base_layer.weight": (9, 9)},
            "holds 'base_model.model.lm_head.base_layer.weight' of a layer that it does not adapt",
        ),
        (TENSORS | {f"{KEY}.base_layer.bias": (64,)}, "no LoRA"),
        ({"base_model.model.a/../b.lora_A.weight": (4, 4)}, "no LoRA"),
        (
            {f"base_model.model.{'a' * (MAX_NAME + 1)}.lora_A.weight": (4, 4)},
            "no LoRA .* more than 300 characters",
        ),
    ],
)
def test_weights_that_are_no_lora_of_that_rank_are_refused(tensors: dict[str, Any], told: str) -> None:
    with pytest.raises(AdapterError, match=told):
        read_shapes(read_adapter_config(PLAIN), tensors)


def test_the_rank_of_a_module_is_that_of_the_first_pattern_that_ends_it() -> None:
    patterns = {"layers.1.q_proj": 2, "q_proj": 3, "^k": 5, "^a.b": 6, "layers.1": 7}
    config = read_adapter_config(PLAIN | {"rank_pattern": patterns})
    ranks = {
        "model.layers.1.q_proj": 2,
        "model.layers.11.q_proj": 3,
        "model.xq_proj": 4,
        "model.layers.1xq_proj": 4,
        "model.k": 4,
        "k": 5,
        "a.b": 6,
        "axb": 4,
        "model.layers.1": 7,
        "model.layersx1": 4,
    }
    assert {name: config.rank_of(name) for name in ranks} == ranks


def test_what_does_not_fit_the_base_is_named_with_both_shapes() -> None:
    shapes = read_shapes(read_adapter_config(PLAIN), TENSORS)
    assert list(misfits(shapes, {MODULE: (32, 64)})) == []
    assert list(misfits(shapes, {})) == [f"the base model has no linear layer '{MODULE}'"]
    (told,) = misfits(shapes, {MODULE: (32, 65)})
    assert "32 inputs and 64 outputs in the adapter, and 32 and 65 in the base model" in told


CACHED = "/cache/models--org--Base-7B/snapshots/0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("said", "base", "told"),
    [
        ({}, "/models/Base-7B", ""),
        ({}, CACHED, ""),
        ({"base_model_name_or_path": "/trainer/place/Base-7B"}, "/guard/Base-7B", ""),
        ({"base_model_name_or_path": None}, "/models/anything", ""),
        (
            {},
            "/models/Base-7B-Instruct",
            "'org/Base-7B', and the guard's base_model is '/models/Base-7B-Instruct'",
        ),
        ({"base_model_name_or_path": "unsloth/base-7b-unsloth-bnb-4bit"}, "/models/Base-7B", ""),
        ({"base_model_name_or_path": "unsloth/Base-7B-bnb-4bit", "revision": "fffffff"}, CACHED, ""),
        ({}, "/models/Base-7B-bnb-4bit", ""),
        ({"base_model_name_or_path": "x/Base-7B-Instruct-bnb-4bit"}, "/models/Base-7B", "Instruct-bnb-4bit'"),
        ({"base_model_name_or_path": "x/Base-7B-bnb-4bit-mine"}, "/models/Base-7B", "bnb-4bit-mine'"),
        ({"base_model_name_or_path": "../../etc"}, "/models/Base-7B", "'../../etc'"),
        ({"revision": "main"}, CACHED, ""),
        ({"revision": "0123456"}, CACHED, ""),
        ({"revision": "fffffff"}, CACHED, "revision 'fffffff' of 'org/Base-7B'"),
        ({"revision": "fffffff"}, "/models/Base-7B", ""),
    ],
)
def test_another_base_is_refused_with_both_names(said: dict[str, Any], base: str, told: str) -> None:
    reason = another_base(read_adapter_config(PLAIN | said), base)
    assert reason == "" if not told else told in reason
