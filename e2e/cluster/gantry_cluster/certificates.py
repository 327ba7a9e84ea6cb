"""Keys and certificates of a cluster: one authority and its users.

Kubernetes reads a certificate's common name as the user and its organisations as the groups. All keys are made anew
for every cluster, in a folder that only its owner may read, and `down` deletes them unless it is run with `--keep`.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS = 30
RSA_BITS = 2048


def _write_private(path: Path, data: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(data)
    return path


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(user: str, groups: Sequence[str]) -> x509.Name:
    return x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
            x509.NameAttribute(NameOID.COMMON_NAME, user),
        ]
    )


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """The certificate authority of one cluster."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, mode=0o700)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("gantry-e2e", ())
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pair = Pair(folder / "authority.crt", _write_private(folder / "authority.key", _pem(self._key)))
        self.pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        )

    def issue(self, file: str, user: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()) -> Pair:
        """Issue a certificate for a user, and for a server if it has hosts."""
        key = ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = self._builder(_name(user, groups), key).add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([_alternative_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pair = Pair(self._folder / f"{file}.crt", _write_private(self._folder / f"{file}.key", _pem(key)))
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return pair

    def make_signing_key(self, file: str) -> Pair:
        """Create a key pair without a certificate, with which service accounts' tokens are signed."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS)
        pair = Pair(self._folder / f"{file}.pub", _write_private(self._folder / f"{file}.key", _pem(key)))
        pair.certificate.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        return pair
