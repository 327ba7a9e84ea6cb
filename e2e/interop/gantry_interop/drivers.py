"""Runs the Java drivers and reads their verdicts.

One virtual machine runs all scenarios of one client version. If it dies or hangs, the scenario that it was running is
reported as broken, and a new one runs the scenarios after it. None is left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gantry_interop import java
from gantry_interop.errors import InteropError
from gantry_interop.processes import Child, Nursery

SCENARIOS = (
    "sync", "async", "oneway", "batch", "batchqueues", "compressed", "tags", "sql", "ordered", "broadcast", "litepull",
    "restart", "rebalance", "threads64", "retry", "dlq", "pop", "timers", "transactions", "request", "trace", "queries",
    "refusals", "retrylimits", "codecs", "namespaces", "headers", "settings", "offsets",
)  # fmt: skip
IPV6_SCENARIOS = ("ipv6", "sync", "batch", "ordered", "litepull", "transactions", "request")
"""The scenarios for servers that have only an IPv6 address."""
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class DriverOptions:
    """The options of a driver run, as `Options.java` parses them."""

    name_server: str
    count: int
    retry_count: int
    seed: int
    levels: str
    """The broker's `messageDelayLevel`."""
    run: str
    """A name that makes the topics and groups of this run different from those of other runs."""
    scenario_seconds_max: float = 300.0
    heap_mib: int = 768
    extra: Sequence[str] = ()
    """Further options of the driver."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """System properties of the virtual machine."""

    def at(self, name_server: str) -> DriverOptions:
        """Return the same options for another address."""
        return replace(self, name_server=name_server)

    def arguments(self, scenarios: Sequence[str]) -> list[str]:
        return [
            ",".join(scenarios),
            *("--namesrv", self.name_server),
            *("--count", str(self.count)),
            *("--retry-count", str(self.retry_count)),
            *("--seed", str(self.seed)),
            *("--levels", self.levels),
            *("--run", self.run),
            *self.extra,
        ]


@dataclass(frozen=True)
class Verdict:
    """The result of one scenario, as its driver reported it; broken if the driver ended without a report."""

    client: str
    scenario: str
    kept: bool
    """Whether every check of the scenario passed."""
    sent: int = 0
    failed: int = 0
    received: int = 0
    lost: int = 0
    altered: int = 0
    out_of_order: int = 0
    duplicates: int = 0
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)
    """The checks that failed, as text."""
    details: dict[str, Any] = field(default_factory=dict)
    """Further results of the scenario, by name."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run_scenarios(
    nursery: Nursery,
    client: str,
    scenarios: Sequence[str],
    options: DriverOptions,
    home: Path,
    report: Callable[[Verdict], None] = lambda verdict: None,
) -> list[Verdict]:
    """Run scenarios with one client version; return one verdict for each, in their order."""
    if client not in java.CLIENT_MODULES:
        raise InteropError(f"unknown client {client}; expected one of {', '.join(java.CLIENT_MODULES)}")
    module = java.CLIENT_MODULES[client]
    program = java.Program(module, "dev.gantry.interop.Driver", options.heap_mib, dict(options.properties))
    verdicts: list[Verdict] = []
    waiting = list(scenarios)
    while waiting:
        name = f"driver-{client}" + (f"-after-{len(verdicts)}" if verdicts else "")
        command = program.command(home, options.arguments(waiting))
        child = nursery.start(name, command, java.environment(home))
        new = _collect(child, client, waiting, options.scenario_seconds_max, report)
        verdicts += new
        waiting = waiting[len(new) :]
        if waiting:
            lost = Verdict(
                client, waiting.pop(0), kept=False, broken=[f"the driver runs it to its end; see {child.log}"]
            )
            report(lost)
            verdicts.append(lost)
    return verdicts


def _collect(
    child: Child, client: str, scenarios: Sequence[str], seconds_max: float, report: Callable[[Verdict], None]
) -> list[Verdict]:
    """Read verdicts until the driver ends; end it if one scenario takes too long."""
    verdicts: list[Verdict] = []
    deadline = time.monotonic() + seconds_max
    while len(verdicts) < len(scenarios):
        running = child.is_running()
        found = _read_verdicts(child.log, client)
        for verdict in found[len(verdicts) :]:
            report(verdict)
            deadline = time.monotonic() + seconds_max
        verdicts = found
        if not running:
            break
        if time.monotonic() > deadline:
            child.kill()
            break
        time.sleep(POLL_SECONDS)
    child.stop()
    return verdicts


def _read_verdicts(log: Path, client: str) -> list[Verdict]:
    verdicts = []
    for line in log.read_text(errors="replace").splitlines(keepends=True):
        if line.startswith('{"scenario"') and line.endswith("\n"):
            fields = json.loads(line)
            verdicts.append(Verdict(**{**fields, "client": client}))
    return verdicts
