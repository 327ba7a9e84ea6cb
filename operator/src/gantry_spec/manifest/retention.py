"""The part of a group's spec about how long messages are kept: in the log of the brokers, and in an archive."""

from __future__ import annotations

from typing import Annotated, Any, Final, final

import msgspec

from gantry_spec.manifest.parts import Name, Part
from gantry_spec.manifest.quantities import Duration, Size

CACHE_BYTES_MIN: Final = 1 << 20
"""The least cache of an archive server."""


@final
class ArchiveServer(Part, frozen=True):
    """The server that returns archived messages to the brokers of the group. It has no effect without `archive`."""

    replicas: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1
    """The number of pods. While none is ready, pulls of messages that only the archive has are answered "busy"."""

    cache: Size = Size(128 << 20)
    """The memory of each pod for messages that were read lately."""

    resources: dict[str, Any] = msgspec.field(default_factory=dict)
    """The resources of the container, as in a pod. Memory and CPU that are not set are computed from `cache`."""


@final
class Retention(Part, frozen=True):
    """How long messages are kept in the log of the brokers, and where consumers read older ones."""

    local: Duration | None = None
    """How long messages are kept in the log of the brokers. If it is not set, `storage.reservedTime` applies; only one
    of the two may be set."""

    archive: Name | None = None
    """The name of a TopicArchive in the same namespace that archives this group. Consumers then read messages from it
    that the log does not have any more, and a message that is to be archived is deleted from the log only when it has
    been, also if the disk is full."""

    server: ArchiveServer = ArchiveServer()
    """The server of the archive, which the operator runs for the group."""
