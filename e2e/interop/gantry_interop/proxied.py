"""Apache's proxy in front of Gantry's name server, master and slaves: SDKs, remoting clients, and a failover.

group of three, code 0 needs one slave <- Apache's proxy of a version <- SDKs over gRPC, Java clients over remoting

flows      the SDKs' programs run their flows, as they do through Gantry's proxy
remoting   Apache's Java client, with the proxy's remoting port as its name server
failover   under load: kill -9 the master, `gantry ha promote`; what was acknowledged is received, and unaltered
accounts   users that a broker stores (`proxy_accounts`), also with Gantry's proxy in front of Apache's broker
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, final

import click

from gantry_interop import (
    apache_servers,
    drivers,
    java,
    proxy_accounts,
    report,
    sdk,
    sdk_programs,
    sdk_servers,
    versions,
)
from gantry_interop.apache_servers import ApacheProxy
from gantry_interop.broker_group import BrokerGroup
from gantry_interop.errors import InteropError, harness_errors
from gantry_interop.paths import new_run_directory
from gantry_interop.processes import Child, Nursery, wait_until

VERSIONS: Final = (versions.PREVIOUS, versions.PEER)
GROUP_PARTS: Final = ("flows", "remoting", "failover")
"""The parts that need a replicated group."""
PARTS: Final = (*GROUP_PARTS, "accounts")
CLUSTER: Final = "InteropCluster"
LEVELS: Final = "1s 1s 1s 2s 3s 4s 5s 6s 7s 8s 9s 10s 11s 12s 13s 14s 15s 16s"
SETTINGS: Final = {
    "brokerRole": "SYNC_MASTER",
    "messageDelayLevel": LEVELS,
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
}
REMOTING_SCENARIOS: Final = ("async", "compressed", "tags", "ordered", "litepull")
"""Those that need neither a topic that the first send creates nor a retry topic before the first failure: clients of
the proxy send their heartbeats to it, so that no broker creates either."""
LOAD_SECONDS: Final = 5.0
FIRST_SECONDS_MAX: Final = 120.0
RECOVERY_SECONDS_MAX: Final = 240.0
"""The proxy refreshes the routes that it has cached every 20 s."""
RECEIVED_SECONDS_MAX: Final = 240.0


@dataclass(frozen=True)
class ProxiedResult:
    """The verdict of one part of the run."""

    version: str
    part: str
    is_ok: bool
    text: str

    def line(self) -> str:
        return f"{'ok    ' if self.is_ok else 'FAILED'} proxy {self.version} {self.part}: {self.text}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@final
@dataclass
class Loads:
    """What the load program has recorded: the digests of bodies, with the first time of each in microseconds."""

    folder: Path
    attempted: dict[str, int] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    copies: int = 0
    """How many messages were received, duplicates included."""

    def read(self) -> Loads:
        """Read the files again, and return itself."""
        self.attempted, _ = _read_lines(self.folder / "attempted.txt")
        self.acknowledged, _ = _read_lines(self.folder / "acknowledged.txt")
        self.received, self.copies = _read_lines(self.folder / "received.txt")
        return self

    def broken(self) -> list[str]:
        """Return the rules that are violated, as text."""
        lost = self.acknowledged.keys() - self.received.keys()
        foreign = self.received.keys() - self.attempted.keys()
        found = [f"{len(lost)} acknowledged messages were not received: {sorted(lost)[:3]}"] if lost else []
        return found + ([f"{len(foreign)} received messages were not sent: {sorted(foreign)[:3]}"] if foreign else [])

    def first_acknowledgement_after(self, time_us: int) -> int | None:
        return min((one for one in self.acknowledged.values() if one > time_us), default=None)


def _read_lines(path: Path) -> tuple[dict[str, int], int]:
    found: dict[str, int] = {}
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [line.split() for line in lines if line.endswith("\n")]
    for key, time_us in whole:
        found.setdefault(key, int(time_us))
    return found, len(whole)


def run_all(
    chosen: Collection[str], parts: Collection[str], languages: Sequence[str], messages: int, directory: Path,
    show: Callable[[ProxiedResult], None],
) -> list[ProxiedResult]:  # fmt: skip
    """Run these parts with the proxies of these versions, each version with servers of its own."""
    results: list[ProxiedResult] = []
    for version in chosen:
        for result in _run_version(version, parts, languages, messages, directory / version):
            show(result)
            results.append(result)
    return results


def _run_version(
    version: str, parts: Collection[str], languages: Sequence[str], messages: int, place: Path
) -> Iterator[ProxiedResult]:
    if "accounts" in parts:
        yield from run_accounts(version, place / "accounts")
    if set(parts) & set(GROUP_PARTS):
        with Nursery(place / "logs") as nursery:
            yield from _run_group(nursery, version, parts, languages, messages, place)


def _run_group(
    nursery: Nursery, version: str, parts: Collection[str], languages: Sequence[str], messages: int, place: Path
) -> Iterator[ProxiedResult]:
    group = BrokerGroup(nursery, place, 3, SETTINGS)
    group.start()
    group.begin(1)
    proxy = apache_servers.start_proxy(nursery, version, group.address, CLUSTER, place / "proxy")
    try:
        if "flows" in parts:
            yield from run_flows(group, proxy, languages, messages, place)
        if "remoting" in parts:
            yield from run_remoting(nursery, group, proxy, messages, place)
        if "failover" in parts:
            yield run_failover(nursery, group, proxy, place)
    except InteropError as error:
        yield ProxiedResult(version, "run", False, f"ended early: {error}")


def run_flows(
    group: BrokerGroup, proxy: ApacheProxy, languages: Sequence[str], messages: int, place: Path
) -> Iterator[ProxiedResult]:
    """Run all flows of the SDKs' programs through the proxy."""
    counts = dict.fromkeys(sdk.FLOWS, messages)
    for one in sdk.run_flows(_servers(group, proxy), languages, counts, place):
        yield ProxiedResult(proxy.version, f"flow {one.flow} ({one.language})", one.is_ok, one.line())


