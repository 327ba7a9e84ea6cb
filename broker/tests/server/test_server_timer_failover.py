"""Timers across kills and promotions: acknowledged ones are delivered, and accepted recalls hold."""

import signal
from pathlib import Path
from typing import Any

import pytest
from test_server_process import options, running
from test_server_roles import SYNC, UNASSIGNED, Group, running_group, wait_until_copied, wait_until_following

from gantry_broker.app import Broker
from gantry_broker.server.timers import service
from gantry_broker.server.timers.due_files import DueFiles
from gantry_broker.server.timers.reader import TimerReader
from gantry_store_files import FILLER_SIZE, UNIT
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import Dialogue, dialogue, running_broker, truncate_log, wait_until
from gantry_testing.running_store import copy_running_store
from gantry_testing.timer_client import TIMERS, delivered, queue_end, recall, send_timer, unique_id, wait_for_rounds


async def wait_for_due_files(store: Path, offset: int) -> None:
    """Wait until the due files have every message before this offset."""
    position = store / "timers/position"
    await wait_until(lambda: position.exists() and f'"queue_offset":{offset},' in position.read_text())


@pytest.mark.verify
@pytest.mark.parametrize("is_drained", [False, True], ids=["without the old master", "drained"])
async def test_recall_holds_on_the_promoted_slave(tmp_path: Path, is_drained: bool) -> None:
    """What the old master recalled with code 0 is never delivered by the new one, which delivers the others."""
    conf = {**(SYNC if is_drained else {}), **UNASSIGNED}
    async with running_group(tmp_path) as members:
        first = await members.start("one", **conf, brokerId="1")
        second = await members.start("two", **conf, brokerId="2")
        await first.orders.promote(1 << 8, [2] if is_drained else [], False)
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await wait_until_following(first, 2)
        async with dialogue(first) as client:
            handles = []
            for number in range(8):
                delay = "1" if number < 2 else str(6_000 + number)
                reply = await send_timer(client, b"%d" % number, UNIQ_KEY=unique_id(number), TIMER_DELAY_MS=delay)
                handles.append(reply["recallHandle"])
            for number in (3, 5):
                assert (await recall(client, handles[number])).code == 0
            await wait_until(lambda: queue_end(first) == 2)
        await wait_until_copied(first, second)
        await wait_until(lambda: second.timers.reader.position == queue_end(second, TIMERS, 0))
        if is_drained:
            await first.orders.drain(5_000)
        else:
            await first.close()

        await second.orders.promote(300, [1] if is_drained else [], False)
        if is_drained:
            await first.orders.follow(300, second.settings.ha_address)
            await wait_until_following(second, 1)
        async with dialogue(second) as client:
            assert (await recall(client, handles[6])).code == 0
            found: set[bytes] = set()
            while not {b"2", b"4", b"7"} <= found:
                await wait_for_rounds(second)
                found = {one.body for one in await delivered(client, queue_end(second))}
        assert found == {b"0", b"1", b"2", b"4", b"7"}


async def test_slave_delivers_nothing(tmp_path: Path) -> None:
    """A slave reads the timer topic and builds its due files, but appends nothing."""
    async with running_group(tmp_path) as members:
        master = await members.start("master", **SYNC)
        slave = await members.slave(master)
        async with dialogue(master) as client:
            await send_timer(client, b"x", TIMER_DELAY_MS="20")
            await send_timer(client, b"y", UNIQ_KEY=unique_id(1), TIMER_DELAY_MS="3600000")
        await wait_until(lambda: queue_end(master) == 1)
        await wait_until_copied(master, slave)
        await wait_until(lambda: slave.timers.reader.position == 2)

        assert slave.timers.delivery.delivered_count == 0
        assert slave.timers.index.buffered or not slave.timers.files.is_empty
        await wait_until(lambda: slave.timers.progress.state.read == 2)


