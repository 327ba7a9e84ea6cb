"""Functions that build the rows of the table of edits, and names of the objects that edits change.

In each function ``before`` and ``after`` are the values of the edited field, and ``shown`` are the values of reports
that show the effect. ``was`` and ``becomes`` are such a value before and after the edit, and ``key`` is its place.
"""

from __future__ import annotations

from typing import Any, Final

from edit_world.row import Effect, Fields, Row, Shown, Source, spec_part

CONFIG, STATUS, TABLES, ROUTES = Source.CONFIG, Source.STATUS, Source.TABLES, Source.ROUTES
ARGUMENTS, POD, CLIENT_ACCESS, OBJECT = Source.ARGUMENTS, Source.POD, Source.CLIENT_ACCESS, Source.OBJECT
GROUP_STATUS, MODEL = Source.STATUS_OF_GROUP, Source.MODEL
NOTHING: Final[Fields] = {}
YES, NO = "yes", "no"

BROKER_SETS: Final = frozenset({"StatefulSet/orders-0-master", "StatefulSet/orders-0-slave"})
CONFIG_MAP: Final = frozenset({"ConfigMap/orders-0"})
START_SETTINGS: Final = BROKER_SETS | CONFIG_MAP
"""The objects with a broker's start settings: its pod's template, and the ConfigMap for people to read."""
NAME_SERVER: Final = frozenset({"StatefulSet/orders-nameserver"})
DISRUPTION_BUDGET: Final = frozenset({"PodDisruptionBudget/orders-0-slaves"})
ALERTS: Final = frozenset({"PrometheusRule/orders"})
CLAIM: Final = "PersistentVolumeClaim/data-orders-0-master-0"
"""Objects that edits change, as `Kind/name`: sets of them, and the master's volume claim."""


def edit_row(
    effect: Effect,
    path: str,
    before: Any,
    after: Any,
    changes: frozenset[str],
    *shown: Shown,
    prerequisites: Fields = NOTHING,
) -> Row:
    """Return a row of a field that is not in a list."""
    return Row(
        path=path,
        before=spec_part(path, before),
        after=spec_part(path, after),
        effect=effect,
        changes=changes,
        shown=shown,
        prerequisites=prerequisites,
    )


def roll_row(path: str, before: Any, after: Any, *shown: Shown, more: frozenset[str] = frozenset()) -> Row:
    """Return a row of a start setting of brokers, which rolls the pods."""
    return edit_row(Effect.ROLL, path, before, after, START_SETTINGS | more, *shown)


def pod_row(path: str, before: Any, after: Any, key: str, was: str, becomes: str) -> Row:
    """Return a row of a field of the pod that is not a setting of the broker."""
    return edit_row(Effect.ROLL, path, before, after, BROKER_SETS, Shown(POD, key, was, becomes))


def resized_row(path: str, before: Any, after: Any, key: str, was: str, becomes: str) -> Row:
    """Return a row of resources that a running pod can get."""
    return edit_row(Effect.RESIZE, path, before, after, BROKER_SETS, Shown(POD, key, was, becomes))


def decision_row(path: str, before: Any, after: Any, *shown: Shown, more: frozenset[str] = frozenset()) -> Row:
    """Return a row of a field that the operator's decisions use; of the objects, at most alerts change with it."""
    model = Shown(MODEL, path, str(before), str(after))
    return edit_row(Effect.DECIDED, path, before, after, more, model, *shown)


def refused_row(path: str, before: Any, after: Any, refusal: str, title: str = "") -> Row:
    """Return a row of an edit that the API server refuses."""
    return Row(
        path=path,
        before=spec_part(path, before),
        after=spec_part(path, after),
        effect=Effect.REFUSED,
        refusal=refusal,
        title=title,
    )


def creating(*names: str) -> frozenset[str]:
    """Return changes that create these objects."""
    return frozenset(f"+{name}" for name in names)


def deleting(*names: str) -> frozenset[str]:
    """Return changes that delete these objects."""
    return frozenset(f"-{name}" for name in names)


def table_row(path: str, before: Fields, after: Fields, key: str, was: str, becomes: str) -> Row:
    """Return a row of a table that the sidecar reconciles on the master."""
    return Row(
        path=path,
        before=before,
        after=after,
        effect=Effect.HOT,
        changes=CONFIG_MAP,
        shown=(Shown(TABLES, key, was, becomes),),
    )
