"""The part of a group's spec about its gRPC proxies, through which the SDKs of RocketMQ 5 reach the brokers.

A proxy keeps no state, so its replicas are interchangeable. The limits have the same defaults as those of the proxy
itself, except the numbers of clients, calls and connections: so many fit into the memory that a pod gets by default.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, final

import msgspec

from gantry_spec.manifest.parts import Part, PodSettings, SecretName
from gantry_spec.manifest.quantities import Duration, Size

PROXIES_MAX: Final = 100
"""The most proxies of a group. Each has a connection to every broker."""

DRAIN_DELAY_MS: Final = 5_000
"""How long a stopping proxy serves as before, until load balancers and nodes have learned that it stops."""

EXIT_MS: Final = 5_000
"""The part of the grace period after the running calls, in which the process exits."""

Network = Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$")]
"""A network of IPv4 or IPv6 addresses, such as `203.0.113.0/24`."""

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
"""A limit of a number of things, all of which take memory."""


class ProxyServiceType(StrEnum):
    """The type of the proxies' Service, as in a Service's spec."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


@final
class ProxyService(Part, frozen=True):
    """The Service of the proxies. Proxies return to a client the address that it uses itself, so a load balancer and
    its host names need no further settings."""

    type: ProxyServiceType = ProxyServiceType.CLUSTER_IP
    """The type of the Service. With `ClusterIP` the proxies are reachable only inside the cluster."""

    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    """The annotations of the Service, for example for the load balancer of your provider."""

    load_balancer_class: Annotated[str, msgspec.Meta(max_length=253)] = ""
    """The class of the load balancer. Kubernetes does not let it change while the type is `LoadBalancer`."""

    load_balancer_source_ranges: Annotated[list[Network], msgspec.Meta(max_length=100)] = msgspec.field(
        default_factory=list
    )
    """The networks from which the load balancer admits clients, such as `203.0.113.0/24`. Empty: all of them."""


@final
class ProxyTls(Part, frozen=True):
    """TLS between clients and proxies."""

    secret: SecretName = ""
    """The name of a Secret with `tls.crt` and `tls.key`. Empty: the Secret of `access.tlsSecret`, or plain text if that
    is empty, too. The certificate may be renewed at any time."""

    requires_client_certificate: bool = False
    """Whether clients need a certificate that the authority `ca.crt` of the same Secret has signed."""


@final
class ProxyLimits(Part, frozen=True):
    """What the clients of one proxy may cost. The memory of a pod follows from these limits, unless `resources` sets
    it."""

    clients: Count = 5_000
    """How many clients may be connected to one proxy."""

    calls: Count = 15_000
    """How many calls may run at once in one proxy, long polls included. The streams of clients do not count."""

    connections: Count = 7_500
    """How many connections may be open to one proxy. The clients of a process share one."""

    calls_per_client: Count = 512
    """How many calls of one client may run at once."""

    in_flight_messages_per_client: Count = 20_000
    """For how many messages of one client a proxy renews the invisible time."""

    message_size: Size = Size(4 << 20)
    """The largest body of a message. Brokers have a limit of their own, `maxMessageSize` of `spec.broker`."""

    long_poll: Duration = Duration(20_000)
    """The longest time that a receive waits for messages; at least 5 s."""

    invisible_time: Duration = Duration(12 * 3_600_000)
    """The longest time for which a received message may be invisible for others; at least 10 s."""


@final
class ProxyTemplate(PodSettings, frozen=True):
    """Settings that are copied into the pods of proxies unchanged."""

    termination_grace_period: Duration = Duration(45_000)
    """How long a pod may take to stop. The proxy serves as before for 5 s of it, while load balancers learn that it
    stops. Running calls get the rest without the last 5 s."""

    @property
    def calls_grace_ms(self) -> int:
        """How long the running calls of a stopping proxy may take."""
        return self.termination_grace_period - DRAIN_DELAY_MS - EXIT_MS


@final
class Proxy(Part, frozen=True):
    """The gRPC proxies, through which clients with an SDK of RocketMQ 5 use the group."""

    replicas: Annotated[int, msgspec.Meta(ge=0, le=PROXIES_MAX)] = 0
    """The number of proxies. 0: none, and no objects for them."""

    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 8081
    """The port at which clients reach the proxies."""

    service: ProxyService = ProxyService()
    """The Service of the proxies."""

    tls: ProxyTls = ProxyTls()
    """TLS between clients and proxies."""

    credentials_secret: SecretName = ""
    """The name of a Secret with the key `credentials`: the proxies' own account at brokers and name servers. It needs
    PUB and SUB on all topics, and SUB on all groups. Empty: the brokers' own account, in the Secret of
    `access.aclSecret`."""

    limits: ProxyLimits = ProxyLimits()
    """What the clients of one proxy may cost."""

    resources: dict[str, Any] = msgspec.field(default_factory=dict)
    """The resources of the proxy's container, as in a pod. Memory that is not set follows from `limits`."""

    template: ProxyTemplate = ProxyTemplate()
    """Settings that are copied into the pods of proxies unchanged."""
