"""What can be wrong with a status page. Each text says what was found; each leaf says what to do about it."""

from __future__ import annotations

from typing import final


class StatusPageError(Exception):
    """Root of everything this package raises on purpose. Never raised itself."""


@final
class PageAbsent(StatusPageError):
    """There is no file. The broker was never started here, or publishes elsewhere: look at its `statusPagePath`."""


@final
class PageUnreadable(StatusPageError):
    """The system refuses to read the file. Mend what the text names: most often rights, or a path that is no file."""


@final
class PageTooShort(StatusPageError):
    """The file ends too early. A broker renames only whole pages into place, so something else wrote or cut it."""


@final
class PageForeign(StatusPageError):
    """The file is something else. Nothing was changed; name the right path."""


@final
class PageVersionUnknown(StatusPageError):
    """A broker with another layout wrote it. Use the tools of that broker's version."""


@final
class PageDamaged(StatusPageError):
    """Bytes that never change have changed. Whatever wrote there was no broker; its next start makes a new page."""


@final
class PageTorn(StatusPageError):
    """No whole copy was found in several looks. Ask again; if it stays so, the file was damaged behind the broker."""


@final
class PageTaken(StatusPageError):
    """A living process publishes at this path. Give one of the two another `statusPagePath`."""
