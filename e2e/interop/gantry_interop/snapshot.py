"""The content of a broker's store as read through the protocol, so that two brokers on one store can be compared.

Records are served as they are stored in the log. If two brokers return the same bytes for every queue, the same ranges
and the same hits for a key, they interpret log, consume queues and index in the same way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from gantry_interop import probe
from gantry_interop.errors import InteropError
from gantry_interop.frames import WireFrame
from gantry_interop.processes import wait_until

PULL, QUERY_MESSAGE, GET_BROKER_RUNTIME = 11, 12, 28
GET_MAX_OFFSET, GET_MIN_OFFSET = 30, 31
SUCCESS = 0
SUBSCRIPTION_INSIDE = 4
GROUP = "interop_snapshot"
STATISTICS_SECONDS_MAX = 60.0


@dataclass(frozen=True)
class QueueSnapshot:
    """One queue: its half-open range, and a hash over its records."""

    offset_min: int
    offset_max: int
    records_sha256: str


@dataclass(frozen=True)
class Snapshot:
    """A store: the end of its log, its queues, and the bytes of records that each key finds."""

    physical_offset_max: int
    queues: dict[str, QueueSnapshot]
    hits: dict[str, str]

    @property
    def messages(self) -> int:
        return sum(queue.offset_max - queue.offset_min for queue in self.queues.values())


def take(name_server: str, broker: str, topics: Iterable[str], keys: Iterable[str] = ()) -> Snapshot:
    """Take a snapshot of these topics; `keys` are `topic#key`."""
    queues = {
        f"{topic}/{queue}": _queue(broker, topic, queue)
        for topic in topics
        for queue in range(_queue_count(name_server, topic))
    }
    return Snapshot(_log_end(broker), queues, {key: _hits(broker, key) for key in keys})


def _log_end(broker: str) -> int:
    """Return the end of the log. A Java broker answers with an error until its first statistics are a second old."""
    answers: list[WireFrame] = []

    def is_answered() -> bool:
        answers.append(probe.send_request(broker, GET_BROKER_RUNTIME, {}, 60))
        return answers[-1].code == SUCCESS

    wait_until("the broker's statistics", is_answered, STATISTICS_SECONDS_MAX)
    return int(json.loads(answers[-1].body)["table"]["commitLogMaxOffset"])


def _request(address: str, code: int, fields: dict[str, object], accepted: tuple[int, ...] = (SUCCESS,)) -> WireFrame:
    answer = probe.send_request(address, code, {name: str(value) for name, value in fields.items()}, 60)
    if answer.code not in accepted:
        raise InteropError(f"request {code} {fields} was answered {answer.code}: {answer.remark}")
    return answer


def _queue_count(name_server: str, topic: str) -> int:
    route = _request(name_server, probe.GET_ROUTE_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"})
    return int(json.loads(route.body)["queueDatas"][0]["readQueueNums"])


def _queue(broker: str, topic: str, queue: int) -> QueueSnapshot:
    place: dict[str, object] = {"topic": topic, "queueId": queue}
    start = int(_request(broker, GET_MIN_OFFSET, place).fields["offset"])
    end = int(_request(broker, GET_MAX_OFFSET, place).fields["offset"])
    digest = hashlib.sha256()
    offset = start
    while offset < end:
        answer = _request(broker, PULL, _pull_fields(topic, queue, offset))
        digest.update(answer.body)
        offset = int(answer.fields["nextBeginOffset"])
    return QueueSnapshot(start, end, digest.hexdigest())


def _pull_fields(topic: str, queue: int, offset: int) -> dict[str, object]:
    return {
        "consumerGroup": GROUP,
        "topic": topic,
        "queueId": queue,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": SUBSCRIPTION_INSIDE,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    }


def _hits(broker: str, key: str) -> str:
    """Return a hash over the records that the key finds, in log order; empty if it finds none."""
    topic, _, word = key.partition("#")
    fields: dict[str, object] = {
        "topic": topic,
        "key": word,
        "maxNum": 32,
        "beginTimestamp": 0,
        "endTimestamp": 1 << 62,
    }
    body = _request(broker, QUERY_MESSAGE, fields, (SUCCESS, 22)).body
    records = []
    while body:
        size = int.from_bytes(body[:4], "big")
        records.append(body[:size])
        body = body[size:]
    records.sort(key=lambda record: record[28:36])
    return hashlib.sha256(b"".join(records)).hexdigest() if records else ""
