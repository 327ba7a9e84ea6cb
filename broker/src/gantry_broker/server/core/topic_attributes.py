"""Attributes of topics: their valid values, and changes in the form `+name=value,-name`. Pure.

    message.type     the kind of messages in the topic. Neither this broker nor RocketMQ's checks the kind of a message:
                     the proxies do (enableTopicMessageTypeCheck). Pops read a topic with PRIORITY by priority
    queue.type       SimpleCQ, the format of consume queues here; it replaces BatchCQ in a new topic, see below
    cleanup.policy   only DELETE, the way in which old messages are removed here
    reserve.time     how long tiered storage keeps messages; without effect, as in RocketMQ without tiered storage

The syntax, the rules and the texts are RocketMQ's: an attribute of an existing topic can be changed only if it is
changeable, and a new topic has no attribute to delete. Two values are refused that RocketMQ accepts, since this
broker does not implement them: compaction, which keeps the newest message of each key, and topics of lite messages.

Groups have one attribute, `priority.factor`: how many of 100 pops read a priority topic by priority.

RocketMQ stores a batch as one record in a topic with BatchCQ, and its clients take the record apart. This broker stores
the messages of a batch as records of their own, at the same queue offsets, so clients get the same messages. It must
not store BatchCQ: RocketMQ does not start with a plain consume queue of such a topic.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

ADD: Final = "+"
"""How the name of an attribute begins that a request adds or changes."""
DELETE: Final = "-"
"""How the name of an attribute begins that a request removes."""
MESSAGE_TYPE: Final = "message.type"
QUEUE_TYPE: Final = "queue.type"
BATCH_QUEUES: Final = "BatchCQ"
"""The queue type of RocketMQ's batch consume queues, which have one entry for each batch."""
PLAIN_QUEUES: Final = "SimpleCQ"
"""The queue type of consume queues with one entry for each message."""
PRIORITY_TYPE: Final = "PRIORITY"
"""The `message.type` of topics whose queues pops read by priority."""
MESSAGE_TYPES: Final = ("UNSPECIFIED", "TRANSACTION", "FIFO", "MIXED", "DELAY", "NORMAL", PRIORITY_TYPE)
PRIORITY_FACTOR: Final = "priority.factor"
"""The attribute of a group that says how many of 100 pops read a priority topic by priority."""
PERCENT_MAX: Final = 100
RESERVE_MIN: Final = -1
"""The least value of reserve.time, as in RocketMQ."""
RESERVE_MAX: Final = (1 << 63) - 1


class InvalidAttributes(ValueError):
    """The attributes are invalid. The caller should answer with code 1 and this text, as RocketMQ does."""


class UnsupportedAttributes(ValueError):
    """A valid value is not supported. The caller should answer with code 29 and this text."""


class Attribute(NamedTuple):
    """An attribute that can be set."""

    is_changeable: bool
    """Whether the attribute of an existing topic may be changed."""

    verify: Callable[[str], None]
    """Raises InvalidAttributes for an invalid value."""


def _one_of(*values: str) -> Callable[[str], None]:
    def verify(value: str) -> None:
        if value not in values:
            raise InvalidAttributes(f"value is not in set: [{', '.join(values)}]")

    return verify


def _number(least: int, most: int) -> Callable[[str], None]:
    def verify(value: str) -> None:
        try:
            number = int(value)
        except ValueError as error:
            raise InvalidAttributes(f'For input string: "{value[:64]}"') from error
        if not least <= number <= most:
            raise InvalidAttributes(f"value is not in range({least}, {most})")

    return verify


ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    QUEUE_TYPE: Attribute(False, _one_of(BATCH_QUEUES, PLAIN_QUEUES)),
    "cleanup.policy": Attribute(False, _one_of("DELETE", "COMPACTION")),
    MESSAGE_TYPE: Attribute(True, _one_of(*MESSAGE_TYPES)),
    "reserve.time": Attribute(True, _number(RESERVE_MIN, RESERVE_MAX)),
}

GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {PRIORITY_FACTOR: Attribute(True, _number(0, PERCENT_MAX))}
"""The attributes of groups; those of RocketMQ for lite topics are unknown here."""

UNSUPPORTED_VALUES: Final[Mapping[tuple[str, str], str]] = {
    (MESSAGE_TYPE, "MIXED"): "MIXED message type is not supported.",
    (MESSAGE_TYPE, "LITE"): "message.type=LITE is not supported: this broker has no lite topics",
    ("cleanup.policy", "COMPACTION"): (
        "cleanup.policy=COMPACTION is not supported: this broker deletes old messages, also the newest one of a key"
    ),
}
"""Valid values that are refused, with the text of the refusal. RocketMQ's default settings refuse MIXED, too."""

STORED_VALUES: Final[Mapping[tuple[str, str], str]] = {(QUEUE_TYPE, BATCH_QUEUES): PLAIN_QUEUES}
"""Values of new topics that are replaced by the value that this broker implements."""


def parse_changes(text: str | None) -> dict[str, str]:
    """Parse `+name=value,-name` into a map, signs included. Raises InvalidAttributes."""
    changes: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, separator, value = part.partition("=")
        if separator and ADD not in name:
            raise InvalidAttributes(f"add/alter attribute format is wrong: {name[:64]}")
        if separator and not value:
            raise InvalidAttributes(f"add/alter attribute format is wrong: {name[:64]} has no value")
        if not separator and DELETE not in name:
            raise InvalidAttributes(f"delete attribute format is wrong: {name[:64]}")
        if name in changes:
            raise InvalidAttributes(f"key duplication: {name[:64]}")
        changes[name] = value
    return changes


def changed_attributes(
    current: Mapping[str, str] | None,
    changes: Mapping[str, str],
    known: Mapping[str, Attribute] = ATTRIBUTES,
) -> dict[str, str]:
    """Return the attributes of a topic after these changes; ``current`` is None for a new topic.

    ``known`` are the attributes that can be set; those of consumer groups are ``GROUP_ATTRIBUTES``. Raises
    InvalidAttributes or UnsupportedAttributes.
    """
    for (name, value), why in UNSUPPORTED_VALUES.items():
        if changes.get(ADD + name) == value:
            raise UnsupportedAttributes(why)
    is_new = current is None
    attributes = dict(current or {})
    changed: set[str] = set()
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if not name or ADD in name or DELETE in name:
            raise InvalidAttributes("kv string format wrong.")
        if name in changed:
            raise InvalidAttributes(f"alter duplication key. key: {name}")
        changed.add(name)
        _check_sign(sign, name, attributes, is_new=is_new)
        _check_value(known.get(name), name, value, is_new=is_new, is_deleted=sign == DELETE)
        if sign == ADD:
            attributes[name] = STORED_VALUES.get((name, value), value)
        else:
            del attributes[name]
    return attributes


def _check_sign(sign: str, name: str, attributes: Mapping[str, str], *, is_new: bool) -> None:
    if is_new and sign != ADD:
        raise InvalidAttributes(f"only add attribute is supported while creating topic. key: {name[:64]}")
    if sign not in (ADD, DELETE):
        raise InvalidAttributes(f"wrong format key: {name[:64]}")
    if sign == DELETE and name not in attributes:
        raise InvalidAttributes(f"attempt to delete a nonexistent key: {name[:64]}")


def _check_value(attribute: Attribute | None, name: str, value: str, *, is_new: bool, is_deleted: bool) -> None:
    if attribute is None:
        raise InvalidAttributes(f"unsupported key: {name[:64]}")
    if not is_new and not attribute.is_changeable:
        raise InvalidAttributes(f"attempt to update an unchangeable attribute. key: {name}")
    if not is_deleted:
        attribute.verify(value)
