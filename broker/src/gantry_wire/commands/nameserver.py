"""Requests between brokers, clients and the name server, and the routes that they exchange."""

from typing import Final

import msgspec

from gantry_wire.checksum import crc32
from gantry_wire.commands.admin import TopicConfigTable
from gantry_wire.commands.clients import Document
from gantry_wire.commands.fields import Fields, Int32, Int64
from gantry_wire.message import CRC_MASK

MASTER_ID: Final = 0
"""The broker id of a master; every other id is a slave's."""
PERMISSION_READ: Final = 4
"""The bit of a topic that consumers may read."""
PERMISSION_WRITE: Final = 2
"""The bit of a topic to which producers may send."""
PERMISSION_INHERIT: Final = 1
"""Marks a topic whose settings brokers copy to new topics. A topic's permission is a sum of these three."""
PERMISSION_NORMAL: Final = PERMISSION_READ | PERMISSION_WRITE
ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""The namespace of the key-value table that names the brokers of each ordered topic and their numbers of queues."""


class RegisterBroker(Fields):
    """Code 103: register a broker with its topics (in the body)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    """The address of the broker's replication port."""

    broker_id: Int64
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    """Whether a slave may be shown as the master of a broker without one."""

    compressed: bool | None = None
    """Whether the body is a zlib stream."""

    body_crc32: Int32 | None = msgspec.field(default=None, name="bodyCrc32")
    external_addr: str | None = None
    """The address for clients outside of the network: Gantry's own field, which RocketMQ's name servers ignore."""


def body_checksum(body: bytes) -> int:
    """Return Java's CRC of a registration's body, with the sign bit cleared."""
    return crc32(body) & CRC_MASK


class RegisterBrokerBody(Document):
    """The body of code 103, as a broker writes it."""

    topic_config_serialize_wrapper: TopicConfigTable = msgspec.field(default_factory=TopicConfigTable)
    filter_server_list: list[str] = msgspec.field(default_factory=list)
    """Addresses that RocketMQ 4 registers for filtering."""


class TopicQueueMapping(Document):
    """The queues of a static topic that one broker has. It is passed on, and clients join the parts."""

    topic: str
    bname: str
    """The name of the broker that has these queues."""

    total_queues: Int32 = 0
    epoch: Int64 = 0
    dirty: bool = False
    curr_id_map: dict[int, int] = msgspec.field(default_factory=dict)
    scope: str | None = None


class RegisteredTopics(TopicConfigTable):
    """A broker's topics as the name server reads them, with the mappings of static topics."""

    topic_queue_mapping_info_map: dict[str, TopicQueueMapping] = msgspec.field(default_factory=dict)


class Registration(Document):
    """The body of code 103 as the name server reads it."""

    topic_config_serialize_wrapper: RegisteredTopics = msgspec.field(default_factory=RegisteredTopics)
    filter_server_list: list[str] | None = None


class RegisterBrokerResult(Fields):
    """The reply to code 103: for a slave, the address of its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBroker(Fields):
    """The request header of code 104."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersion(Fields):
    """Code 322: whether the name server has this version of the broker's topics."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResult(Fields):
    """The header of the reply to code 322."""

    changed: bool


class BrokerHeartbeat(Fields):
    """The request header of code 904."""

    broker_name: str
    broker_addr: str
    cluster_name: str


class ClusterAndBroker(Fields):
    """The request header of code 901."""

    cluster_name: str
    broker_name: str


class BrokerMemberGroup(Document):
    """The addresses that share one broker name, by broker id."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = msgspec.field(default_factory=dict)


class BrokerMemberGroupResult(Document):
    """The body of the reply to code 901."""

    broker_member_group: BrokerMemberGroup


class BrokerName(Fields):
    """The request header of codes 205 and 327."""

    broker_name: str


class WipeWritePermResult(Fields):
    """The header of the reply to code 205."""

    wipe_topic_count: Int32


class AddWritePermResult(Fields):
    """The header of the reply to code 327."""

    add_topic_count: Int32


class QueryRoute(Fields):
    """The request header of code 105."""

    topic: str
    accept_standard_json_only: bool | None = None


class DeleteTopicFromNameServer(Fields):
    """Code 216: delete a topic from one cluster, or from all of them."""

    topic: str
    cluster_name: str | None = None


class KeyValueAddress(Fields):
    """The request header of codes 101 and 102."""

    namespace: str
    key: str
    value: str | None = None


class PutKeyValue(Fields):
    """The request header of code 100."""

    namespace: str
    key: str
    value: str


class KeyValueResult(Fields):
    """The header of the reply to code 101."""

    value: str


class Namespace(Fields):
    """The request header of code 219."""

    namespace: str


class Cluster(Fields):
    """The request header of code 224."""

    cluster: str


class QueueData(Document):
    """The queues of a topic that one broker has."""

    broker_name: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    """The topic's permission, a sum of the constants above."""

    topic_sys_flag: Int32 = 0


class BrokerData(Document):
    """The addresses of one broker's master (id 0) and slaves."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = msgspec.field(default_factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None


class TopicRoute(Document):
    """The body of the reply to code 105."""

    queue_datas: list[QueueData] = msgspec.field(default_factory=list)
    broker_datas: list[BrokerData] = msgspec.field(default_factory=list)
    filter_server_table: dict[str, list[str]] = msgspec.field(default_factory=dict)
    order_topic_conf: str | None = None
    """The fixed queues of an ordered topic, as `broker:queues;broker:queues`."""

    topic_queue_mapping_by_broker: dict[str, TopicQueueMapping] | None = None


class ClusterInfo(Document):
    """The body of the reply to code 106."""

    broker_addr_table: dict[str, BrokerData] = msgspec.field(default_factory=dict)
    """The addresses of each broker, by broker name."""

    cluster_addr_table: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """The broker names of each cluster."""


class KeyValueTable(Document):
    """A document that is a table of strings."""

    table: dict[str, str] = msgspec.field(default_factory=dict)


class KeyValueConfig(Document):
    """The file kvConfig.json: tables of strings by namespace."""

    config_table: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
