"""Errors of reading and creating a status page. Each message names what was found; each class names the remedy."""

from __future__ import annotations

from typing import final


class StatusPageError(Exception):
    """The base class of the errors of status pages. It is not raised itself."""


@final
class PageNotFound(StatusPageError):
    """There is no file. The broker was never started here, or its `statusPagePath` names another file."""


@final
class PageUnreadable(StatusPageError):
    """The system refuses to read the file. Check the permissions, and whether the path names a regular file."""


@final
class PageTooShort(StatusPageError):
    """The file ends too early. A broker only renames complete pages into place, so another program changed it."""


@final
class PageForeign(StatusPageError):
    """The file is not a status page. Nothing was changed; give the correct path."""


@final
class PageVersionUnknown(StatusPageError):
    """A broker with another layout wrote the file. Use the tools of that broker's version."""


@final
class PageDamaged(StatusPageError):
    """Constant bytes of the page have changed. No broker writes there; its next start makes a new page."""


@final
class PageTorn(StatusPageError):
    """Several attempts found no complete copy. Try again; if the error persists, the file was damaged."""


@final
class PageInUse(StatusPageError):
    """A running process publishes at this path. Give one of the two another `statusPagePath`."""
