"""The order in which `gantry produce` sends messages with a sharding key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from gantry_cli.messages.produce import MessageTemplate, SendSummary, _send_all
from gantry_cli.output import OutputFormat
from gantry_client import ProducerSettings
from gantry_testing.client import FakeCluster


async def test_messages_with_a_sharding_key_keep_the_order_of_the_lines() -> None:
    """No line overtakes one that waits for the route or the first connection."""
    template = MessageTemplate(
        topic="orders", tag=None, keys=(), properties={}, sharding_key="customer-7", delay_level=0
    )
    bodies = [b"%d" % number for number in range(300)]

    async def lines() -> AsyncIterator[bytes]:
        for body in bodies:
            yield body
            await asyncio.sleep(0)

    async with FakeCluster() as cluster:
        cluster.add_topic("orders", queues=1)
        await _send_all(
            cluster.name_server, template, lines(), SendSummary(form=OutputFormat.TABLE), ProducerSettings()
        )

        assert [message.body for message in cluster.broker().messages("orders")] == bodies
