"""A fake broker's handlers for administrators."""

from typing import Any

from gantry_client.documents import ClientConnection, ConsumerConnections, GroupListing, GroupTable
from gantry_remoting.server import Connection
from gantry_testing.client.state import BrokerState, Handler, missing_topic
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.admin import (
    CreateTopic,
    GroupName,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
    TopicName,
)
from gantry_wire.commands.clients import ConsumerGroup
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.commands.nameserver import KeyValueTable
from gantry_wire.commands.pull import QueryMessage, QueryMessageResult, ViewMessage
from gantry_wire.fastjson import ObjectKey, dumps
from gantry_wire.message import encode_record
from gantry_wire.properties import KEYS, UNIQUE_KEY


def create_topic(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request UPDATE_AND_CREATE_TOPIC (code 17)."""
    header = CreateTopic.read(command.ext)
    state.topics[header.topic] = TopicConfig(
        topic_name=header.topic,
        read_queue_nums=header.read_queue_nums,
        write_queue_nums=header.write_queue_nums,
        perm=header.perm,
        order=header.order,
        attributes=_change_attributes(state.topics.get(header.topic), header.attributes or ""),
    )
    return command.reply()


def _change_attributes(known: TopicConfig | None, changes: str) -> dict[str, str]:
    """Return the attributes of a topic after `changes`; those that are not named stay, as on real brokers."""
    attributes = dict(known.attributes) if known is not None else {}
    for name, _, value in (part.partition("=") for part in changes.split(",") if part):
        if name.startswith("+"):
            attributes[name[1:]] = value
        else:
            attributes.pop(name[1:], None)
    return attributes


def topic_config(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request GET_TOPIC_CONFIG (code 351)."""
    topic = TopicName.read(command.ext).topic
    config = state.topics.get(topic)
    return missing_topic(command, topic) if config is None else command.reply(body=write_document(config))


def topic_table(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request GET_ALL_TOPIC_CONFIG (code 21)."""
    return command.reply(body=write_document(TopicConfigTable(topic_config_table=state.topics)))


def delete_topic(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request DELETE_TOPIC_IN_BROKER (code 215)."""
    topic = TopicName.read(command.ext).topic
    state.topics.pop(topic, None)
    state.log.delete(topic)
    return command.reply()


def topic_stats(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request GET_TOPIC_STATS_INFO (code 202)."""
    topic = TopicName.read(command.ext).topic
    config = state.topics.get(topic)
    if config is None:
        return missing_topic(command, topic)
    table: dict[ObjectKey, dict[str, int]] = {}
    for queue_id in range(config.read_queue_nums):
        queue = state.log.queue(topic, queue_id)
        last = queue.messages[-1].store_timestamp_ms if queue.messages else 0
        table[_queue_key(state, topic, queue_id)] = {
            "minOffset": queue.min_offset,
            "maxOffset": queue.max_offset,
            "lastUpdateTimestamp": last,
        }
    return command.reply(body=dumps({"offsetTable": table, "topicPutTps": 0.0}))


def consume_stats(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request GET_CONSUME_STATS (code 208)."""
    header = ConsumerGroup.read(command.ext)
    table: dict[ObjectKey, dict[str, int]] = {}
    for (group, topic, queue_id), offset in sorted(state.offsets.items()):
        if group == header.consumer_group and header.topic in (None, topic):
            broker_offset = state.log.queue(topic, queue_id).max_offset
            progress = {"brokerOffset": broker_offset, "consumerOffset": offset, "pullOffset": offset}
            table[_queue_key(state, topic, queue_id)] = progress | {"lastTimestamp": 0}
    return command.reply(body=dumps({"consumeTps": 0.0, "offsetTable": table}))


def topic_groups(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request QUERY_TOPIC_CONSUME_BY_WHO (code 300)."""
    topic = TopicName.read(command.ext).topic
    groups = sorted({group for group, name, _ in state.offsets if name == topic})
    return command.reply(body=write_document(GroupListing(group_list=groups)))


def groups(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request GET_ALL_SUBSCRIPTIONGROUP_CONFIG (code 201)."""
    return command.reply(body=write_document(GroupTable(subscription_group_table=state.groups)))


def create_group(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (code 200)."""
    config = read_document(command.body, SubscriptionGroupConfig)
    state.groups[config.group_name] = config
    return command.reply()


def delete_group(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request DELETE_SUBSCRIPTIONGROUP (code 207)."""
    header = GroupName.read(command.ext)
    state.groups.pop(header.group_name, None)
    if header.clean_offset:
        for key in [key for key in state.offsets if key[0] == header.group_name]:
            del state.offsets[key]
    return command.reply()


def members(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request GET_CONSUMER_CONNECTION_LIST (code 203)."""
    group = ConsumerGroup.read(command.ext).consumer_group
    consumers = state.consumers(group)
    if not consumers:
        return command.reply(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
    first = consumers[0][2]
    document = ConsumerConnections(
        connection_set=[
            ClientConnection(client_id=client_id, client_addr=f"{peer.peer[0]}:{peer.peer[1]}", language="PYTHON")
            for peer, client_id, _ in consumers
        ],
        subscription_table={subscription.topic: subscription for subscription in first.subscription_data_set},
        consume_type=first.consume_type,
        message_model=first.message_model,
        consume_from_where=first.consume_from_where,
    )
    return command.reply(body=write_document(document))


def runtime(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request GET_BROKER_RUNTIME_INFO (code 28)."""
    table = {"brokerVersionDesc": "fake", "putTps": "0 0 0"}
    return command.reply(body=write_document(KeyValueTable(table=table)))


def view(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request VIEW_MESSAGE_BY_ID (code 33)."""
    message = state.log.at(ViewMessage.read(command.ext).offset)
    if message is None:
        return command.reply(ResponseCode.SYSTEM_ERROR, "can not find message by the offset")
    return command.reply(body=encode_record(message))


def query(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request QUERY_MESSAGE (code 12).

    Like a real broker it may return too much: here, keys with the same first letter.
    """
    header = QueryMessage.read(command.ext)
    found = [
        encode_record(message)
        for message in state.log.all_messages(header.topic)
        if any(key[:1] == header.key[:1] for key in _keys(message.properties))
    ]
    if not found:
        return command.reply(ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct")
    result = QueryMessageResult(index_last_update_timestamp=0, index_last_update_phyoffset=0)
    return command.reply(ext=result.write(), body=b"".join(found))


def _keys(properties: dict[str, str]) -> list[str]:
    return [*properties.get(KEYS, "").split(), properties.get(UNIQUE_KEY, "")]


def _queue_key(state: BrokerState, topic: str, queue_id: int) -> ObjectKey:
    fields: dict[str, Any] = {"brokerName": state.name, "queueId": queue_id, "topic": topic}
    return ObjectKey(fields)


HANDLERS: dict[int, Handler] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: create_topic,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic,
    RequestCode.GET_TOPIC_CONFIG: topic_config,
    RequestCode.GET_ALL_TOPIC_CONFIG: topic_table,
    RequestCode.GET_TOPIC_STATS_INFO: topic_stats,
    RequestCode.GET_CONSUME_STATS: consume_stats,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: topic_groups,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: create_group,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_group,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: members,
    RequestCode.GET_BROKER_RUNTIME_INFO: runtime,
    RequestCode.VIEW_MESSAGE_BY_ID: view,
    RequestCode.QUERY_MESSAGE: query,
}
