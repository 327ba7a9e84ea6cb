"""Signing what one connection says: v1 for whoever speaks RocketMQ, strict for servers of ours.

A strict signer belongs to one connection. It names it (the session) and counts its requests in the order in which they
are written, so that a server needs to remember one number per connection to know every repetition.
"""

import secrets
import time
from collections.abc import Callable
from enum import StrEnum
from typing import final

from gantry_wire.command import Command
from gantry_wire.signatures import Credentials, StrictClaim, sign_strict, sign_v1


class SignatureKind(StrEnum):
    """How requests are signed."""

    V1 = "v1"
    STRICT = "strict"


Sign = Callable[[Command], None]
"""Puts account and signature among a request's fields, as the last thing before it is written."""


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def signer(
    credentials: Credentials | None, kind: SignatureKind = SignatureKind.V1, *, now_ms: Callable[[], int] = wall_ms
) -> Sign | None:
    """What signs the requests of one new connection; None for whoever has no account."""
    if credentials is None:
        return None
    if kind is SignatureKind.STRICT:
        return StrictSigner(credentials, now_ms)

    def sign(command: Command) -> None:
        command.ext = sign_v1(command.ext, command.body, credentials)

    return sign


@final
class StrictSigner:
    """The strict signatures of one connection. Owned by whoever writes to it."""

    def __init__(self, credentials: Credentials, now_ms: Callable[[], int] = wall_ms) -> None:
        self._credentials = credentials
        self._now_ms = now_ms
        self._session = secrets.token_hex(16)
        self._number = 0

    def become(self, credentials: Credentials) -> None:
        """Sign as this account from now on; if it is another one, by a session of its own."""
        if credentials != self._credentials:
            self._credentials, self._session, self._number = credentials, secrets.token_hex(16), 0

    def __call__(self, command: Command) -> None:
        self._number += 1
        claim = StrictClaim(self._now_ms(), self._session, self._number)
        command.ext = sign_strict(command, self._credentials, claim)
