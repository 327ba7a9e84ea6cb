"""The port to Kubernetes: preconditions, server-side apply and errors, by the real port over HTTP and by the fake."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from operator_world.fake_kubernetes import FakeKubernetes
from operator_world.http_kubernetes import HttpKubernetes, http_kubernetes
from operator_world.waiting import until

from gantry_operator.api import CONFIG_MAPS, GROUPS, LEASES, PODS, Kubernetes, Object, Place, revision_of, uid_of
from gantry_operator.errors import ApiError, Conflict, Forbidden, Gone, NotLeader, Refused, Unavailable

POD = Place(PODS, "shop", "g-0-master-0")
MAP = Place(CONFIG_MAPS, "shop", "g-0")
GROUP = Place(GROUPS, "shop", "g")


def document(place: Place, **body: Any) -> Object:
    head = {"name": place.name, "namespace": place.namespace}
    return {"apiVersion": place.kind.api_version, "kind": place.kind.name, "metadata": head} | body


@pytest.fixture(params=["fake", "http"])
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Kubernetes]:
    if request.param == "fake":
        yield FakeKubernetes()
    else:
        async with http_kubernetes() as (_, real):
            yield real


async def test_a_patch_is_for_just_the_object_and_version_that_was_meant(api: Kubernetes) -> None:
    """Another uid, or another revision: `Conflict`, and nothing has changed; with what is so, it is done."""
    made = await api.create(document(POD))

    with pytest.raises(Conflict):
        await api.patch(POD, {"metadata": {"labels": {"a": "b"}}}, uid="uid-of-another")
    with pytest.raises(Conflict):
        await api.patch(POD, {"metadata": {"labels": {"a": "b"}}}, revision="1")
    assert await api.get(POD) == made
    changed = await api.patch(POD, {"metadata": {"labels": {"a": "b"}}}, uid=uid_of(made), revision=revision_of(made))
    taken = await api.patch(POD, {"metadata": {"labels": {"a": None}}}, uid=uid_of(made))

    assert changed["metadata"]["labels"] == {"a": "b"}
    assert not taken["metadata"].get("labels")


async def test_only_the_one_that_was_meant_is_deleted(api: Kubernetes) -> None:
    """By uid: a namesake that came since stays; one that is gone is deleted already."""
    made = await api.create(document(POD))

    with pytest.raises(Conflict):
        await api.delete(POD, uid="uid-of-another")
    await api.delete(POD, uid=uid_of(made))
    await api.delete(POD, uid=uid_of(made))

    with pytest.raises(Gone):
        await api.get(POD)


async def test_applying_owns_what_it_says_and_nothing_else(api: Kubernetes) -> None:
    """What is no longer said is taken away; what others have said stays; the same twice changes nothing."""
    first = await api.apply(document(MAP, data={"a": "1", "b": "2"}))
    await api.patch(MAP, {"data": {"theirs": "3"}})
    second = await api.apply(document(MAP, data={"a": "1"}))
    third = await api.apply(document(MAP, data={"a": "1"}))

    assert first["data"] == {"a": "1", "b": "2"}
    assert second["data"] == {"a": "1", "theirs": "3"}
    assert revision_of(second) == revision_of(third)


async def test_a_call_that_nobody_waits_for_is_still_under_way() -> None:
    """Whoever gives up leadership has to know: the request is out, and may be done later."""
    async with http_kubernetes() as (server, api):
        await server.fake.create(document(POD))
        assert await api.settled(0)
        server.delay_s = 0.3
        call = asyncio.create_task(api.patch(POD, {"metadata": {"labels": {"a": "b"}}}))
        await until(lambda: bool(server.requests), "it is sent")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

        assert not await api.settled(0.01)
        assert await api.settled(60)
        assert (await server.fake.get(POD))["metadata"]["labels"] == {"a": "b"}


async def test_the_status_is_applied_beside_the_spec(api: Kubernetes) -> None:
    """Status and spec have a manager each: neither takes the other's fields away. Without a group: `Gone`."""
    await api.create(document(GROUP, spec={"shards": 2}))

    await api.apply_status(GROUP, {"phase": "Ready"})
    found = await api.get(GROUP)

    assert (found["spec"], found["status"]) == ({"shards": 2}, {"phase": "Ready"})
    with pytest.raises(Gone):
        await api.apply_status(Place(GROUPS, "shop", "other"), {"phase": "Ready"})


