"""Requests of producers and consumers, as ordinary ones send them."""

import random

from fuzz.pools import BROKER, CLIENTS, QUEUES, TEXTS, KnownMessages
from fuzz.seed import Maker, Seed, document, group, message_body, properties, queue_id, seed, topic

from gantry_wire import RequestCode
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.commands import clients, offsets, pull, send
from gantry_wire.fastjson import dumps
from gantry_wire.hashing import java_string_hash
from gantry_wire.limits import PROPERTIES_BYTES_MAX


def send_message(rng: random.Random, known: KnownMessages) -> Seed:
    fields = send.SendMessage(
        producer_group=group(rng), topic=topic(rng), default_topic="TBW102", default_topic_queue_nums=QUEUES,
        queue_id=queue_id(rng), sys_flag=0, born_timestamp=1_700_000_000_000, flag=0, properties=properties(rng),
        reconsume_times=0, unit_mode=False, batch=False,
    )  # fmt: skip
    return seed(RequestCode.SEND_MESSAGE, fields, message_body(rng))


def send_v2_fields(rng: random.Random, batch: bool | None = None) -> send.SendMessageV2:
    return send.SendMessageV2(
        producer_group=group(rng), topic=topic(rng), default_topic="TBW102", default_topic_queue_nums=QUEUES,
        queue_id=queue_id(rng), sys_flag=0, born_timestamp=1_700_000_000_000, flag=0, properties=properties(rng),
        reconsume_times=0, unit_mode=False, max_reconsume_times=None, batch=batch, broker_name=BROKER,
    )  # fmt: skip


def send_v2(rng: random.Random, known: KnownMessages) -> Seed:
    return seed(RequestCode.SEND_MESSAGE_V2, send_v2_fields(rng), message_body(rng))


def send_batch(rng: random.Random, known: KnownMessages) -> Seed:
    entries = [
        BatchEntry(0, message_body(rng), properties(rng).encode()[:PROPERTIES_BYTES_MAX])
        for _ in range(rng.randrange(1, 5))
    ]
    fields = send_v2_fields(rng, batch=True)
    return seed(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(entries))


def reply(rng: random.Random, known: KnownMessages) -> Seed:
    made = send_message(rng, known)
    made.code = RequestCode.SEND_REPLY_MESSAGE
    return made


def reply_v2(rng: random.Random, known: KnownMessages) -> Seed:
    """Return a reply to a client that is not connected, so that no peer is asked back."""
    made = send_v2(rng, known)
    made.code = RequestCode.SEND_REPLY_MESSAGE_V2
    made.ext["i"] = f"{made.ext['i']}CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01nobody\x02"
    return made


def send_back(rng: random.Random, known: KnownMessages) -> Seed:
    fields = send.SendBack(
        offset=known.physical_offset(rng), group=group(rng), delay_level=rng.choice((0, 1, -1, 3)),
        origin_msg_id=known.message_id(rng), origin_topic=topic(rng), unit_mode=False, max_reconsume_times=3,
    )  # fmt: skip
    return seed(RequestCode.CONSUMER_SEND_MSG_BACK, fields)


def end_transaction(rng: random.Random, known: KnownMessages) -> Seed:
    ext: dict[str, object] = {
        "topic": topic(rng), "producerGroup": group(rng), "tranStateTableOffset": "0", "commitOrRollback": "8",
        "commitLogOffset": str(known.physical_offset(rng)), "fromTransactionCheck": "false",
        "msgId": known.message_id(rng), "transactionId": known.message_id(rng),
    }  # fmt: skip
    return Seed(RequestCode.END_TRANSACTION, ext)


# ------- messages out


def pull_message(rng: random.Random, known: KnownMessages) -> Seed:
    suspends = rng.random() < 0.02
    fields = pull.PullMessage(
        consumer_group=group(rng), topic=topic(rng), queue_id=queue_id(rng), queue_offset=rng.choice((0, 0, 1, 5, 40)),
        max_msg_nums=rng.choice((1, 2, 4)), sys_flag=4 | (2 if suspends else 0) | rng.choice((0, 0, 1)),
        commit_offset=rng.choice((0, 1, 5)), suspend_timeout_millis=30 if suspends else 0, sub_version=0,
        subscription=rng.choice(("*", "red", "red||blue")), expression_type="TAG",
    )  # fmt: skip
    return seed(RequestCode.PULL_MESSAGE, fields)


