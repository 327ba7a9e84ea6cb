"""External addresses, enabled and disabled by an edit: with a real name server and a real broker, as rendered."""

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
ALWAYS = {"topics": [{"name": TOPIC, "queues": 4}], "nameServers": {"replicas": 1}}
OUTER_ADDRESS = "203.0.113.7:30911"
GIVEN = {"orders-0-external": OUTER_ADDRESS}
"""The external addresses that the cluster assigns, once there is such a Service."""

KNOWN_S = 90.0
"""A broker registers at a restarted name server within half a minute."""

UNKNOWN_S = 8.0
"""How long to wait for an address that must not appear."""

OPENED, CLOSED = (
    next(row for row in ROWS if str(row) == name)
    for name in ("access.external.type", "access.external.type: closed again")
)


async def brokers_of(address: str) -> set[str]:
    """Return the addresses of the topic's master that this name server returns; none without a route."""
    try:
        async with Admin(address) as admin:
            route = await admin.topics.route(TOPIC)
    except (ClientError, RemotingError, OSError):
        return set()
    return {one for broker in route.brokers.values() for one in broker.values()}


async def wait_for_addresses(address: str, wanted: set[str], seconds_max: float) -> set[str]:
    """Return the addresses once they are the expected ones, or when the time is over."""
    deadline, found = time.monotonic() + seconds_max, await brokers_of(address)
    while found != wanted and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        found = await brokers_of(address)
    return found


def expected_access(row: Row) -> tuple[str, str]:
    """Return whether the row expects external clients to get an address, before and after: yes or no."""
    [shown] = [one for one in row.shown if one.source is Source.ROUTES]
    return shown.before, shown.after


async def test_edit_enables_and_disables_external_addresses(tmp_path: Path) -> None:
    """External clients get the external address while it is enabled, others the internal one. No broker restarts."""
    assert (expected_access(OPENED), expected_access(CLOSED)) == (("no", "yes"), ("yes", "no"))
    closed, opened = (merged(OPENED.spec(side), ALWAYS) for side in (OPENED.before, OPENED.after))
    with (
        LocalNameServer(tmp_path / "names") as server,
        LocalPod(tmp_path / "pod", tmp_path / "buffers", name_servers=server.addresses) as pod,
    ):
        (tmp_path / "names").mkdir()
        server.run_spec(closed)
        await asyncio.to_thread(pod.edit, closed)
        [inner] = await wait_for_addresses(server.inner, {pod.address}, KNOWN_S)
        assert await wait_for_addresses(server.outer, {OUTER_ADDRESS}, UNKNOWN_S) == set()

        await asyncio.to_thread(server.run_spec, opened)
        pod.external_addresses = GIVEN
        await asyncio.to_thread(pod.edit, opened)
        assert await wait_for_addresses(server.outer, {OUTER_ADDRESS}, KNOWN_S) == {OUTER_ADDRESS}
        assert await wait_for_addresses(server.inner, {inner}, KNOWN_S) == {inner}

        await asyncio.to_thread(server.run_spec, closed)
        await asyncio.to_thread(pod.edit, closed)
        assert await wait_for_addresses(server.inner, {inner}, KNOWN_S) == {inner}
        assert await brokers_of(server.outer) == set()
        assert pod.starts == 1
