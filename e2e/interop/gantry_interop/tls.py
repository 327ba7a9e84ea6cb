"""Java clients over TLS while the servers' certificates are replaced.

Gantry's name server and broker enforce TLS and require client certificates; the broker registers over TLS.
Unmodified clients with a certificate of the authority run ordinary scenarios while a thread repeatedly replaces the
certificates in the servers' files. No operation may fail and no message may be lost or altered, and new connections
must see more than one certificate. Then clients with one fault each connect, and must be refused. At the end other
servers that require no certificate serve a client without one.

Certificates are made by the command `openssl`, independently of the code under test.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gantry_interop import drivers, java, peers
from gantry_interop.processes import Child, Nursery, wait_until

SCENARIOS = ("sync", "async", "batch", "compressed", "ordered", "litepull", "restart", "threads64")
REPLACE_SECONDS = 5.0
"""The interval is longer than the three seconds between the servers' checks, so that every certificate is loaded."""
INVALID_SECONDS_MAX = 60.0
ANONYMOUS_SCENARIOS = ("sync", "ordered")
OPENSSL_SECONDS_MAX = 120.0
EXTENSIONS = "subjectAltName=IP:127.0.0.1,DNS:localhost\nauthorityKeyIdentifier=keyid\n"
KEY = ("-newkey", "rsa:2048", "-nodes")


