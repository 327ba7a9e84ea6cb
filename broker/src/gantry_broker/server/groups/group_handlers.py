"""Administration of consumer groups, and who is connected."""

from typing import Any, final

import msgspec

from gantry_broker.server.core.broker_core import BrokerCore, HandlerTable
from gantry_broker.server.core.clients import Member
from gantry_broker.server.core.topic_attributes import OF_GROUPS, changed_attributes
from gantry_broker.server.core.topics import QUEUES_MAX
from gantry_broker.server.groups.offset_handlers import group_fault_refusal
from gantry_broker.server.send.handlers import Refused
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.admin import (
    GroupField,
    GroupName,
    ProducerGroup,
    SubscriptionGroupConfig,
    TopicListing,
)
from gantry_wire.commands.clients import ConsumerGroup, Document
from gantry_wire.commands.consumers import TopicOfGroup
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.fastjson import dumps


class GroupConfigList(Document):
    """The body of code 225."""

    group_config_list: list[SubscriptionGroupConfig] = msgspec.field(default_factory=list)


@final
class GroupHandlers:
    """Codes 200, 201, 203, 204, 207, 225, 343, 345 and 352. Owned by the event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    def table(self) -> HandlerTable:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.create,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.create_list,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.config,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
        }

    async def create(self, command: Command, connection: Connection) -> Command:
        self._put([read_document(command.body, SubscriptionGroupConfig)])
        await self._core.persistence.settled("subscriptionGroup")
        return command.reply()

    async def create_list(self, command: Command, connection: Connection) -> Command:
        self._put(read_document(command.body, GroupConfigList).group_config_list)
        await self._core.persistence.settled("subscriptionGroup")
        return command.reply()

    async def delete(self, command: Command, connection: Connection) -> Command:
        request = GroupName.read(command.ext)
        self._core.groups.delete(request.group_name)
        if request.clean_offset:
            self._core.offsets.forget_group(request.group_name)
        await self._core.persistence.settled("subscriptionGroup")
        return command.reply()

    def all(self, command: Command, connection: Connection) -> Command:
        document = self._core.groups.document()
        ext = {"totalGroupNum": str(len(document.subscription_group_table))}
        return command.reply(ext=ext, body=write_document(document))

    def config(self, command: Command, connection: Connection) -> Command:
        group = GroupField.read(command.ext).group
        config = self._core.groups.all.get(group)
        if config is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {group[:300]}")
        return command.reply(body=write_document(config))

    def consumers(self, command: Command, connection: Connection) -> Command:
        name = ConsumerGroup.read(command.ext).consumer_group
        state = self._core.clients.consumers.get(name)
        if state is None:
            raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name[:300]}] not online")
        subscriptions = {topic: msgspec.to_builtins(item.data) for topic, item in state.subscriptions.items()}
        document = {
            "connectionSet": [connection_document(member) for member in state.members.values()],
            "consumeFromWhere": state.consume_from_where,
            "consumeType": state.consume_type,
            "messageModel": state.message_model,
            "subscriptionTable": subscriptions,
        }
        return command.reply(body=dumps(document))

    def producers(self, command: Command, connection: Connection) -> Command:
        group = ProducerGroup.read(command.ext).producer_group
        members = self._core.clients.producers.get(group)
        if not members:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{group[:300]}] not exist")
        return command.reply(
            body=dumps({"connectionSet": [connection_document(member) for member in members.values()]})
        )

    def topics(self, command: Command, connection: Connection) -> Command:
        group = GroupField.read(command.ext).group
        listing = TopicListing(topic_list=self._core.offsets.topics_of(group), broker_addr=self._core.settings.address)
        return command.reply(body=write_document(listing))

    def subscription(self, command: Command, connection: Connection) -> Command:
        """What the members of a group want of a topic; nothing where none of them is here, or wants it."""
        request = TopicOfGroup.read(command.ext)
        document: dict[str, Any] = {"group": request.group}
        if request.topic is not None:
            document["topic"] = request.topic
            found = self._core.clients.subscription(request.group, request.topic)
            if found is not None:
                document["subscriptionData"] = msgspec.to_builtins(found.data)
        return command.reply(body=dumps(document))

    def _put(self, configs: list[SubscriptionGroupConfig]) -> None:
        """All of them or none."""
        for config in configs:
            refusal = group_fault_refusal(config.group_name)
            if refusal is not None:
                raise refusal
            if config.retry_queue_nums > QUEUES_MAX:
                raise Refused(
                    ResponseCode.INVALID_PARAMETER,
                    f"{config.retry_queue_nums} retry queues: at most {QUEUES_MAX} are allowed",
                )
        for config in [self._with_changes(config) for config in configs]:
            self._core.groups.put(config)

    def _with_changes(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """`config` with the attributes that the group has after its changes. Raises Refused."""
        known = self._core.groups.all.get(config.group_name)
        try:
            attributes = changed_attributes(None if known is None else known.attributes, config.attributes, OF_GROUPS)
        except ValueError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return msgspec.structs.replace(config, attributes=attributes)


def connection_document(member: Member) -> dict[str, Any]:
    """A client as Java's Connection bean."""
    return {
        "clientAddr": member.address,
        "clientId": member.client_id,
        "language": member.language,
        "version": member.version,
    }
