"""Decides for every property that brokers read or write whether a client may set it: the only place that does.

    request --> remove_broker_properties --> the checks of its path --> draft --> log

Brokers keep state in properties of the records that wait in system topics, and trust it later, because no client can
write to these topics. But the properties of a waiting record come from a client. So each path on which a message comes
in (single, batch, half message, send-back, reply) removes those that only a broker writes, and what the brokers make of
a stored message (a commit, another delivery) does not copy them. RocketMQ removes only `POP_CK`.

Clients send many properties again that a broker has written: they copy the properties of a message that they have
received, for a retry or to another topic. So only what changes the meaning of other records is removed, and no
request is refused for it. Records that older versions of Gantry or RocketMQ have stored may have any properties: a
reader compares a reference to another record with that record (`server.timers.entries.replaces`,
`server.transactions.halves.OpenHalves.add`).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

from gantry_wire import properties as keys


class Rule(Enum):
    """What happens to a property with which a message comes in."""

    REMOVED = "only a broker may set it"
    ADDED = "the broker adds it to each message, and replaces the client's"
    WAITING = "the broker replaces it in each message that waits in a system topic, the only place where it is read"
    CLIENT = "a client may set it: it concerns its own message, or other messages of a topic to which it may send"


def _rules(rule: Rule, *names: str) -> dict[str, Rule]:
    return dict.fromkeys(names, rule)


RULES: Final[dict[str, Rule]] = {
    # References to other records of a system topic, which would cancel or replace these.
    **_rules(Rule.REMOVED, keys.TIMER_COPY_OF, keys.TIMER_ROLL_TIMES, keys.TRANSACTION_PREPARED_QUEUE_OFFSET),
    # State of a transaction, which would end it early, or keep it open.
    **_rules(Rule.REMOVED, keys.TRANSACTION_CHECK_TIMES, keys.TRANSACTION_OPEN_SINCE, keys.TRANSACTION_OUTCOME),
    # The receipt of a pop, the seal of a record, and the format of a record that is a batch.
    **_rules(Rule.REMOVED, keys.POP_CHECKPOINT, keys.RECORD_CRC, keys.INNER_NUM, keys.INNER_BASE),
    **_rules(Rule.ADDED, keys.MESSAGE_REGION, keys.TRACE_ON, keys.CLUSTER),
    # TIMER_OUT_MS of a message that does not wait shows that it was a timer before: a retry is not delayed twice.
    **_rules(Rule.WAITING, keys.REAL_TOPIC, keys.REAL_QUEUE_ID, keys.TRANSACTION_ID, keys.TIMER_OUT_MS),
    # What an application or its client chooses.
    **_rules(Rule.CLIENT, keys.KEYS, keys.TAGS, keys.WAIT_STORE, keys.UNIQUE_KEY, keys.SHARDING_KEY, keys.PRIORITY),
    **_rules(Rule.CLIENT, keys.DELAY_LEVEL, keys.TIMER_DELAY_SECONDS, keys.TIMER_DELAY_MS, keys.TIMER_DELIVER_MS),
    **_rules(Rule.CLIENT, keys.TRANSACTION_PREPARED, keys.PRODUCER_GROUP, keys.CHECK_IMMUNITY_SECONDS),
    **_rules(Rule.CLIENT, keys.INSTANCE_ID, keys.BORN_HOST, keys.CORRELATION_ID, keys.REPLY_TO_CLIENT),
    **_rules(Rule.CLIENT, keys.TIME_TO_LIVE, keys.MESSAGE_TYPE),
    # A recall, which RocketMQ's producers may send as a timer: it reaches only timers of the topic to which it is sent.
    **_rules(Rule.CLIENT, keys.TIMER_DELETE_KEY),
    # A consumer that sends a message to its retry topic itself sets these, as RocketMQ's clients do.
    **_rules(Rule.CLIENT, keys.RETRY_TOPIC, keys.ORIGIN_MESSAGE_ID, keys.RECONSUME_TIME, keys.MAX_RECONSUME_TIMES),
    # Figures for applications, which come back in copies. No broker reads them in a message of a client.
    **_rules(Rule.CLIENT, keys.TIMER_ENQUEUE_MS, keys.TIMER_DEQUEUE_MS, keys.FIRST_POP_TIME, keys.PUSH_REPLY_TIME),
    **_rules(Rule.CLIENT, keys.MIN_OFFSET, keys.MAX_OFFSET),
}
"""The rule for each property with a meaning; every other one belongs to the application."""


def _with_rule(rules: Iterable[Rule]) -> frozenset[str]:
    wanted = set(rules)
    return frozenset(name for name, rule in RULES.items() if rule in wanted)


BROKER_PROPERTIES: Final = _with_rule([Rule.REMOVED])
"""The properties that only a broker may set."""

OWNED_PROPERTIES: Final = _with_rule([Rule.REMOVED, Rule.ADDED])
"""The properties that a message does not keep as they came in: with one of them it is encoded again."""


def remove_broker_properties(properties: dict[str, str]) -> dict[str, str]:
    """Remove the properties that only a broker may set, and return the others, in the same dictionary."""
    if not BROKER_PROPERTIES.isdisjoint(properties):
        for name in BROKER_PROPERTIES:
            properties.pop(name, None)
    return properties
