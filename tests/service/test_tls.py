"""A guard that speaks TLS, with a certificate as the operator makes it, and the client that verifies it."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from guard_service.errors import SettingsError
from guard_service.server import tls_options
from rlguard.client.client import GuardClient
from rlguard.client.errors import GuardConfigError, GuardUnavailableError
from rlguard.client.guard import Guard
from rlguard.client.settings import ClientSettings
from rlguard.core.wire import StepReport
from rlguard.operator.reconcile.certificate import BEFORE, VALID, own_certificate
from tests.service.conftest import INGEST

HOST = "localhost"


class Files(NamedTuple):
    """A certificate and its key, and where they lie."""

    certificate: str
    settings: dict[str, str]


def files(directory: Path, host: str = HOST, now: datetime | None = None) -> Files:
    certificate, key = own_certificate(host, now or datetime.now(UTC))
    paths = directory / "tls.crt", directory / "tls.key"
    for path, text in zip(paths, (certificate, key), strict=True):
        path.write_text(text)
    names = ("TLS_CERTIFICATE", "TLS_KEY")
    return Files(certificate, dict(zip(names, map(str, paths), strict=True)))


@pytest.fixture
def tls(tmp_path: Path) -> Files:
    return files(tmp_path)


@pytest.fixture
def guard(new_guard: Callable[..., Any], tls: Files) -> Iterator[Any]:
    return new_guard(**tls.settings).start()


def step(number: int) -> StepReport:
    return StepReport(attempt=0, step=number, reward=0.5)


def named(url: str) -> str:
    """The guard's URL with the name that is in its certificate."""
    return url.replace("127.0.0.1", HOST)


def test_a_trainer_with_its_certificate_reports(guard: Any, tls: Files) -> None:
    assert guard.url.startswith("https://127.0.0.1:")
    client = GuardClient(named(guard.url), INGEST, ca=tls.certificate)
    assert client.post_steps([step(1), step(2)]).accepted == 2
    assert client.verdict().step == 2, "on the same connection"
    client.close()
    environ = {"RLGUARD_URL": named(guard.url), "RLGUARD_TOKEN": INGEST, "RLGUARD_CA": tls.certificate}
    with Guard.from_env(environ) as run:
        run.step(3, reward=0.5)
    assert run.halted is None and run.verdict is not None and run.verdict.step == 3
    assert guard.end() == 0 and "Traceback" not in guard.log


def test_no_other_certificate_is_taken_for_the_guards(guard: Any, tls: Files, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = files(tmp_path / "other").certificate
    for url, ca, said in (
        (named(guard.url), other, "CERTIFICATE_VERIFY_FAILED"),
        (named(guard.url), None, "CERTIFICATE_VERIFY_FAILED"),
        (guard.url.replace("https", "http"), None, "."),
    ):
        with pytest.raises(GuardUnavailableError, match=said):
            GuardClient(url, INGEST, ca=ca).verdict()


def test_the_certificate_holds_by_the_strictest_rules(tls: Files) -> None:
    """Those of Python 3.13, whatever Python runs the test."""
    ours, theirs = ssl.create_default_context(cadata=tls.certificate), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.verify_flags |= ssl.VERIFY_X509_STRICT
    theirs.load_cert_chain(tls.settings["TLS_CERTIFICATE"], tls.settings["TLS_KEY"])
    assert not _shakes_hands(ours, theirs, "example.org") and _shakes_hands(ours, theirs, HOST)


def _shakes_hands(ours: ssl.SSLContext, theirs: ssl.SSLContext, host: str) -> bool:
    to_us, to_them = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ours.wrap_bio(to_us, to_them, server_hostname=host)
    server = theirs.wrap_bio(to_them, to_us, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return client.getpeercert() is not None


def test_it_is_valid_from_before_and_for_longer_than_any_run(tmp_path: Path) -> None:
    for now, holds in ((0, True), (BEFORE / 2, True), (-VALID * 0.99, True), (BEFORE * 2, False)):
        made = files(tmp_path, now=datetime.now(UTC) + (now or BEFORE * 0))
        theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        theirs.load_cert_chain(made.settings["TLS_CERTIFICATE"], made.settings["TLS_KEY"])
        ours = ssl.create_default_context(cadata=made.certificate)
        assert _shakes_hands(ours, theirs, HOST) == holds


def test_files_that_cannot_be_used_are_named(tls: Files, tmp_path: Path) -> None:
    certificate, key = (Path(path) for path in tls.settings.values())
    assert tls_options(certificate, key) == {"ssl_certfile": certificate, "ssl_keyfile": key}
    assert tls_options(None, None) == {}
    (tmp_path / "other").mkdir()
    other = Path(files(tmp_path / "other").settings["TLS_KEY"])
    for wrong in (tmp_path / "none", certificate, other, _locked(key)):
        with pytest.raises(
            SettingsError, match=r"RLGUARD_GUARD_TLS_KEY=.* cannot be used: .*without a password"
        ):
            tls_options(certificate, wrong)


def _locked(key: Path) -> Path:
    """The key under a password; nobody is asked for it."""
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    path = key.with_name("locked.key")
    how = serialization.BestAvailableEncryption(b"x")
    path.write_bytes(
        private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)
    )
    return path


def test_an_authority_for_a_url_without_tls_is_an_error_at_once(tls: Files) -> None:
    with pytest.raises(GuardConfigError, match=r"RLGUARD_CA is set, but .*https://"):
        ClientSettings.from_env({"RLGUARD_URL": "http://127.0.0.1:8470", "RLGUARD_CA": tls.certificate})


@pytest.mark.parametrize("text", ["x", "-----BEGIN CERTIFICATE-----\n", "é"])
def test_an_authority_that_is_none_is_an_error_at_once(text: str) -> None:
    with pytest.raises(GuardConfigError, match="RLGUARD_CA must be certificates"):
        ClientSettings.of(url="https://guard", ca=text)


def test_the_guard_reads_a_log_for_itself(new_guard: Callable[..., Any], tmp_path: Path) -> None:
    """What follows a trainer reports at the same port, over TLS."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([]), datetime.now(UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - BEFORE, now + VALID)
        .add_extension(here, critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, private = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    guard = new_guard(
        HOST="::",
        TLS_CERTIFICATE=str(certificate),
        TLS_KEY=str(private),
        METRICS=json.dumps({"follow": {"path": "log.jsonl", "format": "verl"}}),
    ).start()
    rows = [{"step": number, "data": {"critic/score/mean": 0.5}} for number in (1, 2)]
    (guard.directory / "checkpoints" / "log.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in rows)
    )
    url = f"https://127.0.0.1:{urlsplit(guard.url).port}"
    client = GuardClient(url, INGEST, ca=certificate.read_text())
    until = time.monotonic() + 60
    while client.verdict().step is None:
        assert time.monotonic() < until, guard.log
        time.sleep(0.1)
    client.close()
    assert guard.end() == 0 and "Traceback" not in guard.log
