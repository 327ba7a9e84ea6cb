"""Handles requests for the administration of topics.

Functions over `BrokerCore`; all run in the event loop.
"""

import logging
from collections.abc import Awaitable, Iterator, Mapping, Set
from typing import Final

import msgspec

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.queue_table import QueueTable, iterate_queue_ids
from gantry_broker.server.core.refusals import Refused, check_topic_name
from gantry_broker.server.core.topic_attributes import (
    ADD,
    BATCH_QUEUES,
    QUEUE_TYPE,
    InvalidAttributes,
    UnsupportedAttributes,
    changed_attributes,
    parse_changes,
)
from gantry_broker.server.core.topics import QUEUES_MAX
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire.commands.admin import CreateTopic, TopicConfig, TopicConfigList, TopicListing, TopicName
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.fastjson import dumps

log = logging.getLogger(__name__)

OWNERS_SHOWN_MAX: Final = 8
"""How many topics and groups one log message names."""

# Handlers make their changes synchronously, since following sends depend on them; only the answers wait.


@handles(RequestCode.UPDATE_AND_CREATE_TOPIC)
def create_topic(core: BrokerCore, command: Command, connection: Connection) -> Awaitable[Command]:
    """Create or change a topic; answered when the change is on disk and published to the name servers."""
    request = CreateTopic.read(command.ext)
    config = TopicConfig(
        topic_name=request.topic,
        read_queue_nums=request.read_queue_nums,
        write_queue_nums=request.write_queue_nums,
        perm=request.perm,
        topic_filter_type=request.topic_filter_type,
        topic_sys_flag=request.topic_sys_flag or 0,
        order=request.order,
    )
    _check_config(core, config)
    try:
        changes = parse_changes(request.attributes)
    except InvalidAttributes as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
    core.topics.put(_with_changes(core, config, changes))
    return _reply_when_written(core, command)


