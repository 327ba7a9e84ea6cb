"""The access control settings of a server."""

from dataclasses import dataclass
from enum import StrEnum


class AccessMode(StrEnum):
    """Which request signatures are accepted."""

    V1 = "V1"
    """Accept the signatures of RocketMQ's clients, and strict ones."""
    STRICT = "STRICT"
    """Accept only signatures that also cover the request code and the time, and reject replays. Trust no address."""


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

    def fault(self) -> str | None:
        """Return which settings contradict each other, by their keys, or None."""
        if self.is_enabled and not self.file:
            return "aclEnable=true needs aclFile, the file of accounts"
        if self.file and not self.is_enabled:
            return f"aclFile={self.file} is set, but aclEnable is false: set aclEnable=true or remove aclFile"
        if self.mode is AccessMode.STRICT and not self.is_enabled:
            return "aclMode=STRICT has no effect while aclEnable is false: set aclEnable=true or remove aclMode"
        return None
