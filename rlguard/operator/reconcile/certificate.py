"""The certificate of a guard, made anew for each job.

It is self-signed and can sign nothing else: whoever trusts it trusts this one guard.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from ipaddress import IPv4Address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: A job gets no second one, so it is valid for longer than any run; and from before, because clocks differ.
VALID = timedelta(days=3650)
BEFORE = timedelta(days=1)


def own_certificate(host: str, now: datetime) -> tuple[str, str]:
    """Make a certificate for this host name and for 127.0.0.1, and its private key; both PEM.

    `now`: the time, UTC.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rlguard-guard")])
    hosts = x509.SubjectAlternativeName([x509.DNSName(host), x509.IPAddress(IPv4Address("127.0.0.1"))])
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(now + VALID)
        .add_extension(hosts, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()