@pytest.mark.verify
async def test_killed_broker_delivers_all_timers_and_no_recalled_one(tmp_path: Path) -> None:
    """`kill -9`, three times: acknowledged messages are delivered, and those recalled with code 0 are not."""
    acknowledged: set[int] = set()
    recalled: set[int] = set()
    number = 0
    arguments = options(tmp_path, flushConsumerOffsetInterval="200")
    for _ in range(3):
        with running(*arguments) as (process, port):
            client = await Dialogue.open(f"127.0.0.1:{port}")
            for _ in range(150):
                reply = await send_timer(
                    client, b"%d" % number, UNIQ_KEY=unique_id(number), TIMER_DELAY_MS=str(200 + number % 7 * 500)
                )
                acknowledged.add(number)
                if number % 5 == 0 and (await recall(client, reply["recallHandle"])).code == 0:
                    recalled.add(number)
                number += 1
            process.send_signal(signal.SIGKILL)
            process.wait(60)
            await client.close()
    with running(*arguments) as (_, port):
        client = await Dialogue.open(f"127.0.0.1:{port}")
        found: set[int] = set()
        read = 0

        async def read_more() -> None:
            nonlocal read
            for message in await client.read(read, queueId="3", maxMsgNums="100"):
                found.add(int(message.body))
                read += 1

        while found != acknowledged - recalled:
            await read_more()
        await client.close()

    assert len(recalled) > 50


@pytest.fixture
def removals(monkeypatch: pytest.MonkeyPatch) -> list[DueFiles]:
    """Collect the due files that are removed to be built again."""
    removed: list[DueFiles] = []
    remove_all = DueFiles.remove_all

    def note(files: DueFiles) -> None:
        removed.append(files)
        remove_all(files)

    monkeypatch.setattr(DueFiles, "remove_all", note)
    return removed


