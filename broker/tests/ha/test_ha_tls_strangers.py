"""Brokers with a certificate of another authority get nothing as a slave, and are not trusted as a master."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import trustme

from gantry_broker.app import Broker
from gantry_testing.certificates import Party
from gantry_testing.local import dialogue, running_broker, wait_until

SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}
FLUSHED_SOON = {"flushCommitLogThoroughInterval": "100"}


def parties(tmp_path: Path, *, is_guarded: bool) -> tuple[Party, Party]:
    """Return an honest broker, and a stranger with a certificate of another authority that trusts both authorities.

    Without the guard the honest one trusts both, too.
    """
    ours, theirs = trustme.CA(), trustme.CA()
    honest, stranger = Party(tmp_path / "honest", ours), Party(tmp_path / "stranger", theirs)
    stranger.trust(ours, theirs)
    if not is_guarded:
        honest.trust(ours, theirs)
    return honest, stranger


def file_digests(broker: Broker) -> dict[str, str]:
    """Return digests of all files that a peer could have changed: log, tables, epochs, promise and role."""
    root = Path(broker.settings.store_path)
    parts = ("commitlog", "config", "store.json", "promise.json", "role.json")
    files = [file for part in parts for file in [root / part, *(root / part).rglob("*")] if file.is_file()]
    return {str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


async def wait_for_failed_attempt(slave: Broker) -> None:
    """Wait until an attempt of this broker to follow has failed."""
    await wait_until(lambda: getattr(slave.replication.slave.follower, "problem", None) is not None)


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "twin"])
async def test_slave_of_another_authority_gets_nothing(tmp_path: Path, is_guarded: bool) -> None:
    """It knows the group's name and follows the protocol, but gets no stream and no data, and no ack of it counts."""
    honest, stranger = parties(tmp_path, is_guarded=is_guarded)
    async with running_broker(
        tmp_path / "master", disk=None, clock=None, brokerRole="ASYNC_MASTER", **FLUSHED_SOON, **honest.replication()
    ) as master:  # fmt: skip
        async with dialogue(master) as peer:
            assert (await peer.send(b"a secret")).code == 0
        await wait_until(lambda: master.store.log.flushed == master.store.log.wrote)
        await master.core.persistence.write_stale()  # so that only the peer could change files after this
        before = file_digests(master)
        async with running_broker(
            tmp_path / "slave", disk=None, clock=None, haMasterAddress=master.settings.ha_address, **SLAVE,
            **stranger.replication(),
        ) as slave:  # fmt: skip
            if is_guarded:
                await wait_for_failed_attempt(slave)
                assert slave.store.log.wrote == 0 and len(master.replication.acks) == 0
                assert before["commitlog/00000000000000000000"] and file_digests(master) == before
            else:
                await wait_until(lambda: slave.store.log.wrote == master.store.log.wrote)


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "twin"])
async def test_master_of_another_authority_is_not_trusted(tmp_path: Path, is_guarded: bool) -> None:
    """Its messages, tables and epochs do not get into the store of a slave that connects to it."""
    honest, stranger = parties(tmp_path, is_guarded=is_guarded)
    async with running_broker(
        tmp_path / "rogue", disk=None, clock=None, brokerRole="ASYNC_MASTER", **stranger.replication()
    ) as rogue:  # fmt: skip
        async with dialogue(rogue) as peer:
            assert (await peer.send(b"a lie")).code == 0
        async with running_broker(
            tmp_path / "slave", disk=None, clock=None, haMasterAddress=rogue.settings.ha_address, **SLAVE,
            **honest.replication(),
        ) as slave:  # fmt: skip
            if is_guarded:
                await slave.core.persistence.write_stale()  # so that only the peer could change files after this
                before = file_digests(slave)
                await wait_for_failed_attempt(slave)
                assert slave.store.log.wrote == 0 and slave.roles.promises.promise.epoch == 0
                assert before and file_digests(slave) == before
            else:
                await wait_until(lambda: slave.store.log.wrote == rogue.store.log.wrote)