@dataclass(frozen=True)
class Authority:
    """A folder with an authority, and the certificates that it has issued."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.pem"

    def create(self) -> Authority:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._openssl("req", "-x509", *KEY, "-days", "30", "-subj", f"/CN=interop-{self.folder.name}",
                      "-keyout", self._own("ca-key.pem"), "-out", self._own("ca.pem"))  # fmt: skip
        return self

    def issue(self, name: str) -> Pair:
        """Issue a new certificate under this name; both files are replaced, one after the other."""
        request, names = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        new, pair = Pair.of(self.folder, f"{name}-new"), Pair.of(self.folder, name)
        names.write_text(EXTENSIONS)
        self._openssl("req", *KEY, "-subj", f"/CN={name}", "-keyout", str(new.key), "-out", str(request))
        self._openssl("x509", "-req", "-in", str(request), "-CA", self._own("ca.pem"), "-CAkey",
                      self._own("ca-key.pem"), "-CAcreateserial", "-days", "30", "-extfile", str(names),
                      "-out", str(new.chain))  # fmt: skip
        new.chain.replace(pair.chain)
        new.key.replace(pair.key)
        return pair

    def _own(self, name: str) -> str:
        return str(self.folder / name)

    @staticmethod
    def _openssl(*arguments: str) -> None:
        program = java.find_program("openssl", "install the package `openssl`")
        subprocess.run([program, *arguments], check=True, capture_output=True, timeout=OPENSSL_SECONDS_MAX)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    chain: Path
    key: Path

    @staticmethod
    def of(folder: Path, name: str) -> Pair:
        return Pair(folder / f"{name}.pem", folder / f"{name}-key.pem")


def client_properties(authority: Authority, pair: Pair | None) -> dict[str, str]:
    """Return the properties that make an unmodified client use TLS, verify the server, and present a certificate."""
    properties = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(authority.certificate),
    }
    if pair is not None:
        properties |= {"tls.client.certPath": str(pair.chain), "tls.client.keyPath": str(pair.key)}
    return properties


def start(
    nursery: Nursery,
    layout: peers.Layout,
    authority: Authority,
    servers: Pair,
    *,
    requires_client_certificates: bool = True,
) -> tuple[Child, Child]:
    """Start a name server and a broker that enforce TLS with one certificate, and wait until the broker is
    registered."""
    layout.directory.mkdir(parents=True, exist_ok=True)
    enforcing = {
        "tlsMode": "enforcing",
        "tlsServerCertPath": str(servers.chain),
        "tlsServerKeyPath": str(servers.key),
    }
    if requires_client_certificates:
        enforcing |= {"tlsServerTrustCertPath": str(authority.certificate), "tlsServerNeedClientAuth": "true"}
    towards_name_server = {
        "tlsEnable": "true",
        "tlsClientTrustCertPath": str(authority.certificate),
        "tlsClientCertPath": str(servers.chain),
        "tlsClientKeyPath": str(servers.key),
    }
    name_server_conf, broker_conf = layout.directory / "namesrv.conf", layout.directory / "broker.conf"
    name_server_conf.write_text(_lines(enforcing))
    broker_conf.write_text(_lines(peers.broker_settings("gantry", layout) | enforcing | towards_name_server))
    name_server = nursery.start(
        "name-server",
        [sys.executable, "-m", "gantry_nameserver", "--listen", layout.name_server, "-c", str(name_server_conf),
         "--data", str(layout.directory / "name-server-data")],
        os.environ,
    )  # fmt: skip
    _wait_for_line(name_server, "name server listening on")
    broker = nursery.start("broker", [sys.executable, "-m", "gantry_broker", "-c", str(broker_conf)], os.environ)
    _wait_for_line(broker, "registered at name server")
    return name_server, broker


@dataclass(frozen=True)
class TlsReport:
    """The results of all TLS scenarios."""

    verdicts: list[drivers.Verdict]
    invalid: list[drivers.Verdict]
    """The verdicts of clients with one fault; the scenario names the fault."""
    certificates_seen: int
    """The number of different certificates that new connections to the broker received."""

    @property
    def kept(self) -> bool:
        are_invalid_refused = bool(self.invalid) and not any(one.kept or one.received for one in self.invalid)
        return all(one.kept for one in self.verdicts) and are_invalid_refused and self.certificates_seen > 1

    def lines(self) -> list[str]:
        refused = sum(not one.kept and not one.received for one in self.invalid)
        return [
            f"{self.certificates_seen} certificates on new connections (expected: more than 1)",
            f"{refused} of {len(self.invalid)} invalid clients were refused (expected: all)",
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "kept": self.kept,
            "certificates_seen": self.certificates_seen,
            "verdicts": [one.as_json() for one in self.verdicts],
            "invalid": [one.as_json() for one in self.invalid],
        }


def run_scenarios(
    nursery: Nursery,
    clients: Sequence[str],
    options: drivers.DriverOptions,
    directory: Path,
    report: Callable[[drivers.Verdict], None] = lambda verdict: None,
    scenarios: Sequence[str] = SCENARIOS,
) -> TlsReport:
    """Run all scenarios with one pair of servers, and those of clients without a certificate with another.

    `options` gets their addresses. Ends the servers.
    """
    authority = Authority(directory / "certificates").create()
    servers, client_pair = authority.issue("servers"), authority.issue("client")
    layout = peers.Layout(directory / "peer")
    children = start(nursery, layout, authority, servers)
    known = replace(options.at(layout.name_server), properties=client_properties(authority, client_pair))
    verdicts: list[drivers.Verdict] = []
    refused: list[drivers.Verdict] = []
    with _replace_certificates(authority, client_pair, layout.broker_port) as serials:
        for client in clients:
            verdicts += drivers.run_scenarios(nursery, client, scenarios, known, directory / f"home-{client}", report)
    for client in clients:
        refused += _run_invalid_clients(nursery, client, known, authority, client_pair, directory)
    _stop(children)
    verdicts += _run_anonymous(nursery, clients, options, authority, servers, directory, report)
    return TlsReport(verdicts, refused, len(serials))


def invalid_client_properties(authority: Authority, client: Pair, other: Authority) -> dict[str, dict[str, str]]:
    """Return the properties of clients that must be refused, by their fault."""
    return {
        "plain text": {"tls.enable": "false"},
        "no certificate": client_properties(authority, None),
        "of another authority": client_properties(authority, other.issue("other-client")),
        "trusts another authority": client_properties(other, client),
    }


def _run_invalid_clients(
    nursery: Nursery, client: str, known: drivers.DriverOptions, authority: Authority, pair: Pair, directory: Path
) -> list[drivers.Verdict]:
    other = Authority(directory / f"other-{client}").create()
    found: list[drivers.Verdict] = []
    for number, (wrong, properties) in enumerate(invalid_client_properties(authority, pair, other).items()):
        options = replace(
            known, count=10, properties=properties, scenario_seconds_max=INVALID_SECONDS_MAX,
            run=f"{known.run}-invalid-{number}",
        )  # fmt: skip
        verdicts = drivers.run_scenarios(nursery, client, ("sync",), options, directory / f"home-invalid-{client}")
        found += [replace(one, scenario=wrong) for one in verdicts]
    return found


def _run_anonymous(
    nursery: Nursery, clients: Sequence[str], options: drivers.DriverOptions, authority: Authority, servers: Pair,
    directory: Path, report: Callable[[drivers.Verdict], None],
) -> list[drivers.Verdict]:  # fmt: skip
    """Run scenarios with servers that present certificates but require none."""
    layout = peers.Layout(directory / "peer-anonymous")
    children = start(nursery, layout, authority, servers, requires_client_certificates=False)
    anonymous = replace(
        options.at(layout.name_server), properties=client_properties(authority, None), run=f"{options.run}-anonymous"
    )
    found: list[drivers.Verdict] = []
    for client in clients:
        home = directory / f"home-anonymous-{client}"
        found += drivers.run_scenarios(nursery, client, ANONYMOUS_SCENARIOS, anonymous, home, report)
    _stop(children)
    return [replace(one, scenario=f"{one.scenario}, anonymous") for one in found]


def _stop(children: Sequence[Child]) -> None:
    for child in reversed(children):
        child.stop()


@contextlib.contextmanager
def _replace_certificates(authority: Authority, client: Pair, port: int) -> Iterator[set[str]]:
    """Replace the servers' certificate repeatedly. Yields the set of serial numbers that connections received."""
    serials, is_over, failures = {_read_serial(authority, client, port)}, threading.Event(), list[Exception]()

    def replace_until_over() -> None:
        try:
            while not is_over.wait(REPLACE_SECONDS):
                authority.issue("servers")
                serials.add(_read_serial(authority, client, port))
        except (OSError, subprocess.SubprocessError) as error:
            failures.append(error)

    thread = threading.Thread(target=replace_until_over, name="replace certificates")
    thread.start()
    try:
        yield serials
    finally:
        is_over.set()
        thread.join()
    if failures:
        raise failures[0]


def _read_serial(authority: Authority, client: Pair, port: int) -> str:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.load_cert_chain(client.chain, client.key)
    with (
        socket.create_connection(("127.0.0.1", port), 60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        certificate = connection.getpeercert()
    assert certificate is not None, "the verified server has sent no certificate"
    return str(certificate["serialNumber"])


def _wait_for_line(child: Child, text: str) -> None:
    wait_until(f"{text!r}", lambda: text in child.log.read_text(errors="replace"), peers.READY_SECONDS_MAX, child)


def _lines(settings: dict[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())
