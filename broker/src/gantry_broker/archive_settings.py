"""Settings of reads from an archive. The docstring of each field begins with its key in a `broker.conf`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """Settings of reads from an archive, for messages that the log does not have any more."""

    socket_path: str = ""
    """archiveSocketPath: the Unix socket of the archive server (`gantry pipeline serve`); empty: no archive.

    With an archive, pulls of messages that are not in the log any more are answered from it, and a message that is to
    be archived is deleted only when it has been, also if the disk is full. While the server does not answer, such pulls
    are answered "busy", and nothing is deleted. Set it on all members of a shard.
    """

    reads_max: int = 16
    """archiveReadsMax: the number of pulls that are read from the archive at the same time; further ones wait."""

    waiting_max: int = 1_000
    """archiveWaitingReadsMax: the number of pulls that wait for that; further ones are answered "busy"."""

    bytes_per_second: int = 64 << 20
    """archiveBytesPerSecond: how many bytes are read from the archive per second, by all consumers; 0: no limit."""

    timeout_ms: int = 5_000
    """archiveReadTimeout: milliseconds after which a read from the archive is given up, and answered "busy"."""

    is_slave_preferred: bool = False
    """archiveReadsOnSlave: whether a master sends readers of the archive to a connected slave.

    Without a connected slave the master reads the archive itself.
    """
