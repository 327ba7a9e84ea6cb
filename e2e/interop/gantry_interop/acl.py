"""Access control with Java clients: permitted and denied operations, with and without accounts.

    both servers guarded    a named account runs ordinary scenarios, with a permission for each of its topics and
                            groups by name; then clients with wrong credentials or missing permissions; then
                            changed accounts
    name server open        the same denials, now all of them by the broker with code 16
    strict                  a server that accepts only strict signatures serves no Java client

The rule: a permitted client is served as without access control; a denied client gets an exception, and nothing is
stored. Signatures are RocketMQ's own (`AclClientRPCHook`), so that Gantry's code is not checked against itself.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gantry_interop import drivers, peers, versions
from gantry_interop.processes import Child, Nursery, wait_until

SCENARIOS = ("sync", "async", "batch", "ordered", "litepull", "retry", "dlq", "transactions", "request", "trace")
UNSUPPORTED_SCENARIOS = {versions.PREVIOUS: ("request",)}
"""This client counts a request as answered when it is sent (`RequestResponseFuture`), and reports a timeout."""
DENIALS = ("acl",)
"""The scenarios whose requests must be denied."""
FOREIGN = "interop_foreign"
CLUSTER = "InteropCluster"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
ACCOUNTS_FILE = "plain_acl.yml"
TIMEOUT_MS = 30_000


@dataclass(frozen=True)
class Account:
    """An access key and its secret."""

    access_key: str
    secret_key: str

    @staticmethod
    def new(name: str) -> Account:
        return Account(f"{name}-account", secrets.token_hex(16))

    def write_credentials(self, path: Path) -> Path:
        """Write the credentials file, in the form of RocketMQ's tools.yml."""
        path.write_text(f"accessKey: {self.access_key}\nsecretKey: {self.secret_key}\n")
        return path


@dataclass(frozen=True)
class GuardedServers:
    """Servers with access control, and the permissions of their accounts."""

    layout: peers.Layout
    user: Account
    admin: Account
    is_name_server_guarded: bool = True
    """Whether the name server requires accounts, too."""
    mode: str = "V1"
    """The setting `aclMode`: `V1` accepts the signatures of Java clients, `STRICT` refuses them."""

    @property
    def accounts(self) -> Path:
        return self.layout.directory / ACCOUNTS_FILE

    def add_accounts(self, options: drivers.DriverOptions) -> drivers.DriverOptions:
        """Return ``options`` with the user's account, and with the administrator's for administrative requests."""
        extra = (
            *("--access-key", self.user.access_key, "--secret-key", self.user.secret_key),
            *("--admin-key", self.admin.access_key, "--admin-secret", self.admin.secret_key),
            *("--guarded-names", "1" if self.is_name_server_guarded else "0"),
            *("--directory", str(self.layout.directory), "--patience-ms", str(TIMEOUT_MS)),
        )
        return replace(options.at(self.layout.name_server), extra=(*options.extra, *extra))

    def write_accounts(self, runs: Sequence[str], clients: Sequence[str]) -> None:
        """Write permissions for each topic and group of these runs, by name; everything else is denied."""
        names = [
            f"{scenario}_{client.replace('.', '_')}_{run}"
            for scenario in (*SCENARIOS, *DENIALS)
            for client in clients
            for run in runs
        ]
        topics = [f"{kind}={what}" for name in names for kind, what in _topic_permissions(name).items()]
        groups = [f"{prefix}group_{name}=SUB" for name in names for prefix in ("", "undertaker_")]
        lines = [
            "accounts:",
            f"  - accessKey: {self.user.access_key}",
            f"    secretKey: {self.user.secret_key}",
            "    defaultTopicPerm: DENY",
            "    defaultGroupPerm: DENY",
            "    topicPerms:",
            *(f"      - '{line}'" for line in (*topics, f"{CLUSTER}_REPLY_TOPIC=PUB", f"{TRACE_TOPIC}=PUB|SUB")),
            "    groupPerms:",
            *(f"      - {line}" for line in groups),
            f"  - accessKey: {self.admin.access_key}",
            f"    secretKey: {self.admin.secret_key}",
            "    admin: true",
        ]
        self.accounts.write_text("\n".join(lines) + "\n")

    def start(self, nursery: Nursery) -> tuple[Child, Child]:
        """Start a name server and a broker, and wait until the broker is registered."""
        layout, directory = self.layout, self.layout.directory
        guard = {"aclEnable": "true", "aclFile": str(self.accounts), "aclMode": self.mode}
        listening = {"bindAddress": layout.listen_host, "listenPort": str(layout.name_server_port)}
        name_conf, broker_conf = directory / "namesrv.conf", directory / "broker.conf"
        name_conf.write_text(_lines({**listening, **(guard if self.is_name_server_guarded else {})}))
        own = self.admin.write_credentials(directory / "broker.yml")
        settings = peers.broker_settings("gantry", layout)
        broker_conf.write_text(_lines({**settings, **guard, "aclCredentialsPath": str(own), "haListenPort": "-1"}))
        python = [sys.executable, "-m"]
        data = directory / "name-server-data"
        words = ["gantry_nameserver", "-c", str(name_conf), "--data", str(data)]
        name_server = nursery.start("name-server", [*python, *words], os.environ)
        _wait_for_line(name_server, "name server listening on")
        broker = nursery.start("broker", [*python, "gantry_broker", "-c", str(broker_conf)], os.environ)
        _wait_for_line(broker, "registered at name server")
        return name_server, broker