def lite_pull(rng: random.Random, known: KnownMessages) -> Seed:
    made = pull_message(rng, known)
    made.code = RequestCode.LITE_PULL_MESSAGE
    return made


def peek(rng: random.Random, known: KnownMessages) -> Seed:
    ext: dict[str, object] = {
        "consumerGroup": group(rng), "topic": topic(rng), "queueId": str(queue_id(rng)),
        "maxMsgNums": rng.choice(("1", "4")),
    }  # fmt: skip
    return Seed(RequestCode.PEEK_MESSAGE, ext)


def pop(rng: random.Random, known: KnownMessages) -> Seed:
    """Return a whole pop, of one queue or of any, in order or not, with and without a filter."""
    ext: dict[str, object] = {
        "consumerGroup": group(rng), "topic": topic(rng), "queueId": rng.choice(("-1", str(queue_id(rng)))),
        "maxMsgNums": rng.choice(("1", "32")), "invisibleTime": rng.choice(("1", "10000", "259200000")),
        "pollTime": "0", "bornTime": "1700000000000", "initMode": rng.choice(("0", "1")),
        "order": rng.choice(("false", "true")),
    }  # fmt: skip
    if rng.random() < 0.5:
        ext["expType"], ext["exp"] = rng.choice((("TAG", "red || blue"), ("TAG", "*"), ("SQL92", "price > 3")))
    if rng.random() < 0.3:
        ext["attemptId"] = rng.choice(("one", "two"))
    return Seed(RequestCode.POP_MESSAGE, ext)


def batch_ack(rng: random.Random, known: KnownMessages) -> Seed:
    """Return acks of several checkpoints that no broker has made."""
    acks = [
        {
            "c": group(rng), "t": topic(rng), "r": rng.choice(("0", "1", "2")), "so": rng.choice((0, 3, 40)),
            "q": queue_id(rng), "rq": rng.choice((0, 7, 999)), "pt": 1_700_000_000_000, "it": 60_000, "b": "BQ==",
        }
        for _ in range(rng.choice((1, 3)))
    ]  # fmt: skip
    body = dumps({"brokerName": "broker-a", "acks": acks})
    return Seed(RequestCode.BATCH_ACK_MESSAGE, {}, body, is_json_body=True)


def notification(rng: random.Random, known: KnownMessages) -> Seed:
    ext: dict[str, object] = {
        "consumerGroup": group(rng), "topic": topic(rng), "queueId": str(queue_id(rng)), "pollTime": "0",
        "bornTime": "0",
    }  # fmt: skip
    return Seed(RequestCode.NOTIFICATION, ext)


def pop_receipt(code: RequestCode) -> Maker:
    """Return a maker of requests about a message that was popped, by receipts that no broker has given out."""

    def make(rng: random.Random, known: KnownMessages) -> Seed:
        queue, offset = queue_id(rng), rng.choice((0, 3, 40))
        ext: dict[str, object] = {
            "consumerGroup": group(rng), "topic": topic(rng), "queueId": str(queue), "offset": str(offset),
            "extraInfo": f"{offset} 1700000000000 60000 {rng.randrange(8)} 0 broker-a {queue} {offset}",
        }  # fmt: skip
        if code is RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
            ext["invisibleTime"] = rng.choice(("0", "1000", "60000"))
        return Seed(code, ext)

    return make


def recall(rng: random.Random, known: KnownMessages) -> Seed:
    ext: dict[str, object] = {"producerGroup": group(rng), "topic": topic(rng), "recallHandle": "djEgYSBiIDEgYw=="}
    return Seed(RequestCode.RECALL_MESSAGE, ext)


