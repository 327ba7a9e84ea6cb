"""The client for Kubernetes: preconditions, server-side apply and errors, as `KubernetesApi` and as the fake.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from operator_world.fake_kubernetes import FakeKubernetes
from operator_world.http_kubernetes import HttpKubernetes, http_kubernetes
from operator_world.waiting import until

from gantry_operator.api import CONFIG_MAPS, GROUPS, LEASES, PODS, Kubernetes, Object, ObjectRef, revision_of, uid_of
from gantry_operator.errors import ApiError, Conflict, Forbidden, InvalidObject, NotFound, NotLeader, Unavailable

POD = ObjectRef(PODS, "shop", "g-0-master-0")
MAP = ObjectRef(CONFIG_MAPS, "shop", "g-0")
GROUP = ObjectRef(GROUPS, "shop", "g")


def document(ref: ObjectRef, **body: Any) -> Object:
    head = {"name": ref.name, "namespace": ref.namespace}
    return {"apiVersion": ref.kind.api_version, "kind": ref.kind.name, "metadata": head} | body


@pytest.fixture(params=["fake", "http"])
async def api(request: pytest.FixtureRequest) -> AsyncIterator[Kubernetes]:
    if request.param == "fake":
        yield FakeKubernetes()
    else:
        async with http_kubernetes() as (_, real):
            yield real


async def test_patch_requires_the_given_uid_and_revision(api: Kubernetes) -> None:
    """For another uid or revision `Conflict` is raised and nothing changes; otherwise the patch is applied."""
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


async def test_delete_requires_the_given_uid(api: Kubernetes) -> None:
    """A newer object of the same name stays; deleting a missing object succeeds."""
    made = await api.create(document(POD))

    with pytest.raises(Conflict):
        await api.delete(POD, uid="uid-of-another")
    await api.delete(POD, uid=uid_of(made))
    await api.delete(POD, uid=uid_of(made))

    with pytest.raises(NotFound):
        await api.get(POD)


async def test_apply_owns_only_the_fields_that_it_sends(api: Kubernetes) -> None:
    """Fields that are no longer sent are removed; fields of others stay; a repeated apply changes nothing."""
    first = await api.apply(document(MAP, data={"a": "1", "b": "2"}))
    await api.patch(MAP, {"data": {"theirs": "3"}})
    second = await api.apply(document(MAP, data={"a": "1"}))
    third = await api.apply(document(MAP, data={"a": "1"}))

    assert first["data"] == {"a": "1", "b": "2"}
    assert second["data"] == {"a": "1", "theirs": "3"}
    assert revision_of(second) == revision_of(third)


async def test_cancelled_call_is_still_pending() -> None:
    """An operator that gives up leadership must know: the request was sent, and may take effect later."""
    async with http_kubernetes() as (server, api):
        await server.fake.create(document(POD))
        assert await api.wait_until_idle(0)
        server.delay_s = 0.3
        call = asyncio.create_task(api.patch(POD, {"metadata": {"labels": {"a": "b"}}}))
        await until(lambda: bool(server.requests), "it is sent")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

        assert not await api.wait_until_idle(0.01)
        assert await api.wait_until_idle(60)
        assert (await server.fake.get(POD))["metadata"]["labels"] == {"a": "b"}


async def test_status_and_spec_have_separate_field_managers(api: Kubernetes) -> None:
    """Neither removes the other's fields. Without the object `NotFound` is raised."""
    await api.create(document(GROUP, spec={"shards": 2}))

    await api.apply_status(GROUP, {"phase": "Ready"})
    found = await api.get(GROUP)

    assert (found["spec"], found["status"]) == ({"shards": 2}, {"phase": "Ready"})
    with pytest.raises(NotFound):
        await api.apply_status(ObjectRef(GROUPS, "shop", "other"), {"phase": "Ready"})


async def test_second_creation_conflicts(api: Kubernetes) -> None:
    """Of two creations of a Lease one gets `Conflict`."""
    lease = document(ObjectRef(LEASES, "shop", "leader"), spec={"holderIdentity": "one"})

    await api.create(lease)

    with pytest.raises(Conflict):
        await api.create(lease)


