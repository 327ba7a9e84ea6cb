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
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gantry_operator.objects import names
from gantry_operator.objects.access import KEY_BYTES_MIN
from gantry_operator.objects.base import Object, labels, make_object
from gantry_spec.cluster_objects import host_spellings
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
    """A certificate, of an authority or of a server, and its key, PEM."""

    certificate: str
    key: str

    def __repr__(self) -> str:
        return "<Authority>"


def derive_authority(key: bytes, group: BrokerGroup, created_at: datetime) -> Authority:
    """Derive the authority of a group, which was created at this time, from the operator's key."""
    assert len(key) >= KEY_BYTES_MIN, "a short key would allow to guess the authorities of all groups"
    metadata = group.metadata
    return _derive(key, f"{metadata.namespace}/{metadata.name}/{metadata.uid}", metadata.name, created_at)


def derive_authority_for(key: bytes, group: BrokerGroup, purpose: str, created_at: datetime) -> Authority:
    """Derive another authority of a group, which signs certificates for this purpose only."""
    assert len(key) >= KEY_BYTES_MIN, "a short key would allow to guess the authorities of all groups"
    metadata = group.metadata
    identity = f"{purpose}/{metadata.namespace}/{metadata.name}/{metadata.uid}"
    return _derive(key, identity, f"{metadata.name} {purpose}", created_at)


def issue_server_certificate(authority: Authority, secret: str, host: str, created_at: datetime) -> Authority:
    """Issue the certificate of a server, whose key is derived from ``secret``: the same one for the same arguments."""
    private = _derive_key(secret.encode(), f"server/{host}")
    public, begin = private.public_key(), _begin_of(created_at)
    issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
    signer = serialization.load_pem_private_key(authority.key.encode(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey), "authorities are derived on one curve"
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:COMMON_NAME_CHARACTERS_MAX])]))
        .issuer_name(issuer.subject)
        .public_key(public)
        .serial_number(_serial_of(f"{issuer.serial_number}/{host}"))
        .not_valid_before(begin)
        .not_valid_after(begin + VALIDITY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(one) for one in host_spellings(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256(), ecdsa_deterministic=True)
    )
    return Authority(_pem_of(certificate), _pem_of_key(private))


@lru_cache(maxsize=AUTHORITIES_CACHED_MAX)
def _derive(key: bytes, identity: str, name: str, created_at: datetime) -> Authority:
    private = _derive_key(key, f"authority/{identity}")
    serial = _serial_of(identity)
    common_name = f"Gantry group {name}"[:COMMON_NAME_CHARACTERS_MAX]
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
            x509.NameAttribute(NameOID.SERIAL_NUMBER, identity.rpartition("/")[2][:COMMON_NAME_CHARACTERS_MAX]),
        ]
    )
    public, begin = private.public_key(), _begin_of(created_at)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(begin)
        .not_valid_after(begin + VALIDITY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(private, hashes.SHA256(), ecdsa_deterministic=True)
    )
    return Authority(_pem_of(certificate), _pem_of_key(private))


def _derive_key(key: bytes, purpose: str) -> ec.EllipticCurvePrivateKey:
    digest = hmac.new(key, purpose.encode(), hashlib.sha512).digest()
    # 256 bits more than the key has: no value is noticeably more likely than another.
    return ec.derive_private_key(int.from_bytes(digest) % (CURVE_ORDER - 1) + 1, CURVE)


def _serial_of(identity: str) -> int:
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:16]) | 1


def _begin_of(created_at: datetime) -> datetime:
    return created_at.astimezone(UTC).replace(microsecond=0) - CLOCK_ERROR


def _pem_of(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _pem_of_key(private: ec.EllipticCurvePrivateKey) -> str:
    encoding, key_format = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return private.private_bytes(encoding, key_format, serialization.NoEncryption()).decode()


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    """Return the usage of a key that signs only certificates, or that of a server's key."""
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
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
