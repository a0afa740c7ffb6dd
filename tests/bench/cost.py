"""Compute what a held-out evaluation of a real model takes; docs/evidence/benchmarks.md has the table.

Decoding reads all weights and the attention cache of every sequence for each token, so it is bound by memory
bandwidth until a batch is large, and by arithmetic then: the roofline of Williams, Waterman and Patterson,
"Roofline: an insightful visual performance model for multicore architectures" (2009).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

GB = 1e9
#: Bytes of a weight and of a cached number: bfloat16.
BYTES = 2
#: Of what a data sheet promises, what is reached: of the bandwidth, and of the arithmetic.
BANDWIDTH_REACHED, ARITHMETIC_REACHED = 0.6, 0.4
#: What a step takes beside the GPU's own work, seconds: vLLM prepares it and reads what it gave. Measured on
#: an H200 with 256 sequences of a 1.5B policy (`make bench-gpu`): 7.4 ms a step, of which 2.5 are computed.
STEP_BESIDE = 5e-3
#: Of a GPU's memory, what vLLM takes (`gpu_memory_utilization`), and what it needs beside weights and cache.
MEMORY_TAKEN, MEMORY_BESIDE = 0.9, 2 * GB
#: Sequences at once (`batch_size`), and the fewest with which it is worth while.
MOST_AT_ONCE, FEWEST_AT_ONCE = 256, 16
#: Of a shared file system, read or written, bytes/second.
DISK = 1 * GB


@dataclass(frozen=True, slots=True)
class Gpu:
    """By its data sheet: bytes, bytes/second, and operations/second in bfloat16 without sparsity."""

    memory: float
    bandwidth: float
    arithmetic: float


@dataclass(frozen=True, slots=True)
class Transformer:
    """Weights, and what its attention caches for each token: layers, key-value heads, numbers in a head."""

    weights: float
    layers: int
    heads: int
    head: int = 128

    @property
    def bytes(self) -> float:
        """Of its weights."""
        return BYTES * self.weights

    @property
    def cached(self) -> float:
        """Bytes of one token: a key and a value in each layer."""
        return BYTES * 2 * self.layers * self.heads * self.head


@dataclass(frozen=True, slots=True)
class Demand:
    """What is generated: completions, and the mean length in tokens of a prompt and of a completion."""

    completions: int = 256
    prompt: float = 256
    completion: float = 512


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one evaluation, with so many GPUs and sequences at once; seconds."""

    gpus: int
    at_once: int
    load: float
    generate: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.load + self.generate


GPUS: Mapping[str, Gpu] = {
    "L4": Gpu(24 * GB, 300 * GB, 121e12),
    "A100 80 GB": Gpu(80 * GB, 2039 * GB, 312e12),
    "H100 80 GB": Gpu(80 * GB, 3350 * GB, 989e12),
    "H200": Gpu(141 * GB, 4800 * GB, 989e12),
}
#: Those of Qwen2.5 (the first three) and Llama 3.1.
TRANSFORMERS: Mapping[str, Transformer] = {
    "1.5B": Transformer(1.54e9, 28, 2),
    "7B": Transformer(7.62e9, 28, 4),
    "32B": Transformer(32.8e9, 64, 8),
    "70B": Transformer(70.6e9, 80, 8),
}


def cost(model: Transformer, gpu: Gpu, demand: Demand = Demand()) -> Cost:
    """One evaluation on as few GPUs as have room, whose number vLLM wants to be a power of two."""
    held = (demand.prompt + demand.completion / 2) * model.cached  # bytes of a sequence, half-way
    fewest = min(FEWEST_AT_ONCE, demand.completions)
    gpus = 1
    while _room(model, gpu, gpus) < fewest * held:
        gpus *= 2
    at_once = min(MOST_AT_ONCE, demand.completions, math.floor(_room(model, gpu, gpus) / held))
    bandwidth = gpus * gpu.bandwidth * BANDWIDTH_REACHED
    arithmetic = gpus * gpu.arithmetic * ARITHMETIC_REACHED
    step = max((model.bytes + at_once * held) / bandwidth, 2 * model.weights * at_once / arithmetic)
    steps = demand.completion * demand.completions / at_once
    prefill = 2 * model.weights * demand.prompt * demand.completions / arithmetic
    # Read and written while it is hashed, read for values that are not finite, and read into the engine.
    copies = 4
    return Cost(gpus, at_once, copies * model.bytes / DISK, prefill + steps * (step + STEP_BESIDE))


def _room(model: Transformer, gpu: Gpu, gpus: int) -> float:
    """Bytes for the cache."""
    return gpus * (MEMORY_TAKEN * gpu.memory - MEMORY_BESIDE) - model.bytes
