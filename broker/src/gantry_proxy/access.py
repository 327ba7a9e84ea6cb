"""Who calls, and what the account may do: the accounts and permissions of the brokers, and the signatures of SDKs.

    authorization: MQv2-HMAC-SHA1 Credential=<access key>[/...], SignedHeaders=x-mq-date-time, Signature=<hex>
    x-mq-date-time: 20260102T030405Z             with the SDK for Rust 2026-01-02T04:04:05.678901234+01:00

An SDK signs the time only, not the call. So a person who reads a signature can use it until the time is outside of the
window of `access.signatureWindowMs`: use TLS. An unknown account and a wrong secret look the same.
"""

import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, final

from gantry_access import Account, AccountFile, Kind, Need
from gantry_proxy.context import AUTHORIZATION, DATE_TIME, CallContext
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import ProxyError

log = logging.getLogger(__name__)

SCHEME: Final = "MQv2-HMAC-SHA1"
_HEADER_CHARACTERS_MAX: Final = 4096
WRONG_SIGNATURE: Final = "the signature is wrong: unknown access key, or another secret key"
TRUSTED: Final = Account(access_key="", secret=b"", is_admin=True)
"""The account of a peer that is trusted by its address."""


@final
class ProxyGuard:
    """Authenticates calls, and checks permissions. Owned by the event loop."""

    def __init__(self, file: AccountFile | None, now_ms: Callable[[], int], window_ms: int) -> None:
        """Without a file of accounts, every call is allowed. ``now_ms`` is the wall clock; a window of 0 has no end."""
        self._file: Final = file
        self._now_ms: Final = now_ms
        self._window_ms: Final = window_ms
        self._decoy_secret: Final = secrets.token_bytes(32)

    def __repr__(self) -> str:
        return f"<ProxyGuard {self._file!r}>"

    def authenticate(self, headers: Mapping[str, str], peer: str) -> Account | None:
        """Return the account of a call; None without access control. Raises ProxyError."""
        if self._file is None:
            return None
        accounts = self._file.accounts
        if accounts.trusted_addresses.matches(peer):
            return TRUSTED
        authorization = headers.get(AUTHORIZATION, "")
        if not authorization:
            raise ProxyError(pb.UNAUTHORIZED, "the call is not signed: give the SDK an access key and a secret key")
        access_key, signature = _parse_authorization(authorization)
        account = accounts.by_key.get(access_key)
        if account is not None and account.addresses.matches(peer):
            return account
        date_time = headers.get(DATE_TIME, "")
        self._check_time(date_time)
        secret = self._decoy_secret if account is None else account.secret
        wanted = hmac.digest(secret, date_time.encode(), hashlib.sha1).hex()
        is_right = hmac.compare_digest(wanted.encode(), signature.lower().encode())
        if account is None or not is_right:
            log.warning("call denied", extra={"peer": peer, "account": access_key[:64], "reason": WRONG_SIGNATURE})
            raise ProxyError(pb.UNAUTHORIZED, WRONG_SIGNATURE)
        return account

    def require(self, context: CallContext, *needs: Need) -> None:
        """Raise ProxyError unless the account of a call has all these permissions."""
        account = context.account
        if self._file is None or (account is not None and account.is_admin):
            return
        for need in needs:
            if account is None or not account.has_permission(need):
                what = "topic" if need.kind is Kind.TOPIC else need.kind.value
                raise ProxyError(pb.FORBIDDEN, f"the account has no permission for {what} {need.name[:64]!r}")

    def _check_time(self, text: str) -> None:
        try:
            at = _parse_time(text)
        except ValueError as error:
            raise ProxyError(
                pb.UNAUTHORIZED, f"the header {DATE_TIME} is {text[:64]!r}, expected a time such as 20260102T030405Z"
            ) from error
        difference_ms = abs(self._now_ms() - int(at.timestamp() * 1000))
        if self._window_ms and difference_ms > self._window_ms:
            raise ProxyError(
                pb.UNAUTHORIZED,
                f"the signed time differs from the proxy's by {difference_ms // 1000} s, at most "
                f"{self._window_ms // 1000} s are allowed: synchronize the clocks",
            )


def sign(secret: bytes, date_time: str) -> str:
    """Return the signature of an SDK for a time."""
    return hmac.digest(secret, date_time.encode(), hashlib.sha1).hex().upper()


def _parse_time(text: str) -> datetime:
    """Return the time of a header, in either form of ISO 8601. Raises ValueError."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("the time has no offset")
    return at


def _parse_authorization(text: str) -> tuple[str, str]:
    """Return access key and signature. Raises ProxyError."""
    scheme, _, rest = text[:_HEADER_CHARACTERS_MAX].partition(" ")
    fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    access_key, signature = fields.get("Credential", "").partition("/")[0], fields.get("Signature", "")
    if scheme != SCHEME or not access_key or not signature.isascii() or not signature:
        raise ProxyError(
            pb.UNAUTHORIZED, f"the header {AUTHORIZATION} has another form than {SCHEME} Credential=..., Signature=..."
        )
    return access_key, signature
