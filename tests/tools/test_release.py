"""What a release holds, as it is made, and the workflows that make it."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from rlguard.core import __version__
from tools import ROOT, release

BUILD = Path(__file__).parent / "build.sh"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    for name in ("rlguard-{}-py3-none-any.whl", "rlguard-{}.tar.gz", "rlguard-{}.tgz"):
        (tmp_path / name.format(__version__)).write_text(name)
    assert release.main([str(tmp_path)]) == 0
    return tmp_path


def components(dist: Path, name: str) -> dict[str, str]:
    text = json.loads((dist / f"{name}.cdx.json").read_text())
    return {one["name"].lower(): one["version"] for one in text.get("components", [])}


@pytest.mark.nightly
def test_every_artefact_and_every_image_has_an_sbom(dist: Path) -> None:
    names = {path.name for path in dist.iterdir()}
    described = {name.removesuffix(".cdx.json") for name in names if name.endswith(".cdx.json")}
    images = {f"image-{name}-{__version__}" for name in release.IMAGES}
    assert described == {n for n in names if n.endswith((".whl", ".gz", ".tgz"))} | images


@pytest.mark.nightly
def test_every_sbom_is_valid_and_the_same_twice(dist: Path) -> None:
    # Not above: it takes seconds, and every worker of the tests reads this module.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    before = {path: path.read_text() for path in dist.glob("*.cdx.json")}
    assert before
    for text in before.values():
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert release.main([str(dist)]) == 0
    assert {path: path.read_text() for path in dist.glob("*.cdx.json")} == before


@pytest.mark.nightly
def test_an_image_holds_what_its_extra_brings(dist: Path) -> None:
    locked = {
        pair
        for lock in (ROOT / "requirements.lock", *release.LOCKS.values())
        for pair in re.findall(r"^(\S+)==([^ ;]+)", lock.read_text(), re.MULTILINE)
    }
    held = {name: components(dist, f"image-{name}-{__version__}") for name in release.IMAGES}
    assert "kubernetes" in held["operator"] and not held["operator"].keys() & {"torch", "trl", "fastapi"}
    assert "fastapi" in held["guard"] and "torch" not in held["guard"]
    assert held["guard-hf"].keys() >= {"torch", "transformers", "peft"} | held["guard"].keys()
    assert held["guard-vllm"].keys() >= {"vllm", "torch", "transformers", "peft", "fastapi"}
    assert "trl" in held["trainer"] and "kubernetes" not in held["trainer"]
    assert "pytest" not in components(dist, f"rlguard-{__version__}-py3-none-any.whl")
    for packages in held.values():
        assert {(re.sub(r"[-_.]+", "-", name), version) for name, version in packages.items()} <= locked


@pytest.mark.nightly
def test_a_chart_names_the_images_that_it_runs(dist: Path) -> None:
    assert components(dist, f"rlguard-{__version__}.tgz").keys() >= {"rlguard/operator", "rlguard/guard-hf"}


@pytest.mark.nightly
def test_the_checksums_are_of_every_file(dist: Path) -> None:
    lines = (dist / "SHA256SUMS").read_text().splitlines()
    stated = dict(reversed(line.split("  ")) for line in lines)
    files = [path for path in dist.iterdir() if path.name != "SHA256SUMS"]
    assert stated == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_an_empty_folder_is_an_error_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release.main([str(tmp_path)]) == 1
    assert "make release" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_images_are_those_of_make_and_their_targets_exist() -> None:
    made = re.search(r"^IMAGES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    bake = json.loads((ROOT / "docker-bake.json").read_text())
    assert bake["variable"]["VERSION"]["default"] == __version__
    assert made and set(made[1].split()) == bake["target"].keys() == set(bake["group"]["default"]["targets"])
    for name, target in bake["target"].items():
        stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / target["dockerfile"]).read_text(), re.MULTILINE)
        assert target["target"] == name and name in stages
        extra = re.search(rf"^FROM \S+ AS {name}-packages\n.*?layer.sh [^\n]* --extra (\S+)$",
                          (ROOT / target["dockerfile"]).read_text(), re.MULTILINE | re.DOTALL)  # fmt: skip
        assert extra and extra[1] == release.IMAGES[name]
        assert target["platforms"] == ["linux/amd64", "linux/arm64"] and "type=sbom" in target["attest"]


def actionlint(*files: Path) -> subprocess.CompletedProcess[str]:
    built = subprocess.run([BUILD], stdout=subprocess.PIPE, text=True, timeout=600, check=False)
    assert built.returncode == 0, f"{BUILD} failed; what it said is above"
    command = [built.stdout.strip(), "-shellcheck=", "-pyflakes=", *files]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.timeout(720)
def test_actionlint_finds_nothing_in_the_workflows() -> None:
    done = actionlint(*WORKFLOWS)
    assert len(WORKFLOWS) == 3 and done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_what_a_workflow_runs_exists(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        made = list(job.get("strategy", {}).get("matrix", {}).get("part", ()))
        for line in [step["run"] for step in job["steps"] if "run" in step]:
            if line.startswith("make "):
                made += line.split()[1:]
            else:
                script = line.removesuffix(" ${{ matrix.part }}").split()[-1]
                assert line.startswith("docker buildx bake") or (ROOT / script).is_file()
        assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in made)


def test_the_nightly_workflow_runs_every_part_of_test_all_that_fits_on_its_disk() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())["jobs"]
    parts = re.search(r"^PARTS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert parts and set(jobs["part"]["strategy"]["matrix"]["part"]) == set(parts[1].split()) - {"e2e-vllm"}


def test_every_kubernetes_that_can_be_built_is_tested() -> None:
    command = ["make", "-n", "test-kubernetes"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    there = {path.name.removeprefix("kubernetes-") for path in (ROOT / "tests/go").glob("kubernetes-*")}
    listed = re.search(r"for version in (.*?);", done.stdout)
    assert there and listed and set(listed[1].split()) == there
