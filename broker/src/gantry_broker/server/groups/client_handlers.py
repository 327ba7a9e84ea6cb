"""Requests of clients: heartbeats and their end, the members of a group, and locks of queues.

Functions over `BrokerCore`; all run in the event loop.
"""

import msgspec

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.pull.handlers import no_property_filter
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire.commands.clients import (
    CheckClientConfig,
    ConsumerData,
    ConsumerGroup,
    HeartbeatData,
    LockBatch,
    LockBatchResult,
    UnregisterClient,
)
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.commands.transactions import ENDS_ONCE
from gantry_wire.fastjson import dumps
from gantry_wire.filters import is_tag_type, parse_filter


@handles(RequestCode.HEART_BEAT)
def take_heartbeat(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """Groups that do not exist, and cannot be made, are passed over as RocketMQ does; their pulls get the reason."""
    beat = read_document(command.body, HeartbeatData)
    admitted = [data for data in beat.consumer_data_set if _admit(core, data)]
    beat = msgspec.structs.replace(beat, consumer_data_set=admitted)
    changed = core.clients.heartbeat(beat, command, connection)
    ext = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if changed else "false"}
    if beat.heartbeat_fingerprint == 0:
        ext["IS_SUB_CHANGE"] = "true"
    ext[ENDS_ONCE] = "true" if core.settings.store.is_index_enabled else "false"
    return command.reply(ext=ext)


def _admit(core: BrokerCore, data: ConsumerData) -> bool:
    """Whether the group may be; makes its retry topic when it may, ordered as what the group subscribes to."""
    group = core.groups.find(data.group_name)
    if group is None:
        return False
    retry_topic = names.retry_topic(data.group_name)
    if names.topic_fault(retry_topic) is None:
        topics = core.topics
        config = topics.ensure(retry_topic, max(1, group.retry_queue_nums))
        subscriptions = data.subscription_data_set  # none in a heartbeat that says only that nothing is new
        is_ordered = any(topics.is_ordered(one.topic) for one in subscriptions)
        if subscriptions and config.order != is_ordered and core.gate.sends is None:
            topics.put(msgspec.structs.replace(config, order=is_ordered))
    return True


@handles(RequestCode.UNREGISTER_CLIENT)
def unregister_client(core: BrokerCore, command: Command, connection: Connection) -> Command:
    request = UnregisterClient.read(command.ext)
    core.clients.unregister(connection, request.producer_group, request.consumer_group)
    return command.reply()


@handles(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
def list_members(core: BrokerCore, command: Command, connection: Connection) -> Command:
    group = ConsumerGroup.read(command.ext).consumer_group
    state = core.clients.consumers.get(group)
    if state is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group[:300]}")
    return command.reply(body=dumps({"consumerIdList": state.client_ids}))


@handles(RequestCode.LOCK_BATCH_MQ)
def lock_queues(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """An error leaves a holder what it has, an empty answer does not: refused as a whole where nothing is known."""
    request = read_document(command.body, LockBatch)
    rest_ms = core.locks.rest_ms
    if rest_ms:
        raise Refused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"no queue is locked for {rest_ms} ms more: this broker has just become the master, "
            "and does not know who holds which",
        )
    if not core.is_sure_master():
        raise Refused(
            ResponseCode.SERVICE_NOT_AVAILABLE, "no queue is locked: this broker may not be the master any more"
        )
    held = core.locks.lock(request.consumer_group, request.client_id, request.mq_set)
    return command.reply(body=write_document(LockBatchResult(lock_ok_mq_set=held)))


@handles(RequestCode.UNLOCK_BATCH_MQ)
def unlock_queues(core: BrokerCore, command: Command, connection: Connection) -> Command:
    request = read_document(command.body, LockBatch)
    core.locks.unlock(request.consumer_group, request.client_id, request.mq_set)
    return command.reply()


@handles(RequestCode.CHECK_CLIENT_CONFIG)
def check_client(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """A client asks whether its subscription can work here."""
    request = read_document(command.body, CheckClientConfig)
    data = request.subscription_data
    if data is None:
        return command.reply()
    if not is_tag_type(data.expression_type) and not core.settings.is_property_filter_enabled:
        core.stats.refusals.property_filter(request.group or "", data.topic or "", data.expression_type or "")
        raise Refused(ResponseCode.SYSTEM_ERROR, no_property_filter(data.expression_type))
    try:
        parse_filter(data.expression_type, data.sub_string)
    except ValueError as error:
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
    return command.reply()
