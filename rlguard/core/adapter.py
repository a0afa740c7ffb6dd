"""Which adapters (PEFT) a guard can apply to its own base model, and whether one belongs to it. Pure.

The trainer asks before its first step, the guard when a checkpoint is announced and again of the copy that it
scores. Everything here was written by the process under suspicion. What it says decides what is multiplied
with what, and never what is loaded or run: fields that are known to change nothing are passed over, those of
plain LoRA are read within bounds, and any other that is set is refused by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlguard.core.wording import format_errors

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"

MAX_RANK = 4096
MAX_ALPHA = 1e6
MAX_PATTERNS = 256
MAX_MODULES = 20_000
MAX_NAME = 300  # characters of a module's name, and of a pattern
MAX_TOLD = 200  # characters of a value in a message

MERGE = "train without it, or save the merged model (merge_and_unload)"

Rank = Annotated[int, Field(ge=1, le=MAX_RANK)]
Alpha = Annotated[float, Field(gt=0, le=MAX_ALPHA, allow_inf_nan=False)]
#: PEFT reads it as a regular expression. The end of a module's name is what it means; any other is refused.
Pattern = Annotated[str, Field(pattern=r"^\^?[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$", max_length=MAX_NAME)]
#: Both factors of a module: (rank, inputs) and (outputs, rank).
Shapes = tuple[tuple[int, ...], tuple[int, ...]]

#: They decide how weights began, how they were trained or what PEFT would load; nothing of it is used here.
_WITHOUT_EFFECT = frozenset(
    {
        "auto_mapping", "ensure_weight_tying", "eva_config", "exclude_modules", "fan_in_fan_out",
        "inference_mode", "layers_pattern", "layers_to_transform", "lora_dropout", "megatron_core",
        "peft_version", "qalora_group_size", "runtime_config", "target_modules", "task_type", "velora_config",
    }
)  # fmt: skip
#: Other ways to begin take something from the base model, which is then no longer the base model.
_STARTS = (True, False, "gaussian", "eva", "orthogonal")
#: What Unsloth appends to a base model's name for its copies with quantised weights, the longer first.
_QUANTISED = ("-unsloth-bnb-4bit", "-bnb-4bit")
_KEY = re.compile(
    r"base_model\.model\.(?P<module>[A-Za-z0-9_.]{1,300})\."
    r"(?:lora_(?:(?P<half>[AB])\.weight|magnitude_vector)|(?P<copy>base_layer\.weight))"
)


class AdapterError(ValueError):
    """The adapter cannot be applied; the message says why, and what to do."""


class AdapterConfig(BaseModel):
    """What is read of an `adapter_config.json`."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    peft_type: str
    base_model_name_or_path: str | None = None
    revision: str | None = None
    r: Rank = 8
    lora_alpha: Alpha = 8
    rank_pattern: dict[Pattern, Rank] = Field(default_factory=dict, max_length=MAX_PATTERNS)
    alpha_pattern: dict[Pattern, Alpha] = Field(default_factory=dict, max_length=MAX_PATTERNS)
    use_rslora: bool = False
    use_dora: bool = False
    bias: Literal["none"] = "none"
    init_lora_weights: bool | str | None = True

    def rank_of(self, module: str) -> int:
        """Its rank, by the rule of PEFT: the first pattern that is the end of the module's name."""
        return next((rank for pattern, rank in self.rank_pattern.items() if _ends(pattern, module)), self.r)


def _ends(pattern: str, module: str) -> bool:
    """Whether the pattern is the last parts of the module's name; one that begins with ^ is all of them."""
    return f"^{module}" == pattern or f".{module}".endswith(f".{pattern}")


def read_adapter_config(content: Any) -> AdapterConfig:
    """The adapter's configuration, if it is one that can be applied.

    Args:
        content: what JSON made of the file, or what PEFT's `to_dict` gives.

    Raises:
        AdapterError: naming the kind or the field that cannot.
    """
    if not isinstance(content, Mapping) or not isinstance(kind := content.get("peft_type"), str):
        raise AdapterError(f"{CONFIG} names no peft_type: save the adapter with save_pretrained")
    if kind != "LORA":
        raise AdapterError(
            f"it is an adapter of the kind {_told(kind)}, and the guard applies LORA only: {MERGE}"
        )
    try:
        config = AdapterConfig.model_validate(dict(content))
    except ValidationError as error:
        raise AdapterError(f"{CONFIG}: {format_errors(error)[:1000]}: {MERGE}") from None
    if config.init_lora_weights not in (*_STARTS, None):
        raise AdapterError(
            f"init_lora_weights is {_told(config.init_lora_weights)}, which changes the base model at "
            f"the start: {MERGE}"
        )
    others = config.model_extra or {}
    if field := next((name for name in sorted(others) if name not in _WITHOUT_EFFECT and others[name]), None):
        raise AdapterError(f"{_told(field)} is {_told(others[field])}, which the guard cannot apply: {MERGE}")
    return config


