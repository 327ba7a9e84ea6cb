"""What a refused request must leave as it was: everything. A place to refuse in, and the check that nothing moved."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gantry_broker.app import Broker
from gantry_testing.local import TOPIC, Dialogue, dialogue, running_broker, tree
from gantry_wire import Command, RequestCode

KEPT_IN_BACKGROUND = frozenset({"retention-clock.json", "scrub.json"})
"""Files that a broker writes at times of its own, whatever it is asked."""


@dataclass
class Place:
    """A broker, one client of it, and its directory."""

    broker: Broker
    client: Dialogue
    path: Path

    def state(self) -> tuple[object, ...]:
        """Everything that a refused request must leave as it is."""
        core = self.broker.core
        return (
            core.store.log.wrote,
            dict(core.topics.all),
            sorted(core.groups.all),
            core.offsets.document().offset_table,
            sorted(core.clients.consumers),
            [name for name in tree(self.path) if not name.endswith(".tmp") and name not in KEPT_IN_BACKGROUND],
            [name for name in tree(self.path.parent) if not name.startswith(self.path.name)],
        )


@asynccontextmanager
async def strict_place(path: Path) -> AsyncIterator[Place]:
    """A broker that makes no topic by itself, with one topic that holds one message."""
    store = path / "below" / "store"
    async with running_broker(store, autoCreateTopicEnable="false") as broker, dialogue(broker) as client:
        await create_topic(client, TOPIC)
        await client.send_ok()
        await client.read()
        await broker.core.persistence.round()
        yield Place(broker, client, store)


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


async def refused(place: Place, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
    """The refusal of a request; it has a text, and everything is as before."""
    before = place.state()

    reply = await place.client.ask(code, ext, body)

    await place.broker.core.persistence.round()
    assert reply.code != 0
    assert reply.remark
    assert place.state() == before
    return reply