def _topic_permissions(name: str) -> Mapping[str, str]:
    """Return the topics of one scenario, and the permissions of its account."""
    return {
        f"interop_{name}": "PUB|SUB",
        f"interop_{name}_silent": "PUB|SUB",
        f"%DLQ%group_{name}": "SUB",
    }


@dataclass(frozen=True)
class AclReport:
    """The results of all access control scenarios."""

    verdicts: list[drivers.Verdict]
    """The verdicts of permitted clients."""
    denials: list[drivers.Verdict]
    """The verdicts of denied clients."""

    @property
    def kept(self) -> bool:
        return bool(self.verdicts and self.denials) and all(one.kept for one in (*self.verdicts, *self.denials))

    def lines(self) -> list[str]:
        """Return the errors that clients saw, once for each client."""
        return [
            f"{one.client} {one.scenario}: {what}: {text}" for one in self.denials for what, text in one.details.items()
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "kept": self.kept,
            "verdicts": [one.as_json() for one in self.verdicts],
            "denials": [one.as_json() for one in self.denials],
        }


def run_scenarios(
    nursery: Nursery,
    clients: Sequence[str],
    options: drivers.DriverOptions,
    directory: Path,
    report: Callable[[drivers.Verdict], None] = lambda verdict: None,
    scenarios: Sequence[str] = SCENARIOS,
) -> AclReport:
    """Run the scenarios with one pair of servers, the denials with it and another, and `strict` with a third."""
    user, admin = Account.new("named"), Account.new("admin")
    verdicts: list[drivers.Verdict] = []
    denials: list[drivers.Verdict] = []
    for name, asked, guards in (
        ("guarded", (*scenarios, *DENIALS), {}),
        ("open-names", DENIALS, {"is_name_server_guarded": False}),
        ("strict", ("strict",), {"is_name_server_guarded": False, "mode": "STRICT"}),
    ):
        layout = peers.Layout(directory / name)
        layout.directory.mkdir(parents=True, exist_ok=True)
        guarded = GuardedServers(layout, user, admin, **guards)
        guarded.write_accounts([options.run], clients)
        children = guarded.start(nursery)
        for client in clients:
            home = directory / f"home-{name}-{client}"
            chosen = [one for one in asked if one not in UNSUPPORTED_SCENARIOS.get(client, ())]
            for one in drivers.run_scenarios(nursery, client, chosen, guarded.add_accounts(options), home, report):
                (verdicts if one.scenario in scenarios else denials).append(one)
        for child in reversed(children):
            child.stop()
    return AclReport(verdicts, denials)


def _wait_for_line(child: Child, text: str) -> None:
    wait_until(f"{text!r}", lambda: text in child.log.read_text(errors="replace"), peers.READY_SECONDS_MAX, child)


def _lines(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())
