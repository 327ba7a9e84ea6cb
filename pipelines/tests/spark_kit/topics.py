"""A topic of a test's own: made first, so that name servers know it before anybody asks."""

from __future__ import annotations

from typing import Any

from spark_kit.processes import Group, Sent

from gantry_client.sync import Admin


def filled(brokers: Group, topic: str, count: int, *, queues: int = 4, **how: Any) -> list[Sent]:
    """So many messages in a new topic, all acknowledged."""
    with Admin(brokers.name_server) as admin:
        admin.wait(admin.topics.create(topic, queues=queues))
    return brokers.send(count, topic=topic, queues=queues, **how)


def places(sent: list[Sent]) -> list[tuple[int, int]]:
    """Queue and offset of each, sorted."""
    return sorted((one.queue, one.offset) for one in sent)
