"""The command line of the harness.

Exit codes: 0 all checks passed, 1 a check failed, 2 the harness itself failed.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
from rich.console import Console

from gantry_interop import (
    acl,
    benchmark,
    drivers,
    failover,
    filter_judge,
    flows,
    java,
    live_config,
    migration,
    migration_report,
    peers,
    record,
    report,
    tls,
)
from gantry_interop.admin.command import admin_command
from gantry_interop.errors import InteropError, harness_errors
from gantry_interop.failover_plans import PLANS
from gantry_interop.paths import new_run_directory
from gantry_interop.popping import pop_command
from gantry_interop.processes import Nursery
from gantry_interop.proxied import proxy_command
from gantry_interop.sdk_command import sdk_command

PEERS = ("gantry", "apache")


@dataclass(frozen=True)
class Target:
    """The servers to which the Java programs connect."""

    kind: str
    """`gantry` or `apache`: whose servers are started."""
    name_server: str | None
    """The address of a running name server; None: servers are started."""
    keep: bool
    """Whether the store of started servers is kept."""
    settings: dict[str, str] = field(default_factory=dict)
    is_measured: bool = False
    host: str = "127.0.0.1"
    """The address to which a started peer is bound."""


@contextmanager
def _start_target(target: Target, directory: Path, nursery: Nursery, console: Console) -> Iterator[str]:
    """Yield the address of the name server: of a running one, or of a peer started for this run."""
    if target.name_server is not None:
        yield target.name_server
        return
    console.print(f"starting {target.kind} …", highlight=False)
    layout = peers.Layout(
        directory / "peer", target.host, target.host, settings=target.settings, is_measured=target.is_measured
    )
    peer = peers.start(target.kind, nursery, layout)
    try:
        yield peer.address
        for child in (peer.name_server, peer.broker):
            if not child.is_running():
                raise InteropError(f"{child.name} ended by itself; see {child.log}:\n{child.tail()}")
    finally:
        peer.broker.stop()
        peer.name_server.stop()
        if not target.keep:
            shutil.rmtree(layout.store, ignore_errors=True)


def _parse_choices(text: str, known: tuple[str, ...], what: str) -> list[str]:
    chosen = [word.strip() for word in text.split(",") if word.strip()]
    for word in chosen:
        if word not in known:
            raise click.BadParameter(f"unknown {what} {word!r}; expected one of {', '.join(known)}")
    return chosen


def _peer_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--keep", is_flag=True, help="Keep the peer's store in the run directory. Logs are always kept."),
        click.option(
            "--namesrv",
            "name_server",
            metavar="HOST:PORT",
            help="Use a broker that is already running, found through this name server, instead of starting one.",
        ),
        click.option(
            "--peer",
            "kind",
            type=click.Choice(PEERS),
            default="gantry",
            show_default=True,
            help="Servers to start: Gantry's, or Apache RocketMQ, which validates the scenarios themselves.",
        ),
    ):
        command = option(command)
    return command


@click.group(
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  run.py                                       all scenarios, 100,000 messages each
  run.py --peer apache --count 2000            validate the scenarios against Apache itself
  run.py --scenarios ordered,restart --clients 4.9.8
  run.py --namesrv 127.0.0.1:9876 --scenarios sync --count 1000
  run.py benchmark --seconds 30                Apache's own benchmark programs
  run.py migrate                               gantry migrate with a log of 3 GiB, under load
  run.py failover                              kill the master under Java clients, promote a slave
  run.py flows                                 delays, retries, ordered consumption while brokers die
  run.py ipv6                                  servers with only an IPv6 address
  run.py tls                                   over TLS, while certificates are replaced
  run.py sdk                                   RocketMQ 5 SDKs through the gRPC proxy
  run.py proxy                                 RocketMQ's proxy in front of Gantry's servers
  run.py config                                change settings of running servers
  run.py acl                                   access control with accounts
  run.py admin                                 mqadmin's commands against Apache's servers and Gantry's
  run.py filters                               SQL92 filters: Apache's evaluator and Gantry's, side by side
  run.py record                                record the golden frames again

A result is one line per client version and scenario. "failed", "lost", "altered" and "order" (out of
order within a queue) must be 0; duplicates are allowed (delivery is at least once) and are counted.
Logs and results.json are kept in a directory under .gantry/interop, which is printed at the end.""",
)
@click.option(
    "--clients",
    default=",".join(java.CLIENT_MODULES),
    show_default=True,
    help="Client versions, separated by commas.",
)
@click.option(
    "--scenarios",
    default=",".join(drivers.SCENARIOS),
    show_default=True,
    help="Scenarios, separated by commas.",
)
@click.option("--count", default=100_000, show_default=True, help="Number of messages in each scenario.")
@click.option(
    "--retry-count",
    default=1_000,
    show_default=True,
    help="Number of messages in the scenarios with failing consumers.",
)
@click.option("--seed", default=1, show_default=True, help="Seed of all message contents.")
@click.option(
    "--levels",
    help="The messageDelayLevel of the broker; needed only with --namesrv, if the broker does not use the default.",
)
@click.option(
    "--scenario-seconds",
    default=600.0,
    show_default=True,
    help="Time limit of a scenario in seconds; a slower one is ended and fails.",
)
@_peer_options
@click.pass_context
def main(
    context: click.Context,
    /,
    clients: str,
    scenarios: str,
    count: int,
    retry_count: int,
    seed: int,
    levels: str | None,
    scenario_seconds: float,
    **target: object,
) -> None:
    """Run unmodified RocketMQ clients, which send messages to a broker and check each message they receive.

    Without a command the scenarios are run. The Java side is built with Maven if its sources changed.
    """
    if context.invoked_subcommand is not None:
        return
    chosen_clients = _parse_choices(clients, tuple(java.CLIENT_MODULES), "client")
    chosen = _parse_choices(scenarios, drivers.SCENARIOS, "scenario")
    default_levels = peers.DEFAULT_DELAY_LEVELS if target["name_server"] else peers.SHORT_DELAY_LEVELS
    options = drivers.DriverOptions(
        name_server="",
        count=count,
        retry_count=retry_count,
        seed=seed,
        levels=levels or default_levels,
        run=format(int(time.time()), "x"),
        scenario_seconds_max=scenario_seconds,
        extra=("--gantry", f"{sys.executable} -m gantry_cli") if target["kind"] == "gantry" else (),
    )
    sys.exit(_run_scenarios(_read_target(target), chosen_clients, chosen, options))


