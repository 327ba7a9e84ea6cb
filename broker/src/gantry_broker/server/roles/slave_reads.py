"""Where a consumer should ask next: the master, or a slave, since what it reads is not in the master's memory any more.

As in RocketMQ a reader is far behind when more of the log lies before it than a share of the machine's memory: reading
that would come from the disk, and push out what everybody else needs. Slaves serve whoever asks them, also when the
master is gone; while they hear of it, readers that have caught up are sent back.
"""

import os
import struct
from typing import Final, final

from gantry_broker.server.core.live_settings import LiveSettings
from gantry_broker.server.roles.replication import Replication
from gantry_broker.server.roles.roles import Roles
from gantry_broker.store.message_store import MessageStore
from gantry_status.orders import HaRole

MASTER_ID: Final = 0
_PHYSICAL: Final = struct.Struct(">28xq")
"""A record's own offset in the log."""


def memory_bytes() -> int:
    """Of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@final
class SlaveReads:
    """Owned by the loop."""

    def __init__(self, live: LiveSettings, store: MessageStore, replication: Replication, roles: Roles) -> None:
        self._live: Final = live
        self._store: Final = store
        self._replication: Final = replication
        self._roles: Final = roles
        self._memory_bytes: Final = memory_bytes()

    def suggest(self, body: bytes, when_slow: int) -> int:
        """The number of the broker to ask next, by what was found now; ``when_slow`` is what the group is set to."""
        settings = self._live.now
        far_bytes = self._memory_bytes * settings.ha.memory_percent_max // 100
        is_far = settings.ha.is_slave_read_suggested and self._is_far(body, far_bytes)
        if self._roles.role is HaRole.SLAVE:
            follower = self._replication.follower
            is_master_here = follower is not None and follower.is_streaming
            return MASTER_ID if is_master_here and not is_far else settings.broker_id
        if not is_far:
            return MASTER_ID
        offset = _PHYSICAL.unpack_from(body)[0]
        able = sorted(slave.broker_id for slave in self._replication.acks if slave.received > offset + far_bytes // 2)
        if when_slow in able:
            return when_slow
        return able[0] if able else MASTER_ID

    def _is_far(self, body: bytes, far_bytes: int) -> bool:
        return len(body) >= _PHYSICAL.size and self._store.wrote - _PHYSICAL.unpack_from(body)[0] > far_bytes
