"""The validity period of certificates, read from their PEM text.

The standard library provides this for a peer's certificate, but not for a local one. So the few bytes of DER before the
two times are skipped here: a certificate is a sequence, whose first part is a sequence, in which the times follow an
optional version, the number, the algorithm and the issuer. Nothing else of a certificate is parsed, and nothing is
trusted because of it: the chain is verified elsewhere.
"""

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
"""The DER tag of a certificate's optional version."""
_SHORT_TIME: Final = 0x17
"""The DER tag of a time whose year has two digits."""
_LONG_TIME: Final = 0x18
"""The DER tag of a time whose year has four digits."""
_BEFORE_VALIDITY: Final = 3
"""The number, the algorithm and the issuer."""


class NoCertificate(ValueError):
    """The text contains no certificate, or an unreadable one. An administrator should check the file."""


@dataclass(frozen=True, slots=True)
class Validity:
    """A validity period [begins_at, ends_at) in seconds since 1970."""

    begins_at: float
    ends_at: float


def chain_validity(pem: bytes) -> Validity:
    """Return the period in which every certificate in `pem` is valid. Raises NoCertificate."""
    links = [_validity(_der(match[1])) for match in _PEM.finditer(pem)]
    if not links:
        raise NoCertificate("it contains no PEM certificate")
    return Validity(max(link.begins_at for link in links), min(link.ends_at for link in links))


def _der(text: bytes) -> bytes:
    try:
        return base64.b64decode(b"".join(text.split()), validate=True)
    except binascii.Error as error:
        raise NoCertificate("it contains invalid base64") from error


def _validity(der: bytes) -> Validity:
    _, position, _ = _element(der, 0, _SEQUENCE)
    _, position, _ = _element(der, position, _SEQUENCE)
    tag, _, end = _element(der, position)
    if tag == _VERSION:
        position = end
    for _ in range(_BEFORE_VALIDITY):
        _, _, position = _element(der, position)
    _, position, _ = _element(der, position, _SEQUENCE)
    begins_at, position = _time(der, position)
    ends_at, _ = _time(der, position)
    return Validity(begins_at, ends_at)


def _element(der: bytes, position: int, wanted: int | None = None) -> tuple[int, int, int]:
    """Return (tag, start of the content, end of the content) of the element at `position`."""
    if position + 2 > len(der):
        raise NoCertificate("it is cut short")
    tag, length, start = der[position], der[position + 1], position + 2
    if length & 0x80:
        size = length & 0x7F
        if not 1 <= size <= 4:
            raise NoCertificate("it contains an invalid length")
        length = int.from_bytes(der[start : start + size], "big")
        start += size
    if start + length > len(der) or (wanted is not None and tag != wanted):
        raise NoCertificate("it is cut short, or not a certificate")
    return tag, start, start + length


def _time(der: bytes, position: int) -> tuple[float, int]:
    tag, start, end = _element(der, position)
    text = der[start:end].decode("ascii", "replace")
    if tag == _SHORT_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _LONG_TIME:
        raise NoCertificate("it lacks a validity time")
    try:
        moment = datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except ValueError as error:
        raise NoCertificate("it contains an unreadable time") from error
    return moment.timestamp(), end
