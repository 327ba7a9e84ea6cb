"""The sink's options: Spark's text as values that travel to the workers.

Whoever reads and writes with one set of options may: what only the source knows is not refused here, but what nobody
knows is, since a misspelled option would be one that was not given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

from gantry_wire.names import topic_fault
from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.option_words import OptionWords
from pyspark_rocketmq.options import CONNECTION_OPTIONS, connection_settings
from pyspark_rocketmq.settings import ReadSettings

MARKER_TOPIC: Final = "SPARK_SINK_MARKERS"
QUERY_MAX: Final = 128
BATCH_BYTES_MAX: Final = 3 << 20
"""A broker takes 4 MiB in one request, and the properties of a batch are not counted by everybody in the same way."""


class OnUnsure(StrEnum):
    """What a send is that was answered with 10, 11 or 12: stored, but not as safely as the broker's mode says."""

    FAIL = "fail"
    """Sent again until there is no patience left, and then an error."""
    ACCEPT = "accept"
    """Good enough."""


class OnForgotten(StrEnum):
    """What a transactional write does where the marker of this batch may have expired."""

    FAIL = "fail"
    PROCEED = "proceed"


class Reserved(StrEnum):
    """What is done with properties that RocketMQ itself writes, in a column of properties."""

    FAIL = "fail"
    DROP = "drop"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """How rows become messages."""

    connection: ReadSettings
    topic: str | None = None
    """For all rows, whatever a column says."""

    query: str | None = None
    """Who writes, where Spark does not say so: a write that is no stream, and is to be done once."""

    is_transactional: bool = False
    on_unsure: OnUnsure = OnUnsure.FAIL
    on_forgotten: OnForgotten = OnForgotten.FAIL
    reserved: Reserved = Reserved.FAIL

    batch_bytes: int = 512 << 10
    """Of one request; larger ones save little, and are stored whole or not at all."""

    in_flight: int = 8
    """Requests of one task without an answer; of halves and their ends 128 times as many, since each is one row."""

    marker_topic: str = MARKER_TOPIC
    marker_broker: str | None = None
    """Where the marker topic is, if it is on several brokers."""

    sweeps: bool = True
    """Whether half messages that a dead attempt has left are looked for, and rolled back."""


_OWN: Final = (
    "topic", "queryId", "transactional", "onUnsure", "onForgottenBatch", "reservedProperties", "batchBytes",
    "requestsInFlight", "markerTopic", "markerBroker", "sweep",
)  # fmt: skip

SPARKS: Final = ("path", "checkpointLocation", "queryName", "outputMode", "mode", "format")
"""What Spark itself puts among the options."""


def parse(options: Mapping[str, str]) -> SinkOptions:
    """The options of one write. Raises InvalidOption."""
    words = OptionWords(options)
    words.refuse_unknown((*_OWN, *CONNECTION_OPTIONS, *SPARKS))
    topic, marker_topic = words.text("topic") or None, words.text("markerTopic", MARKER_TOPIC)
    for name, value in (("topic", topic), ("markerTopic", marker_topic)):
        fault = topic_fault(value) if value is not None else None
        if fault is not None:
            raise InvalidOption(f"option {name} is {value!r}: {fault.value}")
    if topic == marker_topic:
        raise InvalidOption(f"option topic is {topic!r}: that topic holds the markers of transactional writes")
    query = words.text("queryId") or None
    if query is not None and (len(query) > QUERY_MAX or ":" in query or not query.isprintable()):
        raise InvalidOption(
            f"option queryId is {query[:40]!r}; it has to be printable, without ':', {QUERY_MAX} at most"
        )
    batch_bytes = words.size("batchBytes", 512 << 10)
    if batch_bytes > BATCH_BYTES_MAX:
        raise InvalidOption(f"option batchBytes is {batch_bytes}; brokers take {BATCH_BYTES_MAX} at most")
    return SinkOptions(
        connection=connection_settings(words), topic=topic, query=query,
        is_transactional=words.switch("transactional", False),
        on_unsure=words.choice("onUnsure", OnUnsure.FAIL),
        on_forgotten=words.choice("onForgottenBatch", OnForgotten.FAIL),
        reserved=words.choice("reservedProperties", Reserved.FAIL), batch_bytes=batch_bytes,
        in_flight=words.number("requestsInFlight", 8, minimum=1), marker_topic=marker_topic,
        marker_broker=words.text("markerBroker") or None, sweeps=words.switch("sweep", True),
    )  # fmt: skip
