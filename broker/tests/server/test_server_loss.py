"""A broker whose log has lost files refuses sends until an administrator accepts the loss or a replica restores it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.setting_keys import broker_settings
from gantry_cli.rates import parse_runtime_info
from gantry_status import LogRange
from gantry_status.orders import HaRole, OrderRefused
from gantry_testing.local import Dialogue, dialogue, local_conf, wait_until
from gantry_testing.tree import PYTHON_PATH
from gantry_wire import RequestCode

BODY = b"x" * 2_000


def small_conf(path: Path, **conf: str) -> dict[str, str]:
    return local_conf(path, mappedFileSizeCommitLog=str(128 * 1024), maxMessageSize="65536", **conf)


def segments(conf: dict[str, str]) -> list[Path]:
    return sorted(path for path in (Path(conf["storePathRootDir"]) / "commitlog").iterdir() if path.stat().st_size)


@asynccontextmanager
async def running_broker(conf: dict[str, str]) -> AsyncIterator[Broker]:
    broker = Broker(broker_settings(conf), disk=RealDisk(), clock=SystemClock())
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()


async def fill(broker: Broker, files: int = 3) -> int:
    """Send until the log has that many files."""
    async with dialogue(broker) as peer:
        while len(broker.store.log.files.files) < files or broker.store.log.wrote % broker.store.log.file_size < 9_000:
            await peer.send_ok(BODY)
    return broker.store.log.wrote


async def fill_store(conf: dict[str, str]) -> int:
    """Make a store with three log files, stop it cleanly, and return the end of its log."""
    async with running_broker(conf) as broker:
        return await fill(broker)


async def runtime(broker: Broker) -> dict[str, str]:
    """Return the answer that `gantry status` requests from a broker."""
    async with dialogue(broker) as peer:
        reply = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    table: dict[str, str] = json.loads(reply.body)["table"]
    return table


def recorded_completeness(conf: dict[str, str]) -> bool | None:
    text = (Path(conf["storePathRootDir"]) / "completeness.json").read_text().partition("\n")[2]
    found: bool | None = json.loads(text)["is_complete"]
    return found


@pytest.mark.parametrize("case", ["newest", "first", "middle", "all"])
async def test_single_broker_refuses_sends_until_the_loss_is_accepted(tmp_path: Path, case: str) -> None:
    """The refusal names the range and the remedy; the decision is durable, and needed once."""
    conf = small_conf(tmp_path)
    end = await fill_store(conf)
    files = segments(conf)
    for file in {"newest": files[-1:], "first": files[:1], "middle": files[1:2], "all": files}[case]:
        file.unlink()

    for _ in range(2):
        async with running_broker(conf) as broker:
            status = await broker.orders.status()
            assert status.role is HaRole.COMPARING and [lost.cause for lost in status.missing] != []
            assert "accept-loss" in status.problem and str(status.missing[0].end) in status.problem
            assert broker.roles.completeness.is_complete is False and not status.may_regain
            async with dialogue(broker) as peer:
                reply = await peer.send(b"x")
                assert reply.code == 14 and "accept-loss" in (reply.remark or "")
                assert str(status.missing[0].start) in (reply.remark or "")
                if case == "newest":
                    assert [message.body for message in await peer.read(0)][:1] == [BODY]
            page = broker.status.snapshot()
            assert page.log_missing_bytes == sum(lost.end - lost.start for lost in status.missing)
            assert page.is_refusing_sends
            missing = tuple(LogRange(lost.start, lost.end) for lost in status.missing)
            assert page.log_missing_ranges == missing
            facts = parse_runtime_info(await runtime(broker), 0.0)
            assert (facts.missing_bytes, facts.missing) == (page.log_missing_bytes, missing)
    assert recorded_completeness(conf) is False

    async with running_broker(conf) as broker:
        status = await broker.orders.accept_loss("ann")
        assert (status.role, status.missing) == (HaRole.MASTER, ())
        assert [one.cause for one in status.accepted] == [{"newest": "tail", "first": "head"}.get(case, case)]
        assert (await broker.orders.accept_loss("ann")).wrote == status.wrote, "the repeated order changed the log"
        assert status.wrote is not None and status.wrote >= end
        async with dialogue(broker) as peer:
            sent = await peer.send_ok(b"after")
        page = broker.status.snapshot()
        assert (page.log_missing_bytes, page.is_refusing_sends) == (None, False)
        assert page.log_accepted_loss_bytes == sum(one.end - one.start for one in status.accepted)
        before = int(sent["queueOffset"])
    async with running_broker(conf) as broker:
        status = await broker.orders.status()
        assert (status.role, status.missing, status.is_complete) == (HaRole.MASTER, (), True)
        assert len(status.accepted) == 1
        async with dialogue(broker) as peer:
            assert [message.body for message in await peer.read(before)] == [b"after"]


async def test_queues_and_epochs_continue_after_an_accepted_loss(tmp_path: Path) -> None:
    """A consumer that has read everything reads the next message, and no other."""
    conf = small_conf(tmp_path)
    async with running_broker(conf) as broker:
        await fill(broker)
        async with dialogue(broker) as peer:
            last = int((await peer.send_ok(b"last"))["queueOffset"])
        epochs = list(broker.store.identity.epochs)
    segments(conf)[-1].unlink()

    async with running_broker(conf) as broker:
        await broker.orders.accept_loss("ann")
        assert broker.store.identity.epochs[: len(epochs)] == epochs
        assert broker.store.identity.epoch > epochs[-1].epoch
        async with dialogue(broker) as peer:
            assert int((await peer.send_ok(b"next"))["queueOffset"]) == last + 1
            assert [message.body for message in await peer.read(last + 1)] == [b"next"]


async def test_master_restores_its_lost_tail_from_its_slave(tmp_path: Path) -> None:
    """It asks its slaves before anything is appended; no decision is needed, and no message is lost."""
    conf = small_conf(tmp_path / "master", brokerRole="SYNC_MASTER")
    async with running_broker(conf) as master:
        slave_conf = small_conf(
            tmp_path / "slave", brokerRole="SLAVE", brokerId="1", haMasterAddress=master.settings.ha_address
        )
        async with running_broker(slave_conf) as slave:
            await wait_until(lambda: len(master.replication.acks) == 1)
            end = await fill(master)
            await wait_until(lambda: slave.store.log.wrote == end)
    segments(conf)[-1].unlink()

    async with running_broker(conf) as master:
        assert master.roles.role is HaRole.COMPARING
        with pytest.raises(OrderRefused, match="compares its log with slaves first"):
            await master.orders.accept_loss("ann")
        async with running_broker(slave_conf):
            await wait_until(lambda: master.roles.role is HaRole.MASTER)
            assert master.store.log.wrote == end and not master.store.losses.record.missing
            await wait_until(lambda: len(master.replication.acks) == 1)
            async with dialogue(master) as peer:
                assert (await peer.send(b"x")).code == 0


CASES_WITH_A_HOLE = ("first", "middle")


@pytest.mark.verify(quick=2)
@pytest.mark.parametrize("case", ["newest", "middle", "first", "all"])
async def test_slave_restores_lost_files_from_its_master(
    tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A tail is copied as usual, a hole by a new copy of the whole log. Then the data is complete again.

    A log that is discarded for that leaves a warning.
    """
    async with running_broker(small_conf(tmp_path / "master")) as master:
        conf = small_conf(
            tmp_path / "slave", brokerRole="SLAVE", brokerId="1", haMasterAddress=master.settings.ha_address
        )
        async with running_broker(conf) as slave:
            end = await fill(master)
            await wait_until(lambda: slave.store.log.wrote == end)
        files = segments(conf)
        for file in {"newest": files[-1:], "first": files[:1], "middle": files[1:2], "all": files}[case]:
            file.unlink()

        async with running_broker(conf | {"haMasterAddress": "127.0.0.1:9"}) as slave:
            status = await slave.orders.status()
            assert status.missing and status.is_complete is False
            with pytest.raises(OrderRefused, match="missing"):
                await slave.orders.promote(1_000, [], False)
            with pytest.raises(OrderRefused):
                await slave.orders.accept_loss("ann")
            had = slave.store.log.wrote
        caplog.clear()
        async with running_broker(conf) as slave:
            await wait_until(lambda: slave.roles.completeness.is_complete is True)
            warnings = [vars(one) for one in caplog.records if one.message == "truncating the log to follow the master"]
            assert [(one["start"], one["end"]) for one in warnings] == ([(0, had)] if case in CASES_WITH_A_HOLE else [])
            assert slave.store.log.wrote == end and not slave.store.losses.record.missing
            assert slave.store.log.min_physical == master.store.log.min_physical
        async with running_broker(conf) as slave:
            assert not slave.store.losses.record.missing and slave.roles.completeness.is_complete is True


