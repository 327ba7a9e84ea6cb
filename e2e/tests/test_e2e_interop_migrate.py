"""`gantry migrate` takes over from Apache's broker while Java clients go on, and puts it back when it is stopped."""

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
from gantry_interop.migration import MigrationPlay, process_of
from gantry_interop.migration_report import MigrationReport, Plan, large
from gantry_interop.processes import Nursery, wait_until

from gantry_cli.migrate.source import CLOSED, STOPPED, ApacheBroker, CannotMigrate, RemotingPeer, SourceLog
from gantry_client import Admin, ClientError, Message, Producer, PullConsumer
from gantry_status.order_client import OrderClient
from gantry_status.orders import AskStatus, Drain, HaRole, HaStatus, OrderError
from gantry_testing.client import wait_until as client_wait_until

pytestmark = pytest.mark.needs_java

TOPIC = "interop_migrate"
PATIENT_S = 240.0
DELAY_LEVEL = 18
"""Of peers' short levels, eighteen seconds: due after the switch."""


def play(plan: Plan, tmp_path: Path) -> MigrationReport:
    with Nursery(tmp_path / "logs") as nursery:
        report = MigrationPlay(plan, nursery, tmp_path / "play").run()
    print(report.said, *report.lines(), sep="\n")
    return report


@pytest.mark.slow
def test_java_clients_go_on_at_our_broker(tmp_path: Path) -> None:
    """Nothing acknowledged is lost, everything is consumed, groups go on at their offsets, the logs are the same."""
    report = play(Plan(), tmp_path)

    assert report.broken == []
    assert report.copied_bytes > 24 << 20
    assert report.pause_ms > 0


@pytest.mark.slow
def test_three_gibibytes_from_before_come_along_under_load(tmp_path: Path) -> None:
    """The same with RocketMQ's own file size and the clients' own route poll, and more than memory is read for."""
    report = play(large(3300, 0), tmp_path)

    assert report.broken == []
    assert report.copied_bytes > 3 << 30


@contextmanager
def apache(nursery: Nursery, play: MigrationPlay) -> Iterator[peers.Peer]:
    """Apache's broker alone, and our broker's end with it."""
    peer = peers.start("apache", nursery, play.theirs)
    try:
        yield peer
    finally:
        play.stop_ours()


async def taken(address: str, first: int, count: int) -> list[int]:
    """Of so many sends, the numbers of those that were taken."""
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
    """Every number in the topic."""
    numbers: list[int] = []
    async with PullConsumer(address, "migrate-c") as consumer:
        for queue in await consumer.queues(TOPIC):
            offset = 0
            while messages := (await consumer.fetch(queue, offset)).messages:
                numbers += [int(message.body) for message in messages]
                offset = messages[-1].queue_offset + 1
    return sorted(numbers)


async def has(address: str, number: int) -> bool:
    return number in await read_all(address)


async def changed(address: str) -> dict[str, str]:
    """The settings that a migration changes, as Apache's broker has them now."""
    old = ApacheBroker(address)
    try:
        config = await old.config()
    finally:
        await old.close()
    return {key: config[key] for key in STOPPED}


async def status_of(play: MigrationPlay) -> HaStatus:
    async with OrderClient(str(play.home / "store" / "control.sock")) as client:
        return await client.call(AskStatus())


def phase(play: MigrationPlay) -> str:
    path = play.home / "migration.json"
    return json.loads(path.read_text())["phase"] if path.exists() else ""


