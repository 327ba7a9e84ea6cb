"""Errors of connections, by who must act."""

from typing import final


class RemotingError(Exception):
    """The root of this package's errors."""


@final
class ConnectionClosed(RemotingError):
    """The connection is gone; a request under way may or may not have been carried out. The caller should reconnect."""


@final
class RemotingTimeout(RemotingError):
    """No reply in time; the request may or may not have been carried out. The caller decides whether to ask again."""


@final
class CannotConnect(RemotingError):
    """Nobody listens at the address, or not in time. The caller should try another address or later."""