def _servers(group: BrokerGroup, proxy: ApacheProxy) -> sdk_servers.Servers:
    kind = "apache-gantry" if proxy.version == versions.PEER else f"apache-{proxy.version}-gantry"
    return sdk_servers.Servers(kind, group.address, proxy.grpc, proxy.child)


def run_remoting(
    nursery: Nursery, group: BrokerGroup, proxy: ApacheProxy, messages: int, place: Path
) -> Iterator[ProxiedResult]:
    """Run Apache's Java client of the proxy's version with the proxy in the place of its name server.

    Topics are created at the brokers, since the proxy creates none.
    """
    options = drivers.DriverOptions(
        name_server=proxy.remoting, count=messages * 10, retry_count=messages, seed=1, levels=LEVELS,
        run=format(int(time.time()), "x"), scenario_seconds_max=180.0,
        extra=("--topic-namesrv", group.address),
    )  # fmt: skip
    for one in drivers.run_scenarios(nursery, proxy.version, REMOTING_SCENARIOS, options, place / "home-remoting"):
        text = f"sent {one.sent}, received {one.received}, lost {one.lost} {'; '.join(one.broken)}"
        yield ProxiedResult(proxy.version, f"remoting {one.scenario}", one.kept, text)


def run_accounts(version: str, place: Path) -> Iterator[ProxiedResult]:
    """Let both proxies read the users of the other's broker."""
    try:
        for one in proxy_accounts.run(version, place):
            yield ProxiedResult(version, "accounts", not one.broken, one.text())
    except InteropError as error:
        yield ProxiedResult(version, "accounts", False, f"ended early: {error}")


