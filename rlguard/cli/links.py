"""What a trainer and a reader need of a guard that listens: two lines for a shell, and a link."""

from __future__ import annotations

import os
import secrets
import shlex
import socket
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from rlguard.cli.errors import CliError

_ANY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104  (compared with, not bound)


def dashboard_link(url: str, token: str | None) -> str:
    """The dashboard's address, with the read token behind `#`, where no server and no proxy sees it."""
    return f"{reachable(url)}/" + ("" if token is None else f"#token={quote(token, safe='')}")


def export_lines(url: str, file: Path | None) -> list[str]:
    """What a shell needs before it starts the trainer; the token stays in its file."""
    lines = [f"export RLGUARD_URL={shlex.quote(reachable(url))}"]
    if file is not None:
        lines.append(f'export RLGUARD_TOKEN="$(cat {shlex.quote(str(file.absolute()))})"')
    return lines


def token_file(path: Path) -> Path:
    """The file, made with a random token that only this user can read if it is not there yet.

    Raises:
        OSError: it cannot be made.
    """
    if not path.exists():
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(secrets.token_urlsafe(32), encoding="ascii")
    return path.absolute()


def read_token(option: str, file: Path | None) -> str | None:
    """The read token in a file, else the one in RLGUARD_READ_TOKEN; None without any.

    Raises:
        CliError: the file, which `option` names, cannot be read.
    """
    try:
        token = os.environ.get("RLGUARD_READ_TOKEN") if file is None else file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{option} {file} cannot be read: {error}") from None
    return token or None


def reachable(url: str) -> str:
    """The URL with a name of this machine in place of "every address"."""
    parts = urlsplit(url)
    if parts.hostname not in _ANY_ADDRESS:
        return url
    return urlunsplit(parts._replace(netloc=f"{socket.gethostname()}:{parts.port}"))
