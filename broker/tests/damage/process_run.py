"""One run of a trial's broker as a real process, with its sidecar and the command line, used as a user would.

    damage -> `gantry store verify` -> broker + sidecar -> read, send, read -> sources -> stop or kill -> the same again

Reports are lines of the broker's own log. What the log reports as missing or damaged must be shown by every source that
a user may ask instead: `gantry status --page`, `gantry ha status`, the sidecar's `/v1/status`, `/metrics` and
`/readyz`, and `gantry store verify`. The clock is the machine's, so messages that are delayed by hours are not
expected.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, final

import msgspec
from damage.client_requests import (
    COMMIT,
    checked_transactions,
    end_transaction,
    query_by_key,
    read_queue,
    send_to_every_queue,
    view_by_id,
)
from damage.expectations import load_expectations
from damage.file_kinds import STORE
from damage.judge import ACCEPTANCE
from damage.observed_run import ObservedRun, QueueRead, Reading, load_observed_run, observed_run_path
from damage.plan import BrokerState, Stop, Trial
from damage.remedies import apply_remedy, remedies_of
from damage.reports import Report
from damage.shard import Setup, conf_of, wait_until_met
from damage.template import BUSY, QUEUES, RETRIED
from damage.trial import CASE, REMEDIES_MAX, damage_chosen_file
from damage.verdict import Case

from gantry_remoting import RemotingError
from gantry_testing.local import Dialogue
from gantry_testing.slowness import patience
from gantry_testing.tree import PYTHON_PATH

ROOT: Final = Path(__file__).resolve().parents[3]
ENVIRONMENT: Final = os.environ | {"PYTHONPATH": PYTHON_PATH}
READY_S: Final = 30.0
"""How long a process may take to end, on a fast machine."""
SHOWN_S: Final = 8.0
"""How long a source may take to show what the log reports: pages are published and asked for every second or so."""
STORE_PATH: Final = f"1/{STORE}"
MISSING, DAMAGED = "durable log data is missing", "stored message is damaged"
HEALED, ACCEPTED = "missing log data restored", "loss of log data accepted"
"""Texts in the broker's log that report damage, or the end of it."""
_LINE: Final = re.compile(r"^\S+ \S+ (WARNING|ERROR|CRITICAL|INFO) (\S+) (.*)$")
_FACT: Final = re.compile(r" (?=[a-z_]+=)")


def report_of_line(line: str) -> Report | None:
    """Parse a line of a broker's log, `time level logger event key=value ...`, as a report."""
    match = _LINE.match(line)
    if match is None:
        return None
    text, *parts = _FACT.split(match[3])
    facts: dict[str, Any] = {}
    waiting = ""
    for part in parts:
        waiting = f"{waiting} {part}" if waiting else part
        name, _, value = waiting.partition("=")
        with suppress(ValueError, SyntaxError):
            facts[name] = ast.literal_eval(value)
            waiting = ""
    return Report(match[1], text, facts)


class ShownState(msgspec.Struct):
    """What a source, such as a command or the sidecar, shows about missing and damaged data of the log."""

    source: str
    missing_bytes: int
    is_damaged: bool


def differences(reports: Sequence[Report], shown: Sequence[ShownState]) -> list[str]:
    """Return the differences between what a source shows and what the log reports."""
    missing, is_corrupt = 0, False
    for report in reports:
        if report.text == MISSING:
            missing = sum(end - start for start, end in set(report.ranges()))
        elif report.text in (HEALED, ACCEPTED):
            missing = 0
        is_corrupt = is_corrupt or report.text == DAMAGED
    found = []
    for one in shown:
        if one.missing_bytes != missing:
            found.append(f"{one.source} shows {one.missing_bytes} missing bytes of the log, the log reports {missing}")
        if one.is_damaged != is_corrupt:
            word = "damaged messages" if one.is_damaged else "no damaged message"
            found.append(f"{one.source} shows {word}, the log reports {'some' if is_corrupt else 'none'}")
    return found


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of a user in the trial's folder."""
    line = [sys.executable, "-m", "gantry_cli", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=patience(40.0), check=False, env=ENVIRONMENT)


