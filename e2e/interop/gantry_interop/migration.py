"""Migrate from Apache's broker with `gantry migrate` under Java clients, and check their records and the logs.

    Apache's broker -> messages from before -> Java producer and consumer -> gantry migrate --dry-run -> gantry migrate
        -> the load continues at the new broker -> stop -> every acknowledged message is stored, and was consumed

The Java clients are one process that is never restarted or informed. A second group reads half of the messages
before the migration, and the rest from the new broker: no message is lost or read twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import final

from gantry_client import Admin, FetchStatus, Message, Producer, ProducerSettings, PullConsumer
from gantry_interop import drivers, peers, probe, versions
from gantry_interop.errors import InteropError
from gantry_interop.history import ClientHistory, numbers_by_place
from gantry_interop.migration_report import MigrationReport, Plan, longest_gap
from gantry_interop.processes import Nursery, wait_until

OLD_TOPIC = "interop_before"
OLD_GROUP = "interop_before_group"
OLD_QUEUES = 4
CLIENT = versions.PEER
READY_SECONDS_MAX = 240.0
CONSUMED_SECONDS_MAX = 240.0
MIGRATE_SECONDS_MAX = 540.0
SENDING_AT_ONCE = 16
PERIOD_SECONDS = 0.2


@final
class MigrationRun:
    """One run of a migration. Used once."""

    def __init__(self, plan: Plan, nursery: Nursery, directory: Path) -> None:
        self.report = MigrationReport(plan)
        self.gantry_directory = directory / "ours"
        """The data directory that `gantry migrate` creates."""
        self.apache_layout = peers.Layout(
            directory / "java",
            settings={
                "mappedFileSizeCommitLog": str(plan.file_bytes),
                "registerNameServerPeriod": "10000",
                **plan.settings,
            },
        )
        self.gantry_layout = peers.Layout(directory / "unused", name_server_override=self.apache_layout.name_server)
        self._plan = plan
        self._nursery = nursery
        self._directory = directory
        self._commands = directory / "commands"
        self._commands.mkdir(parents=True)
        self._history = ClientHistory(self._commands / "history.txt")

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self) -> MigrationReport:
        """Run the migration. Raises ``InteropError`` if it cannot be run; faults are in the report."""
        apache = peers.start("apache", self._nursery, self.apache_layout)
        try:
            return self._run_steps(apache)
        finally:
            self.stop_gantry()

    def _run_steps(self, apache: peers.Peer) -> MigrationReport:
        report = self.report
        report.before_messages = asyncio.run(self._fill())
        half = asyncio.run(read_unconsumed(apache.address, report.before_messages // 2))
        with ThreadPoolExecutor(2) as pool:
            driver = pool.submit(self._drive)
            pool.submit(self._throttle)
            try:
                self._wait_for_lines("the first deliveries", "seen", 1, driver)
                time.sleep(self._plan.load_seconds)
                self._dry_run()
                self._migrate()
                self._wait_for_lines("messages at the new broker", "answered", 100, driver)
                time.sleep(self._plan.load_seconds)
                self._settle()
            finally:
                self._send_command("stop")
                self._send_command("end")
            verdict = driver.result()
        report.broken += verdict.broken
        rest = asyncio.run(read_unconsumed(apache.address, 1 << 40))
        if sorted(half + rest) != list(range(report.before_messages)):
            both = len(set(half) & set(rest))
            missing = report.before_messages - len(set(half) | set(rest))
            report.broken.append(
                f"{missing} messages from before the migration are not read, and {both} are read twice"
            )
        apache.broker.stop(peers.CLEAN_STOP_SECONDS_MAX)
        self._compare(apache)
        return report

    def _throttle(self) -> None:
        """Pause the senders now and then, until they end."""
        share, pause = self._plan.busy_share, self._commands / "pause"
        while share < 1.0 and not (self._commands / "stop").exists():
            pause.touch()
            time.sleep(PERIOD_SECONDS * (1.0 - share))
            pause.unlink(missing_ok=True)
            time.sleep(PERIOD_SECONDS * share)
        pause.unlink(missing_ok=True)

    def _drive(self) -> drivers.Verdict:
        options = drivers.DriverOptions(
            name_server=self.apache_layout.name_server, count=0, retry_count=0, seed=1, levels="1s", run="m",
            scenario_seconds_max=1_200.0,
            extra=(
                *("--directory", str(self._commands), "--poll-ms", str(self._plan.poll_ms)),
                *("--threads", str(self._plan.senders), "--queues", "4", "--body-bytes", "1024"),
            ),
        )  # fmt: skip
        return drivers.run_scenarios(self._nursery, CLIENT, ["failover"], options, self._directory / "home")[0]

    @property
    def topic(self) -> str:
        """The topic of the load."""
        return f"interop_failover_{CLIENT.replace('.', '_')}_m"

    def command(self, *words: str) -> list[str]:
        """Return the command line of `gantry migrate` for this run."""
        return [
            *(sys.executable, "-m", "gantry_cli", "migrate", "-n", self.apache_layout.name_server),
            *("--broker", "broker-a", "--data", str(self.gantry_directory)),
            *("--host", "127.0.0.1", "--port", str(self.gantry_layout.broker_port)),
            *("--linger", str(self._plan.linger_seconds), "-o", "waitTimeMillsInSendQueue=5000"),
            *words,
        ]

    def _dry_run(self) -> None:
        """Check that the dry run finds no obstacle and creates no files."""
        dry_run = subprocess.run(self.command("--dry-run"), capture_output=True, text=True, timeout=60, check=False)
        if dry_run.returncode != 0 or "BLOCKED" in dry_run.stdout or "Plan:" not in dry_run.stdout:
            raise InteropError(f"the dry run ended with {dry_run.returncode}: {dry_run.stdout}{dry_run.stderr}")
        if self.gantry_directory.exists():
            self.report.broken.append("the dry run created files")

    def _migrate(self) -> None:
        began = time.time()
        child = self._nursery.start("migrate", self.command("--yes"), os.environ)
        code = child.process.wait(MIGRATE_SECONDS_MAX)
        self.report.command_seconds = time.time() - began
        self.report.command_output = child.log.read_text()
        if code != 0:
            raise InteropError(f"gantry migrate ended with {code}: {self.report.command_output}")
        record = json.loads((self.gantry_directory / "migration.json").read_text())
        if record["phase"] != "DONE":
            raise InteropError(f"gantry migrate ended with the record {record}")
        self.report.pause_ms, self.report.copied_bytes = record["pause_ms"], record["end"]
        late = [line for line in self.report.command_output.splitlines() if "offsets that consumers committed" in line]
        self.report.late_commits = int(late[0].split()[0]) if late else 0

    # -- judging -------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Stop the load, and wait until the consumer has everything."""
        self._send_command("stop")
        wait_until("the end of the senders", lambda: self._history.read().attempts is not None, READY_SECONDS_MAX)
        wanted = {one.number for one in self._history.read().answered}
        deadline = time.monotonic() + CONSUMED_SECONDS_MAX
        while not wanted <= {one.number for one in self._history.read().seen} and time.monotonic() < deadline:
            time.sleep(0.5)
        history, report = self._history, self.report
        report.answered, report.unknown = len(history.answered), dict(history.unknown)
        seen = {one.number for one in history.seen}
        there = numbers_by_place(self.gantry_directory / "store", self.topic)
        lost = [one for one in history.answered if there.get(one.place) != one.number]
        unseen = wanted - seen
        vanished = [one for one in history.seen if there.get(one.place) != one.number]
        report.redelivered = len(history.seen) - len({(one.number, one.place) for one in history.seen})
        report.client_gap_seconds = longest_gap([one.ended_us for one in history.answered])
        for what, found in (
            ("acknowledged messages are not at their acknowledged place", lost),
            ("acknowledged messages were never consumed", unseen),
            ("consumed messages are not in the new broker's log", vanished),
        ):
            if found:
                report.broken.append(f"{len(found)} {what}")

    def _compare(self, apache: peers.Peer) -> None:
        """Check that the new log begins with the old one byte for byte, and that routes lead to the new broker."""
        end, size = self.report.copied_bytes, self._plan.file_bytes
        for base in range(0, end, size):
            names = [
                root / "commitlog" / f"{base:020d}"
                for root in (self.apache_layout.store, self.gantry_directory / "store")
            ]
            length = min(size, end - base)
            if not _begin_alike(names[0], names[1], length):
                self.report.broken.append(f"the logs differ in the file at {base}")
        if not probe.has_route(apache.address, self.topic):
            self.report.broken.append("the routes disappeared with the old broker")

    # -- parts ---------------------------------------------------------------------------------------------------------

    async def _fill(self) -> int:
        """Send messages until the log has its planned size; return their number."""
        gate, count = asyncio.Semaphore(SENDING_AT_ONCE), 0
        body = random.Random(1).randbytes(self._plan.body_bytes)
        total = self._plan.before_bytes // self._plan.body_bytes
        async with Admin(self.apache_layout.name_server) as admin:
            await admin.topics.create(OLD_TOPIC, queues=OLD_QUEUES)
        plain = ProducerSettings(compress_above_bytes=1 << 30, send_timeout_ms=30_000)
        async with Producer(self.apache_layout.name_server, "before-p", settings=plain) as producer:

            async def send(number: int) -> None:
                async with gate:
                    await producer.send(Message(OLD_TOPIC, b"%8d" % number + body, keys=[f"before-{number}"]))

            while count < total:
                some = min(total - count, 1_000)
                await asyncio.gather(*[send(count + number) for number in range(some)])
                count += some
        return count

    def _wait_for_lines(self, what: str, number_of: str, more: int, driver: Future[drivers.Verdict]) -> None:
        have = len(getattr(self._history.read(), number_of)) + more

        def is_reached() -> bool:
            if driver.done():
                raise InteropError(f"the Java clients have ended before {what}: {driver.result().broken}")
            return len(getattr(self._history.read(), number_of)) >= have

        wait_until(what, is_reached, READY_SECONDS_MAX)

    def _send_command(self, name: str) -> None:
        (self._commands / name).touch()

    def stop_gantry(self) -> None:
        """Stop the new broker, which is not a child process and may have been paused by a test."""
        pid = find_process(self.gantry_directory)
        if pid:
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGTERM)
            wait_until("the end of the new broker", lambda: find_process(self.gantry_directory) != pid, 60.0)


