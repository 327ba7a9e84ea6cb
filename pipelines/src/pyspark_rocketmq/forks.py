"""Whether what was read of a broker's log is still there.

A log is written in epochs, one master's reign after the other, and each begins where it found the log's end. A new
reign that begins at or behind the last byte we read continues what we have; nothing is to be said. One that begins
below has replaced some of it: messages that we handed on are no part of the log any more, and others may have their
offsets.

Brokers without epochs (Apache's master and slave) can not be asked. There only a queue that ends before our place in
it is noticed, and not one that was cut and has grown beyond it again.
"""

from dataclasses import dataclass
from typing import final

from pyspark_rocketmq.model import EpochStart, LogState
from pyspark_rocketmq.offsets import Mark


@final
@dataclass(frozen=True, slots=True)
class Fork:
    """The bytes `[begin, read)` of a broker's log, which we read, were replaced by those of `epoch`."""

    broker: str
    known_epoch: int
    epoch: int
    begin: int
    read: int

    def __str__(self) -> str:
        return (
            f"the log of {self.broker} forked at {self.begin}: epoch {self.epoch} begins there, and in epoch"
            f" {self.known_epoch} it was read up to {self.read}"
        )


def fork_of(mark: Mark | None, log: LogState) -> Fork | None:
    """The lowest fork of what we read; None while all of it is there, or nobody knows."""
    if mark is None or not log.epochs:
        return None
    below = [one for one in log.epochs if one.epoch > mark.epoch and one.begin < mark.physical]
    if not below:
        return None
    first: EpochStart = min(below, key=lambda one: one.begin)
    return Fork(log.broker, mark.epoch, first.epoch, first.begin, mark.physical)


def is_older(mark: Mark | None, log: LogState) -> bool:
    """Whether this log has not heard yet of the reign that we have read from: a replica that is behind."""
    return mark is not None and bool(log.epochs) and log.epoch < mark.epoch


def advanced(mark: Mark | None, log: LogState, physical: int) -> Mark | None:
    """The mark after reading up to `physical`.

    Where epochs are not known now, the old mark stays: it still tells of forks below it. A mark with an epoch that was
    guessed would call the next reign's beginning a fork.
    """
    if not log.epochs:
        return mark
    return Mark(epoch=log.epoch, physical=max(physical, mark.physical if mark is not None else 0))
