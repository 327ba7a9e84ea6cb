"""A row of the table of edits: one field of a group's spec, one edit of it, and what shows that the edit is in force.

How an edit takes effect is one of few words, and each is a promise that is held against what is rendered:

    HOT       a running broker, its sidecar or a name server takes it; no pod of a broker is made anew
    ROLL      pods of brokers get another template, and are made anew one after the other
    OBJECTS   other objects of the cluster change, and no broker notices
    DECIDED   nothing of it is an object: the operator decides otherwise from now on
    REFUSED   the API server takes no such edit, nor do we

What shows it is a value in a report, before and after. Reports of the same name are made where nothing is a cluster
(pods as processes of this machine, ``local_pods``) and where everything is (``e2e/tests/test_e2e_group_edits.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, final

Fields = Mapping[str, Any]
"""A part of a spec, as a manifest has it."""

GROUP: Final = "orders"
BASE: Final[Fields] = {
    "slaves": 1,
    "storage": {"size": "1Gi"},
    "writeBuffer": {"segmentSize": "8Mi"},
    "resources": {"limits": {"memory": "512Mi"}},
    "broker": {
        "maxHashSlotNum": "1000",
        "maxIndexNum": "4000",
        "diskMaxUsedSpaceRatio": "95",
        "diskSpaceCleanForciblyRatio": "99",
        "diskSpaceWarningLevelRatio": "99",
        "waitTimeMillsInSendQueue": "60000",
    },
}
"""What every edit is tried on: a shard with a slave that is waited for, in small files, on however full a disk."""


class Effect(StrEnum):
    """How an edit takes effect."""

    HOT = "hot"
    ROLL = "roll"
    OBJECTS = "objects"
    DECIDED = "decided"
    REFUSED = "refused"


class Source(StrEnum):
    """Whose report a value is in."""

    CONFIG = "config"
    """The broker's own settings, as it answers GET_BROKER_CONFIG (26); a key is a setting."""

    STATUS = "status"
    """`/v1/status` of its sidecar."""

    TABLES = "tables"
    """Topics and groups that the broker has, by its own word: `topics.NAME.queues`, `groups.NAME.retryMax`."""

    ROUTES = "routes"
    """What name servers tell clients: `inside` and `outside`, whether the group's master is known there."""

    ARGUMENTS = "arguments"
    """What the sidecar's process was started with; a key is an option."""

    POD = "pod"
    """The pod that runs."""

    DOOR = "door"
    """How a client comes in: `plain`, `signed`, `tls`; whether it is answered."""

    OBJECT = "object"
    """An object of the cluster: `Kind/name:path`, or whether it is there."""

    STATUS_OF_GROUP = "group"
    """What the operator says in the group's status."""

    MODEL = "model"
    """What the operator does with brokers that are models, for edits whose effect is seen only when something breaks:
    a test in ``test_edit_decided`` that has the row's title."""


class Shown(NamedTuple):
    """One value of one report. Values are compared as text; `absent` is a value that is not there."""

    source: Source
    key: str
    before: str
    after: str


ABSENT: Final = "absent"


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One edit of one field."""

    path: str
    """The leaf of the definition, such as `topics[].queues`."""

    before: Fields
    after: Fields
    effect: Effect
    changes: frozenset[str] = frozenset()
    """Objects that are rendered otherwise: `Kind/name`, with + if it appears and with - if it goes."""

    shown: tuple[Shown, ...] = ()
    also: Fields = field(default_factory=dict)
    """What the spec needs besides, before and after."""

    title: str = ""
    """To tell two rows of one leaf apart."""

    refusal: str = ""
    """What the API server says, where it takes no such edit."""

    def __str__(self) -> str:
        return self.title or self.path

    def spec(self, fields: Fields) -> dict[str, Any]:
        """A whole spec with the fields of one of its sides."""
        return merged(merged(BASE, self.also), fields)


def merged(one: Fields, other: Fields) -> dict[str, Any]:
    """Both; where they meet the other holds. Of lists, things with names are parts."""
    result = copy.deepcopy(dict(one))
    for key, value in other.items():
        inner = result.get(key)
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            result[key] = merged(inner, value)
        elif _has_names(value) and _has_names(inner):
            named = {item["name"]: item for items in (inner, value) for item in items or ()}
            result[key] = copy.deepcopy(list(named.values()))
        else:
            result[key] = copy.deepcopy(value)
    return result


def _has_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, Mapping) and "name" in item for item in value)


def at(path: str, value: Any) -> dict[str, Any]:
    """A part of a spec in which one field has a value."""
    name, _, rest = path.partition(".")
    return {name: at(rest, value) if rest else value}


def values_at(fields: Any, path: str) -> list[Any]:
    """Everything that stands at a leaf: nothing, one thing, or one of each item of its list."""
    if not path:
        return [fields]
    name, _, rest = path.partition(".")
    is_list, name = name.endswith("[]"), name.removesuffix("[]")
    inner = fields.get(name) if isinstance(fields, Mapping) else None
    if inner is None:
        return []
    return [value for item in inner for value in values_at(item, rest)] if is_list else values_at(inner, rest)
