"""Signatures of requests: the scheme of RocketMQ's clients (v1), and Gantry's own strict scheme.

v1 (`sign_v1`) is RocketMQ's scheme, and weak: HmacSHA1, keyed with the account's secret, over the concatenated VALUES
of the header's fields in the order of their names, and the body. Java clients of RocketMQ 4 and 5 sign so, and a Java
broker checks no more. It does not cover

    names and lengths   {queueId: "12", queueOffset: "3"} has the signature of {queueId: "1", queueOffset: "23"}
    the request code    a signed query can be sent again as a change with the same values
    time                a captured request can be replayed at any time
    header fields       opaque, flag, version and language can be changed

so on a network that others can read it needs TLS below it.

Strict (`sign_strict`): HmacSHA256 over a content in which the length of every part precedes it. It covers everything
but the remark, version and language.

    "gantry-request-1" | code | opaque | flag | fields | (length name length value) for each, by name | length body

Account, time, session and number of the request are fields, so they are covered. Session and number are the nonce: a
connection counts its requests, so a server that stores one number per connection detects every replay. Checking time
and number is left to the caller, which has a clock and a memory; this module has neither.
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
"""The three fields of v1, with Java's names."""

STRICT_SIGNATURE: Final = "GantrySignature"
STRICT_TIME: Final = "GantryTime"
STRICT_SESSION: Final = "GantrySession"
STRICT_NUMBER: Final = "GantryNumber"
"""The fields of the strict scheme, beside the access key."""

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
"""The field that clients up to 4.9.3 add after they have signed, and later ones before."""

SESSION_CHARACTERS: Final = 32
"""The length of a session's id, in hex digits."""

_SHA1_BLOCK_BYTES: Final = 64
"""The block size of SHA-1, which HMAC pads keys to."""
_INNER_PAD: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD: Final = bytes(byte ^ 0x5C for byte in range(256))
_MAGIC: Final = b"gantry-request-1"
"""How the bytes begin that a strict signature covers."""
_HEAD: Final = struct.Struct(">iiiI")
"""The code, opaque, flag and number of fields."""
_LENGTH: Final = struct.Struct(">I")
_STRICT_SIGNATURE_BYTES: Final = STRICT_SIGNATURE.encode()


@final
@dataclass(frozen=True, slots=True)
class Credentials:
    """An account's name and secret, as the signing side has them. Its repr contains no secret."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


@final
@dataclass(frozen=True, slots=True)
class StrictClaim:
    """The claims of a strictly signed request, beside its account."""

    time_ms: int
    """When the request was signed, by the client's clock."""

    session: str
    """A random id of the connection."""

    number: int
    """The number of the request in its session."""


# ------- v1


def content_v1(ext: Mapping[str, str], body: bytes) -> bytes:
    """Return the content that v1 signs: the values in the order of their names, without the signature, and the body."""
    text = "".join([ext[name] for name in sorted(ext) if name != SIGNATURE])
    return text.encode("utf-8", "replace") + body


def signature_v1(secret: bytes, content: bytes) -> bytes:
    """Return the HmacSHA1 in base64, as the field holds it."""
    return b2a_base64(hmac.digest(secret, content, "sha1"), newline=False)


@final
class KeyedV1:
    """The function `signature_v1` for one secret: HMAC's two halves are keyed once and copied for each message.

        SHA1(outer key | SHA1(inner key | content))

    Each call of `hmac.digest` looks its algorithms up again, which takes longer than the rest of the call.
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
        """Return the signature in base64, as the field holds it."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)


def sign_v1(ext: Mapping[str, str], body: bytes, credentials: Credentials) -> dict[str, str]:
    """Return the fields of a request with the account and the signature added."""
    signed = without_signatures(ext)
    signed[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        signed[SECURITY_TOKEN] = credentials.security_token
    signed[SIGNATURE] = signature_v1(credentials.secret_key.encode(), content_v1(signed, body)).decode()
    return signed


def is_signed_v1(ext: Mapping[str, str], body: bytes, secret: bytes) -> bool:
    """Return whether the signature in the fields is the one that `secret` makes."""
    given = ext.get(SIGNATURE, "").encode("utf-8", "replace")
    if hmac.compare_digest(signature_v1(secret, content_v1(ext, body)), given):
        return True
    if UNIQUE_KEY_QUERY not in ext:
        return False
    older = {name: value for name, value in ext.items() if name != UNIQUE_KEY_QUERY}
    return hmac.compare_digest(signature_v1(secret, content_v1(older, body)), given)


# ------- strict


def content_strict(command: Command) -> bytes:
    """Return the content that the strict scheme signs: everything that decides what a request does, with lengths."""
    named = [(name.encode("utf-8", "surrogatepass"), value) for name, value in command.ext.items()]
    covered = sorted((name, value) for name, value in named if name != _STRICT_SIGNATURE_BYTES)
    parts = [_MAGIC, _HEAD.pack(command.code, command.opaque, command.flag, len(covered))]
    for name, text in covered:
        value = text.encode("utf-8", "surrogatepass")
        parts += (_LENGTH.pack(len(name)), name, _LENGTH.pack(len(value)), value)
    parts += (_LENGTH.pack(len(command.body)), command.body)
    return b"".join(parts)


def sign_strict(command: Command, credentials: Credentials, claim: StrictClaim) -> dict[str, str]:
    """Return the fields of `command` with account, claim and signature added."""
    signed = without_signatures(command.ext)
    signed[ACCESS_KEY] = credentials.access_key
    signed[STRICT_TIME] = str(claim.time_ms)
    signed[STRICT_SESSION] = claim.session
    signed[STRICT_NUMBER] = str(claim.number)
    ready = Command(code=command.code, opaque=command.opaque, flag=command.flag, ext=signed, body=command.body)
    signed[STRICT_SIGNATURE] = _strict_signature(credentials.secret_key.encode(), ready).decode()
    return signed


def is_signed_strict(command: Command, secret: bytes) -> bool:
    """Return whether the strict signature of `command` is the one that `secret` makes."""
    given = command.ext.get(STRICT_SIGNATURE, "").encode("utf-8", "replace")
    return hmac.compare_digest(_strict_signature(secret, command), given)


def strict_claim(ext: Mapping[str, str]) -> StrictClaim | None:
    """Return a request's claim about its time and its number in its session, or None if it is malformed."""
    time_text, session, number = ext.get(STRICT_TIME, ""), ext.get(STRICT_SESSION, ""), ext.get(STRICT_NUMBER, "")
    if not _is_number(time_text) or not _is_number(number) or len(session) != SESSION_CHARACTERS:
        return None
    return StrictClaim(int(time_text), session, int(number))


def without_signatures(ext: Mapping[str, str]) -> dict[str, str]:
    """Return the fields without those of an earlier signature, so that a request can be signed again."""
    return {name: value for name, value in ext.items() if name not in _SIGNATURE_FIELDS}


_SIGNATURE_FIELDS: Final = frozenset(
    {ACCESS_KEY, SIGNATURE, SECURITY_TOKEN, STRICT_SIGNATURE, STRICT_TIME, STRICT_SESSION, STRICT_NUMBER}
)


def _strict_signature(secret: bytes, command: Command) -> bytes:
    return b2a_base64(hmac.digest(secret, content_strict(command), "sha256"), newline=False)


def _is_number(text: str) -> bool:
    return 0 < len(text) <= 18 and text.isascii() and text.isdigit()
