"""Refuses the requests that RocketMQ supports and this broker does not, each with a code and a text.

To support a request, remove its line from the table and write a handler. Until then no part of it is implemented: no
topic is created for it, and no property promises a message that would never come. Every client understands code 3 as
"not supported".
"""

from collections.abc import Mapping
from typing import Final

from gantry_broker.server.core.handlers import Handler, HandlerTable
from gantry_broker.server.core.refusals import Refusals
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode

_NOT_SUPPORTED: Final = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
_CONTROLLER: Final = (
    "this is a broker, not a controller, and needs none: the master is set by orders (gantry ha), by the supervisor of "
    "a local group, or by the operator"
)
_CONTAINER: Final = "this broker is a process of its own, not a container of brokers: start and stop processes instead"
_ROCKSDB: Final = "this broker keeps tables and queues in files, as RocketMQ does by default, and has no RocksDB"
_LITE: Final = "this broker has no lite topics; use an ordinary topic with keys or tags"

LITE_CODES: Final = (
    RequestCode.POP_LITE_MESSAGE,
    RequestCode.LITE_SUBSCRIPTION_CTL,
    RequestCode.ACK_LITE_MESSAGE,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
    RequestCode.GET_BROKER_LITE_INFO,
    RequestCode.GET_PARENT_TOPIC_INFO,
    RequestCode.GET_LITE_TOPIC_INFO,
    RequestCode.GET_LITE_CLIENT_INFO,
    RequestCode.GET_LITE_GROUP_INFO,
    RequestCode.TRIGGER_LITE_DISPATCH,
)
"""The requests about lite topics, which RocketMQ has since 5.5."""

UNSUPPORTED: Final[Mapping[RequestCode, tuple[ResponseCode, str]]] = {
    **dict.fromkeys(LITE_CODES, (_NOT_SUPPORTED, _LITE)),
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: (
        _NOT_SUPPORTED,
        "this broker has no static topics: a topic's queues are each broker's own",
    ),
    RequestCode.ADD_BROKER: (_NOT_SUPPORTED, _CONTAINER),
    RequestCode.REMOVE_BROKER: (_NOT_SUPPORTED, _CONTAINER),
    **dict.fromkeys(
        (
            RequestCode.CONTROLLER_ELECT_MASTER,
            RequestCode.CONTROLLER_GET_METADATA_INFO,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
            RequestCode.UPDATE_CONTROLLER_CONFIG,
            RequestCode.GET_CONTROLLER_CONFIG,
            RequestCode.CLEAN_BROKER_DATA,
        ),
        (_NOT_SUPPORTED, _CONTROLLER),
    ),
    RequestCode.GET_BROKER_EPOCH_CACHE: (ResponseCode.SYSTEM_ERROR, f"this request is for controllers: {_CONTROLLER}"),
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: (_NOT_SUPPORTED, _ROCKSDB),
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: (_NOT_SUPPORTED, _ROCKSDB),
}


def unsupported_table(refusals: Refusals) -> HandlerTable:
    """Return a table with a refusing handler for each unsupported request."""
    return {code: _refuser(refusals, *answer) for code, answer in UNSUPPORTED.items()}


def _refuser(refusals: Refusals, code: ResponseCode, text: str) -> Handler:
    def refuse(command: Command, connection: Connection) -> Command:
        if code is _NOT_SUPPORTED:
            return refusals.reply_not_supported(command, connection, text)
        return command.reply(code, text)

    return refuse
