"""Changes over HTTP, with a real broker: the preview names what is changed, its token executes exactly that, once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from admin_scene import READ_TOKEN, TOKEN, SidecarChild, sidecar_process, wait_for, write_token_files
from console_scene import Group, console_group

from gantry_admin.change_plans import PERMISSIONS
from gantry_client import Admin, ConsumerSettings, Message, PushConsumer, ReceivedMessage, StartFrom
from gantry_client.sync import Producer
from gantry_testing.client import wait_until
from gantry_wire.commands.admin import SubscriptionGroupConfig

DECLARED = {"topics": [{"name": "declared", "queues": 2}], "groups": [{"name": "auditors", "retryMax": 3}]}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """One broker with a group `billing` that has consumed nothing of the topic `orders`."""
    with console_group(tmp_path_factory.mktemp("changes"), members=1, conf={"brokerRole": "ASYNC_MASTER"}) as started:
        run_admin(started, prepare)
        with Producer(started.name_server) as producer:
            for number in range(6):
                producer.send(Message("orders", b"%d" % number))
        yield started


async def prepare(admin: Admin) -> None:
    for topic in ("orders", "declared", "spare"):
        await admin.topics.create(topic, queues=1)
    for name in ("billing", "auditors"):
        await admin.groups.create(SubscriptionGroupConfig(group_name=name, retry_max_times=3))


def run_admin(group: Group, work: Any) -> Any:
    """Return the result of a coroutine function with an Admin client."""

    async def call() -> Any:
        async with Admin(group.name_server) as admin:
            return await work(admin)

    return asyncio.run(call())


@pytest.fixture(scope="module")
def sidecar(group: Group, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SidecarChild]:
    """A sidecar with both kinds of tokens and declared topics."""
    folder: Path = tmp_path_factory.mktemp("sidecar")
    (folder / "topics.json").write_text(json.dumps(DECLARED))
    options = [*write_token_files(folder), "--topics-file", str(folder / "topics.json")]
    with sidecar_process(group.brokers[0].store, *options) as started:
        started.wait_ready()
        yield started


def preview(sidecar: SidecarChild, **body: object) -> dict[str, Any]:
    """Return a preview, which must succeed."""
    answer = sidecar.post("/v1/changes/preview", body, token=TOKEN)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def execute(sidecar: SidecarChild, planned: dict[str, Any], **more: object) -> Any:
    return sidecar.post("/v1/changes", {"token": planned["token"], **more}, token=TOKEN)


def committed(group: Group) -> list[int | None]:
    found = run_admin(group, lambda admin: admin.groups.committed("billing", "orders"))
    return [found[queue] for queue in sorted(found, key=str)]


@pytest.mark.parametrize(
    ("target", "after", "effect"),
    [
        ({"to": "latest"}, 6, "consumption starts here"),
        ({"shift": -2}, 4, "2 again"),
        ({"offset": 5, "queues": [{"broker_name": "orders-0", "queue_id": 0}]}, 5, "1 skipped"),
        ({"to": "earliest"}, 0, "5 again"),
        ({"timestamp_ms": 1 << 42}, 6, "6 skipped"),
    ],
    ids=["latest", "shift", "offset", "earliest", "time"],
)
def test_reset_sets_what_the_preview_shows(
    group: Group, sidecar: SidecarChild, target: dict[str, object], after: int, effect: str
) -> None:
    """Each queue with its old and new offset and what it means; the execution sets these offsets. In this order."""
    planned = preview(sidecar, kind="reset-offsets", group="billing", topic="orders", **target)
    [row] = planned["rows"]

    assert (row["place"], row["after"]) == ("orders-0:0", str(after))
    assert row["effect"].startswith(effect)
    assert row["before"] == (None if committed(group) == [None] else str(committed(group)[0]))
    assert execute(sidecar, planned).json()["is_done"]
    assert committed(group) == [after]
    assert execute(sidecar, planned).status_code == 404, "a token works once"


def test_reset_with_running_members_warns_and_moves_them(group: Group, sidecar: SidecarChild) -> None:
    """The preview names the members; they consume again from the new offset, although they commit meanwhile."""
    consumed: list[bytes] = []

    async def consume(message: ReceivedMessage) -> None:
        consumed.append(message.body)

    async def reset() -> dict[str, Any]:
        settings = ConsumerSettings(start_from=StartFrom.FIRST)
        async with PushConsumer(group.name_server, "readers", topics="orders", handler=consume, settings=settings):
            await wait_until(lambda: len(consumed) >= 6, timeout_s=60, what="all are consumed")
            planned = await asyncio.to_thread(
                preview, sidecar, kind="reset-offsets", group="readers", topic="orders", to="earliest"
            )
            done = await asyncio.to_thread(execute, sidecar, planned)
            assert done.json()["is_done"], done.text
            await wait_until(lambda: len(consumed) >= 12, timeout_s=60, what="all are consumed again")
            return planned

    planned = asyncio.run(reset())
    assert any("1 running members" in text for text in planned["warnings"])
    assert sorted(consumed) == sorted([b"%d" % number for number in range(6)] * 2)


@pytest.mark.parametrize("changes", [True, False], ids=["changed", "twin: unchanged"])
def test_changed_offsets_are_refused(group: Group, sidecar: SidecarChild, changes: bool) -> None:
    """409 if the group has committed since the preview; without that, the same change is executed."""
    run_admin(group, lambda admin: admin.groups.reset_offsets("billing", "orders", 0))
    planned = preview(sidecar, kind="reset-offsets", group="billing", topic="orders", to="latest")
    if changes:
        queue = next(iter(run_admin(group, lambda admin: admin.groups.committed("billing", "orders"))))
        run_admin(group, lambda admin: admin.groups.reset_queue("billing", queue, 3))
    answer = execute(sidecar, planned)

    assert (answer.status_code, committed(group)) == ((409, [3]) if changes else (200, [6])), answer.text


def test_settings_of_a_topic_are_changed(group: Group, sidecar: SidecarChild) -> None:
    """Only the named settings change, on each broker that has the topic; removed write queues stay readable."""
    planned = preview(sidecar, kind="topic", topic="spare", write_queues=4, permission="r")
    assert [[row[name] for name in ("setting", "before", "after")] for row in planned["rows"]] == [
        ["write queues", "1", "4"], ["read queues", "1", "4"], ["permission", "read, write", "read"],
    ]  # fmt: skip
    assert "sends are refused" in planned["rows"][2]["effect"]
    assert execute(sidecar, planned).json()["is_done"]
    assert execute(sidecar, preview(sidecar, kind="topic", topic="spare", write_queues=2)).json()["is_done"]
    [config] = run_admin(group, lambda admin: admin.topics.settings("spare")).values()
    assert (config.write_queue_nums, config.read_queue_nums, config.perm) == (2, 4, PERMISSIONS["r"])
    assert preview(sidecar, kind="topic", topic="spare", write_queues=2)["rows"] == []


def test_topic_is_created_and_deleted_by_its_name(group: Group, sidecar: SidecarChild) -> None:
    """A new topic has no values before; a deletion needs the name, since its messages are lost."""
    created = preview(sidecar, kind="topic", topic="fresh", write_queues=3)
    assert {row["before"] for row in created["rows"]} == {None}
    assert execute(sidecar, created).json()["is_done"]
    wait_for(lambda: "fresh" in run_admin(group, lambda admin: admin.topics.all()), "it has a route")
    deleted = preview(sidecar, kind="delete-topic", topic="fresh")
    assert deleted["needs_name"]
    assert execute(sidecar, deleted).status_code == 409
    assert execute(sidecar, deleted, name="fresh").json()["is_done"]
    assert "fresh" not in run_admin(group, lambda admin: admin.topics.all())


def test_settings_of_a_group_are_changed(group: Group, sidecar: SidecarChild) -> None:
    """Redeliveries and consumption; other settings stay."""
    planned = preview(sidecar, kind="group", group="billing", retry_max=5, consume_enabled=False)
    assert [row["after"] for row in planned["rows"]] == ["5", "disabled"]
    assert execute(sidecar, planned).json()["is_done"]
    config = run_admin(group, lambda admin: admin.groups.all())["billing"]
    assert (config.retry_max_times, config.consume_enable, config.consume_broadcast_enable) == (5, False, True)


async def test_group_is_deleted_by_its_name_when_its_consumers_are_gone(group: Group, sidecar: SidecarChild) -> None:
    """With a consumer it is refused; then the preview has its lag, and its offsets are gone afterwards."""

    seen: list[bytes] = []

    async def take(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async def is_there() -> bool:
        async with Admin(group.name_server) as admin:
            return "leavers" in await admin.groups.all()

    def refused() -> bool:
        body = {"kind": "delete-group", "group": "leavers"}
        answer = sidecar.post("/v1/changes/preview", body, token=TOKEN)
        return answer.status_code == 409 and "consumers of leavers are connected (1)" in answer.text

    first = ConsumerSettings(start_from=StartFrom.FIRST)
    async with PushConsumer(group.name_server, "leavers", topics="orders", handler=take, settings=first):
        await asyncio.to_thread(wait_for, refused, "the consumer is connected")
        await wait_until(lambda: len(seen) >= 6, timeout_s=60, what="all are consumed")
    planned = await asyncio.to_thread(preview, sidecar, kind="delete-group", group="leavers")
    assert [(row["setting"], row["after"]) for row in planned["rows"]] == [("offsets", None), ("waiting retries", None)]
    assert planned["rows"][0]["before"] == "1 queues, lag 0"
    assert (await asyncio.to_thread(execute, sidecar, planned)).status_code == 409
    assert await is_there()
    assert (await asyncio.to_thread(execute, sidecar, planned, name="leavers")).json()["is_done"]
    assert not await is_there()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"kind": "topic", "topic": "declared", "write_queues": 4}, 409),
        ({"kind": "delete-topic", "topic": "declared"}, 409),
        ({"kind": "group", "group": "auditors", "retry_max": 9}, 409),
        ({"kind": "topic", "topic": "declared", "permission": "rw"}, 200),
        ({"kind": "group", "group": "auditors", "consume_enabled": True}, 200),
        ({"kind": "topic", "topic": "SCHEDULE_TOPIC_XXXX", "permission": "none"}, 409),
        ({"kind": "delete-topic", "topic": "missing"}, 404),
        ({"kind": "delete-group", "group": "auditors"}, 409),
        ({"kind": "delete-group", "group": "missing"}, 404),
        ({"kind": "delete-group", "group": "CID_RMQ_SYS_TRANS"}, 409),
        ({"kind": "reset-offsets", "group": "missing", "topic": "orders", "to": "latest"}, 404),
        ({"kind": "reset-offsets", "group": "billing", "topic": "orders"}, 400),
        ({"kind": "topic", "topic": "spare", "write_queues": 0}, 422),
        ({"kind": "drop-everything"}, 422),
    ],
    ids=["declared queues", "declared topic", "declared group", "twin: permission", "twin: consumption", "system topic",
         "no topic", "declared group deleted", "no group deleted", "system group", "no group", "no target", "no queues",
         "unknown kind"],
)  # fmt: skip
def test_change_that_would_be_reverted_or_is_invalid_is_refused(
    sidecar: SidecarChild, body: dict[str, object], status: int
) -> None:
    """What the manifest declares would be reverted; what it does not declare of the same topic can be changed."""
    answer = sidecar.post("/v1/changes/preview", body, token=TOKEN)

    assert answer.status_code == status, answer.text
    is_declared = not {"declared", "auditors"}.isdisjoint(map(str, body.values()))
    assert ("manifest" in answer.text) == (status == 409 and is_declared)


def test_changes_require_a_token_that_may_change(sidecar: SidecarChild) -> None:
    """A read token gets 403 for both, a token that may change does not; both leave an audit line."""
    body = {"kind": "topic", "topic": "spare", "permission": "rw"}
    planned = preview(sidecar, **body)
    refused = [
        sidecar.post("/v1/changes/preview", body, token=READ_TOKEN).status_code,
        sidecar.post("/v1/changes", {"token": planned["token"]}, token=READ_TOKEN).status_code,
    ]

    assert refused == [403, 403]
    assert execute(sidecar, planned).status_code == 200
    wait_for(lambda: "permission read -> read, write" in sidecar.child.log, "the values are in the audit line")
    assert sidecar.child.log.count("http 403") >= 2


def test_accounts_of_a_broker_without_access_control(sidecar: SidecarChild) -> None:
    """The answer says that there are none; the list needs a token that may read."""
    assert sidecar.get("/v1/accounts").status_code == 401
    found = sidecar.get("/v1/accounts", token=READ_TOKEN).json()
    assert (found["is_access_controlled"], found["accounts"]) == (False, [])
