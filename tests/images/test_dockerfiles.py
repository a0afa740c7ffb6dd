"""What can be told of the images without building them. `make images` builds them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUARD, TRAINER = ROOT / "Dockerfile.guard", ROOT / "Dockerfile.trainer"
IMAGES = [
    *((GUARD, "operator"), (GUARD, "guard"), (GUARD, "guard-hf"), (GUARD, "guard-vllm")),
    (TRAINER, "trainer"),
]
INSTRUCTION = re.compile(r"^(?!#)\S.*(?:\\\n.*)*", re.MULTILINE)


def stages(file: Path) -> dict[str, list[str]]:
    """Instructions of each stage, by its name; those before the first FROM under ""."""
    found: dict[str, list[str]] = {"": []}
    name = ""
    for match in INSTRUCTION.finditer(file.read_text().replace("\\\n", " ")):
        line = " ".join(match.group().split())
        if line.startswith("FROM "):
            name = line.rsplit(" AS ", 1)[1]
            found[name] = []
        found[name].append(line)
    return found


@pytest.mark.parametrize("stage", ["", "python", "tools", "torch-layer"])
def test_both_large_images_share_the_layer_with_torch(stage: str) -> None:
    assert stages(GUARD)[stage] == stages(TRAINER)[stage]


@pytest.mark.parametrize(("file", "image"), IMAGES)
def test_an_image_is_not_root_and_says_what_it_is(file: Path, image: str) -> None:
    lines = stages(file)[image]
    assert "USER 10001:10001" in lines
    assert any("org.opencontainers.image.title" in line for line in lines)
    assert not any(line.startswith("RUN") for line in lines), "an image only copies finished layers"


@pytest.mark.parametrize("image", ["guard", "guard-hf", "guard-vllm"])
def test_a_guard_imports_nothing_from_where_it_starts(image: str) -> None:
    """A volume of the trainer's mounted at /http would be Python's own package there."""
    assert any(line.startswith("ENV ") and "PYTHONSAFEPATH=1" in line for line in stages(GUARD)[image])


@pytest.mark.parametrize("image", ["operator", "guard"])
def test_the_light_images_have_no_torch(image: str) -> None:
    everything = " ".join(
        line for stage in (image, f"{image}-packages", f"{image}-layer") for line in stages(GUARD)[stage]
    )
    assert "torch" not in everything
    assert "trainer_image" not in everything


#: What `import rlguard` needs, and the package of the decisions.
FACE = {"rlguard/__init__.py", "rlguard/py.typed", "rlguard/core"}
#: The guard, and what follows a trainer for it.
GUARD_ROOMS = FACE | {"rlguard/client", "rlguard/follow", "guard_service"}


def test_each_image_holds_only_its_own_rooms() -> None:
    rooms = {
        name: {
            word
            for line in lines
            if line.startswith(("COPY guard_", "COPY trainer", "COPY rlguard"))
            for word in line.split()[1:-1]
        }
        for name, lines in (stages(GUARD) | stages(TRAINER)).items()
        if name.endswith(("-layer", "-packages"))
    }
    assert {name: held for name, held in rooms.items() if held} == {
        "operator-layer": FACE | {"rlguard/operator"},
        "guard-layer": GUARD_ROOMS,
        "guard-hf-layer": GUARD_ROOMS,
        "guard-vllm-layer": GUARD_ROOMS,
        "trainer-layer": FACE | {"rlguard/client", "rlguard/train.py", "rlguard/rewards.py", "trainer_image"},
    }


def test_uv_is_the_one_of_the_makefile() -> None:
    version = re.search(r"^UV_VERSION := (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert version
    assert f"ARG UV_VERSION={version[1]}" in stages(GUARD)["tools"]