def run_failover(nursery: Nursery, group: BrokerGroup, proxy: ApacheProxy, place: Path) -> ProxiedResult:
    """Kill the master under the load of an SDK, promote a slave, bring the old master back, and judge the records."""
    sdk_servers.prepare(_servers(group, proxy), "_load", ("load",), sdk_servers.LISTED_DELAYS)
    folder = place / "load"
    folder.mkdir(parents=True)
    python, flows_program = sdk_programs.command("python", place)
    program = Path(flows_program).with_name("sdk_load.py")
    command = [python, str(program), proxy.grpc, "sdk-normal_load", "sdk-load_load", str(folder)]
    client, loads = nursery.start("sdk-load", command, os.environ), Loads(folder)
    wait_until("the first received message", lambda: bool(loads.read().received), FIRST_SECONDS_MAX, client)
    time.sleep(LOAD_SECONDS)
    old = group[1]
    killed_us = int(group.kill(old) * 1e6)
    moved = group.promote()
    wait_until("a new acknowledgement", lambda: _is_served_after(loads, killed_us), RECOVERY_SECONDS_MAX, client)
    group.start_member(old)
    group.follow(old, group[moved["number"]], moved["epoch"])
    time.sleep(LOAD_SECONDS)
    _settle(loads, client)
    first = loads.first_acknowledgement_after(killed_us) or killed_us
    broken = loads.broken()
    text = (
        f"{len(loads.acknowledged)} acknowledged, {len(loads.received)} received, {loads.copies} with copies, "
        f"first acknowledgement {(first - killed_us) / 1e6:.1f} s after the kill {'; '.join(broken)}"
    )
    return ProxiedResult(proxy.version, "failover", not broken, text)


def _is_served_after(loads: Loads, time_us: int) -> bool:
    return loads.read().first_acknowledgement_after(time_us) is not None


def _settle(loads: Loads, client: Child) -> None:
    """Stop the sends, and wait until everything acknowledged was received, at most `RECEIVED_SECONDS_MAX`."""
    (loads.folder / "stop").touch()
    wait_until("the end of the sends", (loads.folder / "sent").exists, RECEIVED_SECONDS_MAX, client)
    deadline = time.monotonic() + RECEIVED_SECONDS_MAX
    while loads.read().broken() and time.monotonic() < deadline:
        time.sleep(0.5)
    (loads.folder / "end").touch()
    client.process.wait(60)


def _choices(known: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a callback that splits a text at its commas, and accepts only known words."""

    def split(context: click.Context, parameter: click.Parameter, text: str) -> list[str]:
        words = [word.strip() for word in text.split(",") if word.strip()]
        for word in words:
            if word not in known:
                raise click.BadParameter(f"{word!r}; expected one of {', '.join(known)}")
        return words

    return split


@click.command("proxy")
@click.option("--versions", "chosen", default=",".join(VERSIONS), show_default=True, callback=_choices(VERSIONS),
              help="Versions of Apache's proxy.")  # fmt: skip
@click.option("--parts", default=",".join(PARTS), show_default=True, callback=_choices(PARTS), help="Parts of the run.")
@click.option("--languages", default=",".join(sdk.LANGUAGES), show_default=True, callback=_choices(sdk.LANGUAGES),
              help="SDKs that run flows.")  # fmt: skip
@click.option("--messages", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Messages of a flow.")
def proxy_command(chosen: list[str], parts: list[str], languages: list[str], messages: int) -> None:
    """Run Apache's proxy in front of a replicated Gantry group: SDKs, remoting clients, a failover under load."""
    console = report.console()
    directory = new_run_directory("proxy")
    with harness_errors(console):
        java.build()
        results = run_all(chosen, parts, languages, messages, directory, lambda one: print(one.line(), flush=True))
    report.write_results(directory / "results.json", {"results": [one.as_json() for one in results]})
    console.print(f"results and logs: {directory}", highlight=False, soft_wrap=True)
    sys.exit(0 if all(one.is_ok for one in results) else 1)