async def test_a_lease_is_made_once(api: Kubernetes) -> None:
    """Two who create: one gets `Conflict`."""
    lease = document(Place(LEASES, "shop", "leader"), spec={"holderIdentity": "one"})

    await api.create(lease)

    with pytest.raises(Conflict):
        await api.create(lease)


async def test_a_list_is_whole_though_it_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """`continue` is followed to the end, labels select, and every item knows its kind."""
    monkeypatch.setattr("gantry_operator.kubernetes_api.LIST_LIMIT", 3)
    async with http_kubernetes() as (server, api):
        for number in range(8):
            place = Place(PODS, f"n{number % 2}", f"p{number}")
            made = document(place)
            made["metadata"]["labels"] = {"gantry.dev/group": "g" if number else "other"}
            server.fake.put(made)

        found = await api.list(PODS, labels="gantry.dev/group=g")
        some = await api.list(PODS, "n1")

    assert len(found) == 7
    assert {one["kind"] for one in found} == {"Pod"}
    assert {one["metadata"]["namespace"] for one in some} == {"n1"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, Refused), (401, Forbidden), (403, Forbidden), (404, Gone), (409, Conflict), (410, Gone), (422, Refused),
     (429, Unavailable), (500, Unavailable), (503, Unavailable), (200, Unavailable), (302, Unavailable)],
)  # fmt: skip
async def test_what_the_server_says_becomes_an_error_that_says_whose_move_it_is(
    status: int, kind: type[ApiError]
) -> None:
    """Every status has one; so has an answer that is no JSON. No redirection is followed: it would show the token."""
    async with http_kubernetes() as (server, api):
        server.raw = (status, b'{"message": "because"}' if status >= 400 else b"<html>")

        with pytest.raises(kind) as caught:
            await api.get(POD)

    assert "g-0-master-0" in str(caught.value)
    assert "the-token" not in str(caught.value)
    assert len(server.requests) == 1, "nothing is tried again behind our back"


async def test_a_slow_server_holds_nobody_up() -> None:
    """A call ends at its deadline, and the event loop turns meanwhile, also when every thread waits."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    async with http_kubernetes(timeout_s=0.5, threads=2) as (server, api):
        server.delay_s = 60.0
        counting = asyncio.create_task(count())
        began = time.monotonic()
        outcomes = await asyncio.gather(*(api.get(POD) for _ in range(6)), return_exceptions=True)
        counting.cancel()

    assert all(isinstance(one, Unavailable) for one in outcomes)
    assert time.monotonic() - began < 60.0, "nobody has waited for an answer"
    assert turns >= 3, "a loop that is held for as long as that turns once"


async def test_a_write_whose_answer_is_lost_is_not_sent_again() -> None:
    """A connection that breaks: `Unavailable`, after one try, since it may have been done."""
    async with http_kubernetes() as (server, api):
        server.is_breaking = True
        with pytest.raises(Unavailable):
            await api.create(document(MAP))
    assert [method for method, _, _ in server.requests] == ["POST"]


async def test_who_may_lead_no_more_writes_nothing() -> None:
    """With ``may_write`` false, reads go on and writes never leave. The twin, with it true, writes."""
    may = False
    async with http_kubernetes(may_write=lambda: may) as (server, api):
        for write in (
            api.create(document(MAP)), api.apply(document(MAP)), api.patch(MAP, {"data": {}}),
            api.delete(MAP, uid="x"), api.apply_status(GROUP, {}),
        ):  # fmt: skip
            with pytest.raises(NotLeader):
                await write
        with pytest.raises(Gone):
            await api.get(MAP)
        may = True
        await api.create(document(MAP))

    assert [method for method, _, _ in server.requests] == ["GET", "POST"]


async def test_calls_are_counted() -> None:
    """Verb, kind and status of each call, for the metrics."""
    noted: list[tuple[str, str, int]] = []
    async with http_kubernetes(noted=lambda verb, plural, status, _: noted.append((verb, plural, status))) as (_, api):
        await api.create(document(MAP))
        with pytest.raises(Gone):
            await api.get(POD)

    assert noted == [("create", "configmaps", 200), ("get", "pods", 404)]


def test_the_server_of_these_tests_is_the_one_that_is_told_of() -> None:
    """The fake over HTTP holds the fake that the other tests use."""
    assert isinstance(HttpKubernetes(FakeKubernetes()).fake, FakeKubernetes)
