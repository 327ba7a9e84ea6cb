"""The progress of a streaming query: what Spark keeps in its offset log, as JSON.

```
{"v": 1,
 "brokers": {"broker-a": {"epoch": 7, "physical": 123}},
 "o": {"orders": {"broker-a": {"0": 42}}},          the offset up to which each queue was read
 "b": {"orders": {"broker-a": {"0": 40}}},          where this batch begins, if not at the end of the one before
 "g": {"orders": {"broker-a": {"0": [30, 40, "expired"]}}}}      what this batch skipped
```

Two rules. First, *an offset has all that its batch needs*: Spark writes it before the batch is planned, and after a
crash plans the same batch again from it, in another process and maybe days later. So the offset at which a queue
begins (its latest message, a timestamp, a group's committed offset) is decided once and written here; a second lookup
would give another answer. For the same reason the offset before the first one is empty: it is the same whenever Spark
asks for it.

Second, `brokers` has for each broker with known epochs the newest epoch of its log at that time, and one past the last
byte that was read of it. A newer epoch that begins there or later has all that was read; one that begins below replaced
some of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, final

from pyspark_rocketmq.errors import RocketMQSourceError
from pyspark_rocketmq.gaps import Gap, GapKind
from pyspark_rocketmq.model import QueueId, QueueRange

FORMAT: Final = 1
"""The version of the document's format (`v`)."""

V = TypeVar("V")
Tree = dict[str, dict[str, dict[str, V]]]
"""Values by topic, broker and number of the queue."""


@final
@dataclass(frozen=True, slots=True)
class Mark:
    """The offset up to which a broker's log was read, and the newest epoch of the log at that time."""

    epoch: int
    physical: int
    """One past the last byte that was read."""


@final
@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The end of a batch and, where that is not the end of the one before, its beginning."""

    ends: Mapping[QueueId, int] = field(default_factory=dict)
    """The offset up to which each queue was read (`o`)."""

    marks: Mapping[str, Mark] = field(default_factory=dict)
    """How far the log of each broker was read (`brokers`)."""

    begins: Mapping[QueueId, int] = field(default_factory=dict)
    """Where the batch begins in queues that are new in it (`b`)."""

    gaps: tuple[Gap, ...] = ()
    """The messages that the batch skips (`g`)."""

    def to_json(self) -> dict[str, Any]:
        """Return the document for Spark; sorted, because Spark compares texts."""
        document: dict[str, Any] = {
            "v": FORMAT,
            "brokers": {
                broker: {"epoch": mark.epoch, "physical": mark.physical} for broker, mark in sorted(self.marks.items())
            },
            "o": nest(self.ends),
        }
        if self.begins:
            document["b"] = nest(self.begins)
        if self.gaps:
            document["g"] = nest({gap.queue: [gap.begin, gap.end, str(gap.kind)] for gap in self.gaps})
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "StreamOffset":
        """Parse a document of Spark's offset log."""
        version = document.get("v")
        if version != FORMAT:
            raise RocketMQSourceError(
                f"the checkpoint's offsets have format {version!r}, and this source writes {FORMAT}:"
                " continue with the version that wrote them, or with a new checkpoint"
            )
        gaps = flatten(document.get("g", {})).items()
        return cls(
            ends=flatten(document["o"]),
            marks={
                broker: Mark(epoch=mark["epoch"], physical=mark["physical"])
                for broker, mark in document["brokers"].items()
            },
            begins=flatten(document.get("b", {})),
            gaps=tuple(Gap(queue, begin, end, GapKind(kind)) for queue, (begin, end, kind) in gaps),
        )


def ranges_between(start: StreamOffset, end: StreamOffset) -> tuple[QueueRange, ...]:
    """Return the ranges that the batch between two offsets reads."""
    ranges: list[QueueRange] = []
    for queue, stop in sorted(end.ends.items()):
        begin = end.begins.get(queue, start.ends.get(queue))
        if begin is None:
            raise RocketMQSourceError(f"the checkpoint has no begin offset for {queue}: its offset log is damaged")
        if begin < stop:
            ranges.append(QueueRange(queue, begin, stop))
    return tuple(ranges)


def nest(values: Mapping[QueueId, V]) -> Tree[V]:
    """Nest values by topic, broker and queue, in this order."""
    nested: Tree[V] = {}
    for queue in sorted(values):
        nested.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.number)] = values[queue]
    return nested


def flatten(nested: Mapping[str, Mapping[str, Mapping[str, V]]]) -> dict[QueueId, V]:
    """Return nested values by queue: the inverse of `nest`."""
    return {
        QueueId(topic, broker, int(number)): value
        for topic, brokers in nested.items()
        for broker, queues in brokers.items()
        for number, value in queues.items()
    }
