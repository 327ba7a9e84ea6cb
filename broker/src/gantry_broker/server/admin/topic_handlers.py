"""Administration of topics."""

from collections.abc import Awaitable, Mapping
from typing import Any, final

import msgspec

from gantry_broker.server.core.broker_core import BrokerCore, HandlerTable
from gantry_broker.server.core.topic_attributes import (
    UnsupportedAttributes,
    WrongAttributes,
    changed_attributes,
    parse_changes,
)
from gantry_broker.server.core.topics import QUEUES_MAX, queue_key
from gantry_broker.server.send.handlers import Refused
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, names
from gantry_wire.commands.admin import CreateTopic, TopicConfig, TopicConfigList, TopicListing, TopicName
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.fastjson import ObjectKey, dumps


@final
class TopicHandlers:
    """Codes 17, 18, 21, 202, 215, 300, 305 and 351. Owned by the event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    def table(self) -> HandlerTable:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.create,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.create_list,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all,
            RequestCode.GET_TOPIC_STATS_INFO: self.stats,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system,
            RequestCode.GET_TOPIC_CONFIG: self.config,
        }

    # Changes are made before anything else is handled, for sends that follow go by them; only the answers wait.

    def create(self, command: Command, connection: Connection) -> Awaitable[Command]:
        """Answered when the topic is on disk."""
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
        self._check(config)
        try:
            changes = parse_changes(request.attributes)
        except WrongAttributes as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        self._core.topics.put(self._with_changes(config, changes))
        return self._when_settled(command)

    def create_list(self, command: Command, connection: Connection) -> Awaitable[Command]:
        """All of them or none; their attributes are changes, with signs before their names, as in RocketMQ."""
        configs = read_document(command.body, TopicConfigList).topic_config_list
        for config in configs:
            self._check(config)
        for config in [self._with_changes(config, config.attributes) for config in configs]:
            self._core.topics.put(config)
        return self._when_settled(command)

    def delete(self, command: Command, connection: Connection) -> Awaitable[Command]:
        """Forget a topic: its configuration, its offsets, its queues. Its messages go when their files do."""
        topic = TopicName.read(command.ext).topic
        self._check_name(topic)
        core = self._core
        core.topics.delete(topic)
        core.routes.forget(topic)
        core.offsets.forget_topic(topic)
        core.store.delete_topic(topic)
        core.statistics.forget_topic(topic)
        return self._when_settled(command)

    def all(self, command: Command, connection: Connection) -> Command:
        table = self._core.topics.document()
        document = msgspec.to_builtins(table, str_keys=True)
        document.update(
            mappingDataVersion=document["dataVersion"], topicQueueMappingDetailMap={}, topicQueueMappingInfoMap={}
        )
        return command.reply(ext={"totalTopicNum": str(len(table.topic_config_table))}, body=dumps(document))

    def config(self, command: Command, connection: Connection) -> Command:
        return command.reply(body=write_document(self._find(TopicName.read(command.ext).topic)))

    def stats(self, command: Command, connection: Connection) -> Command:
        topic = TopicName.read(command.ext).topic
        config = self._find(topic)
        table: dict[ObjectKey, Any] = {}
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            queue = self._core.store.find_queue(topic, queue_id)
            minimum, maximum = (0, 0) if queue is None else (queue.min_offset, queue.readable_end)
            newest = self._core.store.store_time(topic, queue_id, maximum - 1) if maximum > minimum else 0
            table[queue_key(topic, self._core.settings.broker_name, queue_id)] = {
                "lastUpdateTimestamp": newest,
                "maxOffset": maximum,
                "minOffset": minimum,
            }
        put_tps = self._core.statistics.rate("TOPIC_PUT_NUMS", topic)
        return command.reply(body=dumps({"offsetTable": table, "topicPutTps": put_tps}))

    def groups(self, command: Command, connection: Connection) -> Command:
        topic = TopicName.read(command.ext).topic
        groups = set(self._core.clients.groups_subscribed_to(topic)) | set(self._core.offsets.groups_of(topic))
        return command.reply(body=dumps({"groupList": sorted(groups)}))

    def system(self, command: Command, connection: Connection) -> Command:
        return command.reply(body=write_document(TopicListing(topic_list=self._core.topics.system_names)))

    async def _when_settled(self, command: Command) -> Command:
        """The change is on disk and in the routes: whoever asked for it may rely on both."""
        await self._core.persistence.settled("topics")
        await self._core.published()
        return command.reply()

    # ------- checks

    def _find(self, topic: str) -> TopicConfig:
        config = self._core.topics.find(topic)
        if config is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic[:300]}] not exist")
        return config

    def _check_name(self, topic: str) -> None:
        fault = names.topic_fault(topic)
        if fault is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the topic[{topic[:300]}] is illegal: {fault.value}")
        if self._core.topics.is_system(topic):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")

    def _check(self, config: TopicConfig) -> None:
        self._check_name(config.topic_name)
        for what, count in (("read", config.read_queue_nums), ("write", config.write_queue_nums)):
            if not 0 <= count <= QUEUES_MAX:
                raise Refused(ResponseCode.INVALID_PARAMETER, f"{count} {what} queues: 0 to {QUEUES_MAX} are allowed")
        if not 0 <= config.perm <= 15:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"perm {config.perm} is illegal")
        if config.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"topicFilterType {config.topic_filter_type[:64]} is illegal")

    def _with_changes(self, config: TopicConfig, changes: Mapping[str, str]) -> TopicConfig:
        """`config` with the attributes that the topic has after these changes. Raises Refused."""
        known = self._core.topics.find(config.topic_name)
        try:
            attributes = changed_attributes(None if known is None else known.attributes, changes)
        except UnsupportedAttributes as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        except WrongAttributes as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return msgspec.structs.replace(config, attributes=attributes)