async def store_without_its_last_file(path: Path) -> dict[str, str]:
    """Fill the store of a broker without a role at its start, and remove the last file; return its configuration."""
    conf = small_conf(path, roleAtStart="UNASSIGNED", brokerId="1")
    async with running_broker(conf) as broker:
        await broker.orders.promote(1_000, [], False)
        await fill(broker)
    segments(conf)[-1].unlink()
    return conf


async def test_broker_with_lost_files_is_promoted_only_with_force(tmp_path: Path) -> None:
    """Neither a promotion nor regaining trusts such a store; force is a decision, and recorded as one."""
    conf = await store_without_its_last_file(tmp_path)

    async with running_broker(conf) as broker:
        assert not (await broker.orders.status()).may_regain
        with pytest.raises(OrderRefused, match="may have lost"):
            await broker.orders.regain(1_000)
        with pytest.raises(OrderRefused, match="accept-loss"):
            await broker.orders.promote(2_000, [2], False)
        assert broker.roles.role is HaRole.UNASSIGNED
        with pytest.raises(OrderRefused, match="accept-loss"):
            await broker.orders.promote(2_000, [], False)
        async with dialogue(broker) as peer:
            assert (await peer.send(b"x")).code == 14
            assert [message.body for message in await peer.read(0)][:1] == [BODY], "it serves no reads"
        status = await broker.orders.accept_loss("ann")
        assert (status.role, status.missing) == (HaRole.UNASSIGNED, ())
        status = await broker.orders.promote(2_000, [], False)
        assert (status.role, status.is_complete) == (HaRole.MASTER, True)
        await fill(broker, 6)
    segments(conf)[-1].unlink()

    async with running_broker(conf) as broker:
        status = await broker.orders.promote(3_000, [], True)
        assert (status.role, status.missing, len(status.accepted)) == (HaRole.MASTER, (), 2)
        async with dialogue(broker) as peer:
            assert (await peer.send(b"x")).code == 0


