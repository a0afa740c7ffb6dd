"""A guard with vLLM on kind: `make e2e-vllm`."""
