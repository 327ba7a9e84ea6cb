"""A pop claims what its reply can carry and what the store accepts; all other messages stay for the next pop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from gantry_broker.app import Broker
from gantry_broker.errors import StoreFull
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.pop.handlers import PopHandlers
from gantry_broker.server.pop.writer import Answer, PopWriter
from gantry_remoting import Connection
from gantry_testing.local import GROUP, TOPIC, dialogue, properties_text, running_broker, wait_until
from gantry_testing.popping import FLUSHED_SOON, Popped, ack, pop, pop_ext, send
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.pop import PopMessage
from gantry_wire.filters import parse_tag_filter

BODIES = [b"%d" % number for number in range(8)]


def refuse(*given: object) -> object:
    raise StoreFull("no space left")


def refuse_next_append(patch: pytest.MonkeyPatch) -> None:
    """Let the next append of pop records fail, and those after it succeed."""
    original = PopWriter.append

    def fail_once(self: PopWriter, *given: Any) -> Sequence[int]:
        patch.setattr(PopWriter, "append", original)
        raise StoreFull("no space left")

    patch.setattr(PopWriter, "append", fail_once)


def begin_pop(broker: Broker, count: int, queue_id: int = 0) -> None:
    """Pop messages in the present turn of the event loop; the answer is not sent."""
    request = PopMessage.read(pop_ext(queueId=queue_id, maxMsgNums=count))
    popped = broker.pops.popper.pop(request, parse_tag_filter(None))
    command = Command(code=RequestCode.POP_MESSAGE, flag=2)
    assert command.is_oneway and popped.count == count
    broker.pops.writer.add_pop(popped.claims, Answer(command, cast(Connection, None), command.reply()))


async def test_error_in_the_middle_of_a_pop_claims_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The position of one queue cannot be stored; the messages of the queues before it are popped by the next pop."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"0")
        await pop(peer)
        for number in (1, 2, 3):
            await send(peer, b"%d" % number, queue_id=number)
        with monkeypatch.context() as patch:
            patch.setattr(PopWriter, "append", refuse)
            for _ in range(4):  # pops begin at the next queue each time
                broker.pops.journal.state.queue(TOPIC, GROUP, 0).next_offset = 50
                reply = await peer.ask(RequestCode.POP_MESSAGE, pop_ext())
                assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert sorted((await pop(peer)).bodies) == [b"1", b"2", b"3"]


async def test_reply_that_cannot_be_made_claims_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the writer moves positions, so an unexpected error before it has the claims loses no message."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, *BODIES)
        with monkeypatch.context() as patch:
            patch.setattr(PopHandlers, "_reply_found", refuse)
            assert (await peer.ask(RequestCode.POP_MESSAGE, pop_ext())).code != 0
        assert (await pop(peer)).bodies == BODIES


async def test_filtered_pop_commits_nothing_beyond_refused_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two pops of one turn the second passes messages behind the claims of the first, which the store refuses."""
    async with running_broker(tmp_path, **FLUSHED_SOON) as broker, dialogue(broker) as peer:
        await send(peer, *BODIES, properties=properties_text(TAGS="a"))
        await pop(peer, queueId=0, maxMsgNums=1)
        await wait_until(lambda: broker.core.offsets.find(GROUP, TOPIC, 0) == 1)
        with monkeypatch.context() as patch:
            patch.setattr(PopWriter, "append", refuse)
            refused, filtered = await asyncio.gather(
                peer.ask(RequestCode.POP_MESSAGE, pop_ext(queueId=0, maxMsgNums=3)),
                peer.ask(RequestCode.POP_MESSAGE, pop_ext(queueId=0, exp="b", expType="TAG")),
            )
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert filtered.code == ResponseCode.POLLING_TIMEOUT
        broker.store.flush()
        await wait_until(lambda: broker.pops.journal.unsettled_count == 0)
        assert broker.core.offsets.find(GROUP, TOPIC, 0) == 1
        assert (await pop(peer, queueId=0)).bodies == BODIES[1:]


