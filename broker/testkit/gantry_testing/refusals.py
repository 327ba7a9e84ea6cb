"""A broker for tests of refused requests, and the check that a refusal changes nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gantry_broker.app import Broker
from gantry_testing.local import TOPIC, Dialogue, dialogue, names_below, running_broker
from gantry_wire import Command, RequestCode

KEPT_IN_BACKGROUND = frozenset({"retention-clock.json", "scrub.json"})
"""Files that a broker writes at its own times, independently of requests."""


@dataclass
class BrokerAndClient:
    """A running broker, one connected client, and the directory of the store."""

    broker: Broker
    client: Dialogue
    path: Path

    def state(self) -> tuple[object, ...]:
        """Return the state that a refused request must leave unchanged."""
        core = self.broker.core
        return (
            core.store.log.wrote,
            dict(core.topics.all),
            sorted(core.groups.all),
            core.offsets.document().offset_table,
            sorted(core.clients.consumers),
            [name for name in names_below(self.path) if not name.endswith(".tmp") and name not in KEPT_IN_BACKGROUND],
            [name for name in names_below(self.path.parent) if not name.startswith(self.path.name)],
        )


@asynccontextmanager
async def strict_broker(path: Path) -> AsyncIterator[BrokerAndClient]:
    """Run a broker without automatic topic creation, with one topic that holds one message."""
    store = path / "below" / "store"
    async with running_broker(store, autoCreateTopicEnable="false") as broker, dialogue(broker) as client:
        await create_topic(client, TOPIC)
        await client.send_ok()
        await client.read()
        await broker.core.persistence.write_stale()
        yield BrokerAndClient(broker, client, store)


async def create_topic(client: Dialogue, topic: str, **fields: str) -> Command:
    ext = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
        **fields,
    }
    return await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)


async def expect_refusal(place: BrokerAndClient, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
    """Send a request that must be refused with a text and without any change; return the reply."""
    before = place.state()

    reply = await place.client.ask(code, ext, body)

    await place.broker.core.persistence.write_stale()
    assert reply.code != 0
    assert reply.remark
    assert place.state() == before
    return reply