@handles(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
def create_topics(core: BrokerCore, command: Command, connection: Connection) -> Awaitable[Command]:
    """Create or change all of these topics, or none. Attributes are changes with signed names, as in RocketMQ."""
    configs = read_document(command.body, TopicConfigList).topic_config_list
    for config in configs:
        _check_config(core, config)
    for config in [_with_changes(core, config, config.attributes) for config in configs]:
        core.topics.put(config)
    return _reply_when_written(core, command)


@handles(RequestCode.DELETE_TOPIC_IN_BROKER)
def delete_topic(core: BrokerCore, command: Command, connection: Connection) -> Awaitable[Command]:
    """Delete a topic with its configuration, offsets and queues. Its messages are deleted with their files.

    The retry topics of its groups are deleted first, so that a request that was interrupted can be repeated.
    """
    topic = TopicName.read(command.ext).topic
    _check_name(core, topic)
    for name in (*_pop_retry_topics(core, topic), topic):
        core.topics.delete(name)
        core.send_routes.forget(name)
        core.offsets.forget_topic(name)
        core.store.delete_topic(name)
        core.topic_statistics.forget_topic(name)
    core.persistence.mark("consumerOffset", now=False)
    return _reply_when_deleted(core, command)


def _pop_retry_topics(core: BrokerCore, topic: str) -> list[str]:
    """Return the topics with messages of a topic that groups have popped and not acked in time.

    The names of the first kind are ambiguous: a topic that may belong to another topic or group is left out, since its
    messages may be undelivered.
    """
    groups = core.groups.all.keys() | core.offsets.topics_by_group().keys()
    end_v1, end_v2 = (f"{sign}{topic}" for sign in (names.POP_RETRY_SEPARATOR_V1, names.POP_RETRY_SEPARATOR_V2))
    found: list[str] = []
    for name in core.topics.all:
        if not name.startswith(names.RETRY_PREFIX):
            continue
        if name.endswith(end_v2):
            found.append(name)
        elif name.endswith(end_v1) and name[len(names.RETRY_PREFIX) : -len(end_v1)] in groups:
            others = [other for other in _owners(core, name.removeprefix(names.RETRY_PREFIX), groups) if other != topic]
            if not others:
                found.append(name)
                continue
            facts = {"topic": name, "deleted": topic, "others": others[:OWNERS_SHOWN_MAX]}
            log.warning("retry topic may have messages of others; it is not deleted with its topic", extra=facts)
    return found


def _owners(core: BrokerCore, label: str, groups: Set[str]) -> Iterator[str]:
    """Yield the topics, and the group, to which ``%RETRY%<label>`` may belong."""
    if label in groups:
        yield label  # for messages that its consumers have sent back
    for position, character in enumerate(label):
        if character == names.POP_RETRY_SEPARATOR_V1 and label[:position] in groups:
            topic = label[position + 1 :]
            if topic in core.topics:
                yield topic


@handles(RequestCode.GET_ALL_TOPIC_CONFIG)
def list_topics(core: BrokerCore, command: Command, connection: Connection) -> Command:
    table = core.topics.document()
    document = msgspec.to_builtins(table, str_keys=True)
    document.update(
        mappingDataVersion=document["dataVersion"], topicQueueMappingDetailMap={}, topicQueueMappingInfoMap={}
    )
    return command.reply(ext={"totalTopicNum": str(len(table.topic_config_table))}, body=dumps(document))


@handles(RequestCode.GET_TOPIC_CONFIG)
def find_topic(core: BrokerCore, command: Command, connection: Connection) -> Command:
    return command.reply(body=write_document(_find_config(core, TopicName.read(command.ext).topic)))


@handles(RequestCode.GET_TOPIC_STATS_INFO)
async def get_topic_stats(core: BrokerCore, command: Command, connection: Connection) -> Command:
    topic = TopicName.read(command.ext).topic
    config = _find_config(core, topic)
    table = QueueTable(core.settings.broker_name)
    async for queue_ids in iterate_queue_ids(core, max(config.read_queue_nums, config.write_queue_nums)):
        table.add(topic, ((queue_id, _get_queue_stats(core, topic, queue_id)) for queue_id in queue_ids))
    put_tps = core.topic_statistics.rate("TOPIC_PUT_NUMS", topic)
    return command.reply(body=dumps({"offsetTable": table.render(), "topicPutTps": put_tps}))


def _get_queue_stats(core: BrokerCore, topic: str, queue_id: int) -> dict[str, int]:
    minimum, maximum = core.served_range(topic, queue_id)
    newest = core.store.times.store_time(topic, queue_id, maximum - 1) if maximum > minimum else 0
    return {"lastUpdateTimestamp": newest, "maxOffset": maximum, "minOffset": minimum}


@handles(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
def list_groups_of_topic(core: BrokerCore, command: Command, connection: Connection) -> Command:
    topic = TopicName.read(command.ext).topic
    groups = set(core.clients.groups_subscribed_to(topic)) | set(core.offsets.groups_of(topic))
    return command.reply(body=dumps({"groupList": sorted(groups)}))


@handles(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
def list_system_topics(core: BrokerCore, command: Command, connection: Connection) -> Command:
    return command.reply(body=write_document(TopicListing(topic_list=core.topics.system_names)))


async def _reply_when_written(core: BrokerCore, command: Command) -> Command:
    """Answer when the change is on disk, and in the routes of name servers, unless one does not answer in time."""
    await core.persistence.wait_until_written("topics")
    await core.wait_until_published()
    return command.reply()


async def _reply_when_deleted(core: BrokerCore, command: Command) -> Command:
    """Answer when the offsets and the popped messages of the topic are deleted on the disk, too."""
    reply = await _reply_when_written(core, command)
    await core.persistence.wait_until_written("consumerOffset")
    await core.offsets.wait_for_changes()
    return reply


# ------- checks


def _find_config(core: BrokerCore, topic: str) -> TopicConfig:
    config = core.topics.find(topic)
    if config is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic[:300]}] not exist")
    return config


def _check_name(core: BrokerCore, topic: str) -> None:
    check_topic_name(topic)
    if core.topics.is_system(topic):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")


def _check_config(core: BrokerCore, config: TopicConfig) -> None:
    _check_name(core, config.topic_name)
    for what, count in (("read", config.read_queue_nums), ("write", config.write_queue_nums)):
        if not 0 <= count <= QUEUES_MAX:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"{count} {what} queues: 0 to {QUEUES_MAX} are allowed")
    if not 0 <= config.perm <= 15:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"perm {config.perm} is illegal")
    if config.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"topicFilterType {config.topic_filter_type[:64]} is illegal")


def _with_changes(core: BrokerCore, config: TopicConfig, changes: Mapping[str, str]) -> TopicConfig:
    """Return `config` with the attributes of the topic after these changes. Raises Refused."""
    known = core.topics.find(config.topic_name)
    try:
        attributes = changed_attributes(None if known is None else known.attributes, changes)
    except UnsupportedAttributes as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from error
    except InvalidAttributes as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
    if changes.get(ADD + QUEUE_TYPE) == BATCH_QUEUES:
        log.info("topic gets plain consume queues in place of batch queues", extra={"topic": config.topic_name})
    return msgspec.structs.replace(config, attributes=attributes)


@handles(RequestCode.CLEAN_UNUSED_TOPIC)
def clean_unused_topics(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """Delete the queues of topics that do not exist.

    A topic is deleted with its queues, so only queues that other programs left in the store are found. A slave deletes
    none: it may receive a topic's messages a moment before its configuration, and it deletes what its master deletes.
    """
    if core.is_slave():
        return command.reply()
    topics = core.topics
    unused = [topic for topic in core.store.queues.topics() if topic not in topics and not topics.is_system(topic)]
    for topic in unused:
        core.send_routes.forget(topic)
        core.store.delete_topic(topic)
        core.topic_statistics.forget_topic(topic)
        log.info("deleted queues of missing topic", extra={"topic": topic})
    return command.reply()
