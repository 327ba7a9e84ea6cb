"""The ``BrokerGroup`` resource: the description of a group of brokers, for a laptop and for a cluster."""

from __future__ import annotations

from typing import Annotated, Any, Final, final

import msgspec

from gantry_spec.manifest.parts import SHARDS_MAX as SHARDS_MAX
from gantry_spec.manifest.parts import SLAVES_MAX as SLAVES_MAX
from gantry_spec.manifest.parts import (
    Access,
    Backup,
    ConsumerGroup,
    Durability,
    Failover,
    Flush,
    Name,
    NameServers,
    Part,
    Replication,
    Storage,
    Template,
    Topic,
    WriteBuffer,
)
from gantry_spec.manifest.proxy import Proxy
from gantry_spec.manifest.quantities import Duration
from gantry_spec.manifest.retention import Retention

API_GROUP: Final = "gantry.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{API_GROUP}/{VERSION}"
KIND: Final = "BrokerGroup"


@final
class Spec(Part, frozen=True):
    """The desired state of the group."""

    shards: Annotated[int, msgspec.Meta(ge=1, le=SHARDS_MAX)] = 1
    """The number of shards, each with one master. It may grow; when it is reduced, a shard is removed once it is
    empty."""

    slaves: Annotated[int, msgspec.Meta(ge=0, le=SLAVES_MAX)] = 1
    """The number of slaves of each master."""

    image: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """The image of brokers, sidecars, name servers and proxies. Empty: the operator's default (`brokerImage` of its
    chart)."""

    name_servers: NameServers = NameServers()
    """The name servers where brokers register and clients get routes."""

    replication: Replication = Replication()
    """How messages are replicated, and which acknowledgements a send waits for."""

    flush: Flush = Flush()
    """When messages are flushed to disk."""

    write_buffer: WriteBuffer = WriteBuffer()
    """The write buffer, which takes messages before the page cache."""

    storage: Storage = Storage()
    """The volume of each broker, and how long messages are kept."""

    retention: Retention = Retention()
    """How long messages are kept in the log, and the archive from which older ones are read."""

    backup: Backup = Backup()
    """When backups of the volumes are made, and how many are kept."""

    durability: Durability = Durability()
    """How much acknowledged data may be at risk."""

    failover: Failover = Failover()
    """What happens when a master fails."""

    access: Access = Access()
    """Authentication, TLS and external access."""

    proxy: Proxy = Proxy()
    """The gRPC proxies, through which clients with an SDK of RocketMQ 5 use the group."""

    topics: Annotated[list[Topic], msgspec.Meta(max_length=1000)] = msgspec.field(default_factory=list)
    """The topics that the operator creates and updates."""

    groups: Annotated[list[ConsumerGroup], msgspec.Meta(max_length=1000)] = msgspec.field(default_factory=list)
    """The consumer groups that the operator creates and updates."""

    broker: Annotated[dict[str, str], msgspec.Meta(max_length=100)] = msgspec.field(default_factory=dict)
    """Additional settings of `broker.conf`, by RocketMQ's names. Settings that other fields or Gantry itself control
    are refused."""

    resources: dict[str, Any] = msgspec.field(default_factory=dict)
    """The resources of the broker's container, as in a pod. The memory of the write buffers is added automatically."""

    template: Template = Template()
    """Settings that are copied into the pods of brokers unchanged."""

    @property
    def members(self) -> range:
        """The numbers of a shard's members. Member 1 is the initial master, unless its machine is being drained."""
        return range(1, self.slaves + 2)

    @property
    def reserved_time(self) -> Duration:
        """How long messages are kept in the log."""
        return self.storage.reserved_time if self.retention.local is None else self.retention.local

    @property
    def has_proxy_tls(self) -> bool:
        """Whether the proxies accept only TLS connections."""
        return bool(self.proxy.tls.secret) or self.access.has_tls


@final
class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The metadata that Kubernetes keeps about an object, as far as it is used here."""

    name: Name
    namespace: str = ""
    generation: int = 0
    uid: str = ""
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}


@final
class BrokerGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A broker group as its manifest describes it."""

    metadata: Metadata
    spec: Spec = Spec()
