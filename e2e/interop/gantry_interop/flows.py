"""Delays, retries and ordered consumption while brokers are killed: the faults, and the clients that survive them.

    restart   one broker: begin -> load -> kill -9 -> start -> load -> stop -> begin again -> load -> end
    failover  three members, code 0 needs one slave: load -> kill -9 the master -> gantry ha promote -> load -> end

`delays` has one producer and one consumer in one process that is never restarted. `locks` has three processes: one
sends, two consume in order, and one of those is killed before the first fault of a broker. Their records are
checked by `flows_judge`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, final

from gantry_interop import drivers, java, peers
from gantry_interop.broker_group import BrokerGroup
from gantry_interop.errors import DeadlineExceeded, InteropError
from gantry_interop.flows_judge import DELAY_SECONDS, DelayHistory, FlowHistory, LockHistory
from gantry_interop.processes import Child, Nursery, wait_until

RUN = "f"
QUEUES = 4
POLL_MS = 1_000
LEVELS = " ".join(f"{seconds}s" for seconds in DELAY_SECONDS)
READY_SECONDS_MAX = 240.0
QUIET_SECONDS_MAX = 150.0
"""For a minute after a crash or a promotion no queue lock is granted, and the locks of a killed consumer last up to a
minute. Clients notice a new route or member within seconds."""


@dataclass(frozen=True)
class Plan:
    """The scenario and the fault of one run."""

    scenario: Literal["delays", "locks"]
    fault: Literal["restart", "failover"]
    """What happens to the brokers, as described above."""
    client: str
    is_popping: bool = False
    """Whether the group of the consumers is in pop mode."""

    load_seconds: float = 8.0

    @property
    def name(self) -> str:
        return f"{self.scenario}{' by pop' if self.is_popping else ''} through a {self.fault}"


PLANS = tuple(
    Plan(scenario, fault, client)
    for scenario in ("delays", "locks")
    for fault in ("restart", "failover")
    for client in java.CLIENT_MODULES
)
POP_PLANS = tuple(
    Plan(scenario, fault, client, is_popping=True)
    for scenario in ("delays", "locks")
    for fault in ("restart", "failover")
    for client in java.POP_CLIENTS
)
"""The same with groups in pop mode. Java clients consume in order by pulling, also in such a group."""


@dataclass
class FlowReport:
    """The result of one run."""

    plan: Plan
    broken: list[str] = field(default_factory=list)
    """The rules of `flows_judge` that were violated, as text."""
    counts: dict[str, int] = field(default_factory=dict)
    """Counts of messages and deliveries by their names, as `counts` of the history returns them."""

    @property
    def kept(self) -> bool:
        return not self.broken

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        counts = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in self.counts.items())
        return f"{self.plan.client}  {self.plan.name}: {'kept' if self.kept else 'BROKEN'}, {counts}"


@final
class _OneBroker:
    """A broker that is killed, stopped cleanly, and started again on its store."""

    def __init__(self, nursery: Nursery, directory: Path) -> None:
        self._nursery = nursery
        self._layout = peers.Layout(directory / "peer", settings={"messageDelayLevel": LEVELS})
        self._peer = peers.start("gantry", nursery, self._layout)
        self._broker = self._peer.broker
        self.address = self._peer.address
        self.faults: tuple[Callable[[], None], ...] = (self._crash, self._restart_cleanly)
        """The functions that inject the faults, in their order."""

    def _crash(self) -> None:
        self._broker.kill()
        self._broker = peers.start_broker("gantry", self._nursery, self._layout)

    def _restart_cleanly(self) -> None:
        self._broker.stop(peers.CLEAN_STOP_SECONDS_MAX)
        self._broker = peers.start_broker("gantry", self._nursery, self._layout)

    def stop(self) -> None:
        self._broker.stop(peers.CLEAN_STOP_SECONDS_MAX)
        self._peer.name_server.stop()


@final
class _ThreeBrokers:
    """A synchronous group in which code 0 needs a slave, so no acknowledged message may be lost."""

    def __init__(self, nursery: Nursery, directory: Path) -> None:
        settings = {"brokerRole": "SYNC_MASTER", "messageDelayLevel": LEVELS}
        self._group = BrokerGroup(nursery, directory, 3, settings)
        self._group.start()
        self._group.begin(1)
        self.address = self._group.address
        self.faults: tuple[Callable[[], None], ...] = (self._fail_over,)

    def _fail_over(self) -> None:
        old = self._group[1]
        self._group.kill(old)
        moved = self._group.promote()
        self._group.start_member(old)
        self._group.follow(old, self._group[moved["number"]], moved["epoch"])

    def stop(self) -> None:
        self._group.stop()


@final
class _FlowRun:
    """One run of a plan. Used once."""

    def __init__(self, plan: Plan, nursery: Nursery, directory: Path) -> None:
        self._plan = plan
        self._nursery = nursery
        self._directory = directory
        self._commands = directory / "commands"
        self._commands.mkdir(parents=True)
        self._brokers = (_OneBroker if plan.fault == "restart" else _ThreeBrokers)(nursery, directory)
        self._history: FlowHistory = (
            DelayHistory(self._commands, is_popping=plan.is_popping)
            if plan.scenario == "delays"
            else LockHistory(self._commands)
        )
        self._report = FlowReport(plan)

    def run(self) -> FlowReport:
        """Run the plan. Raises ``InteropError`` if it cannot be run; faults of the brokers are in the report."""
        names = ["delays"] if self._plan.scenario == "delays" else ["locks-sender", "locks-consumer", "locks-consumer"]
        clients = [self._client(name) for name in names]
        wait_until("the first deliveries", lambda: self._history.read().deliveries > 0, READY_SECONDS_MAX, clients[0])
        time.sleep(self._plan.load_seconds)
        if self._plan.scenario == "locks":
            self._kill_a_consumer(clients)
        for fault in self._brokers.faults:
            before = self._history.read().deliveries
            fault()
            wait_until(
                "deliveries afterwards",
                lambda seen=before: self._history.read().deliveries > seen,  # type: ignore[misc]
                QUIET_SECONDS_MAX,
            )
            time.sleep(self._plan.load_seconds)
        (self._commands / "stop").touch()
        wait_until("the end of the senders", lambda: self._history.read().is_sent, READY_SECONDS_MAX, clients[0])
        self._settle()
        (self._commands / "end").touch()
        for client in clients:
            client.stop()
        self._report.broken += self._history.read().broken()
        self._report.counts = self._history.counts()
        self._brokers.stop()
        return self._report

    def _client(self, scenario: str) -> Child:
        home = self._directory / "home"
        options = drivers.DriverOptions(
            name_server=self._brokers.address, count=0, retry_count=0, seed=1, levels=LEVELS, run=RUN,
            extra=(
                *("--directory", str(self._commands), "--queues", str(QUEUES), "--poll-ms", str(POLL_MS)),
                *("--pop", str(int(self._plan.is_popping))),
            ),
        )  # fmt: skip
        program = java.Program(java.CLIENT_MODULES[self._plan.client], "dev.gantry.interop.Driver", heap_mib=256)
        return self._nursery.start(
            scenario, program.command(home, options.arguments([scenario])), java.environment(home)
        )

    def _kill_a_consumer(self, clients: list[Child]) -> None:
        """Kill a consumer when both consume. The other gets its queues only after its locks have expired or been
        released.
        """
        history = LockHistory(self._commands)
        wait_until("both consumers consuming", lambda: len(history.read().consumers()) == 2, READY_SECONDS_MAX)
        victim = clients.pop()
        victim.kill()
        left = str(clients[-1].process.pid)
        wait_until(
            "the other consumer having every queue",
            lambda: history.read().queues_served_last_by(left) == QUEUES,
            QUIET_SECONDS_MAX,
        )

    def _settle(self) -> None:
        """Wait until every acknowledged message has been consumed, at most `QUIET_SECONDS_MAX`."""
        deadline = time.monotonic() + QUIET_SECONDS_MAX
        while not self._history.read().is_complete() and time.monotonic() < deadline:
            time.sleep(0.5)


def run_flow(plan: Plan, nursery: Nursery, directory: Path) -> FlowReport:
    """Run one plan in its own directory; a plan that cannot be run is reported as broken."""
    try:
        return _FlowRun(plan, nursery, directory).run()
    except (InteropError, DeadlineExceeded) as error:
        return FlowReport(plan, broken=[f"the run ended early: {error}"])


def run_all(plans: Collection[Plan], directory: Path, report: Callable[[FlowReport], None]) -> list[FlowReport]:
    """Run plans; logs and histories are kept, stores are not."""
    reports: list[FlowReport] = []
    for number, plan in enumerate(plans):
        place = directory / str(number)
        with Nursery(place / "logs") as nursery:
            reports.append(run_flow(plan, nursery, place))
        report(reports[-1])
        for store in (*place.glob("store-*"), place / "peer" / "store"):
            shutil.rmtree(store, ignore_errors=True)
    return reports
