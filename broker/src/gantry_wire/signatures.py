"""How a request shows whose it is: the scheme that RocketMQ's clients use, and a strict one of our own.

Weak by inheritance, v1 (`sign_v1`): HmacSHA1, keyed with the account's secret, over the VALUES of the header's fields
in the order of their names, one behind the other, and the body. Java clients 4.9.8 and 5.3.3 sign so, and a Java
broker checks no more. It does not cover

    names and borders   {queueId: "12", queueOffset: "3"} signs like {queueId: "1", queueOffset: "23"}
    the request code    a signed question can be sent again as an order with the same values
    time                whatever was heard once can be said again, for ever
    header fields       opaque, flag, version and language are anybody's

so on a network that others can listen on it needs TLS below it.

Strict (`sign_strict`): HmacSHA256 over a statement in which every part has its length in front of it. Only the remark,
version and language stay outside.

    "gantry-request-1" | code | opaque | flag | fields | (length name length value) for each, by name | length body

Account, time, session and number of the request are fields, and so they are covered. Session and number are the nonce:
a connection counts its requests, so a server that remembers one number per connection knows every repetition. Judging
time and number is up to whoever has a clock and a memory. This module has neither: values in, text or verdict out.
"""

import hashlib
import hmac
import struct
from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final

from gantry_wire.command import Command

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
"""The three fields of v1, by the names that Java has for them."""

STRICT_SIGNATURE: Final = "GantrySignature"
STRICT_TIME: Final = "GantryTime"
STRICT_SESSION: Final = "GantrySession"
STRICT_NUMBER: Final = "GantryNumber"
"""The fields of the strict scheme, beside the access key."""

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""Clients up to 4.9.3 add this field behind their signature, later ones before it."""

SESSION_CHARACTERS: Final = 32

_SHA1_BLOCK_BYTES: Final = 64
_INNER_PAD: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD: Final = bytes(byte ^ 0x5C for byte in range(256))
_MAGIC: Final = b"gantry-request-1"
_HEAD: Final = struct.Struct(">iiiI")
"""Code, opaque, flag, number of fields."""
_LENGTH: Final = struct.Struct(">I")
_STRICT_SIGNATURE_BYTES: Final = STRICT_SIGNATURE.encode()


@final
@dataclass(frozen=True, slots=True)
class Credentials:
    """An account's name and secret, as whoever signs has them. Its repr holds no secret."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


@final
@dataclass(frozen=True, slots=True)
class StrictClaim:
    """What a strictly signed request says of itself, beside its account."""

    time_ms: int
    session: str
    number: int


# ------- v1


def content_v1(ext: Mapping[str, str], body: bytes) -> bytes:
    """What v1 signs: values by the order of their names, and the body. The signature itself is left out."""
    text = "".join([ext[name] for name in sorted(ext) if name != SIGNATURE])
    return text.encode("utf-8", "replace") + body


def signature_v1(secret: bytes, content: bytes) -> bytes:
    """HmacSHA1 in base64, as it stands in the field."""
    return b2a_base64(hmac.digest(secret, content, "sha1"), newline=False)


@final
class KeyedV1:
    """`signature_v1` of one secret, prepared: HMAC's two halves are keyed once and copied for each message.

        SHA1(outer key | SHA1(inner key | content))

    One call of `hmac.digest` looks its algorithms up anew each time, which takes longer than the rest of it together.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes) -> None:
        key = secret if len(secret) <= _SHA1_BLOCK_BYTES else hashlib.sha1(secret).digest()
        padded = key.ljust(_SHA1_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha1(padded.translate(_INNER_PAD))
        self._outer = hashlib.sha1(padded.translate(_OUTER_PAD))

    def __repr__(self) -> str:
        return "<KeyedV1>"

    def signature(self, content: bytes) -> bytes:
        """In base64, as it stands in the field."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)


def sign_v1(ext: Mapping[str, str], body: bytes, credentials: Credentials) -> dict[str, str]:
    """The fields of a request with the account and the signature among them."""
    signed = without_signatures(ext)
    signed[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        signed[SECURITY_TOKEN] = credentials.security_token
    signed[SIGNATURE] = signature_v1(credentials.secret_key.encode(), content_v1(signed, body)).decode()
    return signed


def is_signed_v1(ext: Mapping[str, str], body: bytes, secret: bytes) -> bool:
    """Whether the signature in the fields is the one that `secret` makes."""
    given = ext.get(SIGNATURE, "").encode("utf-8", "replace")
    if hmac.compare_digest(signature_v1(secret, content_v1(ext, body)), given):
        return True
    if UNIQUE_KEY_QUERY not in ext:
        return False
    older = {name: value for name, value in ext.items() if name != UNIQUE_KEY_QUERY}
    return hmac.compare_digest(signature_v1(secret, content_v1(older, body)), given)


# ------- strict


def statement(command: Command) -> bytes:
    """What the strict scheme signs: everything that decides what a request does, each part with its length."""
    named = [(name.encode("utf-8", "surrogatepass"), value) for name, value in command.ext.items()]
    covered = sorted((name, value) for name, value in named if name != _STRICT_SIGNATURE_BYTES)
    parts = [_MAGIC, _HEAD.pack(command.code, command.opaque, command.flag, len(covered))]
    for name, text in covered:
        value = text.encode("utf-8", "surrogatepass")
        parts += (_LENGTH.pack(len(name)), name, _LENGTH.pack(len(value)), value)
    parts += (_LENGTH.pack(len(command.body)), command.body)
    return b"".join(parts)


def sign_strict(command: Command, credentials: Credentials, claim: StrictClaim) -> dict[str, str]:
    """The fields of `command` with account, claim and signature among them."""
    signed = without_signatures(command.ext)
    signed[ACCESS_KEY] = credentials.access_key
    signed[STRICT_TIME] = str(claim.time_ms)
    signed[STRICT_SESSION] = claim.session
    signed[STRICT_NUMBER] = str(claim.number)
    ready = Command(code=command.code, opaque=command.opaque, flag=command.flag, ext=signed, body=command.body)
    signed[STRICT_SIGNATURE] = _strict_signature(credentials.secret_key.encode(), ready).decode()
    return signed


def is_signed_strict(command: Command, secret: bytes) -> bool:
    """Whether the strict signature of `command` is the one that `secret` makes."""
    given = command.ext.get(STRICT_SIGNATURE, "").encode("utf-8", "replace")
    return hmac.compare_digest(_strict_signature(secret, command), given)


def strict_claim(ext: Mapping[str, str]) -> StrictClaim | None:
    """What a request claims of its time and place in its session; None when that is malformed."""
    time_text, session, number = ext.get(STRICT_TIME, ""), ext.get(STRICT_SESSION, ""), ext.get(STRICT_NUMBER, "")
    if not _is_number(time_text) or not _is_number(number) or len(session) != SESSION_CHARACTERS:
        return None
    return StrictClaim(int(time_text), session, int(number))


def without_signatures(ext: Mapping[str, str]) -> dict[str, str]:
    """The fields without whatever an earlier signature put there, as when a request is sent once more."""
    return {name: value for name, value in ext.items() if name not in _ADDED}


_ADDED: Final = frozenset(
    {ACCESS_KEY, SIGNATURE, SECURITY_TOKEN, STRICT_SIGNATURE, STRICT_TIME, STRICT_SESSION, STRICT_NUMBER}
)


def _strict_signature(secret: bytes, command: Command) -> bytes:
    return b2a_base64(hmac.digest(secret, statement(command), "sha256"), newline=False)


def _is_number(text: str) -> bool:
    return 0 < len(text) <= 18 and text.isascii() and text.isdigit()
