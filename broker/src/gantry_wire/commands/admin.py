"""Requests that administer topics, groups and accounts or query a broker, and the documents of topics and groups."""

import msgspec

from gantry_wire.commands.clients import Document
from gantry_wire.commands.fields import Fields, Int32, Int64


class DataVersion(Document):
    """The version of a table."""

    counter: Int64 = 0
    """The number of changes of the table."""

    state_version: Int64 = 0
    """The version of the broker's role, in which Gantry writes its epoch."""

    timestamp: Int64 = 0
    """When the table was changed, in milliseconds since 1970."""

    def next(self, now_ms: int) -> "DataVersion":
        """Return the version after this one."""
        return msgspec.structs.replace(self, counter=self.counter + 1, timestamp=now_ms)


class TopicConfig(Document):
    """The configuration of one topic, as broker and name server store it."""

    topic_name: str
    read_queue_nums: Int32 = 8
    """How many queues consumers read."""

    write_queue_nums: Int32 = 8
    """To how many queues producers send."""

    perm: Int32 = 6
    """4 to read plus 2 to write plus 1 to be a template for new topics."""

    topic_filter_type: str = "SINGLE_TAG"
    """SINGLE_TAG, or MULTI_TAG, which only sets a flag of the messages."""

    topic_sys_flag: Int32 = 0
    order: bool = False
    """Whether an administrator has marked the topic as ordered."""

    attributes: dict[str, str] = msgspec.field(default_factory=dict)


class TopicConfigTable(Document):
    """The body of the reply to code 21, a part of the body of code 103, and the content of topics.json."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: dict[str, TopicConfig] = msgspec.field(default_factory=dict)


class ExponentialRetryPolicy(Document):
    """Delays before retries in milliseconds: `initial`, multiplied by `multiplier` each time, at most `max`."""

    initial: Int64 = 5_000
    max: Int64 = 7_200_000
    multiplier: Int64 = 2


class CustomizedRetryPolicy(Document):
    """The delay in milliseconds before each retry."""

    next: list[Int64] = msgspec.field(default_factory=list)


class GroupRetryPolicy(Document):
    """The delays between a group's retries: stored as given, without effect. The broker's delay levels are used."""

    type: str = "CUSTOMIZED"
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None


class SubscriptionGroupConfig(Document):
    """The configuration of one consumer group, as the broker stores it."""

    group_name: str
    consume_enable: bool = True
    """Whether members may consume at all."""

    consume_from_min_enable: bool = True
    """Stored as given, without effect."""

    consume_broadcast_enable: bool = True
    """Whether members may consume as broadcast consumers."""

    consume_message_orderly: bool = False
    retry_queue_nums: Int32 = 1
    """Number of queues of the group's retry topic."""

    retry_max_times: Int32 = 16
    """How often a message is redelivered before it goes to the dead letters."""

    group_retry_policy: GroupRetryPolicy | None = msgspec.field(default_factory=GroupRetryPolicy)
    broker_id: Int64 = 0
    """The broker id from which members pull in RocketMQ; without effect here."""

    which_broker_when_consume_slowly: Int64 = 1
    """The broker id from which members that are far behind should pull."""

    notify_consumer_ids_changed_enable: bool = True
    """Whether members are notified at once when one joins or leaves."""

    group_sys_flag: Int32 = 0
    consume_timeout_minute: Int32 = 15
    attributes: dict[str, str] = msgspec.field(default_factory=dict)


class CreateTopic(Fields):
    """The request header of code 17, which creates or updates a topic."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    order: bool
    topic_sys_flag: Int32 | None = None
    attributes: str | None = None


class TopicConfigList(Document):
    """The body of code 18, which creates or updates several topics."""

    topic_config_list: list[TopicConfig] = msgspec.field(default_factory=list)


class TopicName(Fields):
    """The request header of codes 202, 215, 217, 300 and 351: one topic. Access control reads that of 105 with it."""

    topic: str


class GroupName(Fields, rename={"group_name": "groupName", "clean_offset": "cleanOffset"}):
    """The request header of code 207, which deletes a group."""

    group_name: str
    clean_offset: bool | None = None


class GroupField(Fields):
    """The request header of codes 343 and 352: one group."""

    group: str


class ProducerGroup(Fields):
    """The request header of code 204, which lists a group's producers."""

    producer_group: str


class StatisticsKey(Fields):
    """The request header of code 315: one counter."""

    stats_name: str
    stats_key: str


class GroupForbidden(Fields):
    """The request header of code 353: whether the group may read the topic. Without ``readable`` nothing is changed."""

    group: str
    topic: str
    readable: bool | None = None


class HalfMessage(Fields):
    """The request header of code 323, which checks a half message again."""

    topic: str | None = None
    msg_id: str | None = None


class HaExchange(Fields):
    """The request header of code 906, and of the reply to it."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class TopicListing(Document):
    """A list of topics: the reply to code 206 and to similar codes."""

    topic_list: list[str]
    broker_addr: str | None = None