def _read_target(options: dict[str, object]) -> Target:
    name_server = options["name_server"]
    return Target(str(options["kind"]), None if name_server is None else str(name_server), bool(options["keep"]))


def _run_scenarios(target: Target, clients: list[str], scenarios: list[str], options: drivers.DriverOptions) -> int:
    console = report.console()
    directory = new_run_directory("scenarios")
    verdicts: list[drivers.Verdict] = []
    with harness_errors(console):
        java.build()
        with Nursery(directory / "logs") as nursery, _start_target(target, directory, nursery, console) as name_server:
            for client in clients:
                verdicts += drivers.run_scenarios(
                    nursery,
                    client,
                    scenarios,
                    options.at(name_server),
                    directory / f"home-{client}",
                    lambda verdict: report.show_progress(console, verdict),
                )
    report.show_verdicts(console, verdicts)
    kept = all(verdict.kept for verdict in verdicts)
    results = {
        "peer": target.name_server or target.kind,
        "count": options.count,
        "retry_count": options.retry_count,
        "seed": options.seed,
        "kept": kept,
        "verdicts": [verdict.as_json() for verdict in verdicts],
    }
    report.write_results(directory / "results.json", results)
    console.print(f"results and logs: {directory}", highlight=False, soft_wrap=True)
    return 0 if kept else 1


main.add_command(admin_command)
main.add_command(pop_command)
main.add_command(proxy_command)
main.add_command(sdk_command)


@main.command("benchmark")
@click.option(
    "--seconds",
    default=30,
    show_default=True,
    type=click.IntRange(min=benchmark.SECONDS_MIN),
    help="Run time of the producer in seconds; it reports every 10 s, first after ten samples.",
)
@_peer_options
def benchmark_command(seconds: int, **target: object) -> None:
    """Run Apache's benchmark Producer and Consumer with only `-n` given; no send may fail."""
    console = report.console()
    directory = new_run_directory("benchmark")
    chosen = replace(_read_target(target), settings=benchmark.BROKER_SETTINGS, is_measured=True)
    with harness_errors(console):
        java.build()
        with Nursery(directory / "logs") as nursery, _start_target(chosen, directory, nursery, console) as name_server:
            found = benchmark.run(nursery, name_server, seconds, directory / "home")
    report.show_benchmark(console, found)
    report.write_results(directory / "results.json", {"peer": chosen.name_server or chosen.kind, **found.as_json()})
    console.print(f"results and logs: {directory}", highlight=False, soft_wrap=True)
    sys.exit(0 if found.kept else 1)


