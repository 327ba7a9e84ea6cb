"""Attributes of topics: RocketMQ's syntax, rules and texts, and the values that this broker does not support."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gantry_broker.server.core.topic_attributes import (
    InvalidAttributes,
    UnsupportedAttributes,
    changed_attributes,
    parse_changes,
)


def apply_changes(current: Mapping[str, str] | None, text: str) -> dict[str, str]:
    return changed_attributes(current, parse_changes(text))


@pytest.mark.parametrize(
    ("current", "text", "expected"),
    [
        (None, "", {}),
        ({"message.type": "FIFO"}, "", {"message.type": "FIFO"}),
        (None, "+message.type=FIFO,+queue.type=SimpleCQ", {"message.type": "FIFO", "queue.type": "SimpleCQ"}),
        (None, "+cleanup.policy=DELETE,+reserve.time=-1", {"cleanup.policy": "DELETE", "reserve.time": "-1"}),
        ({"message.type": "FIFO"}, "+message.type=NORMAL", {"message.type": "NORMAL"}),
        ({"message.type": "FIFO", "reserve.time": "1"}, "-message.type", {"reserve.time": "1"}),
        ({"message.type": "FIFO"}, "+reserve.time=9,-message.type", {"reserve.time": "9"}),
        (None, "+queue.type=BatchCQ,+message.type=NORMAL", {"queue.type": "SimpleCQ", "message.type": "NORMAL"}),
        ({"queue.type": "BatchCQ"}, "+message.type=FIFO", {"queue.type": "BatchCQ", "message.type": "FIFO"}),
        ({"kept.from": "before"}, "+message.type=DELAY", {"kept.from": "before", "message.type": "DELAY"}),
    ],
)
def test_changes_are_applied_to_existing_attributes(
    current: Mapping[str, str] | None, text: str, expected: dict[str, str]
) -> None:
    """Attributes are added, replaced and deleted; all others stay, even those that cannot be set any more.

    A new topic with batch queues gets plain ones. A topic from RocketMQ's store keeps its type.
    """
    assert apply_changes(current, text) == expected


@pytest.mark.parametrize(
    ("current", "text", "words"),
    [
        (None, "message.type=NORMAL", "add/alter attribute format is wrong: message.type"),
        (None, "+message.type=", "add/alter attribute format is wrong: +message.type has no value"),
        ({}, "message.type", "delete attribute format is wrong: message.type"),
        (None, "+message.type=FIFO,+message.type=FIFO", "key duplication: +message.type"),
        ({"message.type": "FIFO"}, "+message.type=NORMAL,-message.type", "alter duplication key. key: message.type"),
        (None, "-message.type", "only add attribute is supported while creating topic. key: message.type"),
        ({}, "-message.type", "attempt to delete a nonexistent key: message.type"),
        (None, "+nothing.such=1", "unsupported key: nothing.such"),
        ({}, "+queue.type=BatchCQ", "attempt to update an unchangeable attribute. key: queue.type"),
        ({}, "+queue.type=SimpleCQ", "attempt to update an unchangeable attribute. key: queue.type"),
        ({"queue.type": "SimpleCQ"}, "-queue.type", "attempt to update an unchangeable attribute. key: queue.type"),
        ({}, "+cleanup.policy=DELETE", "attempt to update an unchangeable attribute. key: cleanup.policy"),
        (None, "+queue.type=Other", "value is not in set: [BatchCQ, SimpleCQ]"),
        (
            None,
            "+message.type=fifo",
            "value is not in set: [UNSPECIFIED, TRANSACTION, FIFO, MIXED, DELAY, NORMAL, PRIORITY]",
        ),
        (None, "+reserve.time=soon", 'For input string: "soon"'),
        (None, "+reserve.time=-2", "value is not in range(-1, 9223372036854775807)"),
        (None, "+=x", "kv string format wrong."),
        (None, "++message.type=FIFO", "kv string format wrong."),
        ({}, "x+message.type=FIFO", "kv string format wrong."),
    ],
)
def test_invalid_attributes_are_refused_with_rocketmqs_text(
    current: Mapping[str, str] | None, text: str, words: str
) -> None:
    """Each invalid change is refused; None stands for a new topic."""
    with pytest.raises(InvalidAttributes) as caught:
        apply_changes(current, text)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    "text",
    [
        "+message.type=MIXED",
        "+message.type=LITE",
        "+cleanup.policy=COMPACTION",
    ],
)
def test_unsupported_attributes_are_refused(text: str) -> None:
    """MIXED is refused by RocketMQ's default configuration, too; the others would promise unsupported behaviour."""
    with pytest.raises(UnsupportedAttributes, match="not supported"):
        apply_changes(None, text)
