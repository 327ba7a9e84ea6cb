"""Changes by administrators take effect in pop consumption at once, also before it has stored or read anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.errors import StoreFull
from gantry_broker.server.pop import service
from gantry_broker.server.pop.journal import PopJournal
from gantry_broker.server.pop.writer import PopWriter
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, running_broker
from gantry_testing.popping import pop, pop_ext, pop_nothing, send
from gantry_wire import RequestCode, ResponseCode

OLD = [b"old0", b"old1", b"old2"]
COMMIT = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "3"}


async def consume_by_pulling(broker: Broker, peer: Dialogue, code: int) -> None:
    """Commit the end of a queue as a member that pulls does, and let a request of pop consumption find nothing."""
    await send(peer, *OLD)
    await peer.ask_json(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body={"groupName": GROUP})
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, COMMIT)).code == 0
    await peer.ask(code, pop_ext(queueId=0))
    assert broker.pops.journal.state.queue(TOPIC, GROUP, 0).next_offset == 3
    assert not broker.pops.journal.is_used, "expected no record of a pop in the log"


@pytest.mark.parametrize("code", [RequestCode.POP_MESSAGE, RequestCode.PEEK_MESSAGE, RequestCode.NOTIFICATION])
async def test_deletion_of_a_topic_without_pops_takes_effect(tmp_path: Path, code: int) -> None:
    """The topic is created again, and no message of it is skipped, although the log has no record of a pop yet."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await consume_by_pulling(broker, peer, code)
        assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})).code == 0
        assert not broker.pops.journal.is_used, "expected a broker without pops to store nothing for a deletion"
        await send(peer, b"new0", b"new1")
        assert (await pop(peer, queueId=0)).bodies == [b"new0", b"new1"]


async def test_deletion_of_a_group_that_has_not_popped_takes_effect(tmp_path: Path) -> None:
    """The group starts from the beginning."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await consume_by_pulling(broker, peer, RequestCode.POP_MESSAGE)
        ext = {"groupName": GROUP, "cleanOffset": "true"}
        assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)).code == 0
        assert (await pop(peer, queueId=0)).bodies == OLD


async def test_reset_of_a_group_that_has_not_popped_takes_effect(tmp_path: Path) -> None:
    """A reset back counts also without `useServerSideResetOffset`, by which pops would find it."""
    async with running_broker(tmp_path, useServerSideResetOffset="false") as broker, dialogue(broker) as peer:
        await consume_by_pulling(broker, peer, RequestCode.POP_MESSAGE)
        broker.core.offsets.reset(GROUP, TOPIC, 0, 1)
        assert (await pop(peer, queueId=0)).bodies == OLD[1:]


async def test_reset_of_a_group_that_pulls_stores_nothing(tmp_path: Path) -> None:
    """A broker without pops has no topic of checkpoints after a reset."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, *OLD)
        broker.core.offsets.reset(GROUP, TOPIC, 0, 1)
        assert not broker.pops.journal.is_used
        assert not broker.pops.journal.state.queues


async def begin_unread_reset(broker: Broker, peer: Dialogue, patch: pytest.MonkeyPatch) -> None:
    """Pop three messages, and reset the group to the second while the broker reads its checkpoints."""
    await send(peer, *OLD)
    await pop(peer, queueId=0)
    with patch.context() as reading:
        reading.setattr(PopJournal, "read_next", lambda journal: False)
        broker.pops.journal._is_caught_up = False
        broker.core.offsets.reset(GROUP, TOPIC, 0, 1)
    assert broker.pops.journal.state.inflight_count == 3, "expected the reset to wait"


def refuse(*given: object) -> object:
    raise StoreFull("no space left")


async def test_change_that_waits_is_made_before_any_pop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reset came while checkpoints were read, and the store refuses it then: pops are refused until it is made."""
    async with running_broker(tmp_path, useServerSideResetOffset="false") as broker, dialogue(broker) as peer:
        with monkeypatch.context() as patch:
            await begin_unread_reset(broker, peer, monkeypatch)
            patch.setattr(PopWriter, "append", refuse)
            patch.setattr(service, "READY_TIMEOUT_S", 0.1)
            for _ in range(2):
                reply = await peer.ask(RequestCode.POP_MESSAGE, pop_ext(queueId=0))
                assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await pop(peer, queueId=0)).bodies == OLD[1:]
        assert broker.pops.journal.state.inflight_count == 2


async def test_change_of_an_earlier_epoch_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another master has made a reset itself, and popped since: made again, it would end newer checkpoints."""
    async with running_broker(tmp_path, useServerSideResetOffset="false") as broker, dialogue(broker) as peer:
        await begin_unread_reset(broker, peer, monkeypatch)
        broker.pops._deferred_epoch -= 1
        await pop_nothing(peer, queueId=0)
        assert broker.pops.journal.state.inflight_count == 3