@final
class Child:
    """A process that prints a line when it is ready, and ends when this one does."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path) -> None:
        self.log: Final = log
        self._mark: Final = log.stat().st_size if log.exists() else 0
        line = [sys.executable, "-m", "gantry_cli.child", str(os.getpid()), module, *arguments]
        with log.open("ab") as errors:
            self.process: Final = subprocess.Popen(
                line, stdout=subprocess.PIPE, stderr=errors, text=True, env=ENVIRONMENT
            )
        assert self.process.stdout is not None
        self.ready: Final = self.process.stdout.readline()
        """Empty if it ended before it was ready."""

    def reports(self) -> list[Report]:
        """Return the reports in its log since the start."""
        lines = self.log.read_bytes()[self._mark :].decode(errors="replace").splitlines()
        return [report for line in lines if (report := report_of_line(line)) is not None]

    def end(self, number: signal.Signals) -> None:
        """End the process by this signal."""
        self.process.send_signal(number)
        self.process.wait(patience(READY_S))
        assert self.process.stdout is not None
        self.process.stdout.close()


@final
class ProcessRun:
    """One run of the broker as a process, in the trial's folder as the current directory."""

    def __init__(self, trial: Trial, templates: Path, folder: Path, number: int) -> None:
        self._trial: Final = trial
        self._templates: Final = templates
        self._folder: Final = folder
        self._number: Final = number
        self._case: Final = msgspec.json.decode((folder / CASE).read_bytes(), type=Case)
        self._expectations: Final = load_expectations(folder)
        if number == 1:
            self._expectations.pending = [one for one in self._expectations.pending if one.is_half]
            self._expectations.save(folder)
        self._socket: Final = str(folder / "c.sock")
        self._page: Final = str(folder / "page")
        self.observed: Final = ObservedRun()

    def run(self) -> None:
        """Start, use and end broker and sidecar. The results are in ``observed`` and on the disk."""
        combination = self._trial.combination
        verified = (
            command("store", "verify", STORE_PATH)
            if self._number == 1 and combination.broker is BrokerState.STOPPED
            else None
        )
        broker = self._start()
        if broker is None:
            self._save([])
            return
        is_killed = combination.stop is Stop.UNCLEAN and self._number == 1
        try:
            address = f"127.0.0.1:{broker.ready.rpartition(':')[2].strip()}"
            if self._number == 1 and combination.broker is BrokerState.RUNNING:
                damage_chosen_file(self._trial, self._templates, self._folder, self._case, in_place=True)
            options = ["--page", self._page, "--control", self._socket, "--store", STORE_PATH]
            log = self._folder / "sidecar.log"
            sidecar = Child("gantry_admin", [*options, "--listen", "127.0.0.1:0", "--open-reads"], log)
            try:
                url = f"http://{sidecar.ready.split()[3].rstrip(',')}"
                asyncio.run(self._serve(address, broker, url))
            finally:
                sidecar.end(signal.SIGTERM)
        finally:
            self._save(broker.reports())
            broker.end(signal.SIGKILL if is_killed else signal.SIGTERM)
        if verified is None and not is_killed:
            verified = command("store", "verify", STORE_PATH)
        self._judge_verify(verified)
        self._save(broker.reports())

    def _save(self, reports: list[Report]) -> None:
        self.observed.reports = [report for report in reports if report.level != "INFO"]
        observed_run_path(self._folder, self._number).write_bytes(msgspec.msgpack.encode(self.observed))

    # -- starting ------------------------------------------------------------------------------------------------------

    def _start(self) -> Child | None:
        """Start the broker, with remedies if it refuses; return its process, or None if no remedy works."""
        conf = conf_of(Setup.ALONE, 1, has_write_buffers=False, name="shard")
        conf |= {"statusPagePath": self._page, "controlSocketPath": self._socket, "transactionCheckMax": "1000000"}
        options = [part for key, value in conf.items() for part in ("-o", f"{key}={value}")]
        for _ in range(REMEDIES_MAX + 1):
            broker = Child("gantry_broker", options, self._folder / "broker.log")
            if "broker listening on" in broker.ready:
                return broker
            code = broker.process.wait(patience(READY_S))
            logged = broker.reports()
            reason = next((str(one.facts["reason"]) for one in reversed(logged) if "reason" in one.facts), "")
            if code == 0 or not reason:
                self.observed.differences.append(
                    f"a start that was refused ended with code {code}: {reason or 'no reason'}"
                )
            self.observed.refusals.append((1, reason))
            backup = None
            if self._trial.combination.broker is BrokerState.STOPPED:
                template = self._templates / self._trial.template.folder_name()
                backup = template / self._trial.combination.stop / "1"
            known = remedies_of(reason, self._folder, 1, file=self._case.file, backup=backup, is_grouped=False)
            done = apply_remedy(known, self._trial.make_rng())
            if done is None:
                break
            self.observed.remedies.append(done)
        self.observed.refused_for_good.append(1)
        return None

    # -- serving -------------------------------------------------------------------------------------------------------

    async def _serve(self, address: str, broker: Child, url: str) -> None:
        """Read, accept a loss if one is reported, send and read again, and compare the sources with the log."""
        async with _dialogue(address) as peer:
            await self._read(peer, is_last=False)
        if any(report.text == MISSING for report in broker.reports()):
            await self._compare(broker, url)
            self._accept(url)
        async with _dialogue(address) as peer:  # A new master has closed the connections of its clients.
            await self._end_transactions(peer)
            self.observed.sends += await send_to_every_queue(
                peer, QUEUES, f"E{self._number:X}{self._trial.number:010X}"
            )
            await asyncio.sleep(patience(0.5))
            await self._read(peer, is_last=True)
        await self._compare(broker, url)

    def _accept(self, url: str) -> None:
        """Accept the loss in the last run, by the command that the status names."""
        status = self._role()
        self.observed.waiting_problem = status["problem"] if status["missing"] else ""
        if not self.observed.waiting_problem:
            return
        code, text = _get(f"{url}/readyz")
        if code == 200 or "missing" not in text:
            self.observed.differences.append(f"/readyz answers {code} while no send is taken: {text}")
        if self._number > 1 and ACCEPTANCE in self.observed.waiting_problem:
            done = command("ha", "accept-loss", "--socket", self._socket, "--yes")
            self.observed.is_accepted = done.returncode == 0
            if done.returncode:
                self.observed.differences.append(f"`{ACCEPTANCE}` does not work: {done.stdout}{done.stderr}")

    def _role(self) -> dict[str, Any]:
        document = json.loads(command("ha", "status", "--socket", self._socket, "--output", "json").stdout)
        status: dict[str, Any] = document["members"][0]["status"]
        return status

    async def _end_transactions(self, peer: Dialogue) -> None:
        first = load_observed_run(self._folder, 1)
        if self._number > 1 and first.sends and not first.waiting_problem:
            return
        halves = {one.unique for one in self._expectations.pending}
        await wait_until_met(lambda: halves <= set(checked_transactions(peer)), 1.5)
        self.observed.checked_transactions = checked_transactions(peer)
        for half in self._expectations.pending:
            with suppress(RemotingError):
                await end_transaction(peer, half, COMMIT)

    async def _read(self, peer: Dialogue, *, is_last: bool) -> None:
        before = len(self.observed.sends) + (len(load_observed_run(self._folder, 1).sends) if self._number > 1 else 0)
        reading = Reading(1, True, is_last, sends_before=before)
        self.observed.readings.append(reading)
        for topic, queues in {**QUEUES, RETRIED: 1}.items():
            for queue_id in range(queues):
                served = await read_queue(peer, topic, queue_id)
                reading.queues.append(
                    QueueRead(topic, queue_id, served.messages, served.problem, "*", list(served.damaged_records))
                )
        for message in self._trial.make_rng().sample(self._expectations.messages, 6):
            with suppress(RemotingError):
                found = await query_by_key(peer, message.topic, message.unique)
                reading.by_key.append((message.topic, message.unique, found))
            with suppress(RemotingError):
                reading.by_id.append((message.physical_offset, await view_by_id(peer, message.physical_offset)))

    # -- sources -------------------------------------------------------------------------------------------------------

    async def _compare(self, broker: Child, url: str) -> None:
        """Check that every source shows what the log reports within a moment; the quick ones are checked first."""
        end = time.monotonic() + patience(SHOWN_S)
        while True:
            found = differences(broker.reports(), _of_sidecar(url))
            found = found or differences(broker.reports(), self._of_commands())
            if not found or time.monotonic() > end:
                break
            await asyncio.sleep(0.2)
        self.observed.differences += found

    def _of_commands(self) -> list[ShownState]:
        """Return what the commands of `gantry` show."""
        page = json.loads(command("status", "--page", self._page, "--output", "json").stdout)
        role = self._role()
        missing = sum(lost["end"] - lost["start"] for lost in role["missing"])
        return [
            ShownState("gantry status --page", page["log_missing_bytes"] or 0, bool(page["damaged_records"])),
            ShownState("gantry ha status", missing, bool(role["damaged_bytes"])),
        ]

    def _judge_verify(self, done: subprocess.CompletedProcess[str] | None) -> None:
        """Check that `gantry store verify` finds what the log reports, before this start or after the stop."""
        texts = [one for one in self.observed.reports if one.text in (MISSING, DAMAGED)]
        if done is None or not texts or self.observed.is_accepted:
            return
        starts = [start for report in texts for start, _ in report.ranges()]
        starts += [report.facts["offset"] for report in texts if report.text == DAMAGED]
        lacking = [start for start in starts if str(start) not in done.stdout]
        if done.returncode != 1 or lacking:
            self.observed.differences.append(
                f"gantry store verify ends with {done.returncode} and does not name {lacking}: {done.stdout[-300:]}"
            )


