"""A ``BrokerGroup``: the one description of a group of brokers, on a laptop and in a cluster."""

from __future__ import annotations

from typing import Annotated, Any, Final, final

import msgspec

from gantry_spec.manifest.parts import (
    Access,
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

API_GROUP: Final = "gantry.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{API_GROUP}/{VERSION}"
KIND: Final = "BrokerGroup"
SHARDS_MAX: Final = 64
SLAVES_MAX: Final = 8


@final
class Spec(Part, frozen=True):
    """What the group should be."""

    shards: Annotated[int, msgspec.Meta(ge=1, le=SHARDS_MAX)] = 1
    """How many masters share the queues. It may grow; it shrinks only by what holds no messages any more."""

    slaves: Annotated[int, msgspec.Meta(ge=0, le=SLAVES_MAX)] = 1
    """How many slaves each master has."""

    image: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """Of brokers and sidecars; empty: the operator's own."""

    name_servers: NameServers = NameServers()
    """Where brokers register and clients ask."""

    replication: Replication = Replication()
    """What slaves are waited for."""

    flush: Flush = Flush()
    """When bytes go to the disk."""

    write_buffer: WriteBuffer = WriteBuffer()
    """Memory that takes messages before the page cache does."""

    storage: Storage = Storage()
    """The volume of each broker."""

    durability: Durability = Durability()
    """How much may be at risk."""

    failover: Failover = Failover()
    """Who moves the master's role when a master is gone."""

    access: Access = Access()
    """Who may come in, and how."""

    topics: Annotated[list[Topic], msgspec.Meta(max_length=1000)] = msgspec.field(default_factory=list)
    """Topics that shall exist."""

    groups: Annotated[list[ConsumerGroup], msgspec.Meta(max_length=1000)] = msgspec.field(default_factory=list)
    """Groups of consumers that shall exist."""

    broker: Annotated[dict[str, str], msgspec.Meta(max_length=100)] = msgspec.field(default_factory=dict)
    """More lines of a `broker.conf`, by RocketMQ's names. What the fields above decide is refused here."""

    resources: dict[str, Any] = msgspec.field(default_factory=dict)
    """Of the broker's container, as in a pod. The buffers' memory is added by itself."""

    template: Template = Template()
    """What is put into the pods of brokers as it is."""

    @property
    def members(self) -> range:
        """The numbers of a shard's brokers. The first has the master's role to begin with."""
        return range(1, self.slaves + 2)


@final
class Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What Kubernetes keeps about every object, as far as it matters here."""

    name: Name
    namespace: str = ""
    generation: int = 0
    uid: str = ""
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}


@final
class BrokerGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One group as it is written."""

    metadata: Metadata
    spec: Spec = Spec()
