"""Requests about consumer groups: their progress, their new offsets, and their members' reports."""

import random

from fuzz.pools import CLIENTS, KnownMessages
from fuzz.seed import Maker, Seed, group, queue_id, seed, topic

from gantry_wire import RequestCode
from gantry_wire.commands import consumers
from gantry_wire.message import encode_host


def topic_of_group(code: RequestCode) -> Maker:
    return lambda rng, known: seed(code, consumers.TopicOfGroup(group=group(rng), topic=topic(rng)))


def broker_stats(rng: random.Random, known: KnownMessages) -> Seed:
    fields = consumers.BrokerConsumeStatsRequest(is_order=rng.random() < 0.5)
    return seed(RequestCode.GET_BROKER_CONSUME_STATS, fields)


def consume_queue(rng: random.Random, known: KnownMessages) -> Seed:
    fields = consumers.QueryConsumeQueue(
        topic=topic(rng), queue_id=queue_id(rng), index=rng.randrange(40), count=rng.choice((0, 1, 32, 1 << 30)),
        consumer_group=rng.choice((None, group(rng))),
    )  # fmt: skip
    return seed(RequestCode.QUERY_CONSUME_QUEUE, fields)


def reset(rng: random.Random, known: KnownMessages) -> Seed:
    fields = consumers.ResetOffsets(
        topic=topic(rng), group=group(rng), timestamp=rng.choice((-1, 0, 1_700_000_000_000)), is_force=True,
        queue_id=rng.choice((None, -1, queue_id(rng))), offset=rng.choice((None, -1, rng.randrange(50))),
    )  # fmt: skip
    return seed(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)


def clone(rng: random.Random, known: KnownMessages) -> Seed:
    fields = consumers.CloneOffsets(
        src_group=group(rng), dest_group=group(rng), topic=rng.choice((None, topic(rng))), offline=rng.random() < 0.5
    )
    return seed(RequestCode.CLONE_GROUP_OFFSET, fields)


def member_status(rng: random.Random, known: KnownMessages) -> Seed:
    fields = consumers.ConsumerStatusRequest(
        topic=topic(rng), group=group(rng), client_addr=rng.choice((None, *CLIENTS))
    )
    return seed(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)


def running_info(rng: random.Random, known: KnownMessages) -> Seed:
    fields = consumers.RunningInfoRequest(
        consumer_group=group(rng), client_id=rng.choice(CLIENTS), jstack_enable=rng.choice((None, True))
    )
    return seed(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)


def consume_directly(rng: random.Random, known: KnownMessages) -> Seed:
    place = known.physical_offset(rng).to_bytes(8, "big", signed=True)
    fields = consumers.ConsumeDirectly(
        consumer_group=group(rng), client_id=rng.choice(CLIENTS), topic=topic(rng),
        msg_id=(encode_host("127.0.0.1", 10911) + place).hex().upper(),
    )  # fmt: skip
    return seed(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
