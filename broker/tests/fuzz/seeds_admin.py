"""Requests of administrators and of brokers that register, as RocketMQ's tools and brokers send them."""

import random
import struct
import zlib

from fuzz.pools import BROKER, CLIENTS, CLUSTER, DELETABLE_TOPICS, NUMBERS, QUEUES, TOPICS, KnownMessages
from fuzz.seed import Maker, Seed, document, group, queue_id, seed, topic

from gantry_wire import RequestCode
from gantry_wire.commands import admin, nameserver
from gantry_wire.commands.documents import write_document


def topic_config(rng: random.Random) -> admin.TopicConfig:
    return admin.TopicConfig(
        topic_name=topic(rng), read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=rng.choice((6, 6, 6, 7))
    )


def create_topic(rng: random.Random, known: KnownMessages) -> Seed:
    fields = admin.CreateTopic(
        topic=rng.choice((*TOPICS, *DELETABLE_TOPICS)), default_topic="TBW102", read_queue_nums=QUEUES,
        write_queue_nums=QUEUES, perm=6, topic_filter_type="SINGLE_TAG", order=False, topic_sys_flag=0,
        attributes=rng.choice((None, "+message.type=NORMAL", "-message.type")),
    )  # fmt: skip
    return seed(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def create_topics(rng: random.Random, known: KnownMessages) -> Seed:
    body = admin.TopicConfigList(topic_config_list=[topic_config(rng) for _ in range(rng.randrange(3))])
    return document(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body)


def create_group(rng: random.Random, known: KnownMessages) -> Seed:
    body = admin.SubscriptionGroupConfig(group_name=group(rng), retry_max_times=rng.randrange(20))
    return document(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)


def create_groups(rng: random.Random, known: KnownMessages) -> Seed:
    body = b'{"groupConfigList":[' + write_document(admin.SubscriptionGroupConfig(group_name=group(rng))) + b"]}"
    return Seed(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body, is_json_body=True)


def topic_name(code: RequestCode, names: tuple[str, ...] = TOPICS) -> Maker:
    return lambda rng, known: seed(code, admin.TopicName(topic=rng.choice(names)))


def delete_group(rng: random.Random, known: KnownMessages) -> Seed:
    fields = admin.GroupName(group_name=group(rng), clean_offset=rng.choice((True, False, None)))
    return seed(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)


def group_field(code: RequestCode) -> Maker:
    return lambda rng, known: seed(code, admin.GroupField(group=group(rng)))


def producer_group(rng: random.Random, known: KnownMessages) -> Seed:
    return seed(RequestCode.GET_PRODUCER_CONNECTION_LIST, admin.ProducerGroup(producer_group=group(rng)))


def config_text(code: RequestCode) -> Maker:
    def make(rng: random.Random, known: KnownMessages) -> Seed:
        keys = (
            "rocketmqHome",
            "kvConfigPath",
            "listenPort",
            "orderMessageEnable",
            "enableTopicList",
            "deleteWhen",
            "x",
        )
        key = rng.choice(keys)
        return Seed(code, {}, f"{key}={rng.choice(('true', '1', '/tmp/x', ''))}\n".encode())

    return make


# ------- name server


def register_broker(rng: random.Random, known: KnownMessages) -> Seed:
    configs = [topic_config(rng) for _ in range(rng.randrange(4))]
    is_compressed = rng.random() < 0.3
    fields = nameserver.RegisterBroker(
        broker_name=rng.choice(("fuzz-broker-a", "fuzz-broker-b")), broker_addr=f"127.0.0.1:{20000 + rng.randrange(8)}",
        cluster_name=rng.choice(("FuzzCluster", CLUSTER)), ha_server_addr="127.0.0.1:20912",
        broker_id=rng.choice((0, 0, 1, 2)), heartbeat_timeout_millis=rng.choice((None, 60_000)),
        compressed=is_compressed, body_crc32=None,
    )  # fmt: skip
    if is_compressed:
        return seed(RequestCode.REGISTER_BROKER, fields, compressed_registration(rng, configs))
    wrapper = admin.TopicConfigTable(topic_config_table={config.topic_name: config for config in configs})
    body = write_document(nameserver.RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
    made = seed(RequestCode.REGISTER_BROKER, fields, body)
    made.is_json_body = True
    return made


def compressed_registration(rng: random.Random, configs: list[admin.TopicConfig]) -> bytes:
    """Return the zlib form of a registration, now and then with an invalid or far too large number."""

    def part(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    def number(value: int) -> str:
        return rng.choice(NUMBERS) if rng.random() < 0.1 else str(value)

    parts = [part(write_document(admin.DataVersion(counter=rng.randrange(9)))), struct.pack(">i", len(configs))]
    for config in configs:
        words = (config.topic_name, number(QUEUES), number(QUEUES), number(config.perm), config.topic_filter_type, "{}")
        parts.append(part(" ".join(words).encode()))
    parts += [part(b"[]"), struct.pack(">i", 0)]
    return zlib.compress(b"".join(parts))


def broker_identity(code: RequestCode) -> Maker:
    def make(rng: random.Random, known: KnownMessages) -> Seed:
        fields = nameserver.UnregisterBroker(
            broker_name=rng.choice(("fuzz-broker-a", "fuzz-broker-b")),
            broker_addr=f"127.0.0.1:{20000 + rng.randrange(8)}", cluster_name="FuzzCluster", broker_id=rng.randrange(3),
        )  # fmt: skip
        body = b""
        if code == RequestCode.QUERY_DATA_VERSION:
            body = write_document(admin.DataVersion(counter=rng.randrange(3)))
        made = seed(code, fields, body)
        made.is_json_body = bool(body)
        return made

    return make


def query_route(rng: random.Random, known: KnownMessages) -> Seed:
    fields = nameserver.QueryRoute(topic=topic(rng), accept_standard_json_only=rng.choice((None, True, False)))
    return seed(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)


def register_topic(rng: random.Random, known: KnownMessages) -> Seed:
    data = nameserver.QueueData(broker_name="fuzz-broker-a", read_queue_nums=4, write_queue_nums=4, perm=6)
    made = document(RequestCode.REGISTER_TOPIC_IN_NAMESRV, nameserver.TopicRoute(queue_datas=[data]))
    made.ext = {"topic": topic(rng)}
    return made


def key_value(code: RequestCode) -> Maker:
    return lambda rng, known: Seed(
        code,
        {
            "namespace": rng.choice(("ORDER_TOPIC_CONFIG", "fuzz")),
            "key": topic(rng),
            "value": rng.choice(("suite-broker:4", "", "x")),
        },
    )


def plausible(code: RequestCode) -> Maker:
    """Return a maker for codes without a type of their own, with fields that such requests usually have."""

    def make(rng: random.Random, known: KnownMessages) -> Seed:
        ext: dict[str, object] = {
            "topic": topic(rng), "group": group(rng), "consumerGroup": group(rng), "queueId": str(queue_id(rng)),
            "offset": "0", "timestamp": "0", "isForce": "false", "clientAddr": "127.0.0.1:1", "brokerName": BROKER,
            "clusterName": CLUSTER, "cluster": CLUSTER, "namespace": "fuzz", "clientId": rng.choice(CLIENTS),
            "msgId": known.message_id(rng), "statsName": "TOPIC_PUT_NUMS", "statsKey": topic(rng),
            "srcGroup": group(rng), "destGroup": group(rng), "offline": "false",
        }  # fmt: skip
        return Seed(code, dict(rng.sample(sorted(ext.items()), 9)))

    return make
