"""Errors between two peers: either the peer broke the protocol, or the caller did.

There are exactly two leaf classes. The base class cannot be raised, so a caller always knows which side must act.
"""

from typing import final


class ProtocolError(Exception):
    """The base class of this package's errors. Catch it; it cannot be raised itself."""

    def __init__(self, text: str) -> None:
        if type(self) is ProtocolError:
            raise TypeError("ProtocolError is a base class: raise LocalProtocolError or RemoteProtocolError")
        super().__init__(text)


@final
class LocalProtocolError(ProtocolError):
    """The caller passed a value that the protocol cannot carry. The caller has to correct its arguments."""


@final
class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that break the protocol. The caller should close the connection, once, with one log line."""
