"""Offsets: of consumers, of queues, in time."""

from typing import final

from gantry_broker.server.core.broker_core import BrokerCore, HandlerTable
from gantry_broker.server.send.handlers import Refused
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire.commands.documents import write_document
from gantry_wire.commands.offsets import (
    OffsetResult,
    QueryConsumerOffset,
    QueueAddress,
    SearchOffset,
    TimestampResult,
    UpdateConsumerOffset,
)


@final
class OffsetHandlers:
    """Codes 14, 15, 29 to 32, and 43. Owned by the event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    def table(self) -> HandlerTable:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.maximum,
            RequestCode.GET_MIN_OFFSET: self.minimum,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all,
        }

    def query(self, command: Command, connection: Connection) -> Command:
        """Not found answers 22, so that the client goes by its own rule; a queue read from its start answers 0."""
        query = QueryConsumerOffset.read(command.ext)
        offset = self._core.offsets.find(query.consumer_group, query.topic, query.queue_id)
        if offset is None:
            queue = self._core.store.find_queue(query.topic, query.queue_id)
            starts_at_zero = queue is None or queue.min_offset <= 0
            if query.set_zero_if_not_found is False or not starts_at_zero:
                return command.reply(
                    ResponseCode.QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first"
                )
            offset = 0
        return command.reply(ext=OffsetResult(offset=offset).write())

    def update(self, command: Command, connection: Connection) -> Command:
        """As in RocketMQ, no group is made by it: a pull or a heartbeat comes first."""
        update = UpdateConsumerOffset.read(command.ext)
        core = self._core
        if update.consumer_group not in core.groups.all:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {update.consumer_group[:300]} not exist!")
        if update.topic not in core.topics:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {update.topic[:300]} not exist!")
        if update.queue_id < 0:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"QueueId is {update.queue_id}, not valid")
        if update.commit_offset < 0:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"Offset is {update.commit_offset}, not valid")
        if core.offsets.is_resetting(update.consumer_group, update.topic, update.queue_id):
            return command.reply(remark="Offset has been previously reset")
        core.offsets.commit(update.consumer_group, update.topic, update.queue_id, update.commit_offset)
        return command.reply()

    def search(self, command: Command, connection: Connection) -> Command:
        search = SearchOffset.read(command.ext)
        is_upper = (search.boundary_type or "").upper() == "UPPER"
        offset = self._core.store.offset_by_time(search.topic, search.queue_id, search.timestamp, is_upper)
        return command.reply(ext=OffsetResult(offset=offset).write())

    def maximum(self, command: Command, connection: Connection) -> Command:
        address = QueueAddress.read(command.ext)
        queue = self._core.store.find_queue(address.topic, address.queue_id)
        return command.reply(ext=OffsetResult(offset=0 if queue is None else queue.readable_end).write())

    def minimum(self, command: Command, connection: Connection) -> Command:
        address = QueueAddress.read(command.ext)
        queue = self._core.store.find_queue(address.topic, address.queue_id)
        return command.reply(ext=OffsetResult(offset=0 if queue is None else queue.min_offset).write())

    def earliest(self, command: Command, connection: Connection) -> Command:
        address = QueueAddress.read(command.ext)
        timestamp = self._core.store.earliest_time(address.topic, address.queue_id)
        return command.reply(ext=TimestampResult(timestamp=timestamp).write())

    def all(self, command: Command, connection: Connection) -> Command:
        document = self._core.offsets.document()
        document.pending_resets = None
        return command.reply(body=write_document(document))


def group_fault_refusal(group: str) -> Refused | None:
    """A refusal when `group` is no valid name."""
    fault = names.group_fault(group)
    if fault is None:
        return None
    return Refused(ResponseCode.INVALID_PARAMETER, f"the group[{group[:300]}] is illegal: {fault.value}")
