"""For `make test-vllm`: a small cache, one thread, no GPU. Set before anything of vLLM is imported."""

from __future__ import annotations

import os

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "VLLM_CPU_KVCACHE_SPACE": "1"}
