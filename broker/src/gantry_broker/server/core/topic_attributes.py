"""Attributes of topics: what may be said of one, and what `+name=value,-name` makes of those that it has. Pure.

    message.type     what kind of message it is for. A broker stores any kind whatever it says, RocketMQ's too: there
                     the proxy checks it (enableTopicMessageTypeCheck), and this broker has no proxy
    queue.type       SimpleCQ is how queues are kept here
    cleanup.policy   DELETE is how old messages go here
    reserve.time     how long tiered storage keeps messages; kept, and without effect, as in RocketMQ without that

The syntax, the rules and the words are RocketMQ's: an attribute of a topic that exists can be changed only if it is of
the changeable kind, and on one that is being made nothing can be taken away. Two values are refused that RocketMQ
takes, since they promise something that this broker does not do: queues of batches, and compaction, without which the
newest message of each key would be deleted like any other.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

ADD: Final = "+"
DELETE: Final = "-"
MESSAGE_TYPE: Final = "message.type"
MESSAGE_TYPES: Final = ("UNSPECIFIED", "TRANSACTION", "FIFO", "MIXED", "DELAY", "NORMAL")
RESERVE_MIN: Final = -1
RESERVE_MAX: Final = (1 << 63) - 1


class WrongAttributes(ValueError):
    """They are refused. The caller should answer code 1 with this text, as RocketMQ does."""


class UnsupportedAttributes(ValueError):
    """What they ask for is not done here. The caller should answer code 29 with this text."""


class Attribute(NamedTuple):
    """One that may be set."""

    is_changeable: bool
    verify: Callable[[str], None]
    """Raises WrongAttributes for a value that it cannot have."""


def _one_of(*values: str) -> Callable[[str], None]:
    def verify(value: str) -> None:
        if value not in values:
            raise WrongAttributes(f"value is not in set: [{', '.join(values)}]")

    return verify


def _reserve_time(value: str) -> None:
    try:
        number = int(value)
    except ValueError as error:
        raise WrongAttributes(f'For input string: "{value[:64]}"') from error
    if not RESERVE_MIN <= number <= RESERVE_MAX:
        raise WrongAttributes(f"value is not in range({RESERVE_MIN}, {RESERVE_MAX})")


ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "queue.type": Attribute(False, _one_of("BatchCQ", "SimpleCQ")),
    "cleanup.policy": Attribute(False, _one_of("DELETE", "COMPACTION")),
    MESSAGE_TYPE: Attribute(True, _one_of(*MESSAGE_TYPES)),
    "reserve.time": Attribute(True, _reserve_time),
}

OF_GROUPS: Final[Mapping[str, Attribute]] = {}
"""RocketMQ 5.3.3 has the place, and nothing in it."""

NOT_HERE: Final[Mapping[tuple[str, str], str]] = {
    (MESSAGE_TYPE, "MIXED"): "MIXED message type is not supported.",
    (
        "queue.type",
        "BatchCQ",
    ): "queue.type=BatchCQ is not supported: each message of a batch has its own place here",
    ("cleanup.policy", "COMPACTION"): (
        "cleanup.policy=COMPACTION is not supported: this broker deletes old messages, the newest of a key like others"
    ),
}
"""Values that are good, and refused all the same."""


def parse_changes(text: str | None) -> dict[str, str]:
    """`+name=value,-name` as a map, signs included. Raises WrongAttributes."""
    changes: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, separator, value = part.partition("=")
        if separator and ADD not in name:
            raise WrongAttributes(f"add/alter attribute format is wrong: {name[:64]}")
        if separator and not value:
            raise WrongAttributes(f"add/alter attribute format is wrong: {name[:64]} has no value")
        if not separator and DELETE not in name:
            raise WrongAttributes(f"delete attribute format is wrong: {name[:64]}")
        if name in changes:
            raise WrongAttributes(f"key duplication: {name[:64]}")
        changes[name] = value
    return changes


def changed_attributes(
    current: Mapping[str, str] | None,
    changes: Mapping[str, str],
    known: Mapping[str, Attribute] = ATTRIBUTES,
) -> dict[str, str]:
    """A topic's attributes after these changes; ``current`` is None for a topic that is being made.

    ``known`` is what may be set: for groups of consumers RocketMQ knows none (``OF_GROUPS``). Raises WrongAttributes or
    UnsupportedAttributes.
    """
    for (name, value), why in NOT_HERE.items():
        if changes.get(ADD + name) == value:
            raise UnsupportedAttributes(why)
    is_new = current is None
    attributes = dict(current or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if not name or ADD in name or DELETE in name:
            raise WrongAttributes("kv string format wrong.")
        if name in seen:
            raise WrongAttributes(f"alter duplication key. key: {name}")
        seen.add(name)
        _check_sign(sign, name, attributes, is_new=is_new)
        _check_value(known.get(name), name, value, is_new=is_new, is_deleted=sign == DELETE)
        if sign == ADD:
            attributes[name] = value
        else:
            del attributes[name]
    return attributes


def _check_sign(sign: str, name: str, attributes: Mapping[str, str], *, is_new: bool) -> None:
    if is_new and sign != ADD:
        raise WrongAttributes(f"only add attribute is supported while creating topic. key: {name[:64]}")
    if sign not in (ADD, DELETE):
        raise WrongAttributes(f"wrong format key: {name[:64]}")
    if sign == DELETE and name not in attributes:
        raise WrongAttributes(f"attempt to delete a nonexistent key: {name[:64]}")


def _check_value(attribute: Attribute | None, name: str, value: str, *, is_new: bool, is_deleted: bool) -> None:
    if attribute is None:
        raise WrongAttributes(f"unsupported key: {name[:64]}")
    if not is_new and not attribute.is_changeable:
        raise WrongAttributes(f"attempt to update an unchangeable attribute. key: {name}")
    if not is_deleted:
        attribute.verify(value)