@asynccontextmanager
async def _dialogue(address: str) -> AsyncIterator[Dialogue]:
    """Return a client connection whose group is registered."""
    peer = await Dialogue.open(address)
    try:
        await peer.heartbeat("judge", group="Judges", topic=BUSY)
        yield peer
    finally:
        await peer.close()


def _of_sidecar(url: str) -> list[ShownState]:
    status, metrics = json.loads(_get(f"{url}/v1/status")[1]), _get(f"{url}/metrics")[1]
    missing, damaged = _metric(metrics, "gantry_log_lost_bytes", "missing"), _metric(metrics, "gantry_damaged_messages")
    return [
        ShownState("/v1/status", status["log_missing_bytes"] or 0, bool(status["damaged_records"])),
        ShownState("/metrics", missing, bool(damaged)),
    ]


def _get(url: str) -> tuple[int, str]:
    """Return the sidecar's answer, successful or not."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _metric(text: str, name: str, state: str = "") -> int:
    """Return the value of a metric with this state; 0 if it is missing."""
    for line in text.splitlines():
        if line.startswith((f"{name}{{", f"{name} ")) and (not state or f'state="{state}"' in line):
            return int(float(line.rpartition(" ")[2]))
    return 0


def run_broker_processes(trial: Trial, templates: Path, folder: Path, number: int) -> None:
    """Run the broker once as a process of its own; the entry point of the child process."""
    os.chdir(folder)
    ProcessRun(trial, templates, folder, number).run()