@main.command("migrate")
@click.option("--mib", default=3300, show_default=True, help="Size of Apache's log before the migration, in MiB.")
@click.option(
    "--poll-ms", default=0, show_default=True, help="The clients' pollNameServerInterval; 0 keeps the default of 30 s."
)
@click.option("--keep", is_flag=True, help="Keep both stores in the run directory. Logs are always kept.")
def migrate_command(mib: int, poll_ms: int, keep: bool) -> None:
    """Migrate from Apache's broker with `gantry migrate` while Java clients send and consume."""
    console = report.console()
    directory = new_run_directory("migrate")
    plan = migration_report.large_plan(mib, poll_ms)
    with harness_errors(console):
        java.build()
        with Nursery(directory / "logs") as nursery:
            found = migration.MigrationRun(plan, nursery, directory / "run").run()
    console.print(found.command_output, *found.lines(), sep="\n", highlight=False, markup=False, soft_wrap=True)
    report.write_results(directory / "results.json", found.as_json())
    if not keep:
        shutil.rmtree(directory / "run", ignore_errors=True)
    console.print(f"results and logs: {directory}", highlight=False, soft_wrap=True)
    sys.exit(0 if found.kept else 1)


@main.command("failover")
@click.option("--clients", default=",".join(java.OUTER_CLIENTS), show_default=True, help="Client versions.")
@click.option("--mixed", is_flag=True, help="Run only the failovers with transactions, delays and failed deliveries.")
@click.option("--keep", is_flag=True, help="Keep the stores in the run directory. Logs and histories are always kept.")
def failover_command(clients: str, mixed: bool, keep: bool) -> None:
    """Kill the master under a Java producer and consumer, promote a slave with `gantry ha promote`, and check.

    Nine failovers: synchronous and asynchronous groups, with the clients' default route poll of 30 s and with one of 1
    s, with up-to-date and with lagging slaves. Four more have transactions, delays and failed deliveries among the
    messages, by either client: a slave is promoted, or the master starts again. The clients are never restarted.
    """
    console = report.console()
    directory = new_run_directory("failover")
    chosen = _parse_choices(clients, tuple(java.CLIENT_MODULES), "client")
    with harness_errors(console):
        java.build()
        plans = [plan for plan in PLANS if plan.client in chosen and (plan.is_mixed or not mixed)]
        reports = failover.run_all(plans, directory, lambda one: report.show_failover(console, one), keep=keep)
    report.show_failovers(console, reports)
    report.write_results(directory / "results.json", {"failovers": [one.as_json() for one in reports]})
    console.print(f"results and logs: {directory}", highlight=False, soft_wrap=True)
    sys.exit(0 if all(one.kept for one in reports) else 1)


@main.command("flows")
@click.option("--clients", default=",".join(java.OUTER_CLIENTS), show_default=True, help="Client versions.")
@click.option("--scenarios", default="delays,locks", show_default=True, help="Scenarios to run, separated by commas.")
def flows_command(clients: str, scenarios: str) -> None:
    """Test delays, retries and ordered consumption while brokers are killed, restarted, and a slave is promoted."""
    console = report.console()
    directory = new_run_directory("flows")
    chosen = _parse_choices(clients, tuple(java.CLIENT_MODULES), "client")
    chosen_scenarios = _parse_choices(scenarios, ("delays", "locks"), "scenario")
    with harness_errors(console):
        java.build()
        plans = [plan for plan in flows.PLANS if plan.client in chosen and plan.scenario in chosen_scenarios]
        reports = flows.run_all(plans, directory, lambda one: report.show_flow(console, one))
    report.write_results(directory / "results.json", {"flows": [one.as_json() for one in reports]})
    console.print(f"results and logs: {directory}", highlight=False, soft_wrap=True)
    sys.exit(0 if all(one.kept for one in reports) else 1)


@main.command("ipv6")
@click.option("--clients", default=",".join(java.OUTER_CLIENTS), show_default=True, help="Client versions.")
@click.option(
    "--scenarios", default=",".join(drivers.IPV6_SCENARIOS), show_default=True, help="Scenarios, separated by commas."
)
@click.option("--count", default=20_000, show_default=True, help="Number of messages in each scenario.")
@_peer_options
def ipv6_command(clients: str, scenarios: str, count: int, **target: object) -> None:
    """Test Java clients with servers that have only an IPv6 address: routes, records, ids, every copy of a message."""
    chosen = _parse_choices(clients, tuple(java.CLIENT_MODULES), "client")
    chosen_scenarios = _parse_choices(scenarios, drivers.IPV6_SCENARIOS, "scenario")
    options = drivers.DriverOptions("", count, 500, 1, peers.SHORT_DELAY_LEVELS, format(int(time.time()), "x"))
    sys.exit(_run_scenarios(replace(_read_target(target), host="::1"), chosen, chosen_scenarios, options))