async def copy_of_a_running_master(members: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """Start a broker as after a kill: on a copy of the store of a master whose slaves have confirmed no message."""
    monkeypatch.setattr(service, "FLUSH_INTERVAL_S", 0.0)
    conf = {**UNASSIGNED, "brokerId": "1"}
    first = await members.start("first", **conf)
    await first.orders.promote(1 << 8, [], False)
    async with dialogue(first) as client:
        for number in range(6):
            delay = "3000" if number % 2 else "3600000"
            await send_timer(client, b"%d" % number, UNIQ_KEY=unique_id(number), TIMER_DELAY_MS=delay)
    await wait_for_due_files(tmp_path / "first", 6)
    copy_running_store(tmp_path / "first", tmp_path / "copy")
    await first.close()
    return await members.start("copy", **conf)


async def test_due_files_are_kept_although_messages_are_hidden(
    tmp_path: Path, removals: list[DueFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start hides messages that slaves may lack, but the due files follow from the log, which has them."""
    async with running_group(tmp_path) as members:
        broker = await copy_of_a_running_master(members, tmp_path, monkeypatch)
        assert queue_end(broker, TIMERS, 0) == 0, "the messages are hidden"
        assert broker.timers.reader.position == 6
        assert not broker.timers.files.is_empty

        await broker.orders.promote(300, [], False)
        await wait_until(lambda: queue_end(broker) >= 3)
        await wait_for_rounds(broker)
        async with dialogue(broker) as client:
            assert {one.body for one in await delivered(client, queue_end(broker))} == {b"1", b"3", b"5"}
        assert broker.timers.reader.position == 6
        assert broker.timers.pending_count() == 3
    assert removals == []


async def test_due_files_would_be_built_again_if_the_queue_decided(
    tmp_path: Path, removals: list[DueFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: the queue is not visible yet, so that all due files would count as wrong."""
    monkeypatch.setattr(TimerReader, "_is_in_log", lambda *_: False)
    async with running_group(tmp_path) as members:
        broker = await copy_of_a_running_master(members, tmp_path, monkeypatch)
        await broker.orders.promote(300, [], False)
        await wait_until(lambda: queue_end(broker) >= 3)
    assert len(removals) == 1


async def test_due_files_that_are_ahead_of_the_log_are_built_again(tmp_path: Path, removals: list[DueFiles]) -> None:
    """A power loss may leave due files with messages that the log has lost; their offsets get new messages."""
    clock = FakeClock()
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        await send_timer(client, b"kept", TIMER_DELAY_SEC="600")
        end = broker.store.log.wrote
        await send_timer(client, b"lost", UNIQ_KEY=unique_id(1), TIMER_DELAY_SEC="300")
        await wait_for_due_files(tmp_path, 2)
        saved = {path: path.read_bytes() for path in (tmp_path / "timers").iterdir()}
        await truncate_log(broker, end)
    for path, data in saved.items():
        path.write_bytes(data)

    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        await send_timer(client, b"new", UNIQ_KEY=unique_id(2), TIMER_DELAY_SEC="700")
        clock.advance(1_000_000)
        await wait_until(lambda: queue_end(broker) == 2)
        await wait_for_rounds(broker)
        assert [one.body for one in await delivered(client, 2)] == [b"kept", b"new"]
    assert len(removals) == 1


async def test_damaged_last_record_leaves_the_due_files(tmp_path: Path) -> None:
    """The queue still shows that the message is the last one of the due files; without its unit nothing does."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as client:
        for number in range(3):
            await send_timer(client, b"%d" % number, UNIQ_KEY=unique_id(number), TIMER_DELAY_SEC="600")
        await wait_for_due_files(tmp_path, 3)
        reader, indexed = broker.timers.reader, broker.timers.reader.indexed_position
        extent, queue = broker.store.log.at(indexed.last_physical), broker.store.queues.get(TIMERS, 0)
        assert extent is not None and queue is not None
        extent.view[indexed.last_physical + 90] ^= 1

        assert reader.restore(indexed)
        queue.replace_unit(2, UNIT.pack(indexed.last_physical + 1, FILLER_SIZE, 0))
        assert not reader.restore(indexed)


@pytest.mark.parametrize("damage", ["flipped", "removed", "position", "torn"])
async def test_damaged_due_files_are_built_again(tmp_path: Path, damage: str) -> None:
    """Due files are derived: the log has every message and every recall, also if all files are lost."""
    clock = FakeClock()
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        for number in range(20):
            reply = await send_timer(client, b"%d" % number, UNIQ_KEY=unique_id(number), TIMER_DELAY_SEC="600")
            if number % 4 == 0:
                assert (await recall(client, reply["recallHandle"])).code == 0
        await wait_for_due_files(tmp_path, 25)
    folder = tmp_path / "timers"
    [file] = [path for path in folder.iterdir() if path.name != "position"]  # of the hour, or `later`
    data = file.read_bytes()
    if damage == "flipped":
        file.write_bytes(data[:100] + bytes((data[100] ^ 1,)) + data[101:])
    elif damage == "removed":
        for path in folder.iterdir():
            path.unlink()
    elif damage == "position":
        (folder / "position").write_bytes(b"00000000\n{}")
    else:
        file.write_bytes(data + data[:17])

    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        await send_timer(client, b"20", UNIQ_KEY=unique_id(20), TIMER_DELAY_SEC="600")
        clock.advance(600_000)
        await wait_until(lambda: queue_end(broker) == 16)
        await wait_for_rounds(broker)
        assert sorted(int(one.body) for one in await delivered(client, 16)) == [
            n for n in range(21) if n % 4 or n == 20
        ]


async def test_truncated_log_leaves_no_timer_behind(tmp_path: Path) -> None:
    """Timers of a truncated part are not delivered, and those that get their offsets afterwards are."""
    clock = FakeClock()
    async with running_broker(tmp_path, clock=clock) as broker:
        async with dialogue(broker) as client:
            await send_timer(client, b"kept", TIMER_DELAY_SEC="600")
            end = broker.store.log.wrote
            for number in range(1, 5):
                await send_timer(client, b"cut", UNIQ_KEY=unique_id(number), TIMER_DELAY_SEC=str(100 * number))
            await wait_for_due_files(tmp_path, 5)
        await truncate_log(broker, end)
        await wait_until(lambda: broker.core.gate.write_refusal is None)
        async with dialogue(broker) as client:
            await send_timer(client, b"new", UNIQ_KEY=unique_id(9), TIMER_DELAY_SEC="700")
            clock.advance(1_000_000)
            await wait_until(lambda: queue_end(broker) == 2)
            await wait_for_rounds(broker)
            assert [one.body for one in await delivered(client, 2)] == [b"kept", b"new"]


async def test_full_disk_delays_due_files_and_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While due files cannot be written, messages in memory are delivered; afterwards the files have the others."""
    clock = FakeClock()
    is_full = True
    append = DueFiles.append

    def refuse(self: DueFiles, entries: Any) -> None:
        if is_full:
            raise OSError(28, "No space left on device")
        append(self, entries)

    monkeypatch.setattr(DueFiles, "append", refuse)
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        await send_timer(client, b"soon", TIMER_DELAY_SEC="5")
        await send_timer(client, b"late", UNIQ_KEY=unique_id(1), TIMER_DELAY_SEC="5000")
        clock.advance(5_000)
        await wait_until(lambda: queue_end(broker) == 1)
        is_full = False
        await wait_until(lambda: broker.timers.index.buffered == 0)
        clock.advance(5_000_000)
        await wait_until(lambda: queue_end(broker) == 2)