def read_shapes(config: AdapterConfig, tensors: Mapping[str, tuple[int, ...]]) -> dict[str, Shapes]:
    """The modules that the weights adapt, with the shapes of both factors.

    Args:
        config: of the same adapter.
        tensors: shape of each tensor in the file of the weights.

    Raises:
        AdapterError: naming the first tensor that is none of LoRA, or does not fit the configuration.
    """
    halves: dict[str, dict[str, tuple[int, ...]]] = {}
    copies: dict[str, str] = {}
    for name in sorted(tensors):
        match = _KEY.fullmatch(name)
        if match is None:
            raise AdapterError(
                f"{WEIGHTS} holds {_told(name)}, which is no LoRA of a linear layer (an embedding, a "
                f"bias, a module of modules_to_save, or a name of more than {MAX_NAME} characters): {MERGE}"
            )
        if match["copy"] is not None:
            copies[match["module"]] = name
        elif match["half"] is not None:
            halves.setdefault(match["module"], {})[match["half"]] = tensors[name]
        elif not config.use_dora:
            raise AdapterError(
                f"{WEIGHTS} holds {_told(name)}, and use_dora is false: save the adapter again"
            )
    if not 1 <= len(halves) <= MAX_MODULES:
        raise AdapterError(f"{WEIGHTS} adapts {len(halves)} modules: save the adapter again")
    if alone := next((name for module, name in copies.items() if module not in halves), None):
        raise AdapterError(f"{WEIGHTS} holds {_told(alone)} of a layer that it does not adapt: {MERGE}")
    return {module: _pair(config, module, found) for module, found in halves.items()}


def copied_module(name: str) -> str | None:
    """The module of whose own weight in the base model this tensor is a copy; None if it is none.

    PEFT saves one of an output layer that is adapted.
    """
    match = _KEY.fullmatch(name)
    return None if match is None or match["copy"] is None else match["module"]


def _pair(config: AdapterConfig, module: str, found: Mapping[str, tuple[int, ...]]) -> Shapes:
    if set(found) != {"A", "B"}:
        raise AdapterError(
            f"{WEIGHTS} lacks one of lora_A and lora_B of {_told(module)}: save the adapter again"
        )
    a, b, rank = found["A"], found["B"], config.rank_of(module)
    if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank:
        raise AdapterError(
            f"lora_A and lora_B of {_told(module)} have the shapes {_told(a)} and {_told(b)}, and its "
            f"rank in {CONFIG} is "
            f"{rank}: save the adapter again"
        )
    return a, b


def misfits(shapes: Mapping[str, Shapes], linear: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    """What does not fit the base model, one clause each.

    Args:
        shapes: of the adapter.
        linear: inputs and outputs of each linear layer of the base model.
    """
    for module, (a, b) in sorted(shapes.items()):
        if module not in linear:
            yield f"the base model has no linear layer {_told(module)}"
        elif (a[1], b[0]) != linear[module]:
            inputs, outputs = linear[module]
            yield (
                f"{_told(module)} has {a[1]} inputs and {b[0]} outputs in the adapter, and {inputs} and "
                f"{outputs} in the "
                "base model"
            )


@dataclass(frozen=True, slots=True)
class BaseName:
    """How a base model is called. `name`: the last part of its path or of its name on the hub.

    `revision`: the commit, where the path is that of a snapshot in the hub's cache.
    """

    name: str
    revision: str | None = None

    @classmethod
    def of(cls, path: str) -> BaseName:
        """Of a directory or a name on the hub."""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if len(parts) > 2 and parts[-2] == "snapshots" and parts[-3].startswith("models--"):
            return cls(parts[-3].rsplit("--", 1)[-1], parts[-1])
        return cls(parts[-1] if parts else path)

    @property
    def unquantised(self) -> str:
        """The name of the model of which this one may be a quantised copy, for comparison."""
        name = self.name.casefold()
        suffix = next((suffix for suffix in _QUANTISED if name.endswith(suffix)), "")
        return name.removesuffix(suffix)


def another_base(config: AdapterConfig, base: str) -> str:
    """Why the adapter is not one of the base model at `base`, as far as it says; "" if it may be.

    A name is compared in its last part, because trainer and guard may see one model at two places, and
    without the ending of a quantised copy, which has commits of its own. What counts is the digest of the
    guard's base.
    """
    said = config.base_model_name_or_path
    if not said:
        return ""
    theirs, ours = BaseName.of(said), BaseName.of(base)
    revision = config.revision or theirs.revision or ""
    if theirs.unquantised != ours.unquantised:
        return (
            f"the adapter was trained on {_told(said)}, and the guard's base_model is {base!r}: give "
            f"the guard the same "
            f"model; if it is, let its directory be called {_told(theirs.name)}"
        )
    same_name = theirs.name.casefold() == ours.name.casefold()
    if same_name and ours.revision and _is_commit(revision) and not ours.revision.startswith(revision):
        return (
            f"the adapter was trained on revision {_told(revision)} of {_told(said)}, and the guard's "
            f"base_model is "
            f"revision {ours.revision!r}: give the guard that revision"
        )
    return ""


def _is_commit(revision: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{7,40}", revision) is not None


def _told(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_TOLD else f"{text[:MAX_TOLD]}…"
