"""Which packages each extra brings, and what to say when one is not there. Standard library only."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping

_GUARD = (
    "fastapi",
    "h11",
    "httpx",
    "numpy",
    "pydantic_settings",
    "uvicorn",
    "yaml",
)
_EVAL_HF = ("peft", "safetensors", "torch", "transformers")
_TRAINER = ("accelerate", "datasets", "peft", "torch", "transformers", "trl", "yaml")
_CLI = ("typer", "rich", "matplotlib", "psutil", "ruamel.yaml", *_GUARD)

#: Extra -> the packages that it brings, by the names they are imported by.
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "guard": _GUARD,
    "eval-hf": (*_GUARD, *_EVAL_HF),
    "math": ("math_verify",),
    "operator": ("cryptography", "kubernetes", "prometheus_client", "yaml"),
    "trainer": _TRAINER,
    "cli": _CLI,
    "local": (*_CLI, *_EVAL_HF, *_TRAINER),
}


def missing_extra(what: str, extras: Iterable[str]) -> str | None:
    """One sentence with the line to run if a package of one of these extras is not installed, else None.

    Nothing is imported.
    """
    for extra in extras:
        for package in EXTRAS[extra]:
            if not _is_there(package):
                return f'{what} needs the package {package}: pip install "rlguard[{extra}]"'
    return None


def missing_vllm() -> str | None:
    """One sentence if what the evaluator `vllm` needs is not installed, else None.

    It is no extra: vLLM pins a release of torch, which would then be that of all extras.
    """
    if missing := missing_extra("the evaluator 'vllm'", ["eval-hf"]):
        return missing
    if _is_there("vllm"):
        return None
    return (
        "the evaluator 'vllm' needs the package vllm: use the image guard-vllm, or install vllm and "
        '"rlguard[eval-hf]" together, in an environment of the guard\'s own'
    )


def require(extra: str, what: str) -> None:
    """Return if `extra` is installed.

    Raises:
        ImportError: one sentence with the line to run.
    """
    missing = missing_extra(what, [extra])
    if missing is not None:
        raise ImportError(missing)


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
