"""Errors of the API server and of sidecars. The docstring of each leaf tells its caller what to do.

OperatorError
    SettingsError  NoBackupSource
    ApiError       Conflict  NotFound  Forbidden  NamespaceTerminating  InvalidObject  Unavailable  NotLeader
    SidecarError   SidecarRefused  SidecarUnauthorized  SidecarUnavailable
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, NamedTuple, final


class OperatorError(Exception):
    """Base class of all errors in this module. It is never raised itself."""


@final
class SettingsError(OperatorError):
    """An option is invalid, or a file or the Secret with the operator's key cannot be used. The text names it."""


@final
class NoBackupSource(OperatorError):
    """A shard has no volume now of which a backup can be made. Try again later."""


# -- the API server ----------------------------------------------------------------------------------------------------


class Cause(NamedTuple):
    """One cause of an error, as the API server reports it. The texts are empty where it reports none."""

    reason: str
    """The reason in CamelCase, such as ``FieldValueForbidden``."""

    field: str = ""
    """The path of the field that the cause is about."""


IMMUTABLE_SPEC: Final = Cause("FieldValueForbidden", "spec")
"""The cause with which the API server rejects a change of immutable fields of a StatefulSet."""


class ApiError(OperatorError):
    """Base class of all errors of a call to the API server. It is never raised itself."""

    def __init__(self, what: str, reason: str, status: int = 0, causes: Sequence[Cause] = ()) -> None:
        """``what`` names the call and its object; ``status`` is the HTTP status, 0 without an answer."""
        super().__init__(f"{what}: {reason}")
        self.what: Final = what
        self.reason: Final = reason
        self.status: Final = status
        self.causes: Final = tuple(causes)


@final
class Conflict(ApiError):
    """The object has another uid or version than expected, or exists already.

    Nothing was changed: read the object again, and decide anew.
    """


@final
class NotFound(ApiError):
    """The object does not exist. A deletion is complete; before any other change, read the objects again."""


@final
class Forbidden(ApiError):
    """The API server rejected the credentials (401), or RBAC does not allow the call (403).

    An administrator must correct this; a retry changes nothing.
    """


@final
class NamespaceTerminating(ApiError):
    """The object's namespace is being deleted, so nothing can be created in it. Stop reconciling, without a warning."""


@final
class InvalidObject(ApiError):
    """The API server rejected the object: it is invalid, or changes an immutable field. The text names the field."""

    @property
    def is_immutability_only(self) -> bool:
        """Whether a change of immutable fields of the spec is the only problem: a new object would be accepted.

        An invalid field of the new spec is a further cause, with the path of that field.
        """
        return set(self.causes) == {IMMUTABLE_SPEC}


@final
class Unavailable(ApiError):
    """The API server did not answer in time, is overloaded, or cannot continue an old list.

    A change may have been made: read, then retry.
    """


@final
class NotLeader(ApiError):
    """Another operator may be the leader by now. The call was not sent; this process is about to end."""


def is_kind_missing(error: ApiError) -> bool:
    """Return whether a list of a kind failed because the API server does not serve it.

    It answers 404 as plain text for an unknown version of a group, which counts as no definite answer elsewhere: a
    proxy in between answers so, too.
    """
    return error.status == HTTPStatus.NOT_FOUND


# -- sidecars ----------------------------------------------------------------------------------------------------------


class SidecarError(OperatorError):
    """Base class of all errors of a request to a sidecar. It is never raised itself."""


@final
class SidecarRefused(SidecarError):
    """The broker or its sidecar refused the order, and the text gives the reason: observe, and decide anew.

    Nothing was changed, except that a promise of the order's epoch may remain (``gantry_status.orders.Refused``).
    """


@final
class SidecarUnauthorized(SidecarError):
    """The sidecar rejected the operator's token, or did not prove that it knows the token, which then was not sent.

    The group's Secret may be missing or outdated: create it.
    """


@final
class SidecarUnavailable(SidecarError):
    """The sidecar gave no usable answer in time. The order may have been executed; every order may be repeated."""
