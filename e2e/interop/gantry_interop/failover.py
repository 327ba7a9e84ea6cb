"""Kill the master under Java clients, promote a slave with `gantry ha promote`, bring the old master back, and check.

    begin -> load -> [pause, slaves caught up] -> kill -9 -> gantry ha promote -> first answer 0
          -> the old master starts again, gantry ha follow -> load continues -> stop -> every log is the same

Or the old master starts again before the order, and is promoted again: a restart under load.

The clients are one unmodified producer and one unmodified consumer in one process that is never restarted and not
informed of the failover. Times are taken from the moment at which `gantry ha promote` is started as a command;
in a restart, from the start of the old master before it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import final

from gantry_interop import drivers
from gantry_interop.broker_group import BrokerGroup, Member
from gantry_interop.errors import InteropError
from gantry_interop.failover_plans import FailoverReport, Plan
from gantry_interop.history import ClientHistory, Judgement, Place, judge, numbers_by_place
from gantry_interop.processes import Nursery, wait_until

SENDERS = 8
QUEUES = 4
LAG_SECONDS = 1.5
"""The lag is shorter than a grant, so that an asynchronous master continues to acknowledge."""

READY_SECONDS_MAX = 240.0
RECOVERY_SECONDS_MAX = 240.0
"""The limit includes the 30 s after which clients poll their name servers by default."""

CONSUMED_SECONDS_MAX = 240.0


@final
class _FailoverRun:
    """One run of a failover. Used once."""

    def __init__(self, plan: Plan, nursery: Nursery, directory: Path) -> None:
        self._plan = plan
        self._directory = directory
        self._nursery = nursery
        self._commands = directory / "commands"
        self._commands.mkdir(parents=True)
        self._group = BrokerGroup(nursery, directory, plan.members, plan.settings())
        self._history = ClientHistory(self._commands / "history.txt")
        self._report = FailoverReport(plan)

    def run(self) -> FailoverReport:
        """Run the failover. Raises ``InteropError`` if it cannot be run; faults of the brokers are in the report."""
        self._group.start()
        self._group.begin(1)
        with ThreadPoolExecutor(1) as pool:
            driver = pool.submit(self._drive)
            try:
                self._run_steps(driver)
            finally:
                self._send_command("stop")
                self._send_command("end")
            verdict = driver.result()
        self._report.broken += verdict.broken
        self._compare_logs()
        return self._report

    def _drive(self) -> drivers.Verdict:
        options = drivers.DriverOptions(
            name_server=self._group.address, count=0, retry_count=0, seed=1, levels="1s", run="f",
            scenario_seconds_max=1_200.0,
            extra=(
                *("--directory", str(self._commands), "--poll-ms", str(self._plan.poll_ms)),
                *("--mixed", str(int(self._plan.is_mixed))),
                *("--pop", str(int(self._plan.is_popping))),
                *("--threads", str(SENDERS), "--queues", str(QUEUES), "--body-bytes", str(self._plan.body_bytes)),
            ),
        )  # fmt: skip
        home = self._directory / "home"
        return drivers.run_scenarios(self._nursery, self._plan.client, ["failover"], options, home)[0]

    @property
    def _topic(self) -> str:
        return f"interop_failover_{self._plan.client.replace('.', '_')}_f"

    def _send_command(self, name: str) -> None:
        (self._commands / name).touch()

    def _wait_for_lines(
        self, what: str, number_of: str, more: int, driver: Future[drivers.Verdict], seconds: float
    ) -> None:
        """Wait for so many more lines of a kind in the history."""
        have = len(getattr(self._history.read(), number_of)) + more

        def is_reached() -> bool:
            if driver.done():
                raise InteropError(f"the Java clients have ended before {what}: {driver.result().broken}")
            return len(getattr(self._history.read(), number_of)) >= have

        wait_until(what, is_reached, seconds)

    def _run_steps(self, driver: Future[drivers.Verdict]) -> None:
        group, plan = self._group, self._plan
        self._wait_for_lines("the first messages", "answered", 1, driver, READY_SECONDS_MAX)
        self._wait_for_lines("the first deliveries", "seen", 1, driver, READY_SECONDS_MAX)
        time.sleep(plan.load_seconds)
        old = group[1]
        killed = self._kill(old)
        ordered = time.time()
        if plan.is_restart:
            group.start_member(old)
        moved = group.promote(*(("--to", str(old.number)) if plan.is_restart else ()))
        self._report.command_seconds = time.time() - ordered
        self._report.steps = moved["steps"]
        ordered_us = int(ordered * 1e6)
        wait_until(
            "the first new acknowledgement",
            lambda: self._history.read().first_answer(ordered_us) is not None,
            RECOVERY_SECONDS_MAX,
        )
        new = group[moved["number"]]
        tail: dict[Place, int] = {}
        if not plan.is_restart:
            tail = numbers_by_place(old.store, self._topic, _begin_of(new.store, moved["epoch"]))
            self._bring_back(old, new, moved["epoch"])
        self._wait_for_lines("new deliveries", "seen", 1, driver, RECOVERY_SECONDS_MAX)
        time.sleep(plan.load_seconds)
        self._settle(new)
        final = numbers_by_place(new.store, self._topic)
        judgement = judge(self._history, final, tail, killed_us=int(killed * 1e6), ordered_us=ordered_us)
        self._record_results(judgement, killed, ordered, len(set(tail.values()) - set(final.values())))

    def _kill(self, old: Member) -> float:
        """Kill the master, under load or not; return the time at which it was gone."""
        plan, group = self._plan, self._group
        slaves = group.members[1:]
        if plan.is_caught_up:
            self._send_command("pause")
            wait_until("the slaves caught up", lambda: self._are_caught_up(len(slaves)), READY_SECONDS_MAX)
        if plan.is_lagging:
            for slave in slaves:
                group.signal(slave, signal.SIGSTOP)
            time.sleep(LAG_SECONDS)
        killed = group.kill(old)
        for slave in slaves:
            group.signal(slave, signal.SIGCONT)
        (self._commands / "pause").unlink(missing_ok=True)
        return killed

    def _are_caught_up(self, slaves: int) -> bool:
        status = self._group.master_status()
        ends = [slave["flushed"] for slave in status["slaves"]]
        return len(ends) == slaves and all(end == status["wrote"] for end in ends)

    def _bring_back(self, old: Member, new: Member, epoch: int) -> None:
        self._group.start_member(old)
        self._group.follow(old, new, epoch)

    def _settle(self, new: Member) -> None:
        """Stop the load, and wait until slaves and consumer have everything."""
        self._send_command("stop")
        wait_until("the end of the senders", lambda: self._history.read().attempts is not None, RECOVERY_SECONDS_MAX)
        slaves = self._plan.members - 1
        wait_until("all slaves caught up", lambda: self._are_caught_up(slaves), CONSUMED_SECONDS_MAX)
        there = set(numbers_by_place(new.store, self._topic).values())
        wanted = there & {one.number for one in self._history.answered} | {one.number for one in self._history.deferred}
        deadline = time.monotonic() + CONSUMED_SECONDS_MAX
        while not wanted <= self._history.read().delivered and time.monotonic() < deadline:
            time.sleep(0.5)

    def _record_results(self, judgement: Judgement, killed: float, ordered: float, tail_messages: int) -> None:
        report, history = self._report, self._history
        report.broken += judgement.broken(may_lose_tail=self._plan.may_lose_tail)
        report.answered = len(history.answered)
        before = [one for one in history.answered if one.ended_us <= killed * 1e6]
        seconds = (before[-1].ended_us - before[0].began_us) / 1e6
        report.per_second = round(len(before) / seconds)
        report.lost, report.vanished = len(judgement.lost), len(judgement.vanished)
        report.unseen, report.redelivered = len(judgement.unseen), judgement.redelivered
        report.unknown = dict(history.unknown)
        report.repeated = len(history.repeated - history.failed)
        report.tail_messages = tail_messages
        answer, delivery = history.first_answer(int(ordered * 1e6)), history.first_delivery(int(ordered * 1e6))
        assert answer is not None, "expected the acknowledgement for which the run has waited"
        report.first_answer_seconds = answer / 1e6 - ordered
        report.first_delivery_seconds = -1.0 if delivery is None else delivery / 1e6 - ordered

    def _compare_logs(self) -> None:
        """Compare the logs of all members, which are equal after a clean stop."""
        end = int(self._group.master_status()["wrote"])
        self._group.stop()
        sums = {member.number: hashlib.sha256(member.log(0, end)).hexdigest() for member in self._group.members}
        self._report.log_bytes = end
        if len(set(sums.values())) != 1:
            self._report.broken.append(f"the logs differ before {end}: {sums}")


def _begin_of(store: Path, epoch: int) -> int:
    """Return the log position where an epoch begins, as its master has recorded it."""
    text = (store / "store.json").read_text()  # a checksum, then a document
    epochs = json.loads(text[text.index("{") :])["epochs"]
    return next(int(one["start"]) for one in epochs if one["epoch"] == epoch)


def run_failover(plan: Plan, nursery: Nursery, directory: Path) -> FailoverReport:
    """Run one failover in a directory of its own."""
    return _FailoverRun(plan, nursery, directory).run()


def run_or_report(plan: Plan, nursery: Nursery, directory: Path) -> FailoverReport:
    """Run one failover; report one that cannot be run as broken, so that the next one still runs."""
    try:
        return run_failover(plan, nursery, directory)
    except InteropError as error:
        return FailoverReport(plan, broken=[f"the run ended early: {error}"])


def run_all(
    plans: Collection[Plan], directory: Path, report: Callable[[FailoverReport], None], *, keep: bool
) -> list[FailoverReport]:
    """Run all of these failovers, each in its own directory; logs and histories are kept, stores only with ``keep``."""
    reports: list[FailoverReport] = []
    for number, plan in enumerate(plans):
        place = directory / str(number)
        with Nursery(place / "logs") as nursery:
            reports.append(run_or_report(plan, nursery, place))
        report(reports[-1])
        for store in () if keep else place.glob("store-*"):
            shutil.rmtree(store, ignore_errors=True)
    return reports
