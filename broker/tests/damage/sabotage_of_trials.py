"""Falsifications of the results of a trial, which the judge must detect."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec
from damage.expectations import Expectations
from damage.judge import WAITING
from damage.observed_run import ObservedRun


class Sabotage(StrEnum):
    """The changes of the results, by the value of `--sabotage`."""

    NONE = "none"
    WRONG_BODY = "wrong-body"
    """A message was read with another body."""
    MISSING = "missing"
    """A message was not read."""
    REUSED = "reused"
    """A send got offsets that were given before."""
    NOT_DELIVERED = "not-delivered"
    """A delayed message, or one of an open transaction, did not arrive."""
    NO_WAIT_REPORT = "no-wait-report"
    """The status does not report that messages wait for the acceptance of a loss."""
    SKIPPED = "skipped"
    """A consumer skipped a message that was served."""
    GRANTED = "granted"
    """An account that must be refused had access."""
    FORGOTTEN = "forgotten"
    """A user is not listed."""
    REPEATED = "repeated"
    """A timer message was delivered again."""


def falsify(sabotage: Sabotage, runs: Sequence[ObservedRun], expectations: Expectations) -> None:
    """Change one fact in the results of the last run of the broker; with ``NO_WAIT_REPORT``, of all runs.

    Raises ``LookupError`` or ``ValueError`` if there is no suitable place.
    """
    run = runs[-1]
    if sabotage is Sabotage.NONE:
        return
    if sabotage is Sabotage.NO_WAIT_REPORT:
        if not any(WAITING in one.waiting_problem for one in runs):
            raise LookupError("no delivery waited")
        for one in runs:
            one.waiting_problem = one.waiting_problem.replace(WAITING, "all is well")
        return
    if sabotage is Sabotage.SKIPPED:
        longest = max(run.consumers, key=lambda one: len(one.queue_offsets))
        del longest.queue_offsets[0]
        return
    if sabotage is Sabotage.NOT_DELIVERED:
        first = min(expectations.pending, key=lambda pending: pending.physical_offset).unique
        queues = [queue for reading in run.readings if reading.is_last for queue in reading.queues]
        delivered = [queue for queue in queues if any(message.unique == first for message in queue.messages)]
        if not delivered:
            raise LookupError("nothing was delivered")
        for queue in delivered:
            queue.messages = [message for message in queue.messages if message.unique != first]
        return
    if sabotage in (Sabotage.GRANTED, Sabotage.FORGOTTEN):
        _falsify_accounts(sabotage, run)
        return
    if sabotage is Sabotage.REPEATED:
        _repeat_timer(run, expectations)
        return
    if sabotage is Sabotage.REUSED:
        sent = run.sends[0]
        run.sends[0] = msgspec.structs.replace(sent, queue_offset=0, physical_offset=0)
        return
    for reading in run.readings:
        for queue in reading.queues:
            if queue.tag == "*" and len(queue.messages) > 2:
                if sabotage is Sabotage.MISSING:
                    del queue.messages[1]
                else:
                    message = queue.messages[1]
                    queue.messages[1] = msgspec.structs.replace(message, body=b"x" + message.body[1:])
                return
    raise LookupError("nothing was read")


def _falsify_accounts(sabotage: Sabotage, run: ObservedRun) -> None:
    reading = next((one for one in run.readings if one.logins and one.users), None)
    if reading is None or reading.users is None:
        raise LookupError("no account was used")
    if sabotage is Sabotage.FORGOTTEN:
        reading.users.popitem()
        return
    index = next(number for number, (login, _) in enumerate(reading.logins) if login.denied)
    reading.logins[index] = reading.logins[index][0], True


def _repeat_timer(run: ObservedRun, expectations: Expectations) -> None:
    """Add a timer message that was delivered before the trial to the end of its queue, in all readings."""
    found = 0
    for queue in [queue for reading in run.readings for queue in reading.queues]:
        for message in list(queue.messages):
            if message.unique in expectations.delivered_timers[:1]:
                last = queue.messages[-1]
                queue.messages.append(msgspec.structs.replace(message, queue_offset=last.queue_offset + 1))
                found += 1
    if not found:
        raise LookupError("no timer was read")
