"""The epochs of answers, and the rule that a deposed master acknowledges nothing more.

A client does not know epochs, but it knows which broker answered and when. The supervisor records which broker it
promotes, before the promotion. So an answer of a broker belongs to the newest epoch for which this broker had been
promoted by then. This is wrong only if a broker is promoted twice, and then in favour of the brokers: a late answer of
its first term counts for the second. So only a send that began in an epoch can be its first acknowledgement.

    a is master of 1 ---------------------.            a send that starts here ----v  and is acknowledged by a: STALE
                     b is master of 2     |------ first ack of 2 ---------------------------------
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import final

from gantry_histories.events import Answered, History, Sent, Term
from gantry_histories.final import EpochStart
from gantry_histories.findings import Finding, Kind


@final
class TermIndex:
    """The terms of a run, by broker."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self._all = terms
        self._by_broker: dict[str, list[Term]] = defaultdict(list)
        for term in sorted(terms, key=lambda one: one.at):
            self._by_broker[term.broker].append(term)
        self.oldest = min((term.epoch for term in terms), default=0)

    def epoch_at(self, broker: str, at: int) -> int:
        """Return the epoch of a broker at a time.

        A broker without a term until then, which answers pulls as a slave, has the oldest epoch of all: it may have
        followed the oldest master until now.
        """
        epochs = [term.epoch for term in self._by_broker[broker] if term.at <= at]
        return max(epochs, default=self.oldest)

    def start_if_current(self, broker: str, at: int) -> int | None:
        """Return when the newest term of a time was recorded, if it is a term of this broker, and None otherwise.

        Without any term every broker is a master, and has been one since the time 0.
        """
        if not self._all:
            return 0
        newest = max((term.epoch for term in self._all if term.at <= at), default=None)
        return next((term.at for term in self._by_broker[broker] if term.epoch == newest), None)

    def epoch_of(self, answer: Answered) -> int:
        """Return the epoch of the master that answered."""
        return answer.epoch if answer.epoch >= 0 else self.epoch_at(answer.broker, answer.at)

    def oldest_of(self, sent: Sent, answer: Answered) -> int:
        """Return the oldest epoch in which the message may have been stored, if the broker had several while it was
        pending.
        """
        return answer.epoch if answer.epoch >= 0 else self.epoch_at(answer.broker, sent.at)

    def possible_epochs(self, sent: Sent, answer: Answered) -> range:
        """Return the epochs in which the message may have been stored, from the oldest one to that of the answer.

        A term is recorded before the order. So what a master with a new epoch acknowledges soon after that may belong
        to the epoch that it had before.
        """
        oldest = self.oldest_of(sent, answer)
        epochs = sorted({term.epoch for term in self._all})
        while answer.epoch < 0 and (before := [epoch for epoch in epochs if epoch < oldest]):
            if all(term.epoch != before[-1] for term in self._by_broker[answer.broker]):
                break
            oldest = before[-1]
        return range(oldest, self.epoch_of(answer) + 1)

    def epoch_in_log(self, epochs: Sequence[EpochStart], physical_offset: int) -> int:
        """Return the epoch of the term in which a part of the log was written. The epochs that a master began at a
        restart have no term and belong to the term before."""
        in_log = max((one.epoch for one in epochs if one.start <= physical_offset), default=self.oldest)
        return max((term.epoch for term in self._all if term.epoch <= in_log), default=self.oldest)

    def is_within(self, sent: Sent, answer: Answered) -> bool:
        """Return whether the send began in the epoch in which it was answered."""
        return self.epoch_at(answer.broker, sent.at) == self.epoch_of(answer)


def tail_start(epochs: Sequence[EpochStart], epoch: int) -> int | None:
    """Return the log offset from which a failover cut what was written in ``epoch``; None if no later epoch
    follows."""
    return min((one.start for one in epochs if one.epoch > epoch), default=None)


def find_stale_acknowledgements(history: History, terms: TermIndex) -> Iterator[Finding]:
    """Find sends that start after an epoch's first acknowledgement and are acknowledged by a master of an older
    epoch."""
    first: dict[int, Answered] = {}
    acknowledged = [(sent, answer, terms.epoch_of(answer)) for sent, answer in history.acknowledged_sends()]
    for sent, answer, epoch in acknowledged:
        if terms.is_within(sent, answer) and (epoch not in first or answer.at < first[epoch].at):
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
