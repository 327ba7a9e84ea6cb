"""From when to when certificates are valid, read from their PEM text.

The standard library tells this of a peer's certificate, and of nobody's own. So the few bytes of DER in front of the
two times are stepped over here: a certificate is a sequence, whose first part is a sequence, in which the times come
after an optional version, the number, the algorithm and the issuer. Nothing else of a certificate is looked at, and
nothing is believed because of it: whether a chain is good is for whoever verifies it.
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
_SHORT_TIME: Final = 0x17
_LONG_TIME: Final = 0x18
_BEFORE_VALIDITY: Final = 3
"""The number, the algorithm, the issuer."""


class NoCertificate(ValueError):
    """There is no certificate in the text, or one that cannot be read. The operator should look at the file."""


@dataclass(frozen=True, slots=True)
class Validity:
    """[begins_at, ends_at) in seconds since 1970."""

    begins_at: float
    ends_at: float


def chain_validity(pem: bytes) -> Validity:
    """When every certificate in `pem` is valid: a chain is as good as its worst link. Raises NoCertificate."""
    links = [_validity(_der(match[1])) for match in _PEM.finditer(pem)]
    if not links:
        raise NoCertificate("there is no PEM certificate in it")
    return Validity(max(link.begins_at for link in links), min(link.ends_at for link in links))


def _der(text: bytes) -> bytes:
    try:
        return base64.b64decode(b"".join(text.split()), validate=True)
    except binascii.Error as error:
        raise NoCertificate("what should be base64 is none") from error


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
    """(tag, where its content begins, where it ends) of what stands at `position`."""
    if position + 2 > len(der):
        raise NoCertificate("it is cut short")
    tag, length, start = der[position], der[position + 1], position + 2
    if length & 0x80:
        size = length & 0x7F
        if not 1 <= size <= 4:
            raise NoCertificate("a length in it cannot be")
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
        raise NoCertificate("there is no time where one should be")
    try:
        moment = datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except ValueError as error:
        raise NoCertificate("a time in it cannot be read") from error
    return moment.timestamp(), end
