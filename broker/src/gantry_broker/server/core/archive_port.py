"""What request handlers need of an archive that has messages which the log does not have any more."""

from __future__ import annotations

from typing import Protocol

from gantry_wire.commands.archive import ArchivedRange


class Archive(Protocol):
    """An archive of this broker's messages (`server.archive`)."""

    @property
    def is_known(self) -> bool:
        """Whether it is known which messages the archive has."""

    def find(self, topic: str, queue_id: int) -> ArchivedRange | None:
        """Return the archived range of a queue; None if it has none."""

    def describe(self) -> dict[str, object]:
        """Return the entries of the runtime table about the archive."""

    async def search(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool) -> int | None:
        """Return the archived offset for a time; None if there is none. Raises Refused if the archive is unavailable.

        It is that of the first message at or after the time, or with ``upper`` of the last one at or before it.
        """
