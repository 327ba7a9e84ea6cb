"""A broker rebuilds damaged queues and index while it serves, and skips no message."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_server_process import options, running

from gantry_broker.app import Broker
from gantry_broker.store import sliced_scan
from gantry_testing.local import TOPIC, Dialogue, properties_text, wait_until
from gantry_wire import Command, RequestCode
from gantry_wire.message import decode_records

LONG_MS = 60_000
UNIT_BYTES = 20


async def send(client: Dialogue, count: int) -> None:
    for number in range(count):
        await client.send_ok(b"%d" % number, properties=properties_text(UNIQ_KEY=f"{number:032X}", KEYS=f"k{number}"))


def damage_unit(broker: Broker, offset: int) -> None:
    queue = broker.store.queues.get(TOPIC, 0)
    assert queue is not None
    queue.files.files[0].view[offset * UNIT_BYTES + 6] ^= 1


async def test_pull_skips_no_message_because_of_a_wrong_unit(
    broker: Broker, client: Dialogue, caplog: pytest.LogCaptureFixture
) -> None:
    """If its neighbours are near, the pull that finds the wrong unit gets the message, without a traceback."""
    await send(client, 5)
    damage_unit(broker, 2)

    found = decode_records((await client.pull(0)).body)
    reply = await client.pull(2)

    assert [message.body for message in found] == [b"0", b"1"]
    assert [message.body for message in decode_records(reply.body)] == [b"2", b"3", b"4"]
    assert (await runtime(client))["consumeQueueUnitsRebuilt"] == "1"
    assert not [record for record in caplog.records if record.exc_info]


async def test_pull_is_held_while_its_queue_is_rebuilt(
    broker: Broker, client: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A longer rebuild delays only the pulls of this queue, which are answered when it is complete."""
    await send(client, 5)
    monkeypatch.setattr(sliced_scan, "SLICE_BYTES", 1)
    damage_unit(broker, 2)
    damage_unit(broker, 3)

    at_once = await client.pull(2)
    reply = await client.pull(2, wait_ms=LONG_MS)

    assert (at_once.code, at_once.ext["nextBeginOffset"]) == (19, "2")
    assert (reply.code, [message.body for message in decode_records(reply.body)]) == (0, [b"2", b"3", b"4"])


async def test_query_is_answered_as_busy_while_the_index_is_rebuilt(broker: Broker, client: Dialogue) -> None:
    """Code 2, which clients repeat, and not "no message"; soon it is found."""
    await send(client, 5)
    index = broker.store._lifecycle.index
    assert index is not None
    file = index.files[0]
    for number in range(1, file.header.next_number):
        file.view[file.entry_position(number) + 2] ^= 0x08

    assert (await query(client, "k3")).code == 2
    await wait_until(lambda: broker.store.repair.index_rebuilds == 1)
    reply = await query(client, "k3")

    assert [message.body for message in decode_records(reply.body)] == [b"3"]


async def query(client: Dialogue, key: str) -> Command:
    ext = {"topic": TOPIC, "key": key, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
    return await client.ask(RequestCode.QUERY_MESSAGE, ext)


async def runtime(client: Dialogue) -> dict[str, str]:
    table: dict[str, str] = (await client.ask_json(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    return table


# ------- as a process


async def test_process_rebuilds_an_altered_queue(tmp_path: Path) -> None:
    """A bit of a queue is flipped on the disk of a broker that runs; it is killed and restarted.

    Every message is served once, before and after, and nothing that was rebuilt is wrong again.
    """
    arguments = options(tmp_path)
    with running(*arguments) as (process, port):
        client = await Dialogue.open(f"127.0.0.1:{port}")
        await send(client, 20)
        flip_bit(tmp_path / "consumequeue" / TOPIC / "0" / ("0" * 20), 7 * UNIT_BYTES + 6)

        bodies: list[bytes] = []
        while len(bodies) < 20:
            bodies += [message.body for message in await client.read(len(bodies))]

        assert bodies == [b"%d" % number for number in range(20)]
        assert (await runtime(client))["consumeQueueUnitsRebuilt"] == "1"
        await client.close()
        process.kill()
        _, errors = process.communicate(timeout=60)
    assert errors.count("consume queue was damaged and has been rebuilt") == 1
    assert "Traceback" not in errors

    with running(*arguments) as (process, port):
        client = await Dialogue.open(f"127.0.0.1:{port}")
        bodies = [message.body for message in await client.read(0)]
        assert bodies == [b"%d" % number for number in range(20)]
        assert (await runtime(client))["consumeQueueUnitsRebuilt"] == "0"
        await client.close()


def flip_bit(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes((byte ^ 1,)))
