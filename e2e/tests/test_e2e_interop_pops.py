"""A broker of RocketMQ's and one of ours open each other's checkpoints: open messages are delivered, acked ones not."""

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
QUIET_S = 5.0
"""Longer than a checkpoint of RocketMQ's broker stays open after its time, so that its messages would have come."""


async def pop_and_ack(port: int, broker_name: str) -> None:
    """Pop three messages, and ack the first."""
    peer = await Dialogue.open(f"127.0.0.1:{port}")
    await send(peer, b"acked", b"open-1", b"open-2")
    popped = await pop(peer, invisibleTime=INVISIBLE_MS, bornTime=int(time.time() * 1000), pollTime=5000)
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


async def pop_for(port: int, seconds: float) -> list[bytes]:
    """Return what is delivered within this time."""
    peer = await Dialogue.open(f"127.0.0.1:{port}")
    found: list[bytes] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        reply = await peer.ask(RequestCode.POP_MESSAGE, pop_ext(pollTime=1000, bornTime=int(time.time() * 1000)))
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


@pytest.mark.verify
def test_open_checkpoints_of_java_are_taken_over(tmp_path: Path) -> None:
    """Java stores them as timer messages: ours delivers these, and then the open messages; the acked one never."""
    with Nursery(tmp_path / "logs") as nursery:
        layout = peers.Layout(tmp_path / "peer", settings={"timerWheelEnable": "true"})
        broker_name = peers.broker_settings("apache", layout)["brokerName"]
        peer = peers.start("apache", nursery, layout)
        asyncio.run(pop_and_ack(layout.broker_port, broker_name))
        peer.broker.stop(peers.CLEAN_STOP_SECONDS_MAX)
        ours = peers.start_broker("gantry", nursery, replace(layout, settings={}))
        assert sorted(asyncio.run(pop_until_found(layout.broker_port, 2))) == [b"open-1", b"open-2"]
        assert asyncio.run(pop_for(layout.broker_port, QUIET_S)) == []
        ours.stop(peers.CLEAN_STOP_SECONDS_MAX)
        peer.name_server.stop()
