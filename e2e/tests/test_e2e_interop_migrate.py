"""`gantry migrate` takes over from Apache's broker under Java clients, and restores that broker when the
migration is stopped.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gantry_interop import peers
from gantry_interop.migration import MigrationRun, find_process
from gantry_interop.migration_report import MigrationReport, Plan, large_plan
from gantry_interop.processes import Nursery, wait_until

from gantry_cli.migrate.source import (
    CLOSE_SETTINGS,
    STOP_WRITES_SETTINGS,
    ApacheBroker,
    MigrationError,
    RemotingPeer,
    SourceLog,
)
from gantry_client import Admin, ClientError, Message, Producer, PullConsumer
from gantry_status.order_client import OrderClient
from gantry_status.orders import Drain, HaRole, HaStatus, OrderError, StatusRequest
from gantry_testing.client import wait_until as client_wait_until

pytestmark = pytest.mark.needs_java

TOPIC = "interop_migrate"
TIMEOUT_S = 240.0
DELAY_LEVEL = 18
"""Among the peers' short levels, sixteen seconds: due after the switch."""


def run_migration(plan: Plan, tmp_path: Path) -> MigrationReport:
    """Run a migration under Java clients, print its report, and return it."""
    with Nursery(tmp_path / "logs") as nursery:
        report = MigrationRun(plan, nursery, tmp_path / "run").run()
    print(report.command_output, *report.lines(), sep="\n")
    return report


@pytest.mark.slow
def test_java_clients_continue_at_our_broker(tmp_path: Path) -> None:
    """No acknowledged message is lost, all are consumed, groups continue at their offsets, and the logs are the
    same."""
    report = run_migration(Plan(), tmp_path)

    assert report.broken == []
    assert report.copied_bytes > 24 << 20
    assert report.pause_ms > 0


@pytest.mark.slow
def test_three_gibibytes_are_migrated_under_load(tmp_path: Path) -> None:
    """RocketMQ's own file size and the clients' default route poll are used, and the log is larger than the read
    buffers.
    """
    report = run_migration(large_plan(3300, 0), tmp_path)

    assert report.broken == []
    assert report.copied_bytes > 3 << 30


@contextmanager
def apache(nursery: Nursery, migration_run: MigrationRun) -> Iterator[peers.Peer]:
    """Apache's broker alone; the new broker is stopped with it."""
    peer = peers.start("apache", nursery, migration_run.apache_layout)
    try:
        yield peer
    finally:
        migration_run.stop_gantry()


async def send_until_refused(address: str, first: int, count: int) -> list[int]:
    """Send so many messages; return the numbers of the accepted ones."""
    numbers = []
    async with Producer(address, "migrate-p") as producer:
        for number in range(first, first + count):
            try:
                await producer.send(Message(TOPIC, b"%d" % number))
                numbers.append(number)
            except ClientError:
                break
    return numbers


async def read_all(address: str) -> list[int]:
    """Return every number in the topic."""
    numbers: list[int] = []
    async with PullConsumer(address, "migrate-c") as consumer:
        for queue in await consumer.queues(TOPIC):
            offset = 0
            while messages := (await consumer.fetch(queue, offset)).messages:
                numbers += [int(message.body) for message in messages]
                offset = messages[-1].queue_offset + 1
    return sorted(numbers)


async def is_stored(address: str, number: int) -> bool:
    """Return whether the broker has the message with a number."""
    return number in await read_all(address)


async def read_changed_settings(address: str) -> dict[str, str]:
    """Return the present values of the settings that a migration changes at Apache's broker."""
    old = ApacheBroker(address)
    try:
        config = await old.config()
    finally:
        await old.close()
    return {key: config[key] for key in STOP_WRITES_SETTINGS}


async def status_of(migration_run: MigrationRun) -> HaStatus:
    async with OrderClient(str(migration_run.gantry_directory / "store" / "control.sock")) as client:
        return await client.call(StatusRequest())


def phase(migration_run: MigrationRun) -> str:
    """Return the phase in the record of the migration."""
    path = migration_run.gantry_directory / "migration.json"
    return json.loads(path.read_text())["phase"] if path.exists() else ""


