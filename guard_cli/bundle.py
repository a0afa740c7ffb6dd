"""`rlguard bundle`: what whoever helps with a run needs, in one file without held-out items and tokens."""

from __future__ import annotations

import io
import json
import platform
import re
import sys
import tarfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from guard_cli.epilog import epilog
from guard_cli.errors import CliError
from guard_cli.stored import read_store, state_dir_of

EXIT_CODES = {
    0: "the file is written",
    1: "the store cannot be read",
    2: "there is no store, or the file cannot be written",
}
EPILOG = epilog("rlguard bundle rlguard-runs/20260102-030405 --out bundle.tar.gz", codes=EXIT_CODES)
#: Bytes kept of the end of each log.
LOG_BYTES = 1 << 20
#: Nothing but these files is taken; the history and the worker's log may hold what belongs to an item.
TAKEN = ("run.json", "guard.log", "trainer.log")
PACKAGES = ("rlguard", "torch", "transformers", "trl", "pydantic", "fastapi", "kubernetes", "numpy")
#: What stands before a secret: a header, an assignment, an option, or the user of a URL.
_SECRETS = re.compile(
    r"((?:Bearer|Basic)\s+|#token=|(?:TOKEN|SECRET|PASSWORD|API_?KEY|ACCESS_?KEY)[\"']?\s*[=:]\s*[\"']?"
    r"|--(?:[\w-]{1,40}-)?(?:token|secret|password|api-?key)[\"']?(?:,\s*|\s+)[\"']?"
    r"|://[^\s/:@]*:(?=[^\s/@]+@))[^\s\"',]+",
    re.IGNORECASE,
)

app = typer.Typer(add_completion=False)


@app.command(epilog=EPILOG)
def bundle(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, or state directory of a guard.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The file; rlguard-bundle-TIME.tar.gz without it.")
    ] = None,
) -> None:
    """Pack verdict, store summary, policy, ends of the logs and versions of a run into one file.

    No held-out item, no score of one, and no token is in it. The trainer's log is as the trainer wrote it,
    but for tokens: look at it before you send it. The run may still be going on.
    """
    target = out or Path(time.strftime("rlguard-bundle-%Y%m%d-%H%M%S.tar.gz"))
    state_dir = state_dir_of(folder)
    contents = dict(_contents(folder, state_dir))
    try:
        with target.open("xb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in contents.items():
                _add(archive, name, text)
    except OSError as error:
        raise CliError(f"--out {target} cannot be written: {error.strerror or error}") from None
    typer.echo(f"{target}: {', '.join(contents)}")


def _contents(folder: Path, state_dir: Path) -> Iterator[tuple[str, str]]:
    """Names and texts of the files of the bundle."""
    tokens = _tokens(state_dir)
    store = read_store(state_dir)
    policy = store.pop("policy")
    yield "verdict.json", json.dumps(store["verdict"], indent=2)
    yield "store.json", json.dumps(store, indent=2)
    yield "policy.json", json.dumps(policy, indent=2)
    yield "versions.json", json.dumps(_versions(), indent=2)
    for name in TAKEN:
        for place in (folder, folder / "report"):
            if (place / name).is_file():
                yield name, _without_secrets(_end_of(place / name), tokens)
                break


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0], "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _tokens(state_dir: Path) -> list[str]:
    """The tokens beside the store, which may stand in a log."""
    found = []
    for path in state_dir.glob("*.token"):
        try:
            found.append(path.read_text("utf-8").strip())
        except (OSError, UnicodeDecodeError):
            continue
    return [token for token in found if token]


def _without_secrets(text: str, tokens: list[str]) -> str:
    for token in tokens:
        text = text.replace(token, "[token]")
    return _SECRETS.sub(r"\1[token]", text)


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES))
        return file.read().decode("utf-8", "replace")


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode("utf-8", "replace")
    entry = tarfile.TarInfo(f"rlguard-bundle/{name}")
    entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(content))