async def test_list_follows_all_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """`continue` is followed to the end, labels select, and every item has its kind."""
    monkeypatch.setattr("gantry_operator.kubernetes_api.LIST_LIMIT", 3)
    async with http_kubernetes() as (server, api):
        for number in range(8):
            ref = ObjectRef(PODS, f"n{number % 2}", f"p{number}")
            made = document(ref)
            made["metadata"]["labels"] = {"gantry.dev/group": "g" if number else "other"}
            server.fake.put(made)

        found = await api.list(PODS, labels="gantry.dev/group=g")
        some = await api.list(PODS, "n1")
        scanned = await api.scan(PODS, lambda one: None if one["metadata"]["name"] == "p7" else one["metadata"]["name"])

    assert sorted(scanned) == [f"p{number}" for number in range(7)], "pages of all namespaces, and only what is kept"
    assert len(found) == 7
    assert {one["kind"] for one in found} == {"Pod"}
    assert {one["metadata"]["namespace"] for one in some} == {"n1"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, InvalidObject), (401, Forbidden), (403, Forbidden), (404, NotFound), (409, Conflict), (410, Unavailable),
     (422, InvalidObject), (429, Unavailable), (500, Unavailable), (503, Unavailable),
     (200, Unavailable), (302, Unavailable)],
)  # fmt: skip
async def test_each_status_is_mapped_to_its_error(status: int, kind: type[ApiError]) -> None:
    """Every status has an error; so has an answer that is not JSON.

    Redirections, which could leak the token, are not followed.
    """
    async with http_kubernetes() as (server, api):
        server.raw = (status, b'{"message": "because"}' if status >= 400 else b"<html>")

        with pytest.raises(kind) as caught:
            await api.get(POD)

    assert "g-0-master-0" in str(caught.value)
    assert "the-token" not in str(caught.value)
    assert len(server.requests) == 1, "the request was retried"


async def test_slow_server_does_not_block_the_event_loop() -> None:
    """A call ends at its deadline, and the event loop runs meanwhile, even when all threads wait."""
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
    assert time.monotonic() - began < 60.0, "a call waited for its answer beyond its deadline"
    assert turns >= 3, "the event loop was blocked"


async def test_write_without_an_answer_is_not_retried() -> None:
    """A broken connection raises `Unavailable` after one attempt, because the write may have been made."""
    async with http_kubernetes() as (server, api):
        server.is_breaking = True
        with pytest.raises(Unavailable):
            await api.create(document(MAP))
    assert [method for method, _, _ in server.requests] == ["POST"]


async def test_writes_are_refused_without_leadership() -> None:
    """With ``may_write`` false, reads continue and writes are not sent. The twin, with it true, writes."""
    may = False
    async with http_kubernetes(may_write=lambda: may) as (server, api):
        for write in (
            api.create(document(MAP)), api.apply(document(MAP)), api.patch(MAP, {"data": {}}),
            api.delete(MAP, uid="x"), api.apply_status(GROUP, {}),
        ):  # fmt: skip
            with pytest.raises(NotLeader):
                await write
        with pytest.raises(NotFound):
            await api.get(MAP)
        may = True
        await api.create(document(MAP))

    assert [method for method, _, _ in server.requests] == ["GET", "POST"]


async def test_calls_are_counted() -> None:
    """Verb, kind and status of each call are counted for the metrics."""
    on_call: list[tuple[str, str, int]] = []
    async with http_kubernetes(on_call=lambda verb, plural, status, _: on_call.append((verb, plural, status))) as (
        _,
        api,
    ):
        await api.create(document(MAP))
        with pytest.raises(NotFound):
            await api.get(POD)

    assert on_call == [("create", "configmaps", 200), ("get", "pods", 404)]


def test_http_server_keeps_the_given_fake() -> None:
    """A test can change the objects that the server serves."""
    fake = FakeKubernetes()

    assert HttpKubernetes(fake).fake is fake
