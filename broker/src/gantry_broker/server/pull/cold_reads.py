"""Limits reads of cold data by consumer group: RocketMQ's cold data flow control.

Cold data is probably not in the page cache: it is farther from the end of the log than the share of memory that also
decides about reads from slaves (`accessMessageInMemoryMaxRatio`). A group that reads more of it than its threshold in
five seconds is limited for the rest of them, and so are all groups that read cold data beyond the global threshold:

    push consumers     get code 2, after which their clients pause for seconds
    pull consumers     wait three seconds, and get one message

Reads of warm data are never limited. The thresholds that an administrator sets are kept in memory only, as in RocketMQ.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final, final

from gantry_broker.ports import Clock
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.live_settings import LiveSettings
from gantry_broker.server.core.refusals import Refused, check_group_name
from gantry_broker.store.message_store import MessageStore
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire.fastjson import dumps
from gantry_wire.message import PHYSICAL_OFFSET
from gantry_wire.properties_text import read_properties

WINDOW_MS: Final = 5_000
"""The time in which a group may read as many bytes of cold data as its threshold, as in RocketMQ."""

FORGET_MS: Final = 60_000
"""The time without cold reads after which a group is not listed any more."""

HOLD_S: Final = 3.0
"""How long a pull of a limited group waits before it gets one message."""

GROUPS_MAX: Final = 10_000
"""Limit of the groups with a threshold of their own, and of the groups that are counted."""


@dataclass(slots=True)
class GroupReads:
    """The cold reads of one group in the present window."""

    created_ms: int
    last_ms: int
    read_bytes: int = 0


@final
class ColdReads:
    """The cold reads of all groups. Owned by the event loop."""

    def __init__(self, live: LiveSettings, store: MessageStore, clock: Clock) -> None:
        self._live: Final = live
        self._store: Final = store
        self._clock: Final = clock
        self._memory_bytes: Final = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._groups: dict[str, GroupReads] = {}
        self._thresholds: dict[str, int] = {}
        self._total = 0
        self._window_began_ms = clock.boot_ms()

    def __repr__(self) -> str:
        return f"<ColdReads groups={len(self._groups)} total={self._total}>"

    @property
    def is_enabled(self) -> bool:
        return self._live.current.is_cold_read_limited

    def is_limited(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a pull has to wait, because it would read cold data and the group has read too much of it."""
        if not self.is_enabled or names.is_system_group(group):
            return False
        self._begin_window()
        reads = self._groups.get(group)
        if reads is None:
            return False
        settings = self._live.current
        threshold = self._thresholds.get(group, settings.group_cold_bytes_max)
        if reads.read_bytes < threshold and self._total < settings.cold_bytes_max:
            return False
        queue = self._store.queues.get(topic, queue_id)
        unit = None if queue is None else queue.unit(offset)
        return unit is not None and self._is_cold(unit[0])

    def count(self, group: str, body: bytes) -> None:
        """Count the records of an answer, if they are cold."""
        if not self.is_enabled or len(body) < PHYSICAL_OFFSET.size or names.is_system_group(group):
            return
        if not self._is_cold(PHYSICAL_OFFSET.unpack_from(body)[0]):
            return
        self._begin_window()
        now_ms = self._clock.wall_ms()
        self._total += len(body)
        if group not in self._groups and len(self._groups) >= GROUPS_MAX:
            return
        reads = self._groups.setdefault(group, GroupReads(now_ms, now_ms))
        reads.read_bytes += len(body)
        reads.last_ms = now_ms

    # ------- requests of administrators

    @handles(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    def describe(self, command: Command, connection: Connection) -> Command:
        """Answer with the counted groups and the thresholds."""
        return command.reply(body=dumps(self.document()))

    @handles(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG)
    def set_thresholds(self, command: Command, connection: Connection) -> Command:
        """Set thresholds of groups, in bytes; all of them or none."""
        try:
            entries = read_properties(command.body.decode(), is_duplicate_allowed=True)
            wanted = {group: int(text) for group, text in entries.items()}
        except ValueError as error:
            text = "expected lines such as group=bytes, with whole numbers"
            raise Refused(ResponseCode.INVALID_PARAMETER, text) from error
        for group in wanted:
            check_group_name(group)
        if len(self._thresholds.keys() | wanted.keys()) > GROUPS_MAX:
            text = f"more than {GROUPS_MAX} groups would have a threshold: remove those that are not needed"
            raise Refused(ResponseCode.SYSTEM_ERROR, text)
        self._thresholds.update(wanted)
        return command.reply()

    @handles(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG)
    def remove_threshold(self, command: Command, connection: Connection) -> Command:
        """Let the threshold of the settings apply to a group again."""
        self._thresholds.pop(command.body.decode("utf-8", "replace"), None)
        return command.reply()

    def document(self) -> dict[str, Any]:
        """Return the state as RocketMQ's tool reads it."""
        self._begin_window()
        settings = self._live.current
        return {
            "runtimeTable": {
                group: {
                    "coldAcc": reads.read_bytes,
                    "createTimeMills": reads.created_ms,
                    "lastColdReadTimeMills": reads.last_ms,
                }
                for group, reads in self._groups.items()
            },
            "configTable": dict(self._thresholds),
            "cgColdReadThreshold": settings.group_cold_bytes_max,
            "globalColdReadThreshold": settings.cold_bytes_max,
            "globalAcc": self._total,
        }

    def _is_cold(self, physical: int) -> bool:
        far_bytes = self._memory_bytes * self._live.current.ha.memory_percent_max // 100
        return self._store.log.wrote - physical > far_bytes

    def _begin_window(self) -> None:
        """Begin a new window if the present one has ended, and forget groups without cold reads."""
        now_ms = self._clock.boot_ms()
        if now_ms - self._window_began_ms < WINDOW_MS:
            return
        self._window_began_ms, self._total = now_ms, 0
        wall_ms = self._clock.wall_ms()
        self._groups = {group: reads for group, reads in self._groups.items() if wall_ms - reads.last_ms < FORGET_MS}
        for reads in self._groups.values():
            reads.read_bytes = 0
