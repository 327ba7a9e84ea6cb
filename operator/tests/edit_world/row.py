"""A row of the table of edits: one field of a group's spec, one edit of it, and the values that show its effect.

The effect of an edit is one of these kinds, and each is checked against the rendered objects:

    HOT       a running broker, its sidecar or a name server adopts it; no broker's pod is recreated
    ROLL      brokers' pods get another template, and are recreated one after the other
    RESIZE    brokers' pods get other resources while they run; where the cluster cannot do that, they are recreated
    OBJECTS   other objects of the cluster change, without an effect on brokers
    DECIDED   no object but alerts changes: the operator decides by the new value from now on
    REFUSED   the API server refuses the edit, and so do we

The effect shows in values of reports, before and after. Reports of the same names are made without a cluster (pods as
processes of this machine, ``local_pods``) and in a real one (``e2e/tests/test_e2e_group_edits.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, final

Fields = Mapping[str, Any]
"""A part of a spec, in the form of a manifest."""

GROUP: Final = "orders"
"""The name of the edited group."""

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
"""The spec of every edit: a shard with a slave that acknowledges, with small files, on a disk of any usage."""


class Effect(StrEnum):
    """The kind of effect of an edit."""

    HOT = "hot"
    ROLL = "roll"
    RESIZE = "resize"
    OBJECTS = "objects"
    DECIDED = "decided"
    REFUSED = "refused"


class Source(StrEnum):
    """The report that has a value."""

    CONFIG = "config"
    """The broker's own settings, as it answers GET_BROKER_CONFIG (26); a key is a setting."""

    STATUS = "status"
    """The document `/v1/status` of its sidecar."""

    TABLES = "tables"
    """Topics and groups that the broker reports: `topics.NAME.queues`, `groups.NAME.retryMax`."""

    ROUTES = "routes"
    """The routes of name servers: `inside` and `outside`, whether they contain the group's master."""

    ARGUMENTS = "arguments"
    """The arguments of the sidecar's process; a key is an option."""

    POD = "pod"
    """The object of the running pod."""

    CLIENT_ACCESS = "client access"
    """Whether the broker answers a client without account and certificate; the only key is `plain`."""

    OBJECT = "object"
    """An object of the cluster: `Kind/name:path`, or whether it exists."""

    STATUS_OF_GROUP = "group"
    """The group's status, written by the operator."""

    MODEL = "model"
    """The operator's actions on model brokers, for edits whose effect shows only in a failure: a test in
    ``test_edit_decided`` with the row's title."""


class Shown(NamedTuple):
    """One value of one report, before and after. Values are compared as text; `absent` stands for a missing value."""

    source: Source
    key: str
    """The place of the value in the report, in the form that ``reports`` describes."""

    before: str
    after: str


ABSENT: Final = "absent"
"""The text for a value that a report does not have."""


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One edit of one field."""

    path: str
    """The leaf of the definition, such as `topics[].queues`."""

    before: Fields
    """The edited field, and others of its list, before the edit."""

    after: Fields
    """The same fields after the edit."""

    effect: Effect
    changes: frozenset[str] = frozenset()
    """Objects whose rendering changes: `Kind/name`, with + if it is created and with - if it is deleted."""

    shown: tuple[Shown, ...] = ()
    """The values of reports that show the effect; none for a refused edit."""

    prerequisites: Fields = field(default_factory=dict)
    """Other fields that the spec needs, before and after."""

    title: str = ""
    """Distinguishes two rows of one leaf; empty for a single row."""

    refusal: str = ""
    """The API server's error message for an edit that it refuses."""

    def __str__(self) -> str:
        return self.title or self.path

    def spec(self, fields: Fields) -> dict[str, Any]:
        """Return a whole spec with these fields, which are those of the row before or after the edit."""
        return merged(merged(BASE, self.prerequisites), fields)


def merged(one: Fields, other: Fields) -> dict[str, Any]:
    """Merge two specs; on conflict ``other`` wins. Lists of items with names are merged by name."""
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


def has_tls(spec: Fields) -> bool:
    """Return whether the brokers of a spec accept only TLS connections."""
    access = spec.get("access", {})
    return bool(access.get("tlsSecret")) or access.get("certificates", {}).get("issuer", "None") != "None"


def _has_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, Mapping) and "name" in item for item in value)


def spec_part(path: str, value: Any) -> dict[str, Any]:
    """Return a part of a spec in which one field has a value."""
    name, _, rest = path.partition(".")
    return {name: spec_part(rest, value) if rest else value}


def values_at(fields: Any, path: str) -> list[Any]:
    """Return all values at a leaf: none, one, or one for each item of its list."""
    if not path:
        return [fields]
    name, _, rest = path.partition(".")
    is_list, name = name.endswith("[]"), name.removesuffix("[]")
    inner = fields.get(name) if isinstance(fields, Mapping) else None
    if inner is None:
        return []
    return [value for item in inner for value in values_at(item, rest)] if is_list else values_at(inner, rest)
