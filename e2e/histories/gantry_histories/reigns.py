"""Who was the master when: epochs of answers, and the rule that an older master falls silent.

A client does not know epochs, but it knows whom it asked and when it was answered; the supervisor has written down whom
it told to be the master, and did so before telling. So an answer of a broker is of the newest epoch that this broker
had been given by then. That errs only where one is made the master twice, in favour of the brokers: a late answer of
its first reign counts for the second, and so an epoch's first acknowledgement is one of a send that began in it.

    a reigns 1 ------------------------.            a send that starts here ----v  and is acknowledged by a: STALE
                 b reigns 2     |------ first ack of 2 ---------------------------------
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import final

from gantry_histories.events import Answered, History, Reign, Sent
from gantry_histories.final import EpochStart
from gantry_histories.findings import Finding, Kind


@final
class Reigns:
    """All reigns of a run."""

    def __init__(self, reigns: Sequence[Reign]) -> None:
        self._by_broker: dict[str, list[Reign]] = defaultdict(list)
        for reign in sorted(reigns, key=lambda one: one.at):
            self._by_broker[reign.broker].append(reign)
        self.oldest = min((reign.epoch for reign in reigns), default=0)

    def epoch_at(self, broker: str, at: int) -> int:
        """Of a broker at a time; the oldest of all if it had none: a slave may follow the oldest master for long."""
        epochs = [reign.epoch for reign in self._by_broker[broker] if reign.at <= at]
        return max(epochs, default=self.oldest)

    def epoch_of(self, answer: Answered) -> int:
        """Of the master that answered."""
        return answer.epoch if answer.epoch >= 0 else self.epoch_at(answer.broker, answer.at)

    def oldest_of(self, sent: Sent, answer: Answered) -> int:
        """The oldest epoch in which it may have been stored, where the broker had several between send and answer."""
        return answer.epoch if answer.epoch >= 0 else self.epoch_at(answer.broker, sent.at)

    def is_within(self, sent: Sent, answer: Answered) -> bool:
        """Whether a send began in the epoch in which it was answered."""
        return self.epoch_at(answer.broker, sent.at) == self.epoch_of(answer)


def tail_start(epochs: Sequence[EpochStart], epoch: int) -> int | None:
    """From where on a failover took what was written in ``epoch``; None if nobody came after it."""
    return min((one.start for one in epochs if one.epoch > epoch), default=None)


def find_stale(history: History, reigns: Reigns) -> Iterator[Finding]:
    """No send that starts after an epoch's first acknowledgement is acknowledged by a master of an older one."""
    first: dict[int, Answered] = {}
    acknowledged = [(sent, answer, reigns.epoch_of(answer)) for sent, answer in history.acknowledged()]
    for sent, answer, epoch in acknowledged:
        if reigns.is_within(sent, answer) and (epoch not in first or answer.at < first[epoch].at):
            first[epoch] = answer
    for sent, answer, epoch in acknowledged:
        newer = [(one, ack) for one, ack in first.items() if one > epoch and ack.at < sent.at]
        if newer:
            epoch_of_newer, ack = min(newer)
            late_ms = (sent.at - ack.at) / 1e6
            yield Finding(
                Kind.STALE,
                f"{sent.key} was acknowledged by {answer.broker} in epoch {epoch}, and sent {late_ms:.3f} ms after "
                f"{ack.broker} had acknowledged {ack.key} in epoch {epoch_of_newer}",
            )
