"""The guard in front of a server: authenticates and authorizes each request, and returns None or a denial.

    1. authentication   a trusted address, or an access key with a valid signature or from an address of its account
    2. replay check     the time of a strict signature is recent, and the request was not received before
    3. authorization    the account has every permission that the request needs

The guard runs before the handlers: a denied request has stored, created and changed nothing, not even an automatically
created topic. The reply is code 16, after which clients try a send on another broker; a request whose topic or group
cannot be read gets code 1. An unknown account and a wrong secret give the same reply. TLS, with or without a client
certificate, makes no difference here.
"""

import logging
import secrets
from collections.abc import Callable
from typing import Final, final

from gantry_access.account import Account
from gantry_access.accounts import AccountSource
from gantry_access.needs import needs_of
from gantry_access.permissions import ANY, Kind, Need, publish_need, read_need
from gantry_access.policies import Decision
from gantry_access.policy_needs import policy_needs_of
from gantry_access.replay_detector import ReplayDetector
from gantry_access.settings import AccessMode, AccessSettings
from gantry_wire.codes import ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.fields import FieldError
from gantry_wire.signatures import (
    ACCESS_KEY,
    STRICT_SIGNATURE,
    is_signed_strict,
    is_signed_v1,
    strict_claim,
)

log = logging.getLogger(__name__)

Denial = tuple[ResponseCode, str]
"""The code and text of the reply."""

TopicAt = Callable[[int], str | None]
"""Returns the original topic of the message at an offset of the commit log; None if it is unknown."""

LOG_INTERVAL_MS: Final = 1_000
"""The shortest time between two lines about denials of one peer."""
LOGGED_PEERS_MAX: Final = 4_096
"""How many peers are remembered for that."""
WRONG_SIGNATURE: Final = "Check signature failed: unknown accessKey, or another secretKey"
"""The reason for an unknown account and for a wrong secret, which must look the same."""
TRUSTED: Final = Account(access_key="", secret=b"", is_admin=True)
"""The account of a peer that is trusted by its address."""


def no_messages(offset: int) -> str | None:
    """Return None; the lookup of servers that store no messages."""
    return None


