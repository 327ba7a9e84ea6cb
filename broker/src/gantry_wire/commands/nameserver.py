"""Requests between brokers, clients and the name server, and the routes they exchange."""

import msgspec

from gantry_wire.commands.admin import TopicConfigTable
from gantry_wire.commands.clients import Document
from gantry_wire.commands.fields import Fields, Int32, Int64


class RegisterBroker(Fields):
    """Code 103: a broker is here, and these are its topics (in the body)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool | None = None
    body_crc32: Int32 | None = msgspec.field(default=None, name="bodyCrc32")


class RegisterBrokerBody(Document):
    """The body of code 103."""

    topic_config_serialize_wrapper: TopicConfigTable = msgspec.field(default_factory=TopicConfigTable)
    filter_server_list: list[str] = msgspec.field(default_factory=list)


class RegisterBrokerResult(Fields):
    """The reply to code 103: for a slave, where its master is."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBroker(Fields):
    """Code 104."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersion(Fields):
    """Code 322: has the name server this edition of my topics?"""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class BrokerHeartbeat(Fields):
    """Code 904."""

    broker_name: str
    broker_addr: str
    cluster_name: str


class ClusterAndBroker(Fields):
    """Code 901."""

    cluster_name: str
    broker_name: str


class BrokerName(Fields):
    """Codes 205 and 327."""

    broker_name: str


class KeyValueAddress(Fields):
    """Codes 100, 101 and 102."""

    namespace: str
    key: str
    value: str | None = None


class Namespace(Fields):
    """Code 219."""

    namespace: str


class Cluster(Fields):
    """Code 224."""

    cluster: str


class QueueData(Document):
    """How many queues of a topic one broker has."""

    broker_name: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_sys_flag: Int32 = 0


class BrokerData(Document):
    """The addresses of one broker's master (id 0) and slaves."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = msgspec.field(default_factory=dict)
    enable_acting_master: bool = False


class TopicRoute(Document):
    """The reply to code 105."""

    queue_datas: list[QueueData] = msgspec.field(default_factory=list)
    broker_datas: list[BrokerData] = msgspec.field(default_factory=list)
    filter_server_table: dict[str, list[str]] = msgspec.field(default_factory=dict)
    order_topic_conf: str | None = None


class ClusterInfo(Document):
    """The reply to code 106."""

    broker_addr_table: dict[str, BrokerData] = msgspec.field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = msgspec.field(default_factory=dict)


class KeyValueTable(Document):
    """A table of strings."""

    table: dict[str, str] = msgspec.field(default_factory=dict)
