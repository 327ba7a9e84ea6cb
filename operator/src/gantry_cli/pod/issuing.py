"""Issues the certificate of a pod with the key of its group's own authority. It needs the package `cryptography`."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CLOCK_ERROR: Final = timedelta(hours=1)
"""How much the clock of a peer may be behind this one."""

COMMON_NAME_CHARACTERS_MAX: Final = 64


class Issuer(NamedTuple):
    """A certificate authority with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def __repr__(self) -> str:
        return f"<Issuer {self.certificate.subject.rfc4514_string()}>"


class Issued(NamedTuple):
    """A certificate with its key, PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "<Issued>"


def read_issuer(certificate_file: Path, key_file: Path) -> Issuer:
    """Read an authority. Raises OSError for an unreadable file, and ValueError for unusable content."""
    certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    try:
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
    except TypeError as error:
        raise ValueError(f"{key_file}: the key has a password") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{key_file}: the key is not one on an elliptic curve")
    if key.public_key() != certificate.public_key():
        raise ValueError(f"{key_file} is not the key of {certificate_file}")
    return Issuer(certificate, key)


def issue(issuer: Issuer, names: Sequence[str], now: datetime, validity: timedelta) -> Issued:
    """Issue a certificate for servers and clients with these host names and addresses; the first is its subject."""
    assert names, "a certificate is for at least one name"
    key = ec.generate_private_key(ec.SECP256R1())
    public, authority = key.public_key(), issuer.certificate
    own_id = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:COMMON_NAME_CHARACTERS_MAX])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(max(now - CLOCK_ERROR, authority.not_valid_before_utc))
        .not_valid_after(min(now + validity, authority.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName([_general_name(one) for one in names]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own_id), critical=False)
        .sign(issuer.key, hashes.SHA256())
    )
    key_bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Issued(certificate.public_bytes(serialization.Encoding.PEM), key_bytes)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage() -> x509.KeyUsage:
    """Return the usage of a key that signs handshakes and nothing else."""
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
