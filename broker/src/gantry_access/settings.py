"""How a server decides whose requests it answers."""

from dataclasses import dataclass
from enum import StrEnum


class AccessMode(StrEnum):
    """Which signatures are believed."""

    V1 = "V1"
    """RocketMQ's, and the strict ones."""
    STRICT = "STRICT"
    """Only those that also cover request, time and repetition. No address is believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Access control of one server."""

    is_enabled: bool = False
    """aclEnable: every request needs an account that may do what it asks for."""

    file: str = ""
    """aclFile: the accounts, in the form of RocketMQ's `plain_acl.yml`. Read again when it changes."""

    mode: AccessMode = AccessMode.V1
    """aclMode: V1 takes what RocketMQ's clients sign; STRICT only what also covers request, time and repetition."""

    window_ms: int = 60_000
    """aclTimeWindow: how far a strict signature's time may be from ours. Longer forgives worse clocks; a request that
    somebody recorded is of use for so long at a server that has not seen it."""

    credentials: str = ""
    """aclCredentialsPath: a file with accessKey and secretKey, the account that this server itself signs with. It may
    be replaced at any time."""

    def fault(self) -> str | None:
        """What contradicts itself, in the words of the keys."""
        if self.is_enabled and not self.file:
            return "aclEnable=true needs aclFile, the file of accounts"
        if self.file and not self.is_enabled:
            return f"aclFile={self.file} names accounts, but aclEnable is false: set it, too, or remove aclFile"
        if self.mode is AccessMode.STRICT and not self.is_enabled:
            return "aclMode=STRICT checks nothing while aclEnable is false: set it, too, or remove aclMode"
        return None
