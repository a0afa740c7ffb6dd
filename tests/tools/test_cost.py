"""What an evaluation costs: the formula by hand, its limits, and that it grows and shrinks as it should."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.cost import GPUS, TRANSFORMERS, Cost, Demand, Gpu, Transformer, cost

GB = 1e9
#: 1e9 weights are 2 GB; two layers with two heads of 125 numbers cache 2,000 bytes a token.
SMALL = Transformer(1e9, 2, 2, 125)
#: Reached: 60 GB/s and 40 TFLOPS.
ROUND = Gpu(100 * GB, 100 * GB, 100e12)


def test_by_hand() -> None:
    """1,000 tokens a sequence half-way are 2 MB, so four hold 8 MB beside the weights."""
    split = Demand(completions=4, prompt=500, completion=1000)
    one = cost(SMALL, ROUND, split)
    assert (one.gpus, one.at_once) == (1, 4)
    assert one.load == pytest.approx(8.0)
    assert one.generate == pytest.approx(2e9 * 500 * 4 / 40e12 + 1000 * (2.008 / 60 + 0.005))
    assert one.seconds == pytest.approx(one.load + one.generate)


def test_a_large_batch_is_bound_by_arithmetic() -> None:
    split = Demand(completions=256, prompt=1, completion=100)
    slow = replace(ROUND, arithmetic=1e12)
    computed = (256 + 100 * 256) * 2e9 / 0.4e12
    assert cost(SMALL, slow, split).generate == pytest.approx(computed + 100 * 0.005, rel=1e-9)


def test_what_does_not_fit_takes_more_gpus() -> None:
    """80 GB in bfloat16 and 16 sequences go into 88 GB; 88 GB do not."""
    assert cost(Transformer(40e9, 64, 8), ROUND).gpus == 1
    assert cost(Transformer(44e9, 64, 8), ROUND).gpus == 2
    assert cost(Transformer(90e9, 64, 8), ROUND).gpus == 4


@given(
    model=st.sampled_from(list(TRANSFORMERS.values())),
    gpu=st.sampled_from(list(GPUS.values())),
    completions=st.integers(1, 4096),
    completion=st.floats(1, 32_768),
)
def test_more_to_do_takes_no_less_time(
    model: Transformer, gpu: Gpu, completions: int, completion: float
) -> None:
    split = Demand(completions, 256, completion)
    one: Cost = cost(model, gpu, split)
    assert 1 <= one.at_once <= min(256, completions)
    more = cost(model, gpu, replace(split, completions=2 * completions))
    assert more.gpus * more.generate >= one.gpus * one.generate * 0.999
