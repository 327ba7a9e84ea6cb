"""What can go wrong between two peers: they broke the rules, or we did.

Exactly two leaves, as in every good protocol library. The base refuses to be raised, so that no caller has to
guess who must act.
"""

from typing import final


class ProtocolError(Exception):
    """The root of this package's errors. Catch it; never raise it."""

    def __init__(self, text: str) -> None:
        if type(self) is ProtocolError:
            raise TypeError("ProtocolError is a root: raise LocalProtocolError or RemoteProtocolError")
        super().__init__(text)


@final
class LocalProtocolError(ProtocolError):
    """We tried to say something that the wire cannot carry. The caller should mend its arguments."""


@final
class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that break the protocol. The caller should close the connection, once, with one log line."""
