"""The errors of an archive; the docstring of each names the remedy.

An archive in doubt is refused: its readers rely on every message being there exactly once.
"""

from typing import final


class ArchiveError(Exception):
    """The root of all errors of the archive."""


@final
class NoArchive(ArchiveError):
    """No archive, or data without a manifest, was found at this path: check the path, or restore `_manifest`."""


@final
class OtherArchive(ArchiveError):
    """The settings or the checkpoint belong to another archive: use those of this one, or another destination."""


@final
class SchemaConflict(ArchiveError):
    """A declared schema lacks a column that the archive has, or changes its type: declare the column as it was."""


@final
class ManifestBroken(ArchiveError):
    """The ranges of the manifest overlap or have a gap: run `gantry pipeline verify`, and restore missing records."""


@final
class RangesDoNotMeet(ArchiveError):
    """A batch does not begin where the archive ends, so checkpoint and archive do not belong together: delete the
    checkpoint; the next run then continues at the end of the archive."""


@final
class UnknownFile(ArchiveError):
    """A data file that readers see is not in the manifest: move it out of the archive."""


@final
class ArchiveBusy(ArchiveError):
    """Another writer holds this archive's lock: stop it, or wait until it has finished."""


@final
class CannotLock(ArchiveError):
    """The file system of this archive refuses the writer's lock: use a file system with locks (`flock`), such as NFS
    with a running lock service."""


@final
class FencedOut(ArchiveError):
    """This run has lost the lock of the archive, perhaps to another writer: it must end; files without a record are not
    archived."""


@final
class ReadIncomplete(ArchiveError):
    """A replica returned other rows than the requested range: audit it (`gantry pipeline audit`)."""


@final
class CannotCompact(ArchiveError):
    """This destination has no atomic exchange of folders, so its files are not compacted: use a folder on ext4, XFS,
    Btrfs or tmpfs."""


@final
class RestoreFailed(ArchiveError):
    """A restore cannot start or continue: correct what the message names, and run it again. The progress files have the
    positions."""


@final
class BadDestination(ArchiveError):
    """The destination's address is invalid: check the address and the query after the `?`."""


@final
class StorageFailed(ArchiveError):
    """The destination is unavailable, denies access or is full: check address, keys, permissions and space; then run
    the job again."""
