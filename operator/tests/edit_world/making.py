"""Functions that build the rows of the table, and names of the objects that edits change."""

from __future__ import annotations

from typing import Any, Final

from edit_world.row import Effect, Fields, Row, Shown, Source, at

CONFIG, STATUS, TABLES, ROUTES = Source.CONFIG, Source.STATUS, Source.TABLES, Source.ROUTES
ARGUMENTS, POD, CLIENT_ACCESS, OBJECT = Source.ARGUMENTS, Source.POD, Source.CLIENT_ACCESS, Source.OBJECT
GROUP_STATUS, MODEL = Source.STATUS_OF_GROUP, Source.MODEL
NOTHING: Final[Fields] = {}
YES, NO = "yes", "no"

SETS: Final = frozenset({"StatefulSet/orders-0-master", "StatefulSet/orders-0-slave"})
CONF: Final = frozenset({"ConfigMap/orders-0"})
STARTED: Final = SETS | CONF
"""A broker's start settings are in its pod's template, and in the ConfigMap for people to read."""
NAME_SERVER: Final = frozenset({"StatefulSet/orders-nameserver"})
BUDGET: Final = frozenset({"PodDisruptionBudget/orders-0-slaves"})
ALERTS: Final = frozenset({"PrometheusRule/orders"})
CLAIM: Final = "PersistentVolumeClaim/data-orders-0-master-0"


def edit(
    effect: Effect, path: str, before: Any, after: Any, changes: frozenset[str], *shown: Shown, also: Fields = NOTHING
) -> Row:
    """Return a row of a field that is not in a list."""
    return Row(
        path=path,
        before=at(path, before),
        after=at(path, after),
        effect=effect,
        changes=changes,
        shown=shown,
        also=also,
    )


def roll(path: str, before: Any, after: Any, *shown: Shown, more: frozenset[str] = frozenset()) -> Row:
    """Return a row of a start setting of brokers, which rolls the pods."""
    return edit(Effect.ROLL, path, before, after, STARTED | more, *shown)


def of_pod(path: str, before: Any, after: Any, key: str, was: str, becomes: str) -> Row:
    """Return a row of a field of the pod that is not a setting of the broker."""
    return edit(Effect.ROLL, path, before, after, SETS, Shown(POD, key, was, becomes))


def decision_row(path: str, before: Any, after: Any, *shown: Shown, more: frozenset[str] = frozenset()) -> Row:
    """Return a row of a field that the operator's decisions use; of the objects, at most alerts change with it."""
    model = Shown(MODEL, path, str(before), str(after))
    return edit(Effect.DECIDED, path, before, after, more, model, *shown)


def refused(path: str, before: Any, after: Any, refusal: str, title: str = "") -> Row:
    """Return a row of an edit that the API server refuses."""
    return Row(
        path=path,
        before=at(path, before),
        after=at(path, after),
        effect=Effect.REFUSED,
        refusal=refusal,
        title=title,
    )


def appearing(*names: str) -> frozenset[str]:
    """Return changes that create these objects."""
    return frozenset(f"+{name}" for name in names)


def going(*names: str) -> frozenset[str]:
    """Return changes that delete these objects."""
    return frozenset(f"-{name}" for name in names)


def table_row(path: str, before: Fields, after: Fields, key: str, was: str, becomes: str) -> Row:
    """Return a row of a table that the sidecar reconciles on the master."""
    return Row(
        path=path,
        before=before,
        after=after,
        effect=Effect.HOT,
        changes=CONF,
        shown=(Shown(TABLES, key, was, becomes),),
    )
