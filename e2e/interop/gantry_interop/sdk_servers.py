"""The servers to which the programs of the SDKs connect, and what these programs cannot do themselves.

    gantry          Gantry's proxy in front of Gantry's broker
    apache          Apache's proxy in front of Apache's broker: what the others are compared with
    gantry-apache   Gantry's proxy in front of Apache's broker
    apache-gantry   Apache's proxy in front of Gantry's broker

`gantry-apache-VERSION` has a broker of the version before the compared one.

Topics and groups are created through the broker, since SDKs cannot. Dead letters are read from it, so that no SDK
judges them itself: each must have the body that was sent, by the digest in its properties.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gantry_client import NoRoute, PullConsumer
from gantry_client.session import Session
from gantry_interop import apache_servers, peers, versions
from gantry_interop.processes import Child, Nursery, wait_until
from gantry_testing.ports import free_port_run
from gantry_wire.codes import RequestCode
from gantry_wire.commands.admin import (
    CreateTopic,
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)

KINDS: Final = ("gantry", "apache", "gantry-apache", f"gantry-apache-{versions.PREVIOUS}", "apache-gantry")
TOPIC_TYPES: Final = ("normal", "fifo", "delay", "priority", "transaction")
ORDERED: Final = frozenset({"fifo", "fifo-dead-letters"})
"""Flows whose group consumes in order."""
DEAD_LETTER_FLOWS: Final = frozenset({"dead-letters", "fifo-dead-letters"})
DEAD_LETTER_RETRIES: Final = 2
RETRY_DELAY_MS: Final = 1_000
"""Failed messages come back after a second, so that flows with retries take seconds."""
LISTED_DELAYS: Final = GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy(next=[RETRY_DELAY_MS] * 18))
"""A policy of the kind that groups have by default."""
EXPONENTIAL_DELAYS: Final = GroupRetryPolicy(
    type="EXPONENTIAL",
    exponential_retry_policy=ExponentialRetryPolicy(initial=RETRY_DELAY_MS, max=RETRY_DELAY_MS, multiplier=1),
)
"""The other kind. The SDK for Node.js knows only this one, that for Python only lists; the others know both."""
TIMERS: Final = {"timerWheelEnable": "true", "recallMessageEnable": "true"}
GANTRY_PROXY: Final = ("-m", "gantry_proxy")
READY_SECONDS_MAX: Final = 240.0
DEAD_LETTER_SECONDS_MAX: Final = 90.0
POLL_S: Final = 0.5


def absence(kind: str, flow: str) -> str:
    """Return why servers of a kind lack a flow, or a type of topics; empty if they have it."""
    previous = f"apache-{versions.PREVIOUS}"
    is_absent = flow == "priority" and kind in (f"gantry-{previous}", f"{previous}-gantry")
    return f"RocketMQ {versions.PREVIOUS} has no priorities" if is_absent else ""


@dataclass(frozen=True)
class Servers:
    """Running servers of one kind."""

    kind: str
    name_server: str
    endpoints: str
    """The address of the proxy."""
    proxy: Child


def start(kind: str, nursery: Nursery, directory: Path, proxy_program: Sequence[str] = GANTRY_PROXY) -> Servers:
    """Start a name server, a broker and a proxy, and wait until they serve. Raises InteropError.

    ``proxy_program`` is started with Python in place of Gantry's proxy, for tests with faults.
    """
    proxy_of, _, broker_of = kind.partition("-")
    broker_of = broker_of or proxy_of
    layout = peers.Layout(directory / "servers", settings=TIMERS if peers.is_apache(broker_of) else {})
    peer = peers.start(broker_of, nursery, layout)
    if proxy_of == "apache":
        cluster = peers.broker_settings(broker_of, layout)["brokerClusterName"]
        other = apache_servers.start_proxy(nursery, versions.PEER, peer.address, cluster, directory / "proxy")
        return Servers(kind, peer.address, other.grpc, other.child)
    port = free_port_run(2)
    arguments = ["-n", peer.address, "--listen", f"127.0.0.1:{port}", "--http-listen", f"127.0.0.1:{port + 1}"]
    proxy = nursery.start("proxy", [sys.executable, *proxy_program, *arguments], os.environ)
    wait_until("the proxy's port", lambda: _is_listening(port), READY_SECONDS_MAX, proxy)
    return Servers(kind, peer.address, f"127.0.0.1:{port}", proxy)


def prepare(servers: Servers, suffix: str, flows: Sequence[str], policy: GroupRetryPolicy) -> None:
    """Create the topics with their types, and the groups of these flows with a retry policy."""
    topics = [_topic(kind, suffix) for kind in TOPIC_TYPES if not absence(servers.kind, kind)]
    asyncio.run(_prepare(servers.name_server, topics, [_group(flow, suffix, policy) for flow in flows]))


async def _prepare(name_server: str, topics: Sequence[CreateTopic], groups: Sequence[SubscriptionGroupConfig]) -> None:
    session = Session(name_server)
    await session.start()
    try:
        for broker in (await session.name_servers.cluster()).broker_addr_table.values():
            address = broker.broker_addrs[0]
            for topic in topics:
                await session.calls.request_success(address, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
            for group in groups:
                code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
                await session.calls.request_success(address, code, None, group)
        while await session.name_servers.route(topics[-1].topic) is None:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
    finally:
        await session.close()


def _topic(kind: str, suffix: str) -> CreateTopic:
    return CreateTopic(
        topic=f"sdk-{kind}{suffix}", default_topic=peers.AUTO_CREATE_TOPIC, read_queue_nums=4, write_queue_nums=4,
        perm=6, topic_filter_type="SINGLE_TAG", order=False, attributes=f"+message.type={kind.upper()}",
    )  # fmt: skip


def _group(flow: str, suffix: str, policy: GroupRetryPolicy) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(
        group_name=f"sdk-{flow}{suffix}", consume_message_orderly=flow in ORDERED, group_retry_policy=policy,
        retry_max_times=DEAD_LETTER_RETRIES if flow in DEAD_LETTER_FLOWS else 16,
    )  # fmt: skip


def dead_letter_fault(servers: Servers, suffix: str, flow: str, sent: int) -> str:
    """Return what is wrong with the dead letters of a flow that sent so many messages; empty if nothing is."""
    return asyncio.run(_dead_letter_fault(servers.name_server, f"%DLQ%sdk-{flow}{suffix}", sent))


async def _dead_letter_fault(name_server: str, topic: str, sent: int) -> str:
    found: list[str] = []
    deadline = time.monotonic() + DEAD_LETTER_SECONDS_MAX
    async with PullConsumer(name_server, "sdk-judge") as consumer:
        while len(set(found)) < sent and time.monotonic() < deadline:
            with contextlib.suppress(NoRoute):  # the topic is created with the first dead letter
                found = await _digests(consumer, topic)
            await asyncio.sleep(POLL_S)
    return judge_dead_letters(found, sent)


def judge_dead_letters(digests: Sequence[str], sent: int) -> str:
    """Return what is wrong with dead letters of these digests, of which an altered message has an empty one."""
    if "" in digests:
        return f"{digests.count('')} dead letters are altered"
    if len(digests) == len(set(digests)) == sent:
        return ""
    return f"{len(set(digests))} of {sent} messages are dead letters, in {len(digests)} copies"


async def _digests(consumer: PullConsumer, topic: str) -> list[str]:
    """Return the digest of each message of a topic; an empty one for a message that is altered."""
    digests: list[str] = []
    for queue in await consumer.queues(topic):
        offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
        while offset < end:
            result = await consumer.fetch(queue, offset)
            for message in result.messages:
                digest = hashlib.sha256(message.body).hexdigest()
                digests.append(digest if message.properties.get("sha") == digest else "")
            offset = result.next_offset
    return digests


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
