"""The way in from outside, opened and closed by an edit: a real name server and a real broker, as they are rendered."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from edit_world.local_name_server import LocalNameServer
from edit_world.local_pods import LocalPod
from edit_world.row import Row, Source, merged
from edit_world.table import ROWS

from gantry_client import Admin, ClientError
from gantry_remoting import RemotingError

pytestmark = pytest.mark.slow

TOPIC = "always"
KEPT = {"topics": [{"name": TOPIC, "queues": 4}], "nameServers": {"replicas": 1}}
OUTER_ADDRESS = "203.0.113.7:30911"
GIVEN = {"orders-0-external": OUTER_ADDRESS}
"""By the cluster, once there is such a Service."""

KNOWN_S = 90.0
"""A broker tells a name server that was started again within half a minute."""

UNKNOWN_S = 8.0
OPENED, CLOSED = (
    next(row for row in ROWS if str(row) == name)
    for name in ("access.external.type", "access.external.type: closed again")
)


async def brokers_of(address: str) -> set[str]:
    """Where a client that asks there finds the topic's master; nobody if it is told of none."""
    try:
        async with Admin(address) as admin:
            route = await admin.topics.route(TOPIC)
    except (ClientError, RemotingError, OSError):
        return set()
    return {one for broker in route.brokers.values() for one in broker.values()}


async def seen(address: str, wanted: set[str], seconds_max: float) -> set[str]:
    """What is told there, once it is what is wanted, or when the time is over."""
    deadline, told = time.monotonic() + seconds_max, await brokers_of(address)
    while told != wanted and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        told = await brokers_of(address)
    return told


def words(row: Row) -> tuple[str, str]:
    """What the row says of clients outside."""
    [shown] = [one for one in row.shown if one.source is Source.ROUTES]
    return shown.before, shown.after


async def test_a_way_in_is_opened_and_closed_by_an_edit(tmp_path: Path) -> None:
    """Outside clients are told the outer address while the edit stands, those inside the inner one; no pod is new."""
    assert (words(OPENED), words(CLOSED)) == (("no", "yes"), ("yes", "no"))
    closed, opened = (merged(OPENED.spec(side), KEPT) for side in (OPENED.before, OPENED.after))
    with (
        LocalNameServer(tmp_path / "names") as server,
        LocalPod(tmp_path / "pod", tmp_path / "buffers", name_servers=server.addresses) as pod,
    ):
        (tmp_path / "names").mkdir()
        server.have(closed)
        await asyncio.to_thread(pod.edit, closed)
        [inner] = await seen(server.inner, {pod.address}, KNOWN_S)
        assert await seen(server.outer, {OUTER_ADDRESS}, UNKNOWN_S) == set()

        await asyncio.to_thread(server.have, opened)
        pod.outside = GIVEN
        await asyncio.to_thread(pod.edit, opened)
        assert await seen(server.outer, {OUTER_ADDRESS}, KNOWN_S) == {OUTER_ADDRESS}
        assert await seen(server.inner, {inner}, KNOWN_S) == {inner}

        await asyncio.to_thread(server.have, closed)
        await asyncio.to_thread(pod.edit, closed)
        assert await seen(server.inner, {inner}, KNOWN_S) == {inner}
        assert await brokers_of(server.outer) == set()
        assert pod.starts == 1
