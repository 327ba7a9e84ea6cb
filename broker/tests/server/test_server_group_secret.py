"""The secret of a replication group: it may change while all brokers run, and an empty one is never used."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.roles.group_secret import GroupSecret
from gantry_broker.server.roles.master_replication import MasterReplication
from gantry_testing.local import dialogue, running_broker, wait_until

SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}


@pytest.fixture(autouse=True)
def fast_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gantry_remoting.file_watch.CHECK_INTERVAL_S", 0.01)


def broker_at(path: Path, **conf: str) -> AbstractAsyncContextManager[Broker]:
    return running_broker(path, disk=None, clock=None, **conf)


class Mount:
    """A Secret as Kubernetes mounts it: the path leads through `..data`, which is replaced atomically."""

    def __init__(self, folder: Path, secret: str) -> None:
        self.folder, self._count = folder, 0
        folder.mkdir()
        self.path = folder / "secret"
        self.path.symlink_to("..data/secret")
        self.replace_secret(secret)

    def replace_secret(self, secret: str) -> None:
        self._count += 1
        version = self.folder / f"..{self._count}"
        version.mkdir()
        (version / "secret").write_text(secret + "\n")
        (self.folder / "..data_tmp").symlink_to(version.name)
        (self.folder / "..data_tmp").replace(self.folder / "..data")


@asynccontextmanager
async def pair(tmp_path: Path, of_master: Mount, of_slave: Mount) -> AsyncIterator[tuple[Broker, Broker]]:
    """Return a master that waits for its slave, and the slave."""
    async with broker_at(
        tmp_path / "master", brokerRole="SYNC_MASTER", haSecretPath=str(of_master.path)
    ) as master:  # fmt: skip
        address = master.settings.ha_address
        async with broker_at(
            tmp_path / "slave", haMasterAddress=address, haSecretPath=str(of_slave.path), **SLAVE
        ) as slave:
            await wait_until(lambda: len(master.replication.acks) == 1)
            yield master, slave


async def send(master: Broker) -> int:
    async with dialogue(master) as peer:
        return (await peer.send(b"a")).code


def disconnect_slave(master: Broker) -> None:
    master.replication.master.server.disconnect("to see it reconnect")


async def test_replaced_secret_is_used_by_both_sides(tmp_path: Path) -> None:
    """The existing stream continues; a new one needs the new secret on both sides, and connects by itself."""
    of_master, of_slave = Mount(tmp_path / "m", "one"), Mount(tmp_path / "s", "one")
    async with pair(tmp_path, of_master, of_slave) as (master, slave):
        assert await send(master) == 0

        of_master.replace_secret("two")
        await wait_until(lambda: master.replication.secret.current == b"two")
        assert len(master.replication.acks) == 1 and await send(master) == 0

        disconnect_slave(master)
        await wait_until(lambda: "secret" in str(getattr(slave.replication.slave.follower, "problem", "")))
        assert len(master.replication.acks) == 0

        of_slave.replace_secret("two")
        await wait_until(lambda: len(master.replication.acks) == 1)
        assert await send(master) == 0


@pytest.mark.parametrize("is_changed", [True, False], ids=["changed", "not changed, the twin"])
async def test_old_secret_is_refused_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_changed: bool
) -> None:
    """A slave with only the old secret is refused; a master that ignored the change would accept it."""
    if not is_changed:
        monkeypatch.setattr(
            MasterReplication, "facts", lambda self: self._facts and self._facts._replace(secret=b"one")
        )
    of_master, of_slave = Mount(tmp_path / "m", "one"), Mount(tmp_path / "s", "one")
    async with pair(tmp_path, of_master, of_slave) as (master, slave):
        of_master.replace_secret("two")
        await wait_until(lambda: master.replication.secret.current == b"two")
        first = slave.replication.slave.follower
        disconnect_slave(master)
        await wait_until(lambda: len(master.replication.acks) == 0)

        if is_changed:
            await wait_until(lambda: "secret" in str(getattr(slave.replication.slave.follower, "problem", "")))
            assert len(master.replication.acks) == 0
        else:
            await wait_until(lambda: len(master.replication.acks) == 1)
        assert slave.replication.slave.follower is first


def _empty(path: Path) -> None:
    path.write_text(" \n")


def _directory(path: Path) -> None:
    path.mkdir()


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(5 * 1024**3)


UNUSABLE: dict[str, Callable[[Path], None]] = {
    "empty": _empty, "missing": lambda path: None, "directory": _directory, "5 GiB": _large,
}  # fmt: skip


@pytest.mark.parametrize("corrupt", UNUSABLE.values(), ids=UNUSABLE.keys())
async def test_invalid_secret_is_never_used(
    tmp_path: Path, corrupt: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """It stops a start, and changes nothing later; both errors name the setting, once, and never a secret."""
    path = tmp_path / "secret"
    corrupt(path)
    with pytest.raises(OSError, match=f"haSecretPath={path}"):
        async with broker_at(tmp_path / "store", haSecretPath=str(path)):
            pass

    good = tmp_path / "good"
    good.write_text("well-kept")
    (tmp_path / "link").symlink_to(good)
    secret = GroupSecret(str(tmp_path / "link"))
    await secret.start()
    await secret.close()
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(path)
    caplog.clear()
    for _ in range(4):
        await secret.check()

    assert secret.current == b"well-kept"
    [line] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert f"haSecretPath={tmp_path / 'link'}" in line.__dict__["reason"]
    assert "well-kept" not in str(line.__dict__) + repr(secret)


async def test_secret_is_used_after_two_equal_checks(tmp_path: Path) -> None:
    """A part of a file that is being written must not be used."""
    path = tmp_path / "secret"
    path.write_text("one")
    secret = GroupSecret(str(path))
    await secret.start()
    await secret.close()

    used: list[bytes] = []
    for text in ("tw", "two", "two", "two"):
        path.write_text(text)
        await secret.check()
        used.append(secret.current)

    assert used == [b"one", b"one", b"two", b"two"]