@final
class Guard:
    """Decides which requests a server handles. Owned by the event loop."""

    def __init__(
        self,
        settings: AccessSettings,
        source: AccountSource,
        *,
        now_ms: Callable[[], int],
        topic_at: TopicAt = no_messages,
        cluster: str = "",
    ) -> None:
        """``cluster`` is the name of the cluster, to which policies may refer."""
        self.source: Final = source
        """Where the present accounts are: a file, or the table that mqadmin changes."""
        self._cluster: Final = cluster
        self.is_strict: Final = settings.mode is AccessMode.STRICT
        self._now_ms = now_ms
        self._topic_at = topic_at
        self._replays = ReplayDetector(now_ms, settings.window_ms)
        self._decoy_secret = secrets.token_bytes(32)
        """The secret against which signatures of unknown accounts are verified: it takes as long, and always fails."""
        self._logged: dict[str, int] = {}
        self.requester: str | None = None
        """The account of the last request; None if it was not authenticated, or only by a globally trusted address."""

    def __repr__(self) -> str:
        return f"<Guard {self.source!r} is_strict={self.is_strict}>"

    def denial(self, command: Command, peer: str) -> Denial | None:
        """Return the denial of a request, or None if it is allowed. Call it before the request is handled."""
        self.requester = None
        account = self.authenticate(command, peer)
        if isinstance(account, str):
            return self.deny(account, command.code, peer)
        self.requester = account.access_key or None
        try:
            missing = self._find_missing_permission(account, command, peer)
        except FieldError as error:
            return ResponseCode.SYSTEM_ERROR, str(error)
        if missing is None:
            return None
        return self.deny(missing, command.code, peer, account)

    def identify(self, command: Command, peer: str) -> None:
        """Set `requester` for the audit log of a request that is refused with any account."""
        account = self.authenticate(command, peer)
        self.requester = None if isinstance(account, str) else account.access_key or None

    def deny(self, reason: str, code: int, peer: str, account: Account | None = None) -> Denial:
        """Return a denial, and log it at most once a second for each peer."""
        now = self._now_ms()
        if abs(now - self._logged.get(peer, -LOG_INTERVAL_MS)) >= LOG_INTERVAL_MS:
            if len(self._logged) >= LOGGED_PEERS_MAX:
                self._logged.clear()
            self._logged[peer] = now
            name = None if account is None else account.access_key
            log.warning("request denied", extra={"peer": peer, "account": name, "code": code, "reason": reason})
        return ResponseCode.NO_PERMISSION, reason

    # ------- authentication

    def is_trusted(self, peer: str) -> bool:
        """Return whether requests from this address are trusted without a signature."""
        trusted_addresses = self.source.accounts.trusted_addresses
        return bool(trusted_addresses) and trusted_addresses.matches(peer)

    def authenticate(self, command: Command, peer: str) -> Account | str:
        """Return the account of the sender, or the reason why it is not authenticated."""
        if self.is_trusted(peer):
            return TRUSTED
        ext = command.ext
        access_key = ext.get(ACCESS_KEY)
        if not access_key:
            return "No accessKey is configured: the request is not signed"
        accounts = self.source.accounts
        account = accounts.by_key.get(access_key)
        if account is not None and account.addresses.matches(peer):
            return account
        is_disabled = account is None and access_key in accounts.disabled
        found = self._verify(command, accounts.disabled[access_key] if is_disabled else account)
        # Only who knows the secret learns that the account exists.
        return f"User:{access_key[:300]} is disabled." if is_disabled and isinstance(found, Account) else found

    def _verify(self, command: Command, account: Account | None) -> Account | str:
        if STRICT_SIGNATURE in command.ext:
            return self._verify_strict(command, account)
        if self.is_strict:
            return "The server takes strict signatures only (aclMode=STRICT)"
        return self._verify_v1(command, account)

    def _verify_v1(self, command: Command, account: Account | None) -> Account | str:
        secret = self._decoy_secret if account is None else account.secret
        is_right = is_signed_v1(command.ext, command.body, secret)
        return account if account is not None and is_right else WRONG_SIGNATURE

    def _verify_strict(self, command: Command, account: Account | None) -> Account | str:
        secret = self._decoy_secret if account is None else account.secret
        if not is_signed_strict(command, secret) or account is None:
            return WRONG_SIGNATURE
        claim = strict_claim(command.ext)
        if claim is None:
            return "The strict signature has no time, session or request number"
        rejection_reason = self._replays.rejection_reason(account.access_key, claim)
        return account if rejection_reason is None else f"The request is refused: {rejection_reason}"

    # ------- authorization

    def may_receive_half_messages(self, access_key: str | None, peer: str, topic: str) -> bool:
        """Return whether a connected peer may receive half messages of a topic, which needs permission to publish."""
        if self.is_trusted(peer):
            return True
        account = self.source.accounts.by_key.get(access_key or "")
        return account is not None and (account.is_admin or account.has_permission(publish_need(topic), peer))

    def _find_missing_permission(self, account: Account, command: Command, peer: str) -> str | None:
        """Return the first missing permission in RocketMQ's words, or None. Administrators have all permissions."""
        if account.is_admin:
            return None
        for need in needs_of(command) if account.policies is None else policy_needs_of(command):
            resolved = self._resolve_message_need(need) if need.kind is Kind.MESSAGE else need
            if resolved is not None and resolved.kind is Kind.CLUSTER:
                resolved = resolved._replace(name=self._cluster)
            if resolved is None or not account.has_permission(resolved, peer):
                return _describe_missing(account, resolved or need, command.code, peer)
        return None

    def _resolve_message_need(self, need: Need) -> Need | None:
        """Return the need for the topic of a stored message; None if the topic is unknown.

        An offset without a message is for administrators only, because a message of another topic may be stored there
        a moment later.
        """
        topic = self._topic_at(int(need.name))
        if topic is None:
            return None
        resolved = read_need(topic)
        return resolved._replace(permission=need.permission) if resolved.kind is Kind.TOPIC else resolved


def _describe_missing(account: Account, need: Need, code: int, peer: str) -> str:
    """Return the reason of a denial, in RocketMQ's words for accounts of files and for stored ones."""
    if need.kind is Kind.ADMIN or (account.policies is None and not need.permission & ANY):
        return f"Need admin permission for request code={code}, but accessKey is not"
    if account.policies is None:
        return f"No default permission for {need.kind.value}:{need.name[:300]}"
    is_denied = account.policies.decide(need, peer) is Decision.DENY
    detail = "the decision is deny." if is_denied else "no matched policies."
    resource = f"{need.kind.value.capitalize()}:{need.name[:300]}"
    return f"User:{account.access_key[:300]} has no permission to access {resource} from {peer}, {detail}"
