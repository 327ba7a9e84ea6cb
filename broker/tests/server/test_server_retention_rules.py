"""For any history: no unconsumed message is deleted, unless it has expired or the settings allow it.

The whole chain is under test (facts, unconsumed, plan, removal) against an oracle that knows nothing of files: what was
sent when, and who has committed which offset.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_broker.ports import DiskSpace
from gantry_broker.server.admin.unconsumed import find_oldest_unconsumed
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.clients import ClientRegistry
from gantry_broker.server.core.groups import GroupTable
from gantry_broker.server.core.offsets import ConsumerOffsets
from gantry_broker.server.core.topics import TopicTable
from gantry_broker.store.retention import (
    FILES_PER_ROUND_MAX,
    HOUR_MS,
    NOTHING_UNCONSUMED,
    RetentionFacts,
    RoomFacts,
    needs_unconsumed,
    plan_retention,
)
from gantry_broker.store.settings import RetentionSettings
from gantry_testing.log_head import remove_before
from gantry_testing.store_world import TINY, StoreWorld, make_world
from gantry_wire.names import RETRY_PREFIX, SCHEDULE_TOPIC

FILE_BYTES = TINY.mapped_file_size_commit_log
QUEUES = (("orders", 0), ("orders", 1), ("bills", 0), (f"{RETRY_PREFIX}g1", 0), (SCHEDULE_TOPIC, 0), ("TBW102", 0))
GROUPS = ("g1", "g2")


async def no_popped_messages() -> dict[tuple[str, str, int], int]:
    return {}


@dataclass
class History:
    """A store, its consumers, and what the oracle remembers."""

    is_unconsumed_deleted: bool
    world: StoreWorld = field(default_factory=lambda: make_world("faulty", Path("/")))
    delivered: dict[int, int] = field(default_factory=dict)
    sent_ms: dict[int, int] = field(default_factory=dict)
    """Store time by the end of the record."""

    def __post_init__(self) -> None:
        self.world.open()
        self.offsets = ConsumerOffsets(self.world.clock)
        parts: Any = SimpleNamespace(
            store=self.world.store,
            offsets=self.offsets,
            clients=ClientRegistry(self.world.clock),
            topics=TopicTable(self.world.clock, lambda topic: None),
            groups=GroupTable(self.world.clock, lambda group: None, auto_create=True),
            oldest_unacked=no_popped_messages,
        )
        self.core = cast("BrokerCore", parts)
        self.settings = RetentionSettings(
            reserved_hours=10, delete_hours=(4,), is_unconsumed_deleted=self.is_unconsumed_deleted
        )

    # -- what happens ------------------------------------------------------------------------------------------------

    def send(self, queue: int, count: int) -> None:
        topic, queue_id = QUEUES[queue]
        for _ in range(count):
            self.world.append([self.world.draft(topic, queue_id, body=b"x" * 300)])
            self.sent_ms[self.world.sent[-1].end] = self.world.store.log.last_timestamp_ms
            self.world.clock.advance(1)

    def consume(self, queue: int, group: int, percent: int) -> None:
        topic, queue_id = QUEUES[queue]
        found = self.world.store.queues.get(topic, queue_id)
        if found is None:
            return
        offset = found.min_offset + (found.end - found.min_offset) * percent // 100
        if topic == SCHEDULE_TOPIC:
            self.delivered[queue_id + 1] = max(offset, self.delivered.get(queue_id + 1, 0))
        else:
            self.offsets.commit(GROUPS[group], topic, queue_id, offset)

    def wait(self, hours: int) -> None:
        self.world.clock.advance(hours * HOUR_MS)

    def flush(self) -> None:
        self.world.store.flush()

    def restart(self) -> None:
        self.world.kill()
        self.world.open()
        self.core.store = self.world.store  # type: ignore[misc]

    def plan(self, used: int, hour: int) -> None:
        """One round of retention, and the oracle's judgement."""
        store = self.world.store
        space = DiskSpace(1000 * FILE_BYTES, (100 - used) * 10 * FILE_BYTES)
        unconsumed_from = NOTHING_UNCONSUMED
        if needs_unconsumed(space, self.settings):
            oldest = asyncio.run(find_oldest_unconsumed(self.core, self.delivered))
            unconsumed_from = NOTHING_UNCONSUMED if oldest is None else oldest.physical_offset
        facts = RetentionFacts(
            files=store.removal.describe_oldest_files(),
            room=RoomFacts(space=space, file_size=FILE_BYTES),
            now_ms=self.world.clock.wall_ms(),
            hour=hour,
            unconsumed_from=unconsumed_from,
        )
        before = store.log.min_physical
        plan = plan_retention(facts, self.settings)

        remove_before(store, plan.delete_before)

        self.judge(before, store.log.min_physical, is_pressed=used > self.settings.forced_percent)

    # -- the oracle --------------------------------------------------------------------------------------------------

    def judge(self, before: int, after: int, *, is_pressed: bool) -> None:
        store = self.world.store
        assert after % FILE_BYTES == 0
        assert after - before <= FILES_PER_ROUND_MAX * FILE_BYTES
        assert after <= store.log.flushed
        assert after <= store.log.wrote - store.log.wrote % FILE_BYTES, "the current file was deleted"
        expired_ms = self.world.clock.wall_ms() - 10 * HOUR_MS
        for end, topic, queue_id, offset, _ in self.world.sent:
            if before < end <= after:
                is_free = is_pressed and (self.is_unconsumed_deleted or self.is_consumed(topic, queue_id, offset))
                assert self.sent_ms[end] < expired_ms or is_free, (end, topic, queue_id, offset)
        for topic, queue_id in QUEUES:
            kept = [
                one for one in self.world.sent if (one.topic, one.queue_id) == (topic, queue_id) and one.end > after
            ]
            assert self.world.bodies(topic, queue_id) == [message.body for message in kept]

    def is_consumed(self, topic: str, queue_id: int, offset: int) -> bool:
        if topic == "TBW102":
            return True
        if topic == SCHEDULE_TOPIC:
            return offset < self.delivered.get(queue_id + 1, 0)
        groups = ["g1"] if topic.startswith(RETRY_PREFIX) else self.offsets.groups_of(topic)
        return bool(groups) and all((self.offsets.find(group, topic, queue_id) or 0) > offset for group in groups)


STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 5), st.integers(1, 60)),
    st.tuples(st.just("send"), st.integers(0, 5), st.integers(1, 60)),
    st.tuples(st.just("consume"), st.integers(0, 4), st.integers(0, 1), st.sampled_from((0, 50, 90, 100, 100, 100))),
    st.tuples(st.just("consume"), st.integers(0, 4), st.just(0), st.just(100)),
    st.tuples(st.just("wait"), st.integers(0, 12)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("plan"), st.sampled_from((50, 76, 86, 95, 99)), st.sampled_from((3, 4))),
    st.tuples(st.just("plan"), st.sampled_from((86, 99)), st.just(3)),
)


@settings(max_examples=150)
@given(is_unconsumed_deleted=st.booleans(), steps=st.lists(STEPS, max_size=40))
def test_no_history_deletes_unconsumed_messages(is_unconsumed_deleted: bool, steps: list[tuple[Any, ...]]) -> None:
    """Nothing is deleted unless all have consumed it, it has expired or settings allow it. The rest is served."""
    history = History(is_unconsumed_deleted)

    for verb, *arguments in steps:
        getattr(history, verb)(*arguments)

    history.flush()
    history.plan(99, 3)


def test_oracle_agrees_with_the_rules() -> None:
    """A history in which consumption and expiry each delete something: doing nothing would not fulfil the rules."""
    history = History(is_unconsumed_deleted=False)
    history.send(0, 150)
    history.flush()
    history.plan(99, 3)
    assert history.world.store.log.min_physical == 0, "messages without consumers were deleted"
    history.consume(0, 0, 100)
    history.plan(99, 3)
    assert history.world.store.log.min_physical == 4 * FILE_BYTES, "consumed files were kept"

    history.send(2, 150)
    history.flush()
    history.wait(11)
    history.plan(50, 3)
    assert history.world.store.log.min_physical == 4 * FILE_BYTES, "deleted before the delete hour"
    history.plan(50, 4)

    assert history.world.store.log.min_physical > 6 * FILE_BYTES, "expired files were kept"
