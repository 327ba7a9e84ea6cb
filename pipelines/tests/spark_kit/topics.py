"""A topic for a single test: created first, so that name servers have its route before the first message."""

from __future__ import annotations

from typing import Any

from spark_kit.processes import Group, Sent

from gantry_client.sync import Admin


def send_to_new_topic(brokers: Group, topic: str, count: int, *, queues: int = 4, **how: Any) -> list[Sent]:
    """Send messages to a new topic, all acknowledged."""
    with Admin(brokers.name_server) as admin:
        admin.wait(admin.topics.create(topic, queues=queues))
    return brokers.send(count, topic=topic, queues=queues, **how)


def places(sent: list[Sent]) -> list[tuple[int, int]]:
    """Return queue and offset of each message, sorted."""
    return sorted((one.queue, one.offset) for one in sent)
