"""Which brokers may follow: a shared secret, certificates, and the refusal of all others."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from gantry_broker.app import Broker
from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.setting_keys import broker_settings
from gantry_testing.local import dialogue, local_conf, wait_until
from gantry_wire import ResponseCode


async def start_broker(path: Path, **conf: str) -> Broker:
    broker = Broker(broker_settings(local_conf(path, **conf)), disk=RealDisk(), clock=SystemClock())
    await broker.start()
    return broker


async def start_pair(tmp_path: Path, master_conf: dict[str, str], slave_conf: dict[str, str]) -> tuple[Broker, Broker]:
    master = await start_broker(tmp_path / "master", brokerRole="SYNC_MASTER", **master_conf)
    role = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": master.settings.ha_address}
    return master, await start_broker(tmp_path / "slave", **role, **slave_conf)


def problem_of(slave: Broker) -> str:
    follower = slave.replication.slave.follower
    return (follower.problem or "") if follower is not None else ""


async def test_slave_follows_only_with_the_same_secret(tmp_path: Path) -> None:
    """With another secret, or none, the slave is refused, and its status has the reason."""
    for name, text in (("right", "s3cret\n"), ("wrong", "other")):
        (tmp_path / name).write_text(text)
    right, wrong = {"haSecretPath": str(tmp_path / "right")}, {"haSecretPath": str(tmp_path / "wrong")}
    for number, (slave_conf, is_welcome) in enumerate(((right, True), (wrong, False), ({}, False))):
        master, slave = await start_pair(tmp_path / str(number), right, slave_conf)
        try:
            if is_welcome:
                await wait_until(lambda one=master: len(one.replication.acks) == 1)  # type: ignore[misc]
            else:
                await wait_until(lambda one=slave: "secret" in problem_of(one))  # type: ignore[misc]
                async with dialogue(master) as peer:
                    assert (await peer.send(b"a")).code == ResponseCode.SLAVE_NOT_AVAILABLE
        finally:
            await slave.close()
            await master.close()


async def test_master_without_the_secret_is_not_followed(tmp_path: Path) -> None:
    """A slave with a secret accepts no master without it."""
    (tmp_path / "secret").write_text("s3cret")
    master, slave = await start_pair(tmp_path, {}, {"haSecretPath": str(tmp_path / "secret")})
    try:
        await wait_until(lambda: "secret" in problem_of(slave))
        assert len(master.replication.acks) == 0
    finally:
        await slave.close()
        await master.close()


def certificate(folder: Path, authority: trustme.CA, trusted: trustme.CA | None) -> dict[str, str]:
    folder.mkdir()
    issued = authority.issue_cert("127.0.0.1")
    (folder / "chain.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    (folder / "key.pem").write_bytes(issued.private_key_pem.bytes())
    conf = {"haTlsCertPath": str(folder / "chain.pem"), "haTlsKeyPath": str(folder / "key.pem")}
    if trusted is not None:
        trusted.cert_pem.write_to_path(str(folder / "authority.pem"))
        conf["haTlsTrustCertPath"] = str(folder / "authority.pem")
    return conf


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "a stranger's"])
async def test_slave_needs_a_certificate_of_the_masters_authority(tmp_path: Path, is_ours: bool) -> None:
    """A pair of one authority works; a slave with another authority's certificate never follows."""
    ours, theirs = trustme.CA(), trustme.CA()
    master_conf = certificate(tmp_path / "of-master", ours, ours)
    slave_conf = certificate(tmp_path / "of-slave", ours if is_ours else theirs, ours)
    master, slave = await start_pair(tmp_path, master_conf, slave_conf)
    try:
        if is_ours:
            await wait_until(lambda: len(master.replication.acks) == 1)
            async with dialogue(master) as peer:
                assert (await peer.send(b"a")).code == 0
        else:
            await wait_until(lambda: problem_of(slave) != "")
            assert len(master.replication.acks) == 0
    finally:
        await slave.close()
        await master.close()


async def test_unreadable_secret_stops_the_start(tmp_path: Path) -> None:
    """A group that requires a secret must not run without one."""
    with pytest.raises(OSError, match="nowhere"):
        await start_broker(tmp_path, haSecretPath="/nowhere/secret")
    assert not (tmp_path / "abort").exists(), "expected the opened store to be closed again"
