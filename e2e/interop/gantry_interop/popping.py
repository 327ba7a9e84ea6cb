"""The command `run.py pop`: the scenarios of consumers, failovers and flows, with the groups in pop mode.

    scenarios   each push consumer switches its group to pop mode, and lets the broker assign its queues
    failovers   kill -9 of the master under such a consumer: a slave is promoted, or the old master starts again
    flows       delays, failures and ordered consumption through a crash, a clean stop and a failover

Java clients consume in order, and by broadcast, by pulling, also in a group in pop mode. A client of RocketMQ 4 cannot
pop, so only the two clients of RocketMQ 5 run.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from gantry_interop import drivers, failover, flows, java, peers, report
from gantry_interop.errors import InteropError, harness_errors
from gantry_interop.failover_plans import POP_PLANS
from gantry_interop.paths import new_run_directory
from gantry_interop.processes import Nursery

SCENARIOS: Final = (
    "sync", "async", "oneway", "batch", "compressed", "tags", "sql", "ordered", "broadcast", "restart", "rebalance",
    "threads64", "retry", "dlq", "pop", "popandpull", "priorities", "timers", "transactions", "request", "trace",
    "queries", "codecs", "headers",
)  # fmt: skip
"""The scenarios that have push consumers and no rule about pulling itself."""

PARTS: Final = ("scenarios", "failover", "flows")


@click.command("pop")
@click.option("--clients", default=",".join(java.POP_CLIENTS), show_default=True, help="Client versions.")
@click.option("--parts", default=",".join(PARTS), show_default=True, help="What to run, separated by commas.")
@click.option("--scenarios", default=",".join(SCENARIOS), show_default=True, help="Scenarios to run.")
@click.option("--count", default=20_000, show_default=True, help="Number of messages in each scenario.")
@click.option("--retry-count", default=500, show_default=True, help="Number of messages in scenarios with failures.")
@click.option("--peer", "kind", type=click.Choice(("gantry", "apache")), default="gantry", show_default=True,
              help="Whose servers run the scenarios; failovers and flows are of Gantry.")  # fmt: skip
def pop_command(clients: str, parts: str, scenarios: str, count: int, retry_count: int, kind: str) -> None:
    """Test Java consumers in pop mode: scenarios, failovers, and delays and retries while brokers are killed."""
    console, directory = report.console(), new_run_directory("pop")
    chosen = _choose(clients, java.POP_CLIENTS, "client")
    wanted = _choose(parts, PARTS, "part")
    options = drivers.DriverOptions(
        "", count, retry_count, 1, peers.SHORT_DELAY_LEVELS, format(int(time.time()), "x"), extra=("--pop", "1")
    )
    is_kept, results = True, dict[str, object]()
    with harness_errors(console):
        java.build()
        if "scenarios" in wanted:
            found = _run_scenarios(kind, chosen, _choose(scenarios, SCENARIOS, "scenario"), options, directory, console)
            report.show_verdicts(console, found)
            results["verdicts"], is_kept = [one.as_json() for one in found], all(one.kept for one in found)
        if "failover" in wanted:
            plans = [plan for plan in POP_PLANS if plan.client in chosen]
            place = directory / "failover"
            moves = failover.run_all(plans, place, lambda one: report.show_failover(console, one), keep=False)
            report.show_failovers(console, moves)
            results["failovers"], is_kept = [one.as_json() for one in moves], is_kept and all(one.kept for one in moves)
        if "flows" in wanted:
            plans_of_flows = [plan for plan in flows.POP_PLANS if plan.client in chosen]
            runs = flows.run_all(plans_of_flows, directory / "flows", lambda one: report.show_flow(console, one))
            results["flows"], is_kept = [one.as_json() for one in runs], is_kept and all(one.kept for one in runs)
    report.write_results(directory / "results.json", {"kept": is_kept, **results})
    console.print(f"results and logs: {directory}", highlight=False, soft_wrap=True)
    sys.exit(0 if is_kept else 1)


def _choose(text: str, known: tuple[str, ...], what: str) -> list[str]:
    chosen = [word for word in text.split(",") if word]
    for word in chosen:
        if word not in known:
            raise click.BadParameter(f"unknown {what} {word!r}; expected one of {', '.join(known)}")
    return chosen


def _run_scenarios(
    kind: str, clients: list[str], scenarios: list[str], options: drivers.DriverOptions, directory: Path,
    console: Console,
) -> list[drivers.Verdict]:  # fmt: skip
    """Run the scenarios of all clients with one peer, which must survive them."""
    verdicts: list[drivers.Verdict] = []
    with Nursery(directory / "logs") as nursery:
        layout = peers.Layout(directory / "peer")
        peer = peers.start(kind, nursery, layout)
        for client in clients:
            verdicts += drivers.run_scenarios(
                nursery, client, scenarios, options.at(peer.address), directory / f"home-{client}",
                lambda verdict: report.show_progress(console, verdict),
            )  # fmt: skip
        for child in (peer.name_server, peer.broker):
            if not child.is_running():
                raise InteropError(f"{child.name} ended by itself; see {child.log}:\n{child.tail()}")
        peer.stop()
    shutil.rmtree(layout.store, ignore_errors=True)
    return verdicts
