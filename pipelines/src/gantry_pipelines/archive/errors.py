"""What can be wrong with an archive, by who has to act.

An archive is refused rather than guessed at: whoever reads it believes that every message is there once.
"""

from typing import final


class ArchiveError(Exception):
    """The root of all errors of the archive."""


@final
class NoArchive(ArchiveError):
    """There is no archive at this place, or data without a manifest: look at the path, or bring `_manifest` back."""


@final
class OtherArchive(ArchiveError):
    """The settings, or the checkpoint, are those of another archive: use its own, or another destination."""


@final
class ManifestBroken(ArchiveError):
    """The ranges of the manifest overlap or leave a gap: run `gantry pipeline verify`, and bring back what is
    missing."""


@final
class RangesDoNotMeet(ArchiveError):
    """What is to be archived does not begin where the archive ends: checkpoint and archive do not belong together."""


@final
class UnknownFile(ArchiveError):
    """A file lies among the data that the manifest does not have, and readers see it: move it away."""


@final
class ArchiveBusy(ArchiveError):
    """Another writer has this archive: end it, or wait until it is done."""


@final
class FencedOut(ArchiveError):
    """Another writer took this archive over while we worked: end; what we had not entered in the manifest is not
    there."""


@final
class ReadIncomplete(ArchiveError):
    """A replica gave other rows than the range that was asked of it: audit it (`gantry pipeline audit`)."""


@final
class CannotCompact(ArchiveError):
    """This destination has no atomic exchange of folders: leave its files as they are."""


@final
class RestoreFailed(ArchiveError):
    """Messages could not be sent back; the progress file says how far it came: run it again."""


@final
class BadDestination(ArchiveError):
    """The destination's address cannot be understood: look at it, and at what it asks for behind the `?`."""


@final
class StorageFailed(ArchiveError):
    """The destination does not answer, refuses or has no room: look at its address, keys, rights and space, and run
    it again."""
