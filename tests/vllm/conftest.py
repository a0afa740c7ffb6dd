"""For `make test-vllm`: a small cache, and no GPU but for `make test-gpu`. Set before vLLM is imported."""

from __future__ import annotations

import os

os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
if "RLGUARD_GPU" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
