"""The certificate authority of a group whose pods issue their own certificates (``access.certificates``).

The operator may not read Secrets, so it derives the authority's key from its own one, as it does with the group's token
(``access``). The same group always gets the same authority, byte for byte: its certificate can be rendered at any time,
and a Secret that was deleted is created again without a change for pods and clients.

    the operator's key --- HMAC over the group's uid ---> the authority's key, on the curve P-256
    the time at which the group was created ------------> the validity of the authority's certificate, 20 years
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gantry_operator.objects import names
from gantry_operator.objects.access import KEY_BYTES_MIN
from gantry_operator.objects.base import Object, labels, make_object
from gantry_spec.manifest.group import BrokerGroup

CURVE: Final = ec.SECP256R1()
CURVE_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The number of points of P-256: a private key is a number from 1 to one less than this."""

VALIDITY: Final = timedelta(days=20 * 365)
CLOCK_ERROR: Final = timedelta(hours=1)
"""How much the clock of a verifier may be behind that of the API server."""

COMMON_NAME_CHARACTERS_MAX: Final = 64
AUTHORITIES_CACHED_MAX: Final = 1024


class Authority(NamedTuple):
    """A certificate authority: its certificate and key, PEM."""

    certificate: str
    key: str

    def __repr__(self) -> str:
        return "<Authority>"


def derive_authority(key: bytes, group: BrokerGroup, created_at: datetime) -> Authority:
    """Derive the authority of a group, which was created at this time, from the operator's key."""
    assert len(key) >= KEY_BYTES_MIN, "a short key would allow to guess the authorities of all groups"
    metadata = group.metadata
    return _derive(key, f"{metadata.namespace}/{metadata.name}/{metadata.uid}", metadata.name, created_at)


@lru_cache(maxsize=AUTHORITIES_CACHED_MAX)
def _derive(key: bytes, identity: str, name: str, created_at: datetime) -> Authority:
    digest = hmac.new(key, f"authority/{identity}".encode(), hashlib.sha512).digest()
    # 256 bits more than the key has: no value is noticeably more likely than another.
    private = ec.derive_private_key(int.from_bytes(digest) % (CURVE_ORDER - 1) + 1, CURVE)
    serial = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:16]) | 1
    common_name = f"Gantry group {name}"[:COMMON_NAME_CHARACTERS_MAX]
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
            x509.NameAttribute(NameOID.SERIAL_NUMBER, identity.rpartition("/")[2][:COMMON_NAME_CHARACTERS_MAX]),
        ]
    )
    public, begin = private.public_key(), created_at.astimezone(UTC).replace(microsecond=0) - CLOCK_ERROR
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(begin)
        .not_valid_after(begin + VALIDITY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(private, hashes.SHA256(), ecdsa_deterministic=True)
    )
    key_bytes = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Authority(certificate.public_bytes(serialization.Encoding.PEM).decode(), key_bytes.decode())


def _usage() -> x509.KeyUsage:
    """Return the usage of a key that signs certificates and nothing else."""
    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def authority_secret(group: BrokerGroup, authority: Authority) -> Object:
    """Return the Secret with which pods issue their certificates, which is to be created if it does not exist."""
    texts = {"ca.crt": authority.certificate, "ca.key": authority.key}
    data = {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}
    body = {"type": "Opaque", "data": data}
    name = names.authority_name(group.metadata.name)
    return make_object(group, ("v1", "Secret"), name, labels(group, names.BROKER), body)