async def send_code(address: str) -> int:
    """What a broker answers to somebody who is connected and whose routes are old."""
    fields = {"a": "p", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0"}
    peer = RemotingPeer(address)
    try:
        return (await peer.ask(310, fields | {"k": "false", "m": "false"}, b"123")).code
    finally:
        await peer.close()


@pytest.mark.verify
async def test_what_stops_sends_at_apaches_broker(tmp_path: Path) -> None:
    """Of its settings, brokerPermission=4 does not: who knows no routes sends on. brokerRole=SLAVE does, at once."""
    with Nursery(tmp_path / "logs") as nursery:
        play = MigrationPlay(Plan(), nursery, tmp_path)
        with apache(nursery, play) as peer:
            async with Admin(peer.address) as admin:
                await admin.topics.create(TOPIC, queues=1)
            old = ApacheBroker(peer.broker_address)
            before = {key: (await old.config())[key] for key in STOPPED}

            await old.set({"brokerPermission": "4"})
            assert await send_code(peer.broker_address) == 0
            await old.set(STOPPED)
            end = (await old.log()).end
            assert await send_code(peer.broker_address) == 2
            assert (await old.log()).end == end > 0
            await old.set(before)
            assert await send_code(peer.broker_address) == 0
            assert await taken(peer.address, 0, 3) == [0, 1, 2]
            await old.close()


@pytest.mark.slow
async def test_a_migration_that_is_stopped_puts_the_old_broker_back(tmp_path: Path) -> None:
    """Too long a pause, and a command that is killed in it: the old broker goes on, and another run ends well."""
    with Nursery(tmp_path / "logs") as nursery:
        play = MigrationPlay(Plan(linger_seconds=0), nursery, tmp_path)
        with apache(nursery, play) as peer:
            async with Admin(peer.address) as admin:
                await admin.topics.create(TOPIC, queues=2)
            assert len(await taken(peer.address, 0, 100)) == 100
            before = await changed(peer.broker_address)

            # Our broker stands still when it should copy the last bytes.
            words = play.command("--timeout", "2")
            command = await asyncio.to_thread(started, words, tmp_path / "first.log")
            os.kill(process_of(play.home), signal.SIGSTOP)
            assert await asyncio.to_thread(answered, command) == 1
            assert "all is as it was" in (tmp_path / "first.log").read_text()
            assert await changed(peer.broker_address) == before
            assert len(await taken(peer.address, 100, 100)) == 100

            # The command itself is killed while nobody may write.
            os.kill(process_of(play.home), signal.SIGCONT)
            command = await asyncio.to_thread(started, play.command(), tmp_path / "second.log")
            os.kill(process_of(play.home), signal.SIGSTOP)
            tell(command)
            await asyncio.to_thread(wait_until, "the stop", lambda: phase(play) == "STOPPING", PATIENT_S)
            command.kill()
            assert command.wait(10) != 0
            os.kill(process_of(play.home), signal.SIGCONT)
            assert await asyncio.to_thread(run, play.command("--abort"), tmp_path / "abort.log") == 0
            assert await changed(peer.broker_address) == before
            assert len(await taken(peer.address, 200, 100)) == 100

            async with Producer(peer.address, "migrate-p") as producer:
                await producer.send(Message(TOPIC, b"1000", delay_level=DELAY_LEVEL))
            assert await asyncio.to_thread(run, play.command("--yes"), tmp_path / "third.log") == 0
            assert (await status_of(play)).role is HaRole.MASTER
            assert len(await taken(peer.address, 300, 100)) == 100
            assert await changed(peer.broker_address) == STOPPED | CLOSED
            await restart(play, nursery)
            await client_wait_until(lambda: is_taken(peer.address, 400), timeout_s=PATIENT_S)
            assert len(await taken(peer.address, 401, 9)) == 9
            await client_wait_until(lambda: has(peer.address, 1000), timeout_s=PATIENT_S)
            assert await read_all(peer.address) == [*range(410), 1000]
            assert await asyncio.to_thread(run, play.command(), tmp_path / "fourth.log") == 0
            assert await asyncio.to_thread(run, play.command("--abort"), tmp_path / "late.log") == 1


@pytest.mark.slow
async def test_the_old_broker_can_take_over_again(tmp_path: Path) -> None:
    """As docs/migration.md says: its store is the beginning of ours, so it follows ours, and goes on."""
    with Nursery(tmp_path / "logs") as nursery:
        play = MigrationPlay(Plan(linger_seconds=0), nursery, tmp_path)
        with apache(nursery, play) as peer:
            async with Admin(peer.address) as admin:
                await admin.topics.create(TOPIC, queues=2)
            assert len(await taken(peer.address, 0, 100)) == 100
            words = play.command("--yes", "-o", "haClassicPeers=true")
            assert await asyncio.to_thread(run, words, tmp_path / "there.log") == 0
            assert len(await taken(peer.address, 100, 100)) == 100
            await asyncio.to_thread(peer.broker.stop, peers.ORDERLY_SECONDS_MAX)

            slave = dataclasses.replace(
                play.theirs, settings={**play.theirs.settings, "brokerRole": "SLAVE", "brokerId": "1"}
            )
            again = await asyncio.to_thread(peers.start_broker, "apache", nursery, slave, "slave-again")
            async with OrderClient(str(play.home / "store" / "control.sock")) as ours:
                status = await ours.call(Drain(timeout_ms=5_000))
            log = ApacheBroker(peer.broker_address).log
            await client_wait_until(lambda: ends_at(log, status.wrote or 0), timeout_s=PATIENT_S)
            await asyncio.to_thread(play.stop_ours)
            await asyncio.to_thread(again.stop, peers.ORDERLY_SECONDS_MAX)
            await asyncio.to_thread(peers.start_broker, "apache", nursery, play.theirs, "master-again")

            await client_wait_until(lambda: is_taken(peer.address, 200), timeout_s=PATIENT_S)
            assert await read_all(peer.address) == list(range(201))


async def ends_at(log: Callable[[], Awaitable[SourceLog]], end: int) -> bool:
    try:
        return (await log()).end == end
    except CannotMigrate:
        return False


async def is_taken(address: str, number: int) -> bool:
    return await taken(address, number, 1) == [number]


def started(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    """A command that has come to its question."""
    with log.open("wb") as file:
        command = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=file, stderr=file)
    wait_until("the question", lambda: "switch over now?" in log.read_text(), PATIENT_S)
    return command


def tell(command: subprocess.Popen[bytes]) -> None:
    assert command.stdin is not None
    command.stdin.write(b"y\n")
    command.stdin.close()


def answered(command: subprocess.Popen[bytes]) -> int:
    """Say yes; its exit code."""
    tell(command)
    return command.wait(PATIENT_S)


def run(words: list[str], log: Path) -> int:
    with log.open("wb") as file:
        return subprocess.run(
            words, stdout=file, stderr=file, stdin=subprocess.DEVNULL, timeout=180, check=False
        ).returncode


async def restart(play: MigrationPlay, nursery: Nursery) -> None:
    """Our broker, killed, comes back as the master that it is, by the settings that the migration has left."""
    os.kill(process_of(play.home), signal.SIGKILL)
    wait_until("its end", lambda: not process_of(play.home), PATIENT_S)
    words = [sys.executable, "-m", "gantry_broker", "-c", str(play.home / "broker.conf")]
    nursery.start("ours-again", words, os.environ)

    async def is_master() -> bool:
        try:
            return (await status_of(play)).role is HaRole.MASTER
        except OrderError:
            return False

    await client_wait_until(is_master, timeout_s=PATIENT_S)
