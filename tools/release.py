"""Write an SBOM for each artefact of a release and its checksums: the end of `make release`.

`python -m tools.release FOLDER` describes what lies in FOLDER and what the images of `docker-bake.json` will
hold, and says what to sign.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import sys
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

from rlguard.core import __version__
from tools import ROOT

#: Each image, and the extra of the package that it installs.
IMAGES = {
    "operator": "operator",
    "guard": "guard",
    "guard-hf": "eval-hf",
    "guard-vllm": "eval-hf",
    "trainer": "trainer",
}
#: Of an image whose packages are not those of requirements.lock: its own lock.
LOCKS = {"guard-vllm": ROOT / "images" / "vllm.lock"}
CHECKSUMS = "SHA256SUMS"

TO_SIGN = """\
What a maintainer signs:
  the tag        git tag -s v{version} -m "RLGuard {version}"
  the files      gpg --armor --detach-sign {folder}/SHA256SUMS
  the images     cosign sign $REGISTRY/rlguard/IMAGE@DIGEST, by the digest that its push prints
  the chart      cosign sign $REGISTRY/charts/rlguard@DIGEST, by the digest that its push prints"""


def closure(extras: Iterable[str]) -> list[importlib.metadata.Distribution]:
    """The packages that `rlguard` brings with these extras, by name, as this environment has them.

    The environment has the versions of requirements.lock; what is for another platform is left out.
    """
    found: dict[str, importlib.metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [("rlguard", extra) for extra in ("", *extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        found[name] = importlib.metadata.distribution(name)
        waiting += _required(found[name], extra)
    del found["rlguard"]
    return [found[name] for name in sorted(found)]


def locked(lock: Path) -> list[Component]:
    """The packages of a lock on this platform, of which nothing need be installed."""
    lines = (line.rstrip("\\ ") for line in lock.read_text().splitlines() if "==" in line)
    return [
        Component(
            name=one.name, version=version, purl=_purl(one.name, version), bom_ref=f"{one.name}@{version}"
        )
        for one in map(Requirement, lines)
        if one.marker is None or one.marker.evaluate()
        for version in [str(one.specifier).removeprefix("==")]
    ]


def _required(distribution: importlib.metadata.Distribution, extra: str) -> Iterator[tuple[str, str]]:
    for requirement in map(Requirement, distribution.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            yield from ((name, one) for one in ("", *requirement.extras))


def _package(distribution: importlib.metadata.Distribution) -> Component:
    name, version = distribution.name, distribution.version
    # What is no SPDX expression is prose of all kinds; it is left out rather than guessed at.
    expressions = distribution.metadata.get_all("License-Expression") or []
    return Component(
        name=name,
        version=version,
        purl=_purl(name, version),
        bom_ref=f"{name}@{version}",
        licenses=map(LicenseExpression, expressions),
    )


def _purl(name: str, version: str) -> PackageURL:
    return PackageURL("pypi", None, name.lower(), version)


def _own(name: str, kind: ComponentType, purl: PackageURL | None = None) -> Component:
    return Component(name=name, version=__version__, type=kind, purl=purl, bom_ref=f"{name}@{__version__}")


def _image(name: str) -> Component:
    return _own(f"rlguard/{name}", ComponentType.CONTAINER)


def described(folder: Path) -> Iterator[tuple[str, Component, list[Component]]]:
    """Each artefact: the name of its SBOM, what it is, and what it holds or runs.

    Raises:
        FileNotFoundError: there is nothing in the folder.
    """
    files = sorted(path for path in folder.iterdir() if path.name.endswith((".whl", ".tar.gz", ".tgz")))
    if not files:
        raise FileNotFoundError(f"{folder} holds no wheel, source or chart: `make release` makes them first")
    extras = importlib.metadata.metadata("rlguard").get_all("Provides-Extra") or []
    python = [_package(one) for one in closure(extras)]
    for path in files:
        if path.suffix == ".tgz":
            name = path.name.removesuffix(f"-{__version__}.tgz")
            runs = tuple(image for image in IMAGES if image != "trainer") if name == "rlguard" else ()
            yield path.name, _own(name, ComponentType.APPLICATION), [_image(image) for image in runs]
        else:
            purl = _purl("rlguard", __version__)
            yield path.name, _own("rlguard", ComponentType.LIBRARY, purl), python
    for name, extra in IMAGES.items():
        lock = LOCKS.get(name)
        own = [_package(one) for one in closure([extra])] if lock is None else locked(lock)
        yield f"image-{name}-{__version__}", _image(name), own


def sbom(name: str, artefact: Component, holds: list[Component]) -> str:
    """CycloneDX JSON, the same for the same content."""
    when = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    bom = Bom(components=holds, serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"rlguard/{name}"))
    bom.metadata.component, bom.metadata.timestamp = artefact, when
    bom.register_dependency(artefact, holds)
    text: str = JsonV1Dot6(bom).output_as_string(indent=2)
    return text + "\n"


def checksums(folder: Path) -> str:
    """Every file of the folder, as `sha256sum --check` reads it."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != CHECKSUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def main(arguments: list[str]) -> int:
    """Write SBOMs and checksums beside what lies in the folder; the exit code."""
    folder = Path(arguments[0])
    try:
        for name, artefact, holds in described(folder):
            (folder / f"{name}.cdx.json").write_text(sbom(name, artefact, holds), encoding="utf-8")
    except FileNotFoundError as error:
        print(f"tools.release: {error}", file=sys.stderr)
        return 1
    (folder / CHECKSUMS).write_text(checksums(folder), encoding="utf-8")
    print(TO_SIGN.format(version=__version__, folder=folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
