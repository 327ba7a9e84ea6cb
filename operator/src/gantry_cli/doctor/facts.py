"""The facts that checks decide on: what was observed of servers, consumer groups and this machine.

A missing observation is None, or has its reason in a field of its own, so that no check can take it for a good value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import final


class ConnectionFault(StrEnum):
    """Why a server could not be talked to."""

    UNKNOWN_HOST = "the host name is unknown"
    REFUSED = "the connection is refused"
    TIMED_OUT = "connecting timed out"
    UNREACHABLE = "the host is not reachable"
    CERTIFICATE_NAME = "the certificate is for other names"
    CERTIFICATE_EXPIRED = "the certificate is expired or not valid yet"
    CERTIFICATE_AUTHORITY = "the certificate is of an unknown authority"
    CERTIFICATE_REQUIRED = "the server requires a client certificate"
    TLS_REQUIRED = "the server requires TLS"
    NO_TLS = "the server does not speak TLS"
    CLOSED = "the server closed the connection"
    SILENT = "the server accepts connections and does not answer"
    NOT_ROCKETMQ = "the answer is not that of a RocketMQ server"

    @property
    def is_of_tls(self) -> bool:
        """Whether TLS failed: the server is reachable."""
        return self in _OF_TLS

    @property
    def is_of_network(self) -> bool:
        """Whether no connection could be opened at all."""
        return self in _OF_NETWORK


_OF_TLS = frozenset(
    {
        ConnectionFault.CERTIFICATE_NAME, ConnectionFault.CERTIFICATE_EXPIRED, ConnectionFault.CERTIFICATE_AUTHORITY,
        ConnectionFault.CERTIFICATE_REQUIRED, ConnectionFault.TLS_REQUIRED, ConnectionFault.NO_TLS,
    }
)  # fmt: skip
_OF_NETWORK = frozenset(
    {
        ConnectionFault.UNKNOWN_HOST, ConnectionFault.REFUSED, ConnectionFault.TIMED_OUT, ConnectionFault.UNREACHABLE,
    }
)  # fmt: skip


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The attempt to talk to a server."""

    fault: ConnectionFault | None = None
    """Why it failed; None if the server answered any request."""
    detail: str = ""
    """The error as the system reported it."""
    certificate_names: tuple[str, ...] = ()
    """The names in the server's certificate, if they do not match."""
    is_on_this_machine: bool = False
    """Whether both ends of the connection have the same host."""


@final
@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The bounds of the offset of a server's clock to that of this machine, in milliseconds.

    A server read its clock after the request was sent, and before the answer arrived; so the offset is in between.
    """

    low_ms: int
    high_ms: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerFacts:
    """One name server, and the brokers that it lists."""

    address: str
    connection: Connection
    refusal: str = ""
    """The remark with which it refused the request for its brokers for lack of permission."""
    error: str = ""
    """Another error that it answered."""
    brokers: frozenset[str] = frozenset()
    """The addresses of the brokers that are registered with it."""
    gantry_version: str | None = None
    """The version of a Gantry name server; None for RocketMQ's, and without permission to read it."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationFacts:
    """What a broker reports about replication (code 907)."""

    is_master: bool
    is_streaming: bool
    """Whether a slave receives the log of a master."""
    master: str
    """The replication address that a slave connects to; empty if it does not know any."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """One broker process that is registered, or that belongs to the local group."""

    name: str
    broker_id: int
    """The id with which it is registered; 0 is the master."""
    address: str
    connection: Connection
    refusal: str = ""
    """The remark with which it refused the request for its state for lack of permission."""
    error: str = ""
    """Another error that it answered."""
    runtime: Mapping[str, str] | None = None
    """Its runtime table (code 28)."""
    config: Mapping[str, str] | None = None
    """Its settings (code 26)."""
    replication: ReplicationFacts | None = None
    clock: ClockOffset | None = None

    @property
    def label(self) -> str:
        """The name and role of the broker, with its address."""
        role = "master" if self.broker_id == 0 else f"slave {self.broker_id}"
        return f"{self.name} {role} ({self.address})"

    @property
    def unknown_reason(self) -> str:
        """Why its state is not known; empty if it is."""
        if self.runtime is not None:
            return ""
        if self.refusal:
            return "it refuses this account (see acl)"
        fault = self.connection.fault
        return self.error or (f"{fault}" if fault is not None else "it has not answered")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFacts:
    """One member of a consumer group."""

    client_id: str
    subscriptions: Mapping[str, str] | None = None
    """The filter of each topic that it subscribes to; None if it did not report them."""
    problem: str = ""
    """Why it did not."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupFacts:
    """One consumer group with members."""

    name: str
    members: tuple[MemberFacts, ...]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMemberFacts:
    """One member of the group of `gantry up`, as its files and its sidecar describe it."""

    name: str
    address: str
    process: str
    """The state of the broker's process, such as `running`; empty if unknown."""
    problem: str = ""
    sidecar_version: str | None = None
    sidecar_problem: str = ""
    """Why the sidecar did not answer; empty if it did, or if there is none."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HugePagesFacts:
    """The write buffers that the manifest of the local group requests on huge pages."""

    needed_bytes: int
    mounts: tuple[tuple[str, int], ...]
    """Each mounted hugetlbfs, with its free bytes."""
    is_used: bool
    """Whether the buffers of the running group are on one of them."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFacts:
    """The group of `gantry up` that was examined."""

    folder: str
    members: tuple[LocalMemberFacts, ...]
    huge_pages: HugePagesFacts | None = None
    """None if the manifest does not request huge pages."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that was observed through name servers, and on this machine."""

    version: str
    """The version of this command."""
    has_account: bool
    """Whether the requests were signed."""
    uses_tls: bool
    name_servers: tuple[NameServerFacts, ...]
    brokers: tuple[BrokerFacts, ...] = ()
    groups: tuple[ConsumerGroupFacts, ...] = ()
    groups_problem: str = ""
    """Why the consumer groups of some brokers are not known."""
    local: LocalFacts | None = None
    huge_mounts: Mapping[str, int] = field(default_factory=dict)
    """The file systems on huge pages of this machine, with the free bytes of each."""
    now_ms: int = 0
    """The time of this machine."""
