"""The sink's options, parsed from Spark's text into values that travel to the workers.

An unknown option is refused, since a misspelled one would otherwise be ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

from gantry_wire.names import topic_fault
from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.option_parser import OptionParser
from pyspark_rocketmq.options import CONNECTION_OPTIONS, connection_settings
from pyspark_rocketmq.settings import ReadSettings

MARKER_TOPIC: Final = "SPARK_SINK_MARKERS"
QUERY_MAX: Final = 128
"""The most characters of the option queryId."""

BATCH_BYTES_MAX: Final = 3 << 20
"""A broker takes 4 MiB in one request, but brokers count the properties of a batch differently."""


class OnUnsure(StrEnum):
    """How to treat a send with status 10, 11 or 12: stored, but not flushed or replicated as promised."""

    FAIL = "fail"
    """Repeat the send until it times out, then raise an error."""
    ACCEPT = "accept"
    """Treat the message as stored."""


class OnForgotten(StrEnum):
    """How a transactional write treats a batch whose marker may have expired."""

    FAIL = "fail"
    """Raise BatchForgotten: the user decides after a search."""

    PROCEED = "proceed"
    """Commit the batch: its messages may then be stored twice."""


class Reserved(StrEnum):
    """How to treat reserved properties in the column properties (`rows.RESERVED`)."""

    FAIL = "fail"
    DROP = "drop"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The settings by which rows become messages."""

    connection: ReadSettings
    """How name servers and brokers are reached."""

    topic: str | None = None
    """The topic of all rows; it overrides a column topic."""

    query: str | None = None
    """The name of a write for which Spark has none: one that is not a stream, or a stream whose tasks get no query id.
    It is required for exactly once across restarts."""

    is_transactional: bool = False
    """Whether the write is exactly once, by half messages and markers."""

    on_unsure: OnUnsure = OnUnsure.FAIL
    """How a send is treated that is stored, but less safely than promised."""

    on_forgotten: OnForgotten = OnForgotten.FAIL
    """How a batch is treated whose marker may have expired."""

    reserved: Reserved = Reserved.FAIL
    """How reserved properties in the column properties are treated."""

    batch_bytes: int = 512 << 10
    """Bytes of one request; larger ones save little, and are stored whole or not at all."""

    in_flight: int = 8
    """Pending requests of one task; 128 times as many for half messages and their ends, since each is one row."""

    marker_topic: str = MARKER_TOPIC
    """The topic whose queues have the markers."""

    marker_broker: str | None = None
    """The broker whose queue has the markers, and on which a missing topic is created; needed if several have it."""

    is_sweep_enabled: bool = True
    """Whether half messages that a dead attempt has left are found and rolled back."""


_SINK_OPTIONS: Final = (
    "topic", "queryId", "transactional", "onUnsure", "onForgottenBatch", "reservedProperties", "batchBytes",
    "requestsInFlight", "markerTopic", "markerBroker", "sweep",
)  # fmt: skip

SPARK_OPTIONS: Final = ("path", "checkpointLocation", "queryName", "outputMode", "mode", "format")
"""Options that Spark itself adds."""


def parse(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of one write. Raises InvalidOption."""
    parser = OptionParser(options)
    parser.refuse_unknown((*_SINK_OPTIONS, *CONNECTION_OPTIONS, *SPARK_OPTIONS))
    topic, marker_topic = parser.text("topic") or None, parser.text("markerTopic", MARKER_TOPIC)
    for name, value in (("topic", topic), ("markerTopic", marker_topic)):
        fault = topic_fault(value) if value is not None else None
        if fault is not None:
            raise InvalidOption(f"option {name} is {value!r}: {fault.value}")
    if topic == marker_topic:
        raise InvalidOption(f"option topic is {topic!r}: that topic holds the markers of transactional writes")
    query = parser.text("queryId") or None
    if query is not None and (len(query) > QUERY_MAX or ":" in query or not query.isprintable()):
        raise InvalidOption(f"option queryId is {query[:40]!r}; expected at most {QUERY_MAX} characters without ':'")
    batch_bytes = parser.size("batchBytes", 512 << 10)
    if batch_bytes > BATCH_BYTES_MAX:
        raise InvalidOption(f"option batchBytes is {batch_bytes}; brokers take {BATCH_BYTES_MAX} at most")
    return SinkOptions(
        connection=connection_settings(parser), topic=topic, query=query,
        is_transactional=parser.switch("transactional", False),
        on_unsure=parser.choice("onUnsure", OnUnsure.FAIL),
        on_forgotten=parser.choice("onForgottenBatch", OnForgotten.FAIL),
        reserved=parser.choice("reservedProperties", Reserved.FAIL), batch_bytes=batch_bytes,
        in_flight=parser.number("requestsInFlight", 8, minimum=1), marker_topic=marker_topic,
        marker_broker=parser.text("markerBroker") or None, is_sweep_enabled=parser.switch("sweep", True),
    )  # fmt: skip
