"""Replication as mqadmin shows it: request codes 906, 907 and 908."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_server_roles import UNASSIGNED, running_group

from gantry_broker.app import Broker
from gantry_broker.ha.master_session import MasterSession
from gantry_broker.server.roles.replication import StreamSpeeds
from gantry_testing.local import dialogue, running_broker, wait_until


async def test_ha_status_of_master_and_slave(tmp_path: Path) -> None:
    """As Java's HARuntimeInfo: positions, lags, in-sync slaves; on a slave the master and its last heartbeat."""
    async with running_group(tmp_path) as members:
        master = await members.start("master")
        slave = await members.slave(master)
        async with dialogue(master) as client:
            await client.send_ok(b"x" * 1000)
            wrote = master.store.log.wrote
            await wait_until(lambda: all(one.received == wrote for one in master.replication.acks))
            found = await client.ask_json(907)
        [one] = found["haConnectionInfo"]
        assert (found["master"], found["masterCommitLogMaxOffset"], found["inSyncSlaveNums"]) == (True, wrote, 1)
        assert (one["slaveAckOffset"], one["diff"], one["inSync"], one["transferFromWhere"]) == (wrote, 0, True, wrote)
        assert one["addr"].startswith("127.0.0.1:")
        assert one["transferredByteInSecond"] >= 0

        async with dialogue(slave) as client:
            found = await client.ask_json(907)
        assert (found["master"], found["haConnectionInfo"]) == (False, [])
        own = found["haClientRuntimeInfo"]
        assert (own["masterAddr"], own["maxOffset"], own["activated"]) == (master.settings.ha_address, wrote, True)
        assert abs(own["lastReadTimestamp"] - slave.core.clock.wall_ms()) < 120_000


async def test_slave_far_behind_is_not_in_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave is not in sync when it lags by more than haMaxGapNotInSync."""
    async with running_group(tmp_path) as members:
        master = await members.start("master", haMaxGapNotInSync="1000")
        await members.slave(master)
        [progress] = master.replication.acks
        async with dialogue(master) as client:
            await client.send_ok(b"x" * 5000)
            await wait_until(lambda: progress.received == master.store.log.wrote)
            # The slave repeats its acknowledgement, which would undo the change below.
            monkeypatch.setattr(MasterSession, "_record_ack", lambda *_: None)
            progress.received -= 4000
            found = await client.ask_json(907)
        assert (found["inSyncSlaveNums"], found["haConnectionInfo"][0]["inSync"]) == (0, False)
        assert found["haConnectionInfo"][0]["diff"] == 4000


async def test_ha_status_of_a_broker_without_a_role(tmp_path: Path) -> None:
    """The request is answered in every role."""
    async with (
        running_broker(tmp_path, disk=None, clock=None, **UNASSIGNED, brokerId="1") as broker,
        dialogue(broker) as client,
    ):
        found = await client.ask_json(907)
        assert (found["master"], found["haConnectionInfo"], found["haClientRuntimeInfo"]["activated"]) == (
            False, [], False,
        )  # fmt: skip
        assert "masterAddr" not in found["haClientRuntimeInfo"]


async def test_master_address_can_be_queried_but_not_set(tmp_path: Path) -> None:
    """906 without an address asks; with one it would say whom to follow, which is for orders, as is 908 on a slave."""
    async with running_group(tmp_path) as members:
        master = await members.start("master")
        slave = await members.slave(master)
        async with dialogue(master) as client:
            reply = await client.ask(906)
            assert (reply.code, reply.ext["masterHaAddress"]) == (0, master.settings.ha_address)
            assert reply.ext["masterAddress"] == master.settings.address
            assert int(reply.ext["masterFlushOffset"]) <= master.store.log.wrote
            refused = await client.ask(906, {"masterHaAddress": "1.2.3.4:1", "masterAddress": "1.2.3.4:2"})
            assert (refused.code, "orders" in (refused.remark or "")) == (16, True)
            assert (await client.ask(908, {"masterFlushOffset": "7"})).code == 0
        async with dialogue(slave) as client:
            reply = await client.ask(906)
            assert (reply.code, dict(reply.ext)) == (0, {})
            assert (await client.ask(908, {"masterFlushOffset": "7"})).code == 16


def speeds_of(broker: Broker) -> StreamSpeeds:
    return StreamSpeeds(broker.replication.master.server, broker.store)


async def test_speed_is_measured_between_two_samples(tmp_path: Path) -> None:
    """It is 0 before the second sample; then bytes per second of each stream, and of a slave's own log."""
    async with running_group(tmp_path) as members:
        master = await members.start("master")
        slave = await members.slave(master)
        sent, copied = speeds_of(master), speeds_of(slave)
        [stream] = master.replication.master.server.streams
        sent.sample(2.0)
        copied.sample(2.0)
        assert (sent.of(stream), copied.own) == (0, 0)

        async with dialogue(master) as client:
            await client.send_ok(b"x" * 4000)
        await wait_until(lambda: slave.store.log.wrote == master.store.log.wrote)
        sent.sample(4.0)
        copied.sample(4.0)
        assert sent.of(stream) == copied.own == master.store.log.wrote // 2
