"""Client requests about replication (codes 906, 907 and 908), and which broker a consumer reads from next."""

import asyncio
import os
from collections.abc import Callable
from typing import Any, Final, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.live_settings import LiveSettings
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.roles.replication import Replication
from gantry_broker.server.roles.roles import Roles
from gantry_broker.store.message_store import MessageStore
from gantry_remoting import Connection, join_address
from gantry_status.orders import HaRole
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.admin import HaExchange
from gantry_wire.commands.nameserver import MASTER_ID
from gantry_wire.fastjson import dumps
from gantry_wire.message import PHYSICAL_OFFSET

BY_ORDERS: Final = "which master this broker follows, and from where, is decided by orders: gantry ha"
"""The text of refusals to follow another master at a client's request."""


@final
class ReplicationHandlers:
    """Handles client requests about replication. Owned by the event loop."""

    def __init__(self, core: BrokerCore, roles: Roles, replication: Replication) -> None:
        self._core = core
        self._roles = roles
        self._replication = replication

    @handles(RequestCode.GET_BROKER_HA_STATUS)
    def get_ha_status(self, command: Command, connection: Connection) -> Command:
        """Return RocketMQ's HARuntimeInfo document: a master's slaves, or a slave's master."""
        is_master = self._roles.role is HaRole.MASTER
        slaves = self._slaves() if is_master else []
        document = {
            "haClientRuntimeInfo": self._describe_follower(is_slave=not is_master),
            "haConnectionInfo": slaves,
            "inSyncSlaveNums": sum(slave["inSync"] for slave in slaves),
            "master": is_master,
            "masterCommitLogMaxOffset": self._core.store.log.wrote if is_master else 0,
        }
        return command.reply(body=dumps(document))

    def _slaves(self) -> list[dict[str, Any]]:
        wrote = self._core.store.log.wrote
        gap_max = self._core.settings.ha.gap_bytes_max
        found: list[dict[str, Any]] = []
        for stream in self._replication.master.server.streams:
            session = stream.session
            if session is None or session.slave is None:
                continue
            received = max(0, session.slave.received)
            found.append(
                {
                    "addr": stream.peer,
                    "diff": wrote - received,
                    "inSync": session.slave.is_in_sync(wrote, gap_max),
                    "slaveAckOffset": received,
                    "transferFromWhere": max(0, session.sent),
                    "transferredByteInSecond": self._replication.speeds.of(stream),
                }
            )
        return sorted(found, key=lambda one: str(one["addr"]))

    def _describe_follower(self, *, is_slave: bool) -> dict[str, Any]:
        """Return the state of a slave. It acknowledges in the turn of each read, so both timestamps are equal."""
        follower = self._replication.slave.follower if is_slave else None
        store = self._core.store
        document: dict[str, Any] = {
            "activated": follower is not None and follower.is_streaming,
            "lastReadTimestamp": 0,
            "lastWriteTimestamp": 0,
            "masterFlushOffset": 0,
            "maxOffset": store.log.wrote if is_slave else 0,
            "transferredByteInSecond": self._replication.speeds.own if is_slave else 0,
        }
        if follower is not None:
            document["masterAddr"] = join_address(*follower.address)
            if follower.last_heartbeat_at is not None:
                age_ms = int((asyncio.get_running_loop().time() - follower.last_heartbeat_at) * 1000)
                read_ms = self._core.clock.wall_ms() - age_ms
                document["lastReadTimestamp"] = document["lastWriteTimestamp"] = read_ms
        return document

    @handles(RequestCode.EXCHANGE_BROKER_HA_INFO)
    def exchange_ha_info(self, command: Command, connection: Connection) -> Command:
        """Answer a RocketMQ slave's request for its master's addresses.

        A request to follow another master is refused.
        """
        if HaExchange.read(command.ext).master_ha_address is not None:
            raise Refused(ResponseCode.NO_PERMISSION, BY_ORDERS)
        if self._roles.role is not HaRole.MASTER:
            return command.reply()
        settings = self._core.settings
        answer = HaExchange(
            master_ha_address=settings.ha_address,
            master_flush_offset=self._core.store.log.flushed,
            master_address=settings.master_address,
        )
        return command.reply(ext=answer.write())

    @handles(RequestCode.RESET_MASTER_FLUSH_OFFSET)
    def reset_flush_offset(self, command: Command, connection: Connection) -> Command:
        """Answer success on a master, as RocketMQ does; refuse the request on a slave.

        A slave of this broker finds the offset to continue at in its master's history of epochs, not in a flush offset.
        """
        if self._roles.role is HaRole.MASTER:
            return command.reply()
        raise Refused(ResponseCode.NO_PERMISSION, BY_ORDERS)


def broker_suggester(
    live: LiveSettings, store: MessageStore, replication: Replication, roles: Roles
) -> Callable[[bytes, int], int]:
    """Return a function that suggests which broker a consumer reads from next.

    Its arguments are the messages of the current answer, and the broker id that the group is configured to use when it
    is slow. As in RocketMQ a reader is far behind when the log ahead of it exceeds a share of the machine's memory: its
    messages are probably read from the disk, and replace pages that other readers need. Slaves serve every consumer
    that connects to them, also when the master is gone; while they have a stream from it, readers that are not far
    behind are sent back.
    """
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def suggest(body: bytes, when_slow: int) -> int:
        settings = live.current
        far_bytes = memory_bytes * settings.ha.memory_percent_max // 100
        is_far = (
            settings.ha.is_slave_read_suggested
            and len(body) >= PHYSICAL_OFFSET.size
            and store.log.wrote - PHYSICAL_OFFSET.unpack_from(body)[0] > far_bytes
        )
        if roles.role is HaRole.SLAVE:
            follower = replication.slave.follower
            has_master = follower is not None and follower.is_streaming
            return MASTER_ID if has_master and not is_far else settings.broker_id
        if not is_far:
            return MASTER_ID
        offset = PHYSICAL_OFFSET.unpack_from(body)[0]
        candidates = sorted(
            slave.broker_id
            for slave in replication.acks
            # A slave of RocketMQ's reports no broker id, and is counted under a negative one.
            if slave.broker_id > MASTER_ID and slave.received > offset + far_bytes // 2
        )
        if when_slow in candidates:
            return when_slow
        return candidates[0] if candidates else MASTER_ID

    return suggest


def slave_finder(replication: Replication) -> Callable[[int], int]:
    """Return a function that finds a connected slave, the preferred one if it is connected; the master if none is."""

    def find(preferred: int) -> int:
        # A slave of RocketMQ's reports no broker id, and is counted under a negative one.
        candidates = sorted(slave.broker_id for slave in replication.acks if slave.broker_id > MASTER_ID)
        return preferred if preferred in candidates else candidates[0] if candidates else MASTER_ID

    return find