def find_process(home: Path) -> int:
    """Return the id of the broker process that runs with this directory's configuration; 0 if there is none."""
    wanted = str(home / "broker.conf").encode()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                words = (path / "cmdline").read_bytes().split(b"\0")
                if b"gantry_broker" in words and wanted in words:
                    return int(path.name)
    return 0


async def read_unconsumed(address: str, count_max: int) -> list[int]:
    """Read the old messages from the committed offset of the group on, commit, and return their numbers."""
    numbers: list[int] = []
    async with PullConsumer(address, OLD_GROUP) as consumer:
        for queue in await consumer.queues(OLD_TOPIC):
            offset = max(await consumer.committed(queue) or 0, 0)
            while len(numbers) < count_max:
                result = await consumer.fetch(queue, offset)
                if result.status is not FetchStatus.FOUND:
                    break
                numbers += [int(message.body[:8]) for message in result.messages]
                offset = result.next_offset
            await consumer.commit(queue, offset)
    return numbers


def _begin_alike(one: Path, other: Path, length: int) -> bool:
    """Return whether two files begin with the same bytes."""
    with one.open("rb") as first, other.open("rb") as second:
        while length > 0:
            size = min(length, 1 << 20)
            if first.read(size) != second.read(size):
                return False
            length -= size
    return True
