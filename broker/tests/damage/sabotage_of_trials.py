"""Lies about the evidence of a trial, which the judge must detect."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec
from damage.judge import WAITING, Phase
from damage.ledger import Ledger


class Lie(StrEnum):
    """The kind of change in the evidence."""

    NONE = "none"
    WRONG_BODY = "wrong-body"
    """A message was read with another body."""
    MISSING = "missing"
    """A message was not read."""
    REUSED = "reused"
    """A send got offsets that were given before."""
    NOT_DELIVERED = "not-delivered"
    """A delayed message, or one of an open transaction, did not arrive."""
    UNTOLD = "untold"
    """The status does not report that messages wait for the acceptance of a loss."""
    PASSED_OVER = "passed-over"
    """A consumer skipped a message that was served."""


def tell_lie(lie: Lie, phases: Sequence[Phase], ledger: Ledger) -> None:
    """Change one fact in the evidence of the last phase; with ``UNTOLD``, of all phases.

    Raises ``LookupError`` or ``ValueError`` if there is no suitable place.
    """
    phase = phases[-1]
    if lie is Lie.NONE:
        return
    if lie is Lie.UNTOLD:
        if not any(WAITING in one.waits_for for one in phases):
            raise LookupError("no delivery waited")
        for one in phases:
            one.waits_for = one.waits_for.replace(WAITING, "all is well")
        return
    if lie is Lie.PASSED_OVER:
        longest = max(phase.followed, key=lambda one: len(one.numbers))
        del longest.numbers[0]
        return
    if lie is Lie.NOT_DELIVERED:
        first = min(ledger.owed, key=lambda owed: owed.physical).unique
        queues = [queue for reading in phase.readings if reading.is_last for queue in reading.queues]
        delivered = [queue for queue in queues if any(message.unique == first for message in queue.messages)]
        if not delivered:
            raise LookupError("nothing was delivered")
        for queue in delivered:
            queue.messages = [message for message in queue.messages if message.unique != first]
        return
    if lie is Lie.REUSED:
        sent = phase.sends[0]
        phase.sends[0] = msgspec.structs.replace(sent, queue_offset=0, physical=0)
        return
    for reading in phase.readings:
        for queue in reading.queues:
            if queue.tag == "*" and len(queue.messages) > 2:
                if lie is Lie.MISSING:
                    del queue.messages[1]
                else:
                    message = queue.messages[1]
                    queue.messages[1] = msgspec.structs.replace(message, body=b"x" + message.body[1:])
                return
    raise LookupError("nothing was read")
