"""Who calls, and what the account may do: the accounts and permissions of the brokers, and the signatures of SDKs.

    FileAccounts      the accounts of a file that the brokers have, too
    BrokerAccounts    the users and policies that the brokers store, in `broker_accounts`

    authorization: MQv2-HMAC-SHA1 Credential=<access key>[/...], SignedHeaders=x-mq-date-time, Signature=<hex>
    x-mq-date-time: 20260102T030405Z             with the SDK for Rust 2026-01-02T04:04:05.678901234+01:00

An SDK signs the time only, not the call. So a person who reads a signature can use it until the time is outside of the
window of `access.signatureWindowMs`: use TLS. An unknown account and a wrong secret get the same answer.
"""

import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, NamedTuple, Protocol, final

from gantry_access import Account, AccountFile, Kind, Need
from gantry_proxy.context import AUTHORIZATION, DATE_TIME, CallContext
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import ProxyError

log = logging.getLogger(__name__)

SCHEME: Final = "MQv2-HMAC-SHA1"
_HEADER_CHARACTERS_MAX: Final = 4096
WRONG_SIGNATURE: Final = "the signature is wrong: unknown access key, or another secret key"
DISABLED: Final = "the account is disabled"
REVOKED: Final = "the account was revoked, or has another secret key: connect again"
TRUSTED: Final = Account(access_key="", secret=b"", is_admin=True)
"""The account of a peer that is trusted by its address."""


class ClientAccount(NamedTuple):
    """The account of a client, and whether it is disabled."""

    account: Account
    is_disabled: bool = False


class AccountUnread(Exception):
    """Whether there is an account is known only after the answer of a broker."""


class ClientAccounts(Protocol):
    """Where a proxy finds the accounts of its clients."""

    def is_trusted(self, peer: str) -> bool:
        """Return whether an address has every permission without a signature."""

    async def find(self, access_key: str) -> ClientAccount | None:
        """Return the account with this key; None if there is none. Raises ProxyError if that is unknown now."""

    def find_at_once(self, access_key: str) -> ClientAccount | None:
        """Return what `find` returns, without waiting. Raises AccountUnread if that is not possible."""


@final
class FileAccounts:
    """The accounts of a file, as they are at the moment of each call."""

    def __init__(self, file: AccountFile) -> None:
        self._file: Final = file

    def __repr__(self) -> str:
        return f"<FileAccounts {self._file!r}>"

    def is_trusted(self, peer: str) -> bool:
        return self._file.accounts.trusted_addresses.matches(peer)

    async def find(self, access_key: str) -> ClientAccount | None:
        return self.find_at_once(access_key)

    def find_at_once(self, access_key: str) -> ClientAccount | None:
        account = self._file.accounts.by_key.get(access_key)
        return None if account is None else ClientAccount(account)


@final
class ProxyGuard:
    """Authenticates calls, and checks permissions. Owned by the event loop."""

    def __init__(self, source: ClientAccounts | None, now_ms: Callable[[], int], window_ms: int) -> None:
        """Without a source of accounts, every call is allowed.

        ``now_ms`` is the wall clock; a window of 0 has no end.
        """
        self._source: Final = source
        self._now_ms: Final = now_ms
        self._window_ms: Final = window_ms
        self._decoy_secret: Final = secrets.token_bytes(32)

    def __repr__(self) -> str:
        return f"<ProxyGuard {self._source!r}>"

    async def authenticate(self, headers: Mapping[str, str], peer: str) -> Account | None:
        """Return the account of a call; None without access control. Raises ProxyError."""
        if self._source is None:
            return None
        if self._source.is_trusted(peer):
            return TRUSTED
        access_key, signature = _read_authorization(headers)
        return self._verify(access_key, signature, await self._source.find(access_key), headers, peer)

    def authenticate_at_once(self, headers: Mapping[str, str], peer: str) -> Account | None:
        """Return what `authenticate` returns, without waiting. Raises AccountUnread if that is not possible."""
        if self._source is None:
            return None
        if self._source.is_trusted(peer):
            return TRUSTED
        access_key, signature = _read_authorization(headers)
        return self._verify(access_key, signature, self._source.find_at_once(access_key), headers, peer)

    def _verify(
        self, access_key: str, signature: str, found: ClientAccount | None, headers: Mapping[str, str], peer: str
    ) -> Account:
        """Return the account that was found, if the call has its address or its signature. Raises ProxyError."""
        account = None if found is None else found.account
        if account is not None and account.addresses.matches(peer):
            return account
        date_time = headers.get(DATE_TIME, "")
        self._check_time(date_time)
        secret = self._decoy_secret if account is None else account.secret
        wanted = hmac.digest(secret, date_time.encode(), hashlib.sha1).hex()
        is_right = hmac.compare_digest(wanted.encode(), signature.lower().encode())
        if found is None or account is None or not is_right:
            raise _denial(WRONG_SIGNATURE, access_key, peer)
        if found.is_disabled:  # only a client that knows the secret learns that the account exists
            raise _denial(DISABLED, access_key, peer)
        return account

    async def confirm(self, account: Account | None, peer: str) -> Account | None:
        """Return the present state of an account that was authenticated before, for a call that lasts.

        Raises ProxyError with the code UNAUTHORIZED if it was revoked or has another secret, and with another one if
        that is unknown now.
        """
        if self._source is None or account is None:
            return None
        if account is TRUSTED and self._source.is_trusted(peer):
            return account
        found = await self._source.find(account.access_key)
        if found is None or found.is_disabled or not hmac.compare_digest(found.account.secret, account.secret):
            raise _denial(REVOKED, account.access_key, peer)
        return found.account

    def require(self, context: CallContext, *needs: Need) -> None:
        """Raise ProxyError unless the account of a call has all these permissions."""
        account = context.account
        if self._source is None or (account is not None and account.is_admin):
            return
        for need in needs:
            if account is None or not account.has_permission(need, context.peer):
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


def _denial(reason: str, access_key: str, peer: str) -> ProxyError:
    log.warning("call denied", extra={"peer": peer, "account": access_key[:64], "reason": reason})
    return ProxyError(pb.UNAUTHORIZED, reason)


def sign(secret: bytes, date_time: str) -> str:
    """Return the signature of an SDK for a time."""
    return hmac.digest(secret, date_time.encode(), hashlib.sha1).hex().upper()


def _parse_time(text: str) -> datetime:
    """Return the time of a header, in either form of ISO 8601. Raises ValueError."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("the time has no offset")
    return at


def _read_authorization(headers: Mapping[str, str]) -> tuple[str, str]:
    """Return access key and signature. Raises ProxyError."""
    text = headers.get(AUTHORIZATION, "")
    if not text:
        raise ProxyError(pb.UNAUTHORIZED, "the call is not signed: give the SDK an access key and a secret key")
    scheme, _, rest = text[:_HEADER_CHARACTERS_MAX].partition(" ")
    fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    access_key, signature = fields.get("Credential", "").partition("/")[0], fields.get("Signature", "")
    if scheme != SCHEME or not access_key or not signature.isascii() or not signature:
        raise ProxyError(
            pb.UNAUTHORIZED, f"the header {AUTHORIZATION} has another form than {SCHEME} Credential=..., Signature=..."
        )
    return access_key, signature
