"""The access control settings of a server."""

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import final


class AccessMode(StrEnum):
    """Which request signatures are accepted."""

    V1 = "V1"
    """Accept the signatures of RocketMQ's clients, and strict ones."""
    STRICT = "STRICT"
    """Accept only signatures that also cover the request code and the time, and reject replays. Trust no address."""


@final
@dataclass(frozen=True, slots=True)
class InitialUser:
    """The Super user of a store without users. Its texts contain no password."""

    name: str
    password: str = field(repr=False)

    def __str__(self) -> str:
        return json.dumps({"username": self.name})


def parse_initial_user(text: str) -> InitialUser | None:
    """Parse RocketMQ's JSON of the first user; None for an empty text. Raises ValueError, whose text has no value."""
    if not text:
        return None
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ValueError('write JSON such as {"username":"admin","password":"..."}')
    name, password = document.get("username"), document.get("password")
    if not isinstance(name, str) or not isinstance(password, str) or not name.strip() or not password.strip():
        raise ValueError("the JSON needs a username and a password")
    return InitialUser(name, password)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """The access control settings of one server."""

    is_enabled: bool = False
    """aclEnable: every request needs an account with the needed permission."""

    file: str = ""
    """aclFile: the file of accounts, in the format of RocketMQ's `plain_acl.yml`. It is reloaded when it changes."""

    mode: AccessMode = AccessMode.V1
    """aclMode: V1 accepts the signatures of RocketMQ's clients; STRICT accepts only signatures that also cover the
    request code and the time, and rejects replays."""

    window_ms: int = 60_000
    """aclTimeWindow: the maximum difference between the time of a strict signature and the server's. A longer window
    tolerates worse clocks; for as long, a recorded request can be replayed to a server that has not received it."""

    credentials: str = ""
    """aclCredentialsPath: a file with accessKey and secretKey, with which this server signs its own requests. It may be
    replaced at any time."""

    is_stored: bool = False
    """authenticationEnabled: every request needs a user of the table that mqadmin changes (`createUser`, `createAcl`),
    which this broker stores and copies to its slaves. It takes the place of aclEnable and aclFile."""

    is_authorizing: bool = False
    """authorizationEnabled: with authenticationEnabled=true, a request needs a policy of its user that allows it.
    Without it every user may do everything."""

    initial_user: InitialUser | None = None
    """initAuthenticationUser: the first Super user, as JSON such as `{"username":"admin","password":"..."}`. It is
    created if the store has no enabled Super user, and then no longer needed. The password is never shown."""

    @property
    def is_guarded(self) -> bool:
        """Whether requests need an account."""
        return self.is_enabled or self.is_stored

    def fault(self) -> str | None:
        """Return which settings contradict each other, by their keys, or None."""
        if self.is_stored and (self.is_enabled or self.file):
            key = "aclEnable=true" if self.is_enabled else f"aclFile={self.file}"
            return (
                f"{key} and authenticationEnabled=true contradict each other: accounts are either in aclFile or stored "
                "by the broker; set only one of the two"
            )
        if self.is_authorizing and not self.is_stored:
            return (
                "authorizationEnabled=true needs authenticationEnabled=true: a policy belongs to a "
                "user whose signature is checked; set both or neither"
            )
        if self.initial_user is not None and not self.is_stored:
            return (
                "initAuthenticationUser is set, but authenticationEnabled is false: set authenticationEnabled=true or "
                "remove initAuthenticationUser"
            )
        if self.is_enabled and not self.file:
            return "aclEnable=true needs aclFile, the file of accounts"
        if self.file and not self.is_enabled:
            return f"aclFile={self.file} is set, but aclEnable is false: set aclEnable=true or remove aclFile"
        if self.mode is AccessMode.STRICT and not self.is_guarded:
            return (
                "aclMode=STRICT has no effect while aclEnable is false: set aclEnable=true (or "
                "authenticationEnabled=true), or remove aclMode"
            )
        return None