def query_message(rng: random.Random, known: KnownMessages) -> Seed:
    fields = pull.QueryMessage(
        topic=topic(rng), key=rng.choice(("one", "k7", "k199", "absent", "F" * 32)), max_num=rng.choice((1, 8)),
        begin_timestamp=0, end_timestamp=9_000_000_000_000,
    )  # fmt: skip
    made = seed(RequestCode.QUERY_MESSAGE, fields)
    if rng.random() < 0.2:
        made.ext["_UNIQUE_KEY_QUERY"] = "true"
    return made


def view_message(rng: random.Random, known: KnownMessages) -> Seed:
    return seed(RequestCode.VIEW_MESSAGE_BY_ID, pull.ViewMessage(offset=known.physical_offset(rng), topic=topic(rng)))


def queue_address(code: RequestCode) -> Maker:
    return lambda rng, known: seed(code, offsets.QueueAddress(topic=topic(rng), queue_id=queue_id(rng)))


def query_offset(rng: random.Random, known: KnownMessages) -> Seed:
    fields = offsets.QueryConsumerOffset(consumer_group=group(rng), topic=topic(rng), queue_id=queue_id(rng))
    return seed(RequestCode.QUERY_CONSUMER_OFFSET, fields)


def update_offset(rng: random.Random, known: KnownMessages) -> Seed:
    fields = offsets.UpdateConsumerOffset(
        consumer_group=group(rng), topic=topic(rng), queue_id=queue_id(rng), commit_offset=rng.randrange(50)
    )
    return seed(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def search_offset(rng: random.Random, known: KnownMessages) -> Seed:
    timestamp = rng.choice((0, 1_700_000_000_000, 9_000_000_000_000))
    return seed(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        offsets.SearchOffset(topic=topic(rng), queue_id=queue_id(rng), timestamp=timestamp),
    )


# ------- clients


def heartbeat(rng: random.Random, known: KnownMessages) -> Seed:
    name, expression = topic(rng), rng.choice(("*", "red||blue", rng.choice(TEXTS)))
    subscription = clients.SubscriptionData(
        topic=name,
        sub_string=expression,
        tags_set=["red"],
        code_set=[java_string_hash("red")],
        sub_version=rng.randrange(5),
    )
    consumer = clients.ConsumerData(
        group_name=group(rng),
        message_model=rng.choice(("CLUSTERING", "BROADCASTING")),
        subscription_data_set=[subscription],
    )
    beat = clients.HeartbeatData(
        client_id=rng.choice(CLIENTS),
        producer_data_set=[clients.ProducerData(group_name=group(rng))],
        consumer_data_set=[consumer],
    )
    return document(RequestCode.HEART_BEAT, beat)


def unregister(rng: random.Random, known: KnownMessages) -> Seed:
    fields = clients.UnregisterClient(
        client_id=rng.choice(CLIENTS), producer_group=group(rng), consumer_group=group(rng)
    )
    return seed(RequestCode.UNREGISTER_CLIENT, fields)


def consumer_group(code: RequestCode) -> Maker:
    return lambda rng, known: seed(code, clients.ConsumerGroup(consumer_group=group(rng), topic=topic(rng)))


def lock_batch(code: RequestCode) -> Maker:
    def make(rng: random.Random, known: KnownMessages) -> Seed:
        queues = [
            clients.MessageQueue(topic=topic(rng), broker_name=BROKER, queue_id=queue_id(rng))
            for _ in range(rng.randrange(3))
        ]
        lock = clients.LockBatch(consumer_group=group(rng), client_id=rng.choice(CLIENTS), mq_set=queues)
        return document(code, lock)

    return make


def check_client(rng: random.Random, known: KnownMessages) -> Seed:
    data = clients.SubscriptionData(topic=topic(rng), sub_string=rng.choice(TEXTS), expression_type="TAG")
    body = clients.CheckClientConfig(client_id=rng.choice(CLIENTS), group=group(rng), subscription_data=data)
    return document(RequestCode.CHECK_CLIENT_CONFIG, body)