async def test_passed_messages_are_committed(tmp_path: Path) -> None:
    """A pop that finds no message which its filter wants moves the committed offset at the end of its turn."""
    async with running_broker(tmp_path, **FLUSHED_SOON) as broker, dialogue(broker) as peer:
        await send(peer, *BODIES, properties=properties_text(TAGS="a"))
        reply = await peer.ask(RequestCode.POP_MESSAGE, pop_ext(queueId=0, exp="b", expType="TAG"))
        assert reply.code == ResponseCode.POLLING_TIMEOUT
        await wait_until(lambda: broker.core.offsets.find(GROUP, TOPIC, 0) == len(BODIES))


async def test_position_is_not_stored_beyond_refused_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A correction that was found behind the claims of this turn fails if the store refuses these claims."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, *BODIES)
        await wait_until(lambda: broker.pops.journal.is_ready)
        queue = broker.pops.journal.state.queue(TOPIC, GROUP, 0)
        with monkeypatch.context() as patch:
            begin_pop(broker, 3)
            refuse_next_append(patch)
            with pytest.raises(Refused):
                broker.pops.writer.set_position(queue, 5, is_void=False)
        assert (await pop(peer, queueId=0)).bodies == BODIES


async def test_read_behind_refused_claims_is_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pop reads behind claims of its turn, which are refused when it applies the reset of a later queue."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, *BODIES)
        await send(peer, b"other", queue_id=1)
        await wait_until(lambda: broker.pops.journal.is_ready)
        with monkeypatch.context() as patch:
            begin_pop(broker, 3)
            broker.core.offsets.resets.assign(f"{TOPIC}@{GROUP}", 1, 0)
            refuse_next_append(patch)
            broker.pops.popper._rotation = -1  # the next pop begins with queue 0
            popped = broker.pops.popper.pop(PopMessage.read(pop_ext()), parse_tag_filter(None))
        assert popped.parts and [number for _, number, _, _ in popped.queues] == [1]
        assert broker.core.offsets.resets.pending() == {}
        assert sorted((await pop(peer)).bodies) == [*BODIES, b"other"]


async def test_refused_reset_stays_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pop that cannot store the reset of its group is refused, and the next one starts at the reset."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, *BODIES)
        for receipt in (await pop(peer, queueId=0)).receipts:
            assert (await ack(peer, receipt)).code == 0
        broker.core.offsets.resets.assign(f"{TOPIC}@{GROUP}", 0, 6)
        with monkeypatch.context() as patch:
            patch.setattr(PopWriter, "append", refuse)
            reply = await peer.ask(RequestCode.POP_MESSAGE, pop_ext(queueId=0))
            assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await pop(peer, queueId=0)).bodies == BODIES[6:]


async def test_messages_beyond_the_limit_of_a_reply_are_not_claimed(tmp_path: Path) -> None:
    """A message of another queue is popped only if the reply has room for it; only the first may exceed the limit."""
    async with running_broker(tmp_path, maxTransferBytesOnMessageInMemory="100000") as broker, dialogue(broker) as peer:
        sizes = {0: 60_000, 1: 60_000, 2: 30_000, 3: 150_000}
        for number, size in sizes.items():
            await send(peer, bytes(size), queue_id=number)
        peeked = await peer.ask(RequestCode.PEEK_MESSAGE, pop_ext())
        assert peeked.code == 0 and len(peeked.body) < 2 * 100_000
        found: list[int] = []
        while len(found) < len(sizes):
            popped = Popped(await peer.ask(RequestCode.POP_MESSAGE, pop_ext()))
            found += [len(body) for body in popped.bodies]
            assert len(popped.bodies) == 1 or sum(map(len, popped.bodies)) <= 100_000
            assert popped.header.rest_num == len(sizes) - len(found)
            assert broker.pops.journal.state.inflight_count == len(found)
        assert sorted(found) == sorted(sizes.values())
