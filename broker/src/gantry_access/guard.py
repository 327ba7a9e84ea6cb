"""The guard in front of a server: who asks, and may they? A command in, None or a denial out.

    1. who      an address that is believed, or an access key with the signature that its secret makes
    2. again?   a strict signature must be of now, and not have been here before
    3. what     every need of the request is met by the account

It comes before the handlers: what it denies has stored, made and changed nothing, not even an auto-created topic. The
answer is code 16, which clients take for final. To whoever has no account an unknown one and a wrong secret look the
same. An encrypted connection, with or without a client's certificate, changes nothing here.
"""

import logging
import secrets
from collections.abc import Callable
from typing import Final, final

from gantry_access.account_file import AccountFile
from gantry_access.needs import needed
from gantry_access.permissions import Account, Kind, Need, publishing, reading
from gantry_access.replays import Replays
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
"""The code and text of the answer."""

TopicAt = Callable[[int], str | None]
"""The topic of the message at an offset of the log, the one that it is meant for; None when nobody can tell."""

LOG_INTERVAL_MS: Final = 1_000
LOGGED_PEERS_MAX: Final = 4_096
WRONG_SIGNATURE: Final = "Check signature failed: unknown accessKey, or another secretKey"
TRUSTED: Final = Account(access_key="", secret=b"", is_admin=True)
"""A peer that is believed by its address."""


def no_messages(offset: int) -> str | None:
    """For servers that store none."""
    return None


@final
class Guard:
    """Owned by the event loop."""

    def __init__(
        self,
        settings: AccessSettings,
        file: AccountFile,
        *,
        now_ms: Callable[[], int],
        topic_at: TopicAt = no_messages,
    ) -> None:
        self.file: Final = file
        self.is_strict: Final = settings.mode is AccessMode.STRICT
        self._now_ms = now_ms
        self._topic_at = topic_at
        self._replays = Replays(now_ms, settings.window_ms)
        self._nobody = secrets.token_bytes(32)
        """What the signatures of unknown accounts are compared with: it takes as long, and is never right."""
        self._logged: dict[str, int] = {}
        self.asked_by: str | None = None
        """The account of the request that was looked at last; None when that could not be told."""

    def __repr__(self) -> str:
        return f"<Guard {self.file!r} is_strict={self.is_strict}>"

    def denial(self, command: Command, peer: str) -> Denial | None:
        """What to answer to a request that must not be handled. Nothing of it may be done before this was asked."""
        self.asked_by = None
        account = self.authenticate(command, peer)
        if isinstance(account, str):
            return self.deny(account, command.code, peer)
        self.asked_by = account.access_key or None
        try:
            missing = self._missing(account, command)
        except FieldError as error:
            return ResponseCode.SYSTEM_ERROR, str(error)
        if missing is None:
            return None
        return self.deny(missing, command.code, peer, account)

    def take_note(self, command: Command, peer: str) -> None:
        """Who asks, for the audit of a request that is refused without the guard."""
        account = self.authenticate(command, peer)
        self.asked_by = None if isinstance(account, str) else account.access_key or None

    def deny(self, reason: str, code: int, peer: str, account: Account | None = None) -> Denial:
        """A denial, with a line in the log: one a second for each peer."""
        now = self._now_ms()
        if abs(now - self._logged.get(peer, -LOG_INTERVAL_MS)) >= LOG_INTERVAL_MS:
            if len(self._logged) >= LOGGED_PEERS_MAX:
                self._logged.clear()
            self._logged[peer] = now
            name = None if account is None else account.access_key
            log.warning("denied", extra={"peer": peer, "account": name, "code": code, "reason": reason})
        return ResponseCode.NO_PERMISSION, reason

    # ------- who

    def trusted(self, peer: str) -> bool:
        """Whether everything is believed that comes from this address."""
        everything_from = self.file.accounts.everything_from
        return bool(everything_from) and everything_from.matches(peer)

    def authenticate(self, command: Command, peer: str) -> Account | str:
        """Who asks; or why it is not known."""
        if self.trusted(peer):
            return TRUSTED
        ext = command.ext
        access_key = ext.get(ACCESS_KEY)
        if not access_key:
            return "No accessKey is configured: the request is not signed"
        account = self.file.accounts.by_key.get(access_key)
        if account is not None and account.addresses.matches(peer):
            return account
        if STRICT_SIGNATURE in ext:
            return self._strict(command, account)
        if self.is_strict:
            return "The server takes strict signatures only (aclMode=STRICT)"
        return self._v1(command, account)

    def _v1(self, command: Command, account: Account | None) -> Account | str:
        secret = self._nobody if account is None else account.secret
        is_right = is_signed_v1(command.ext, command.body, secret)
        return account if account is not None and is_right else WRONG_SIGNATURE

    def _strict(self, command: Command, account: Account | None) -> Account | str:
        secret = self._nobody if account is None else account.secret
        if not is_signed_strict(command, secret) or account is None:
            return WRONG_SIGNATURE
        claim = strict_claim(command.ext)
        if claim is None:
            return "The request does not say when it was signed, and as which of its connection"
        refusal = self._replays.refusal(account.access_key, claim)
        return account if refusal is None else f"The request is refused: {refusal}"

    # ------- what

    def may_be_told(self, access_key: str | None, peer: str, topic: str) -> bool:
        """Whether a peer that was let in under this name may see what is not published yet: who may publish there."""
        if self.trusted(peer):
            return True
        account = self.file.accounts.by_key.get(access_key or "")
        return account is not None and (account.is_admin or account.may(publishing(topic)))

    def _missing(self, account: Account, command: Command) -> str | None:
        """The first thing that the account lacks, in RocketMQ's words. Administrators lack nothing."""
        if account.is_admin:
            return None
        for need in needed(command):
            if need.kind is Kind.ADMIN:
                return f"Need admin permission for request code={command.code}, but accessKey is not"
            one = self._of_message(need) if need.kind is Kind.MESSAGE else need
            if one is None or not account.may(one):
                return f"No default permission for {need.kind.value}:{need.name[:300]}"
        return None

    def _of_message(self, need: Need) -> Need | None:
        """The same for the topic of a stored message; None when nobody knows it.

        Where there is no message nobody but an administrator may look either: a moment later there may be somebody
        else's.
        """
        topic = self._topic_at(int(need.name))
        if topic is None:
            return None
        one = reading(topic)
        return one._replace(permission=need.permission) if one.kind is Kind.TOPIC else one
