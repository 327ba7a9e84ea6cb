"""Settings of reads from an archive. The docstring of each field begins with its key in a `broker.conf`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """Settings of reads from an archive, for messages that the log does not have any more."""

    socket_path: str = ""
    """archiveSocketPath: the Unix socket of the archive server (`gantry pipeline serve`); empty: no such archive.

    With an archive, pulls of messages that are not in the log any more are answered from it, and a message that is to
    be archived is deleted only when it has been, also if the disk is full. While the server does not answer, such pulls
    are answered "busy", and nothing is deleted. Set it on all members of a shard.
    """

    address: str = ""
    """archiveAddress: `host:port` of an archive server on another machine, instead of archiveSocketPath."""

    secret_path: str = ""
    """archiveSecretPath: a file with the secret that the server at archiveAddress has, too; required with that key.

    The secret itself is never sent: both sides prove that they know it. A changed file is used for the next connection.
    """

    tls_authority: str = ""
    """archiveTlsTrustCertPath: PEM file of the CA of the server's certificate; empty: no TLS.

    The certificate must be for the host in archiveAddress. A changed file is used for the next connection.
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

    @property
    def place(self) -> str:
        """The socket or the address of the archive server; empty without an archive."""
        return self.socket_path or self.address

    def fault(self) -> str | None:
        """Return which settings contradict each other; None if none do."""
        if self.socket_path and self.address:
            return "archiveSocketPath and archiveAddress each name an archive server: set only one of them"
        if self.address and not self.secret_path:
            return (
                "archiveAddress needs archiveSecretPath: without a secret any process at that address could answer as"
                " the archive"
            )
        for key, value in (
            ("archiveSecretPath", self.secret_path),
            ("archiveTlsTrustCertPath", self.tls_authority),
        ):
            if value and not self.address:
                return f"{key} has no effect without archiveAddress: set both, or neither"
        return None
