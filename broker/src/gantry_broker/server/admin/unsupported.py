"""What RocketMQ does and this broker does not: the code and the text by which each request is told so.

One table. Whoever builds one of these takes its line out and writes a handler; until then nothing of it is kept half:
no topic is made for it, no property stands for a message that would never come. Code 3 is what every client
understands as "not here" and takes its fallback for: a 5.x consumer that asks a broker to divide queues (400) divides
them itself, a slave of RocketMQ's that asks for timers goes on without. Recalling is refused with 16, as RocketMQ does
where it is switched off.

A timer on a send is refused with the send (`send/handlers.py`); transactions are no part of this table.
"""

from collections.abc import Mapping
from typing import Final

from gantry_broker.server.core.handlers import Handler, HandlerTable
from gantry_broker.server.core.refusals import Refusals
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode

_NOT_HERE: Final = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
_POP: Final = "this broker does not serve pop consumption; consume by pulling: DefaultMQPushConsumer does so by default"
_CONTROLLER: Final = (
    "this is a broker and no controller, and it needs none: who is the master is decided by orders (gantry ha), by the "
    "supervisor of a local group, or by the operator"
)
_CONTAINER: Final = "this broker is a process of its own and no container of brokers: start and stop processes"
_ROCKSDB: Final = "this broker keeps tables and queues in files as RocketMQ's do by default, and has no RocksDB"
_COLD: Final = (
    "this broker does not limit who reads old messages by group; readers that are far behind can be sent to slaves: "
    "slaveReadEnable"
)
_TIMERS: Final = "this broker has no arbitrary timers; delay levels work"

UNSUPPORTED: Final[Mapping[RequestCode, tuple[ResponseCode, str]]] = {
    RequestCode.POP_MESSAGE: (_NOT_HERE, _POP),
    RequestCode.ACK_MESSAGE: (_NOT_HERE, _POP),
    RequestCode.BATCH_ACK_MESSAGE: (_NOT_HERE, _POP),
    RequestCode.PEEK_MESSAGE: (_NOT_HERE, _POP),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: (_NOT_HERE, _POP),
    RequestCode.NOTIFICATION: (_NOT_HERE, _POP),
    RequestCode.POLLING_INFO: (_NOT_HERE, _POP),
    RequestCode.QUERY_ASSIGNMENT: (
        _NOT_HERE,
        "this broker does not divide queues among consumers; they divide them among themselves: clientRebalance=true",
    ),
    RequestCode.SET_MESSAGE_REQUEST_MODE: (
        _NOT_HERE,
        "every group of this broker consumes by pulling; there is no other mode to set",
    ),
    RequestCode.RECALL_MESSAGE: (
        ResponseCode.NO_PERMISSION,
        "recall failed, operation is forbidden: this broker delivers every delayed message that it has acknowledged",
    ),
    RequestCode.GET_TIMER_CHECK_POINT: (_NOT_HERE, _TIMERS),
    RequestCode.GET_TIMER_METRICS: (_NOT_HERE, _TIMERS),
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: (
        _NOT_HERE,
        "this broker has no static topics: a topic's queues are each broker's own",
    ),
    RequestCode.ADD_BROKER: (_NOT_HERE, _CONTAINER),
    RequestCode.REMOVE_BROKER: (_NOT_HERE, _CONTAINER),
    **dict.fromkeys(
        (
            RequestCode.CONTROLLER_ELECT_MASTER,
            RequestCode.CONTROLLER_GET_METADATA_INFO,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
            RequestCode.UPDATE_CONTROLLER_CONFIG,
            RequestCode.GET_CONTROLLER_CONFIG,
            RequestCode.CLEAN_BROKER_DATA,
        ),
        (_NOT_HERE, _CONTROLLER),
    ),
    RequestCode.GET_BROKER_EPOCH_CACHE: (ResponseCode.SYSTEM_ERROR, f"this request is for controllers: {_CONTROLLER}"),
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: (_NOT_HERE, _ROCKSDB),
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: (_NOT_HERE, _ROCKSDB),
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: (_NOT_HERE, _COLD),
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: (_NOT_HERE, _COLD),
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: (_NOT_HERE, _COLD),
}


def unsupported_table(refusals: Refusals) -> HandlerTable:
    """A handler for each that refuses."""
    return {code: _refuser(refusals, *said) for code, said in UNSUPPORTED.items()}


def _refuser(refusals: Refusals, code: ResponseCode, text: str) -> Handler:
    def refuse(command: Command, connection: Connection) -> Command:
        if code is _NOT_HERE:
            return refusals.not_supported(command, connection, text)
        return command.reply(code, text)

    return refuse
