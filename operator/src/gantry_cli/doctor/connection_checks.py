"""Decides from facts whether name servers and brokers are reachable, by TLS and with this account. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from gantry_cli.doctor.facts import BrokerFacts, Connection, ConnectionFault, Facts, NameServerFacts
from gantry_cli.doctor.results import Finding, fault, ok, skipped, warning
from gantry_cli.text import certificate_text
from gantry_remoting import split_address

CERTIFICATE_WARNING_MS: Final = 14 * 86_400_000
"""How long before its end a certificate is reported: two weeks suffice to renew one by hand."""

SIGN_REMEDY: Final = "name the file with the account: gantry --credentials FILE doctor"
ADMIN_REMEDY: Final = (
    "use an account with admin: true for this command, or grant what the remark names in plain_acl.yml "
    "(docs/security.md)"
)


def check_name_servers(facts: Facts) -> Iterator[Finding]:
    """Check that every name server answers, and that all of them list the same brokers."""
    for server in facts.name_servers:
        yield _check_name_server(server)
    lists = {server.address: server.brokers for server in facts.name_servers if _has_listed(server)}
    every = frozenset[str]().union(*lists.values())
    for address, brokers in lists.items():
        if missing := sorted(every - brokers):
            yield fault(
                address,
                f"does not list {', '.join(missing)}, which other name servers list",
                "clients that use this name server do not find these brokers",
                f"add {address} to namesrvAddr of the brokers, and check that they reach it",
            )


def _has_listed(server: NameServerFacts) -> bool:
    return server.connection.fault is None and not server.refusal and not server.error


def _check_name_server(server: NameServerFacts) -> Finding:
    address, cause = server.address, server.connection.fault
    if cause is None and server.refusal:
        return skipped(address, "it answers, but refuses this account (see acl)")
    if cause is None and server.error:
        return fault(
            address, server.error, "the server at this address is no name server",
            "name the port of a name server with -n HOST:PORT; 10911 is that of a broker, 9876 that of a name server",
        )  # fmt: skip
    if cause is None and not server.brokers:
        return fault(
            address, "no broker is registered", "clients find no broker, and no topic",
            f"start a broker, or set namesrvAddr={address} in its broker.conf; its log names a failed registration",
        )  # fmt: skip
    if cause is None:
        return ok(address, f"answers, and lists {len(server.brokers)} broker processes")
    if cause.is_of_tls:
        return skipped(address, "it is reachable, but TLS fails (see tls)")
    remedies = {
        ConnectionFault.UNKNOWN_HOST: "correct the host of -n HOST:PORT (or GANTRY_NAMESRV), or its DNS entry",
        ConnectionFault.REFUSED: "start one (gantry nameserver, or gantry up), or name another with -n HOST:PORT",
        ConnectionFault.SILENT: "check that the process is not stopped, and that the port is that of a name server",
    }
    default = "check the address of -n HOST:PORT, and firewalls in between"
    return fault(address, _found(server.connection), "clients cannot find any broker", remedies.get(cause, default))


def check_addresses(facts: Facts) -> Iterator[Finding]:
    """Check that each broker is reachable from this machine at the address that it has registered."""
    if not facts.brokers:
        yield skipped("-", "no broker is known (see name-server, tls, acl)")
    is_remote = any(_has_listed(server) and not server.connection.is_on_this_machine for server in facts.name_servers)
    stopped = _stopped_members(facts)
    for broker in facts.brokers:
        if broker.address in stopped:
            yield skipped(broker.label, "its process does not run (see slave-following)")
        else:
            yield _check_address(broker, is_remote=is_remote)


def _stopped_members(facts: Facts) -> frozenset[str]:
    members = () if facts.local is None else facts.local.members
    return frozenset(one.address for one in members if one.process not in ("", "running"))


def _check_address(broker: BrokerFacts, *, is_remote: bool) -> Finding:
    remedy = (
        "set brokerIP1 (brokerIP2 for replication) in its broker.conf to an address that clients reach, and restart it"
    )
    host, cause = split_host(broker.address), broker.connection.fault
    if is_unspecified(host):
        meaning = "no client can connect to this address: it stands for all addresses of a machine"
        return fault(broker.label, f"registered as {broker.address}", meaning, remedy)
    if is_remote and is_loopback(host):
        meaning = "every client connects to its own machine instead of the broker's"
        return fault(broker.label, f"registered as {broker.address}", meaning, remedy)
    if cause is None or cause.is_of_tls:
        actual = (broker.config or {}).get("brokerName", broker.name)
        if actual != broker.name:
            found = f"broker {actual!r} answers at this address"
            return fault(broker.label, found, "clients send to another broker than they chose", remedy)
        return ok(broker.label, "reachable")
    if cause is ConnectionFault.SILENT and broker.broker_id:
        return ok(broker.label, "accepts connections (it does not answer: see slave-following)")
    meaning = "clients that get this address from the name server cannot use the broker"
    if cause is ConnectionFault.SILENT:
        process = (
            "its process is suspended or blocked: see its log and `gantry status --page STORE/status`, and restart it"
        )
        return fault(broker.label, _found(broker.connection), meaning, process)
    if cause is ConnectionFault.REFUSED:
        remedy = f"start the broker if it has stopped; else {remedy}"
    return fault(broker.label, _found(broker.connection), meaning, remedy)


def check_tls(facts: Facts) -> Iterator[Finding]:
    """Check the certificates of all servers, and that both sides use TLS, or neither."""
    servers = [(one.address, one.address, one.connection) for one in facts.name_servers]
    servers += [(one.label, one.address, one.connection) for one in facts.brokers]
    reachable = [server for server in servers if _reached(server[2])]
    for label, address, connection in reachable:
        if connection.fault is not None and connection.fault.is_of_tls:
            yield _tls_fault(label, split_host(address), connection)
        elif facts.uses_tls:
            yield ok(label, "the certificate is valid")
    for broker in facts.brokers:
        yield from _check_expiry(broker, facts.now_ms)
    if facts.uses_tls and len(reachable) < len(servers):
        yield skipped("-", "not every server is reachable (see name-server, broker-address)")
    if not facts.uses_tls and all(connection.fault is None for _, _, connection in reachable):
        yield skipped("-", "TLS is not used", "check certificates with --tls-ca FILE, or with --tls")


def _reached(connection: Connection) -> bool:
    return connection.fault is None or connection.fault.is_of_tls


def _tls_fault(label: str, host: str, connection: Connection) -> Finding:
    assert connection.fault is not None, "the caller has checked it"
    remedy = TLS_REMEDIES[connection.fault].format(host=host)
    return fault(label, _found(connection), "clients with these TLS settings cannot connect", remedy)


TLS_REMEDIES: Final = {
    ConnectionFault.CERTIFICATE_NAME: "issue a certificate for {host}, or connect to one of its names; --tls-verify "
    "authority checks no names",
    ConnectionFault.CERTIFICATE_EXPIRED: "renew the certificate: servers reload its files within seconds; check the "
    "clock of this machine, too",
    ConnectionFault.CERTIFICATE_AUTHORITY: "name the authority of the servers with --tls-ca FILE",
    ConnectionFault.CERTIFICATE_REQUIRED: "name a client certificate with --tls-cert FILE and --tls-key FILE",
    ConnectionFault.TLS_REQUIRED: "use TLS: --tls-ca FILE, or --tls for an authority of the system",
    ConnectionFault.NO_TLS: "leave out the --tls options (and GANTRY_TLS...), or set tlsServerCertPath and "
    "tlsServerKeyPath on the server",
}
"""The remedy of each fault of TLS; {host} is the host that was connected to."""


def _check_expiry(broker: BrokerFacts, now_ms: int) -> Iterator[Finding]:
    text = (broker.runtime or {}).get("tlsCertificateEndsTimestamp", "")
    if text.isdigit():
        remedy = "renew it, and replace the files tlsServerCertPath and tlsServerKeyPath: the broker reloads them"
        yield from expiry_findings(broker.label, int(text), now_ms, remedy)


def expiry_findings(subject: str, ends_at_ms: int, now_ms: int, remedy: str) -> Iterator[Finding]:
    """Yield a fault for a certificate that has ended, a warning for one that ends soon, and nothing for another."""
    found = f"its certificate {certificate_text(ends_at_ms, now_ms)}"
    if ends_at_ms <= now_ms:
        yield fault(subject, found, "clients that verify it cannot connect", remedy)
    elif ends_at_ms - now_ms < CERTIFICATE_WARNING_MS:
        yield warning(subject, found, "then clients that verify it cannot connect any more", remedy)


def check_accounts(facts: Facts) -> Iterator[Finding]:
    """Check that the servers accept the account, and permit what this command needs."""
    servers = [(one.address, one.connection, one.refusal, one.error) for one in facts.name_servers]
    servers += [(one.label, one.connection, one.refusal, one.error) for one in facts.brokers]
    for name, connection, refusal, error in servers:
        if refusal:
            yield _refusal_finding(name, refusal, has_account=facts.has_account)
        elif connection.fault is not None or error:
            yield skipped(name, "it has not answered (see name-server, broker-address, tls)")
        else:
            yield ok(name, "accepts this account" if facts.has_account else "needs no account")


WRONG_SECRET_WORDS: Final = ("signature", "not found", "no acl config", "authentication")
"""Parts of the remarks by which Gantry and RocketMQ refuse an unknown account or a wrong secret, in lower case."""
UNSIGNED_WORDS: Final = (
    "no accesskey",
    "accesskey is null",
    "accesskey is empty",
    "username cannot be null",
    "not signed",
)
"""Parts of the remarks to a request without an account."""


def _refusal_finding(name: str, remark: str, *, has_account: bool) -> Finding:
    lower = remark.lower()
    if not has_account or any(word in lower for word in UNSIGNED_WORDS):
        return fault(name, f"refused: {remark}", "the server requires an account, and none was given", SIGN_REMEDY)
    if "strict" in lower:
        meaning = "the server takes only strict signatures, or it has refused this one"
        return fault(
            name, f"refused: {remark}", meaning, "use gantry --signature strict, and check the clocks (see clock-skew)"
        )
    if any(word in lower for word in WRONG_SECRET_WORDS):
        meaning = "the server does not have this account, or the secret is another one"
        remedy = (
            "compare the credentials file with plain_acl.yml of the server: accessKey and secretKey (docs/security.md)"
        )
        return fault(name, f"refused: {remark}", meaning, remedy)
    return fault(name, f"refused: {remark}", "the account exists, and lacks a permission", ADMIN_REMEDY)


def _found(connection: Connection) -> str:
    names = f" ({', '.join(connection.certificate_names)})" if connection.certificate_names else ""
    text = f"{connection.fault}{names}"
    return f"{text}: {connection.detail}" if connection.detail else text


def split_host(address: str) -> str:
    """Return the host of an address; the whole text if it is not one."""
    try:
        return split_address(address)[0]
    except ValueError:
        return address


def is_loopback(host: str) -> bool:
    """Return whether a host means the machine of the client that connects to it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_unspecified(host: str) -> bool:
    """Return whether a host stands for all addresses of a machine, to which nothing can connect from elsewhere."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
