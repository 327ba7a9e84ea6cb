"""What can go wrong on the way to the API server and to sidecars. Each leaf says what its catcher should do."""

from __future__ import annotations

from typing import Final, final


class OperatorError(Exception):
    """Root of what this package raises on purpose. Never raised itself."""


@final
class SettingsError(OperatorError):
    """The options make no sense together, or a file cannot be used. Start it with others; the text names them."""


# -- the API server ----------------------------------------------------------------------------------------------------


class ApiError(OperatorError):
    """Root of what the API server says, or does not say. Never raised itself."""

    def __init__(self, what: str, reason: str, status: int = 0) -> None:
        super().__init__(f"{what}: {reason}")
        self.what: Final = what
        self.reason: Final = reason
        self.status: Final = status


@final
class Conflict(ApiError):
    """It is another one than the one that was meant, or exists already. Nothing was done: look again, and decide."""


@final
class Gone(ApiError):
    """There is no such thing. Whoever wanted it gone is content; whoever wanted to change it looks again."""


@final
class Forbidden(ApiError):
    """Our rights do not cover this. A person has to mend them; asking again sooner changes nothing."""


@final
class Terminating(ApiError):
    """Its namespace is being deleted, for good: nothing is made there any more. Stop, and be quiet."""


@final
class Refused(ApiError):
    """The API server will not have it: it is wrong, or changes what may not change. The text says which field."""


@final
class Unavailable(ApiError):
    """Nobody has answered in time, or said that it is too busy. It may have been done: look, and do it again."""


@final
class NotLeader(ApiError):
    """Another one may be the leader by now. Nothing was asked of anybody; this process is about to end."""


# -- sidecars ----------------------------------------------------------------------------------------------------------


class SidecarError(OperatorError):
    """Root of what a sidecar says, or does not say. Never raised itself."""


@final
class SidecarRefused(SidecarError):
    """The broker will not, and says why; nothing has changed. The next look tells what to do instead."""


@final
class SidecarDenied(SidecarError):
    """It does not know our token. Read the group's Secret again."""


@final
class SidecarSilent(SidecarError):
    """No answer of use in time. An order may have been obeyed; every order may be given again."""