@main.command("tls")
@click.option("--clients", default=",".join(java.OUTER_CLIENTS), show_default=True, help="Client versions.")
@click.option("--count", default=20_000, show_default=True, help="Number of messages in each scenario.")
def tls_command(clients: str, count: int) -> None:
    """Test Java clients over TLS with client certificates while the servers' certificates are replaced."""
    console = report.console()
    directory = new_run_directory("tls")
    chosen = _parse_choices(clients, tuple(java.CLIENT_MODULES), "client")
    options = drivers.DriverOptions("", count, 0, 1, peers.SHORT_DELAY_LEVELS, format(int(time.time()), "x"))
    with harness_errors(console):
        java.build()
        with Nursery(directory / "logs") as nursery:
            found = tls.run_scenarios(
                nursery, chosen, options, directory, lambda one: report.show_progress(console, one)
            )
    report.show_verdicts(console, found.verdicts)
    console.print(*found.lines(), sep="\n", highlight=False, markup=False, soft_wrap=True)
    report.write_results(directory / "results.json", found.as_json())
    sys.exit(0 if found.kept else 1)


@main.command("config")
@click.option("--clients", default=",".join(java.OUTER_CLIENTS), show_default=True, help="Client versions.")
def config_command(clients: str) -> None:
    """Change settings of running servers with Java's admin client, and restart the servers."""
    console = report.console()
    directory = new_run_directory("config")
    chosen = _parse_choices(clients, tuple(java.CLIENT_MODULES), "client")
    options = drivers.DriverOptions("", 0, 0, 1, peers.SHORT_DELAY_LEVELS, format(int(time.time()), "x"))
    with harness_errors(console):
        java.build()
        with Nursery(directory / "logs") as nursery:
            found = live_config.run_scenarios(
                nursery, chosen, options, directory, lambda one: report.show_progress(console, one)
            )
    console.print(*found.lines(), sep="\n", highlight=False, markup=False, soft_wrap=True)
    report.write_results(directory / "results.json", found.as_json())
    console.print(f"results and logs: {directory}", highlight=False, soft_wrap=True)
    sys.exit(0 if found.kept else 1)


@main.command("acl")
@click.option("--clients", default=",".join(java.OUTER_CLIENTS), show_default=True, help="Client versions.")
@click.option("--count", default=5_000, show_default=True, help="Number of messages in each scenario.")
@click.option(
    "--retry-count", default=200, show_default=True, help="Number of messages in scenarios with failing consumers."
)
@click.option("--scenarios", default=",".join(acl.SCENARIOS), show_default=True, help="Scenarios of permitted clients.")
def acl_command(clients: str, count: int, retry_count: int, scenarios: str) -> None:
    """Test access control: permitted operations succeed, others are denied, and nothing of them is stored."""
    console = report.console()
    directory = new_run_directory("acl")
    chosen = _parse_choices(clients, tuple(java.CLIENT_MODULES), "client")
    options = drivers.DriverOptions("", count, retry_count, 1, peers.SHORT_DELAY_LEVELS, format(int(time.time()), "x"))
    with harness_errors(console):
        java.build()
        with Nursery(directory / "logs") as nursery:
            found = acl.run_scenarios(
                nursery, chosen, options, directory, lambda one: report.show_progress(console, one),
                _parse_choices(scenarios, acl.SCENARIOS, "scenario"),
            )  # fmt: skip
    report.show_verdicts(console, [*found.verdicts, *found.denials])
    console.print(*found.lines(), sep="\n", highlight=False, markup=False, soft_wrap=True)
    report.write_results(directory / "results.json", found.as_json())
    sys.exit(0 if found.kept else 1)


@main.command("filters")
@click.option("--pairs", default=200_000, show_default=True, help="Number of pairs of expression and message.")
@click.option("--seed", default=1, show_default=True, help="Seed of all expressions and messages.")
@click.option("--record", "is_recording", is_flag=True, help=f"Write {filter_judge.GOLDEN.name} instead.")
def filters_command(pairs: int, seed: int, is_recording: bool) -> None:
    """Compare RocketMQ's SQL92 evaluator and Gantry's on random filters and messages."""
    console = report.console()
    directory = new_run_directory("filters")
    with harness_errors(console):
        java.build()
        if is_recording:
            console.print(f"{filter_judge.record_golden(directory / 'home'):,} verdicts in {filter_judge.GOLDEN}")
            return
        found = filter_judge.compare(pairs, seed, directory / "home")
    console.print(*found.lines(), sep="\n", highlight=False, markup=False, soft_wrap=True)
    report.write_results(directory / "results.json", found.as_json())
    sys.exit(0 if found.kept else 1)


@main.command("record")
def record_command() -> None:
    """Record the golden frames from Java clients that use Apache's servers through a proxy."""
    console = report.console()
    with harness_errors(console):
        java.build()
        recorder = record.record(lambda text: console.print(text, highlight=False, soft_wrap=True))
        count = record.write(recorder)
    console.print(f"{count} frames in {record.GOLDEN}", highlight=False, soft_wrap=True)
