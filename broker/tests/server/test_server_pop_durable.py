"""Resets of groups and deletions that were answered survive a crash and a failover, with their effect on receipts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest
from test_server_pop_ordered import ORDER, ack_all, reset
from test_server_roles import SYNC, UNASSIGNED, Group, running_group, wait_until_copied, wait_until_following

from gantry_broker.app import Broker
from gantry_broker.server.pop import service
from gantry_broker.server.pop.journal import PopJournal
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, running_broker, wait_until
from gantry_testing.popping import pop, send
from gantry_testing.running_store import copy_running_store
from gantry_wire import Command, RequestCode, ResponseCode

KEY: Final = f"{TOPIC}@{GROUP}"
RARELY_WRITTEN: Final[dict[str, Any]] = {"flushConsumerOffsetInterval": "3600000"}
"""Offsets are written only if a request waits for that."""
DELETION: Final = {"groupName": GROUP, "cleanOffset": "true"}


async def delete_group(peer: Dialogue) -> None:
    assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, DELETION)).code == 0


async def pair(members: Group) -> tuple[Broker, Broker]:
    first = await members.start("one", **SYNC, **UNASSIGNED, brokerId="1")
    second = await members.start("two", **SYNC, **UNASSIGNED, brokerId="2")
    await first.orders.promote(1 << 8, [2], False)
    await second.orders.follow(1 << 8, first.settings.ha_address)
    await wait_until_following(first, 2)
    return first, second


@pytest.mark.parametrize("is_deleted", [False, True], ids=["reset", "deletion"])
async def test_promoted_slave_ignores_receipts_from_before_a_change(tmp_path: Path, is_deleted: bool) -> None:
    """The slave learns with the offsets which receipts are void: a late ack must not skip the next message."""
    async with running_group(tmp_path) as members:
        first, second = await pair(members)
        async with dialogue(first) as peer:
            await send(peer, b"0", b"1")
            old = await pop(peer, **ORDER)
            if is_deleted:
                await delete_group(peer)
            else:
                await reset(peer, 0)
            again = await pop(peer, **ORDER, maxMsgNums=1)
            await ack_all(peer, again.receipts, is_batch=False)
            await wait_until(lambda: second.core.offsets.freed.last_ms(KEY, 0) > 0)
        await wait_until_copied(first, second)

        await second.orders.promise(300, "test")
        await second.orders.promote(300, [1], False)
        await first.orders.follow(300, second.settings.ha_address)
        await wait_until_following(second, 1)

        async with dialogue(second) as peer:
            await ack_all(peer, old.receipts, is_batch=False)
            assert b"1" in (await pop(peer, **ORDER)).bodies


async def test_receipts_from_before_a_deletion_have_no_effect_after_a_crash(tmp_path: Path) -> None:
    """The deletion was answered, so the times that void receipts are on the disk with the offsets."""
    async with running_broker(tmp_path / "store", **RARELY_WRITTEN) as broker, dialogue(broker) as peer:
        await send(peer, b"0", b"1")
        old = await pop(peer, **ORDER)
        await delete_group(peer)
        again = await pop(peer, **ORDER, maxMsgNums=1)
        await ack_all(peer, again.receipts, is_batch=False)
        copy = copy_running_store(tmp_path / "store", tmp_path / "copy")
    for file in (copy / "config").glob("consumerOrderInfo.json*"):
        file.unlink()  # as if the kill had come before the next write of the last pops
    async with running_broker(copy) as broker, dialogue(broker) as peer:
        await ack_all(peer, old.receipts, is_batch=False)
        assert b"1" in (await pop(peer, **ORDER)).bodies


async def test_deleted_offsets_do_not_return_after_a_crash(tmp_path: Path) -> None:
    """The deletion of the group was answered, so its committed offset is gone from the disk, too."""
    commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "1"}
    async with running_broker(tmp_path / "store", **RARELY_WRITTEN) as broker, dialogue(broker) as peer:
        await send(peer, b"0", b"1")
        await peer.make_group(GROUP)
        assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
        broker.core.persistence.mark("consumerOffset", now=False)
        await broker.core.persistence.write_stale()
        assert KEY in (tmp_path / "store/config/consumerOffset.json").read_text()
        await delete_group(peer)
        copy = copy_running_store(tmp_path / "store", tmp_path / "copy")
    async with running_broker(copy) as broker:
        assert broker.core.offsets.find(GROUP, TOPIC, 0) is None


async def begin_unread_deletion(broker: Broker, peer: Dialogue, patch: pytest.MonkeyPatch) -> asyncio.Task[Command]:
    """Pop two messages, and delete the group while the broker reads its checkpoints."""
    await send(peer, b"0", b"1")
    await pop(peer, queueId=0)
    patch.setattr(PopJournal, "read_next", lambda journal: False)
    broker.pops.journal._is_caught_up = False
    deletion = asyncio.ensure_future(peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, DELETION))
    await wait_until(lambda: bool(broker.pops._deferred))
    return deletion


async def test_deletion_that_waits_is_answered_when_a_crash_cannot_undo_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the checkpoints of popped messages in memory only: an earlier answer would be a false promise."""
    async with running_broker(tmp_path / "store") as broker, dialogue(broker) as peer:
        with monkeypatch.context() as patch:
            deletion = await begin_unread_deletion(broker, peer, patch)
            await broker.core.persistence.wait_until_written("consumerOffset")
            await asyncio.wait([deletion], timeout=0.1)
            assert not deletion.done(), "expected no answer before the deletion is in the log"
        assert (await deletion).code == 0
        copy = copy_running_store(tmp_path / "store", tmp_path / "copy")
    async with running_broker(copy) as broker, dialogue(broker) as peer:
        assert (await pop(peer, queueId=0)).bodies == [b"0", b"1"]
        assert broker.pops.journal.state.inflight_count == 2, "expected the checkpoint of the deleted group to be gone"


async def test_deletion_that_is_not_made_in_time_is_not_answered_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The administrator learns that a crash may undo it, and repeats it."""
    async with running_broker(tmp_path / "store") as broker, dialogue(broker) as peer:
        with monkeypatch.context() as patch:
            patch.setattr(service, "READY_TIMEOUT_S", 0.05)
            reply = await (await begin_unread_deletion(broker, peer, patch))
            assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "repeat the request" in (reply.remark or "")
        await delete_group(peer)
        assert (await pop(peer, queueId=0)).bodies == [b"0", b"1"]
