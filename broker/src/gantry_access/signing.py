"""Signs the requests of one connection: v1 for all RocketMQ servers, strict for Gantry servers.

A strict signer belongs to one connection. It has a session id and numbers the requests in the order in which they are
written, so that a server needs only one number per connection to detect every replay.
"""

import secrets
import time
from collections.abc import Callable
from enum import StrEnum
from typing import final

from gantry_access.credentials import OwnAccount
from gantry_wire.command import Command
from gantry_wire.signatures import Credentials, StrictClaim, sign_strict, sign_v1


class SignatureKind(StrEnum):
    """The kinds of signatures on requests."""

    V1 = "v1"
    """Signs the fields and the body, as RocketMQ's clients do."""

    STRICT = "strict"
    """Also signs the request code, the time and a number, so that replays are detected."""


Sign = Callable[[Command], None]
"""Adds account and signature to the fields of a request, as the last step before it is written."""


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def signer(
    credentials: Credentials | OwnAccount | None,
    kind: SignatureKind = SignatureKind.V1,
    *,
    now_ms: Callable[[], int] = wall_ms,
) -> Sign | None:
    """Create the signer of one new connection; None without credentials.

    With an account of a file, each request is signed with the credentials that were read last.
    """
    if credentials is None:
        return None
    if isinstance(credentials, OwnAccount):
        return _account_signer(credentials, kind, now_ms)
    if kind is SignatureKind.STRICT:
        return StrictSigner(credentials, now_ms)

    def sign(command: Command) -> None:
        command.ext = sign_v1(command.ext, command.body, credentials)

    return sign


def _account_signer(account: OwnAccount, kind: SignatureKind, now_ms: Callable[[], int]) -> Sign:
    if kind is SignatureKind.STRICT:
        strict = StrictSigner(account.credentials, now_ms)

        def sign_strictly(command: Command) -> None:
            strict.switch_account(account.credentials)
            strict(command)

        return sign_strictly

    def sign(command: Command) -> None:
        command.ext = sign_v1(command.ext, command.body, account.credentials)

    return sign


@final
class StrictSigner:
    """The strict signer of one connection. Owned by the writer of the connection."""

    def __init__(self, credentials: Credentials, now_ms: Callable[[], int] = wall_ms) -> None:
        self._credentials = credentials
        self._now_ms = now_ms
        self._session = secrets.token_hex(16)
        self._number = 0

    def switch_account(self, credentials: Credentials) -> None:
        """Sign with other credentials from now on, in a new session if they differ."""
        if credentials != self._credentials:
            self._credentials, self._session, self._number = credentials, secrets.token_hex(16), 0

    def __call__(self, command: Command) -> None:
        self._number += 1
        claim = StrictClaim(self._now_ms(), self._session, self._number)
        command.ext = sign_strict(command, self._credentials, claim)