async def send_code(address: str) -> int:
    """Return the answer of a broker to a connected client with old routes."""
    fields = {"a": "p", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0"}
    peer = RemotingPeer(address)
    try:
        return (await peer.request(310, fields | {"k": "false", "m": "false"}, b"123")).code
    finally:
        await peer.close()


@pytest.mark.verify
async def test_slave_role_stops_sends_at_apaches_broker(tmp_path: Path) -> None:
    """The setting brokerPermission=4 does not stop clients that use no routes. brokerRole=SLAVE does, at once."""
    with Nursery(tmp_path / "logs") as nursery:
        migration_run = MigrationRun(Plan(), nursery, tmp_path)
        with apache(nursery, migration_run) as peer:
            async with Admin(peer.address) as admin:
                await admin.topics.create(TOPIC, queues=1)
            old = ApacheBroker(peer.broker_address)
            before = {key: (await old.config())[key] for key in STOP_WRITES_SETTINGS}

            await old.update_config({"brokerPermission": "4"})
            assert await send_code(peer.broker_address) == 0
            await old.update_config(STOP_WRITES_SETTINGS)
            end = (await old.log()).end
            assert await send_code(peer.broker_address) == 2
            assert (await old.log()).end == end > 0
            await old.update_config(before)
            assert await send_code(peer.broker_address) == 0
            assert await send_until_refused(peer.address, 0, 3) == [0, 1, 2]
            await old.close()


@pytest.mark.slow
async def test_stopped_migration_restores_the_old_broker(tmp_path: Path) -> None:
    """After too long a pause, or a kill of the command during the pause, the old broker continues, and another run
    succeeds.
    """
    with Nursery(tmp_path / "logs") as nursery:
        migration_run = MigrationRun(Plan(linger_seconds=0), nursery, tmp_path)
        with apache(nursery, migration_run) as peer:
            async with Admin(peer.address) as admin:
                await admin.topics.create(TOPIC, queues=2)
            assert len(await send_until_refused(peer.address, 0, 100)) == 100
            before = await read_changed_settings(peer.broker_address)

            # The new broker is paused when it should copy the last bytes.
            words = migration_run.command("--timeout", "2")
            command = await asyncio.to_thread(start_command, words, tmp_path / "first.log")
            os.kill(find_process(migration_run.gantry_directory), signal.SIGSTOP)
            assert await asyncio.to_thread(confirm_and_wait, command) == 1
            assert "the old broker is restored" in (tmp_path / "first.log").read_text()
            assert await read_changed_settings(peer.broker_address) == before
            assert len(await send_until_refused(peer.address, 100, 100)) == 100

            # The command itself is killed during the write pause.
            os.kill(find_process(migration_run.gantry_directory), signal.SIGCONT)
            command = await asyncio.to_thread(start_command, migration_run.command(), tmp_path / "second.log")
            os.kill(find_process(migration_run.gantry_directory), signal.SIGSTOP)
            confirm_switchover(command)
            await asyncio.to_thread(wait_until, "the stop", lambda: phase(migration_run) == "STOPPING", TIMEOUT_S)
            command.kill()
            assert command.wait(10) != 0
            os.kill(find_process(migration_run.gantry_directory), signal.SIGCONT)
            assert await asyncio.to_thread(run_command, migration_run.command("--abort"), tmp_path / "abort.log") == 0
            assert await read_changed_settings(peer.broker_address) == before
            assert len(await send_until_refused(peer.address, 200, 100)) == 100

            async with Producer(peer.address, "migrate-p") as producer:
                await producer.send(Message(TOPIC, b"1000", delay_level=DELAY_LEVEL))
            assert await asyncio.to_thread(run_command, migration_run.command("--yes"), tmp_path / "third.log") == 0
            assert (await status_of(migration_run)).role is HaRole.MASTER
            assert len(await send_until_refused(peer.address, 300, 100)) == 100
            assert await read_changed_settings(peer.broker_address) == STOP_WRITES_SETTINGS | CLOSE_SETTINGS
            await restart(migration_run, nursery)
            await client_wait_until(lambda: is_accepted(peer.address, 400), timeout_s=TIMEOUT_S)
            assert len(await send_until_refused(peer.address, 401, 9)) == 9
            await client_wait_until(lambda: is_stored(peer.address, 1000), timeout_s=TIMEOUT_S)
            assert await read_all(peer.address) == [*range(410), 1000]
            assert await asyncio.to_thread(run_command, migration_run.command(), tmp_path / "fourth.log") == 0
            assert await asyncio.to_thread(run_command, migration_run.command("--abort"), tmp_path / "late.log") == 1


@pytest.mark.slow
async def test_old_broker_can_take_over_again(tmp_path: Path) -> None:
    """As docs/migration.md describes: its store is a prefix of ours, so it can follow ours and be promoted."""
    with Nursery(tmp_path / "logs") as nursery:
        migration_run = MigrationRun(Plan(linger_seconds=0), nursery, tmp_path)
        with apache(nursery, migration_run) as peer:
            async with Admin(peer.address) as admin:
                await admin.topics.create(TOPIC, queues=2)
            assert len(await send_until_refused(peer.address, 0, 100)) == 100
            words = migration_run.command("--yes", "-o", "haClassicPeers=true")
            assert await asyncio.to_thread(run_command, words, tmp_path / "there.log") == 0
            assert len(await send_until_refused(peer.address, 100, 100)) == 100
            await asyncio.to_thread(peer.broker.stop, peers.CLEAN_STOP_SECONDS_MAX)

            slave = dataclasses.replace(
                migration_run.apache_layout,
                settings={**migration_run.apache_layout.settings, "brokerRole": "SLAVE", "brokerId": "1"},
            )
            again = await asyncio.to_thread(peers.start_broker, "apache", nursery, slave, "slave-again")
            async with OrderClient(str(migration_run.gantry_directory / "store" / "control.sock")) as ours:
                status = await ours.call(Drain(timeout_ms=5_000))
            log = ApacheBroker(peer.broker_address).log
            await client_wait_until(lambda: does_end_at(log, status.wrote or 0), timeout_s=TIMEOUT_S)
            await asyncio.to_thread(migration_run.stop_gantry)
            await asyncio.to_thread(again.stop, peers.CLEAN_STOP_SECONDS_MAX)
            await asyncio.to_thread(peers.start_broker, "apache", nursery, migration_run.apache_layout, "master-again")

            await client_wait_until(lambda: is_accepted(peer.address, 200), timeout_s=TIMEOUT_S)
            assert await read_all(peer.address) == list(range(201))


async def does_end_at(log: Callable[[], Awaitable[SourceLog]], end: int) -> bool:
    """Return whether a log ends at an offset."""
    try:
        return (await log()).end == end
    except MigrationError:
        return False


async def is_accepted(address: str, number: int) -> bool:
    return await send_until_refused(address, number, 1) == [number]


def start_command(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command and wait for its question."""
    with log.open("wb") as file:
        command = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=file, stderr=file)
    wait_until("the question", lambda: "switch over now?" in log.read_text(), TIMEOUT_S)
    return command


def confirm_switchover(command: subprocess.Popen[bytes]) -> None:
    """Answer yes to the question before the switch."""
    assert command.stdin is not None
    command.stdin.write(b"y\n")
    command.stdin.close()


def confirm_and_wait(command: subprocess.Popen[bytes]) -> int:
    """Answer yes; return the exit code."""
    confirm_switchover(command)
    return command.wait(TIMEOUT_S)


def run_command(words: list[str], log: Path) -> int:
    """Run a command to its end, and return its exit code."""
    with log.open("wb") as file:
        return subprocess.run(
            words, stdout=file, stderr=file, stdin=subprocess.DEVNULL, timeout=180, check=False
        ).returncode


async def restart(migration_run: MigrationRun, nursery: Nursery) -> None:
    """Kill the new broker and restart it; it is the master again by the settings of the migration."""
    os.kill(find_process(migration_run.gantry_directory), signal.SIGKILL)
    wait_until("its end", lambda: not find_process(migration_run.gantry_directory), TIMEOUT_S)
    words = [sys.executable, "-m", "gantry_broker", "-c", str(migration_run.gantry_directory / "broker.conf")]
    nursery.start("ours-again", words, os.environ)

    async def is_master() -> bool:
        try:
            return (await status_of(migration_run)).role is HaRole.MASTER
        except OrderError:
            return False

    await client_wait_until(is_master, timeout_s=TIMEOUT_S)
