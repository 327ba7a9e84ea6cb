"""The section of docs/compatibility.md about smaller features of RocketMQ 5 that clients can see."""

from __future__ import annotations

from typing import Final, NamedTuple


class Feature(NamedTuple):
    """A feature of RocketMQ 5, and whether Gantry has it."""

    name: str
    is_supported: bool
    why: str
    """The reason, or the limits, as Markdown; empty without any."""


FEATURES: Final = (
    Feature(
        "pop consumption: requests 200050 to 200055, modes of groups (401), assignment by the broker (400)",
        True,
        "[pop consumption](pop.md); not from topics with `queue.type=BatchCQ`",
    ),
    Feature(
        "several acks in one request (200151)",
        True,
        "also of several groups and checkpoints, up to 1,024",
    ),
    Feature(
        "notifications of messages to pop (200054), with a filter since 5.4",
        True,
        "the filter is ignored: a client may be notified of messages that it does not want, and then pops none",
    ),
    Feature(
        "deliveries that are suspended (`suspend` of 200053 and of the SDKs' `ChangeInvisibleDuration`, since 5.5)",
        True,
        "the next delivery does not count as one after a failure",
    ),
    Feature(
        "priority messages (`message.type=PRIORITY`, `priority.factor`)",
        True,
        "[priorities](pop.md#priorities); also through the proxy",
    ),
    Feature(
        "lite topics (`message.type=LITE`, 200070 to 200079, light pushes of the SDKs)",
        False,
        (
            "millions of queues need another store of queues. Requests are refused with codes 3, 29 and 1, and by "
            "the proxy; use ordinary topics with keys or tags"
        ),
    ),
    Feature(
        "timers to the millisecond, and their recall (370)",
        True,
        "[delayed messages](delayed-messages.md)",
    ),
    Feature(
        ("heartbeats with a fingerprint and without subscriptions (`useHeartbeatV2`), and to several brokers at once"),
        True,
        "",
    ),
    Feature(
        "lite pulls (361), pulls with a limit of bytes",
        True,
        "also on connections with binary headers",
    ),
    Feature(
        "queries by tag (`indexType=T`), and with a range of times by unique id",
        True,
        "by the units of queues, not by the key index",
    ),
    Feature(
        "namespaces in fields of requests (`setNamespaceV2`)",
        True,
        "[Java clients](java.md)",
    ),
    Feature(
        "bodies in LZ4 and Zstandard",
        True,
        "stored as they come",
    ),
    Feature(
        "messages that a client collects into batches by itself (`setAutoBatch`), `queue.type=BatchCQ`",
        True,
        "stored message by message: [batch consume queues](java.md#batch-consume-queues)",
    ),
    Feature(
        "compacted topics (`cleanup.policy=COMPACTION`)",
        False,
        "this broker deletes old messages, also the newest one of a key; refused with code 29",
    ),
    Feature(
        "static topics (513)",
        False,
        "each broker has its own queues; refused with code 3",
    ),
    Feature(
        "`GO_AWAY` (1500) before a broker stops",
        False,
        "clients notice the closed connection, and take another broker",
    ),
    Feature(
        "pages of topics and groups (`topicSeq`, `groupSeq`)",
        True,
        "in one page",
    ),
    Feature(
        "requests of consumers to all brokers of a controller (`acting master`)",
        False,
        "a slave serves reads without acting as a master; Gantry has no controller",
    ),
)

_HEAD: Final = """
## Features that clients can see

Besides the commands of `mqadmin`, these smaller features of RocketMQ 5 concern clients:

| feature | Gantry | reason, or limits |
|---|---|---|
"""


def features_section() -> str:
    """Return the section as Markdown."""
    return _HEAD + "".join(f"| {one.name} | {'yes' if one.is_supported else 'no'} | {one.why} |\n" for one in FEATURES)
