"""RocketMQ's broker opens a store of ours with checkpoints: it delivers the open messages, and not the acked ones."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from gantry_interop import peers
from gantry_interop.processes import Nursery

from gantry_testing.local import Dialogue
from gantry_testing.popping import Popped, ack, pop, pop_ext, send
from gantry_wire import RequestCode

pytestmark = pytest.mark.needs_java

INVISIBLE_MS = 30_000
PATIENCE_S = 240.0


async def pop_and_ack(port: int, broker_name: str) -> None:
    """Pop three messages, and ack the first."""
    peer = await Dialogue.open(f"127.0.0.1:{port}")
    await send(peer, b"acked", b"open-1", b"open-2")
    popped = await pop(peer, invisibleTime=INVISIBLE_MS)
    receipt = popped.receipts[popped.bodies.index(b"acked")]._replace(broker_name=broker_name)
    assert (await ack(peer, receipt)).code == 0
    await peer.close()


async def pop_until_found(port: int, count: int) -> list[bytes]:
    """Pop until so many messages were delivered."""
    peer = await Dialogue.open(f"127.0.0.1:{port}")
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            reply = await peer.ask(RequestCode.POP_MESSAGE, pop_ext(pollTime=3000, bornTime=int(time.time() * 1000)))
            if reply.code == 0:
                found += Popped(reply).bodies
    await peer.close()
    return found


@pytest.mark.verify
def test_java_delivers_what_is_open_in_our_checkpoints(tmp_path: Path) -> None:
    """After a clean stop of ours, with the same receipts' times: two messages come back, the acked one does not."""
    with Nursery(tmp_path / "logs") as nursery:
        layout = peers.Layout(tmp_path / "peer")
        broker_name = peers.broker_settings("gantry", layout)["brokerName"]
        peer = peers.start("gantry", nursery, layout)
        asyncio.run(pop_and_ack(layout.broker_port, broker_name))
        peer.broker.stop(peers.CLEAN_STOP_SECONDS_MAX)
        java = peers.start_broker("apache", nursery, replace(layout, settings={"timerWheelEnable": "true"}))
        assert sorted(asyncio.run(pop_until_found(layout.broker_port, 2))) == [b"open-1", b"open-2"]
        java.stop(peers.CLEAN_STOP_SECONDS_MAX)
        peer.name_server.stop()
