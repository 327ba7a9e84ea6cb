"""Every edit of the table on a real API server: it is accepted or refused as in the table, and so are the objects.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

from typing import Any

import pytest
from api_server import GROUPS, ApiServer
from edit_world.reports import name_of
from edit_world.row import BASE, Effect, Fields, Row
from edit_world.table import ROWS
from objects_scene import group, rendered

from gantry_operator.api import ref_of
from gantry_operator.objects.base import Object

pytestmark = pytest.mark.needs_api_server

MERGE = "application/merge-patch+json"
FOREIGN = ("PodMonitor", "PrometheusRule", "Certificate", "TCPRoute")
"""The kinds that this server does not have."""

MADE_ANEW = {("storage.size", "StatefulSet/orders-0-master"), ("storage.size", "StatefulSet/orders-0-slave")}
"""Edits for which the API server rejects a change of an object, so the operator recreates it and keeps its pods."""


@pytest.fixture
def server(groups_api: ApiServer) -> ApiServer:
    """The API server that all tests share."""
    return groups_api


def edited(server: ApiServer, row: Row, number: int, after: Fields) -> tuple[int, Any]:
    """Create a group with one side of a row, and replace its spec with the other, as `kubectl replace` does."""
    path = f"{GROUPS}/edit-{number}"
    head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": f"edit-{number}"}}
    status, answer = server.ask("POST", f"{GROUPS}?fieldValidation=Strict", head | {"spec": row.spec(row.before)})
    assert status == 201, answer
    try:
        answer["spec"] = row.spec(after)
        return server.ask("PUT", f"{path}?fieldValidation=Strict", answer)
    finally:
        assert server.ask("DELETE", path)[0] == 200


@pytest.mark.verify(quick=4)
@pytest.mark.parametrize(("number", "row"), list(enumerate(ROWS)), ids=[str(row) for row in ROWS])
def test_edit_is_accepted_or_refused_as_in_the_table(server: ApiServer, number: int, row: Row) -> None:
    """A refusal has our message, and comes before any action; an accepted edit makes a new generation."""
    status, answer = edited(server, row, number, row.after)

    if row.effect is Effect.REFUSED:
        assert status == 422, answer
        assert row.refusal in answer["message"]
        return
    assert status == 200, answer
    assert answer["metadata"]["generation"] == 2, "expected a new generation"


@pytest.mark.parametrize("number", [0, 1, 2], ids=["shards", "slaves", "image"])
def test_equal_spec_is_not_an_edit(server: ApiServer, number: int) -> None:
    """The twin: an equal spec makes no new generation, so a new one comes from the edit."""
    row = ROWS[number]

    status, answer = edited(server, row, 100 + number, row.before)

    assert (status, answer["metadata"]["generation"]) == (200, 1)


@pytest.mark.verify(quick=4)
@pytest.mark.parametrize("row", [row for row in ROWS if row.effect is not Effect.REFUSED], ids=str)
def test_objects_that_an_edit_changes_are_accepted(server: ApiServer, row: Row) -> None:
    """Each is applied over the one before; those that cannot be are the ones that are recreated."""
    old, new = (by_name(row, fields) for fields in (row.before, row.after))
    names = {name.lstrip("+") for name in row.changes if not name.startswith("-")}
    for name in sorted(name for name in names if not name.startswith(FOREIGN)):
        if name in old:
            status, answer = apply(server, old[name])
            assert status in (200, 201), answer
        status, answer = apply(server, new[name])
        is_refused = status == 422 and "Forbidden" in str(answer["message"])
        assert is_refused is ((row.path, name) in MADE_ANEW), (name, answer)
        assert is_refused or status in (200, 201), (name, answer)
        delete(server, new[name])


def by_name(row: Row, fields: Fields) -> dict[str, Object]:
    """Return the objects that are rendered for one side, by name."""
    return {name_of(one): one for one in rendered(group(**row.spec(fields)))}


def apply(server: ApiServer, document: Object) -> tuple[int, Any]:
    """Apply an object as the operator does."""
    ref = ref_of(document)
    return server.apply(ref.kind.path(ref.namespace, ref.name), document)


def delete(server: ApiServer, document: Object) -> None:
    """Delete an object, so that the next row starts with none."""
    ref = ref_of(document)
    status, answer = server.ask("DELETE", ref.kind.path(ref.namespace, ref.name))
    assert status == 200, answer


def test_unknown_field_is_refused(server: ApiServer) -> None:
    """A typing error in an edit is not dropped silently."""
    path = f"{GROUPS}/typed"
    head = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "typed"}}
    assert server.apply(path, head | {"spec": dict(BASE)})[0] == 201

    change = {"spec": {"replication": {"ackTimout": "4s"}}}
    status, answer = server.ask("PATCH", f"{path}?fieldValidation=Strict&fieldManager=test", change, MERGE)

    assert status in (400, 422) and "ackTimout" in answer["message"]
