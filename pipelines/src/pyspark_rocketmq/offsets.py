"""How far a streaming query has come: what Spark keeps in its offset log, as JSON.

```
{"v": 1,
 "brokers": {"broker-a": {"epoch": 7, "physical": 123}},
 "o": {"orders": {"broker-a": {"0": 42}}},          read up to here, of each queue
 "b": {"orders": {"broker-a": {"0": 40}}},          where this batch begins, where that is not the end of the one before
 "g": {"orders": {"broker-a": {"0": [30, 40, "expired"]}}}}      what this batch passed over
```

Two rules. First, *an offset says all that its batch needs*: Spark writes it before the batch is planned, and after a
crash plans the same batch again from it, in another process and maybe days later. So where a queue was begun (at the
latest message, at a moment, where a group stood) is decided once and written here; asking again would give another
answer. The offset before the first one is empty for that reason: it is the same whenever Spark asks for it.

Second, `brokers` has for each broker the epoch of its log when it was last looked at, and one past the last byte of
it that was read. A newer epoch that begins there or later has all that we read; one that begins below took some of it
away.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, final

from pyspark_rocketmq.errors import RocketMQSourceError
from pyspark_rocketmq.gaps import Gap, GapKind
from pyspark_rocketmq.model import QueueId, QueueRange

FORMAT: Final = 1
V = TypeVar("V")
Tree = dict[str, dict[str, dict[str, V]]]


@final
@dataclass(frozen=True, slots=True)
class Mark:
    """How far a broker's log was read, and the reign that it was of then."""

    epoch: int
    physical: int
    """One past the last byte that was read."""


@final
@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a batch ends, and, where it is no other's end, where it begins."""

    ends: Mapping[QueueId, int] = field(default_factory=dict)
    marks: Mapping[str, Mark] = field(default_factory=dict)
    begins: Mapping[QueueId, int] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For Spark; sorted, because it compares texts."""
        document: dict[str, Any] = {
            "v": FORMAT,
            "brokers": {
                broker: {"epoch": mark.epoch, "physical": mark.physical} for broker, mark in sorted(self.marks.items())
            },
            "o": tree(self.ends),
        }
        if self.begins:
            document["b"] = tree(self.begins)
        if self.gaps:
            document["g"] = tree({gap.queue: [gap.begin, gap.end, str(gap.kind)] for gap in self.gaps})
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "StreamOffset":
        """From Spark's log."""
        version = document.get("v")
        if version != FORMAT:
            raise RocketMQSourceError(
                f"the checkpoint's offsets have format {version!r}, and this source writes {FORMAT}:"
                " go on with the version that wrote them, or with a new checkpoint"
            )
        gaps = flat(document.get("g", {})).items()
        return cls(
            ends=flat(document["o"]),
            marks={
                broker: Mark(epoch=mark["epoch"], physical=mark["physical"])
                for broker, mark in document["brokers"].items()
            },
            begins=flat(document.get("b", {})),
            gaps=tuple(Gap(queue, begin, end, GapKind(kind)) for queue, (begin, end, kind) in gaps),
        )


def ranges_between(start: StreamOffset, end: StreamOffset) -> tuple[QueueRange, ...]:
    """What the batch that ends with `end` reads."""
    ranges: list[QueueRange] = []
    for queue, stop in sorted(end.ends.items()):
        begin = end.begins.get(queue, start.ends.get(queue))
        if begin is None:
            raise RocketMQSourceError(f"the checkpoint does not say where {queue} begins: its offset log is damaged")
        if begin < stop:
            ranges.append(QueueRange(queue, begin, stop))
    return tuple(ranges)


def tree(values: Mapping[QueueId, V]) -> Tree[V]:
    """By topic, broker and queue, in this order."""
    grown: Tree[V] = {}
    for queue in sorted(values):
        grown.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.number)] = values[queue]
    return grown


def flat(grown: Mapping[str, Mapping[str, Mapping[str, V]]]) -> dict[QueueId, V]:
    """The same without branches."""
    return {
        QueueId(topic, broker, int(number)): value
        for topic, brokers in grown.items()
        for broker, queues in brokers.items()
        for number, value in queues.items()
    }