async def test_late_promotion_does_not_make_a_broker_with_lost_files_serve_reads(tmp_path: Path) -> None:
    """Its epoch was promised away meanwhile: the broker is not alone, and another one may be the master."""
    conf = await store_without_its_last_file(tmp_path)

    async with running_broker(conf) as broker:
        await broker.orders.promise(3_000, "another")
        with pytest.raises(OrderRefused, match="3000 was promised to another"):
            await broker.orders.promote(2_000, [], False)

        assert broker.roles.role is HaRole.UNASSIGNED
        async with dialogue(broker) as peer:
            assert (await peer.pull(0)).code == 14


# -- processes ---------------------------------------------------------------------------------------------------------


def run_gantry(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gantry_cli", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=180, env=os.environ | {"PYTHONPATH": PYTHON_PATH}
    )


@contextmanager
def process_of(conf: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a broker process that is ready, and return its port."""
    options = [part for key, value in conf.items() for part in ("-o", f"{key}={value}")]
    process = subprocess.Popen(
        [sys.executable, "-m", "gantry_broker", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": PYTHON_PATH},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("broker listening on "), line
        yield process, int(line.rpartition(":")[2])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)


@pytest.mark.verify
@pytest.mark.parametrize("way", ["ha", "store"])
async def test_administrator_finds_and_accepts_the_loss(tmp_path: Path, way: str) -> None:
    """With processes and the command line: refused, shown, verified, accepted while it runs or while it is stopped."""
    conf = small_conf(tmp_path / "store") | {"controlSocketPath": str(tmp_path / "c.sock")}
    with process_of(conf) as (_, port):
        peer = await Dialogue.open(f"127.0.0.1:{port}")
        for _ in range(200):
            last = int((await peer.send_ok(BODY))["queueOffset"])
        await peer.close()
    lost = segments(conf)[-1]
    lost.unlink()
    store = conf["storePathRootDir"]
    found = run_gantry("store", "verify", store)
    assert found.returncode == 1 and "missing" in found.stdout and str(int(lost.name)) in found.stdout
    assert "would accept no messages" in run_gantry("store", "inspect", store).stdout

    with process_of(conf) as (_, port):
        peer = await Dialogue.open(f"127.0.0.1:{port}")
        reply = await peer.send(b"x")
        assert reply.code == 14 and str(int(lost.name)) in (reply.remark or "")
        shown = run_gantry("ha", "status", "--socket", conf["controlSocketPath"])
        assert "missing" in shown.stdout and "comparing" in shown.stdout, shown
        refused = run_gantry("store", "accept-loss", store, "--yes")
        assert refused.returncode == 4 and "gantry ha accept-loss" in refused.stderr
        if way == "ha":
            accepted = run_gantry("ha", "accept-loss", "--socket", conf["controlSocketPath"], "--yes")
            assert accepted.returncode == 0 and "accepted loss" in accepted.stdout, accepted
        await peer.close()
    if way == "store":
        accepted = run_gantry("store", "accept-loss", store, "--yes")
        assert accepted.returncode == 0 and "loss accepted" in accepted.stdout, accepted
    with process_of(conf) as (_, port):
        peer = await Dialogue.open(f"127.0.0.1:{port}")
        assert int((await peer.send_ok(b"after"))["queueOffset"]) >= last + 1
        await peer.close()
    assert "accepted loss" in run_gantry("store", "inspect", store).stdout
