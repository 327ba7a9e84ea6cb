"""Errors of connections, by the action that the caller should take."""

from typing import final


class RemotingError(Exception):
    """The base class of this package's errors."""


@final
class ConnectionClosed(RemotingError):
    """The connection is closed; a pending request may or may not have been executed. The caller should reconnect."""


@final
class RemotingTimeout(RemotingError):
    """No reply in time; the request may or may not have been executed. The caller decides whether to retry."""


@final
class RequestTooLarge(RemotingError):
    """The request exceeds the limits of a frame, and was not sent. The caller should correct its arguments."""


@final
class CannotConnect(RemotingError):
    """The connection was refused, failed in TLS, or took too long. The caller should try another address, or later."""
