"""Plans the processes of a local group from its manifest: its members, and the ports and folders of each.

Everything is decided before anything starts, so that a busy port or a lack of memory is one error message and never a
half-started group.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from msgspec.structs import replace

from gantry_cli.local import buffers
from gantry_cli.local.access import Access
from gantry_cli.local.buffers import BufferPlacement
from gantry_cli.local.member import MemberSettings
from gantry_cli.local.ports import (
    ANY_PORT_RANGE,
    BROKER,
    NAME_SERVER,
    PROXY,
    SECOND_PORT_OFFSET,
    SIDECAR,
    Kind,
    PortPlan,
    port_probe,
)
from gantry_cli.local.records import GroupRecord, MemberRecord, NameServerRecord, ProxyRecord, member_name
from gantry_cli.local.state import GroupState
from gantry_remoting import join_address
from gantry_spec.manifest import BrokerGroup, Spec, read_group
from gantry_spec.manifest.parts import Medium
from gantry_status.broker_ports import BROKER_PORT, PORT_END, replication_port_of

DEFAULT_MANIFEST: Final = b"""\
# What `gantry up` runs without a manifest: one shard, one slave, and an acknowledgement waits for the slave. One gRPC
# proxy serves the SDKs of RocketMQ 5.
apiVersion: gantry.dev/v1alpha1
kind: BrokerGroup
metadata: {name: local}
spec:
  nameServers: {replicas: 1}
  failover: {after: 3s}
  proxy: {replicas: 1}
"""
SINGLE_MANIFEST: Final = b"""\
# What `gantry up --single` runs: a group of one broker without a slave.
apiVersion: gantry.dev/v1alpha1
kind: BrokerGroup
metadata: {name: single}
spec:
  slaves: 0
  replication: {mode: Async}
  nameServers: {replicas: 1}
  failover: {after: 3s}
"""
SINGLE_CONF: Final = {"brokerClusterName": "DefaultCluster", "brokerName": "broker-a"}
"""The names in the broker.conf that RocketMQ ships."""
WELL_KNOWN: Final = {NAME_SERVER: 9876, BROKER: BROKER_PORT, SIDECAR: 8080, PROXY: 8081}
"""RocketMQ's port of the first process of each kind."""
SIDECAR_HOST: Final = "127.0.0.1"
"""The address of all sidecars and of the proxies' metrics, also if brokers listen elsewhere: they show internals only
to this machine."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """The options of `gantry up` that are not in a manifest."""

    host: str = "127.0.0.1"
    ports: tuple[tuple[Kind, int | None], ...] = ()
    """The first port of each kind: None keeps the previous one, 0 takes any free one."""

    has_proxies: bool = True
    """Whether the gRPC proxies of the manifest run, if their packages are installed."""

    single: Mapping[str, str] | None = None
    """The settings of the broker of `gantry up --single`; None for a group."""


def default_group() -> BrokerGroup:
    """Return the group that runs without a manifest."""
    return read_group(DEFAULT_MANIFEST)


def single_group(options: Mapping[str, str]) -> BrokerGroup:
    """Return the group of `gantry up --single`. ``options`` win over every other line of its ``broker.conf``."""
    group = read_group(SINGLE_MANIFEST)
    return replace(group, spec=replace(group.spec, broker={**SINGLE_CONF, **options}))


def notes_of(spec: Spec, choice: BufferPlacement) -> list[str]:
    """Return the notes of a start: fields for pods, volumes and Services, which have no effect, and the buffers' place.

    A field that is set to its default is not named, since it equals one that is left out.
    """
    default = Spec()
    cluster = {
        "image": spec.image,
        "storage.size": spec.storage.size != default.storage.size,
        "storage.storageClassName": spec.storage.storage_class_name,
        "access.external": spec.access.external != default.access.external,
        "retention.archive": spec.retention.archive,
        "retention.server": spec.retention.server != default.retention.server,
        "resources": spec.resources,
        "template": spec.template != default.template,
        **{
            f"proxy.{name}": getattr(spec.proxy, name) != getattr(default.proxy, name)
            for name in ("port", "service", "resources", "template")
        },
    }
    ignored = [f"spec.{name}" for name, is_set in cluster.items() if is_set]
    notes = [f"without effect on one machine: {', '.join(ignored)}"] if ignored else []
    return notes + ([choice.note] if choice.note else [])


@final
class Planner:
    """Makes the record of a group, and the records of members that are added later."""

    def __init__(
        self, state: GroupState, group: BrokerGroup, launch: LaunchOptions, previous: GroupRecord | None, *,
        has_sidecars: bool = True, has_proxies: bool = False,
    ) -> None:  # fmt: skip
        """Plan all present processes. Raises CliError when a port is not available."""
        self._state: Final = state
        self._has_sidecars: Final = has_sidecars
        self._has_proxies: Final = has_proxies
        self._is_single: Final = launch.single is not None
        self._single_store: Final = Path(group.spec.broker.get("storePathRootDir", state.path / "broker")).absolute()
        self._launch: Final = launch
        self._previous: Final = previous
        self._bases: Final = {kind: self._base(kind) for kind in (NAME_SERVER, BROKER, SIDECAR, PROXY)}
        self._ports: Final = PortPlan(is_free=port_probe(launch.host), has_slaves=not self._is_single)
        self._old_proxies: Final = previous.proxies if previous is not None and self._is_kept(PROXY) else []
        self._proxies: Final[dict[int, ProxyRecord]] = {}
        """The proxies that were planned by their numbers: one that is removed and added again keeps its port."""
        self.record: Final = self._plan_all(group.metadata.name, group.spec)

    def _base(self, kind: Kind) -> int:
        chosen = self._chosen(kind)
        if chosen == 0:
            return random.choice(ANY_PORT_RANGE)
        return WELL_KNOWN[kind] if chosen is None else chosen

    def _chosen(self, kind: Kind) -> int | None:
        """Return the chosen port of a kind. A group with free ports for its brokers takes a free one for its proxy."""
        ports = dict(self._launch.ports)
        is_free_chosen = kind is PROXY and ports.get(PROXY) is None and ports.get(BROKER) == 0
        return 0 if is_free_chosen else ports.get(kind)

    def _is_kept(self, kind: Kind) -> bool:
        """Return whether processes of this kind keep their ports: on the same host, unless other ports are chosen."""
        is_same_host = self._previous is not None and self._previous.host == self._launch.host
        return is_same_host and dict(self._launch.ports).get(kind) is None

    def _plan_all(self, group: str, spec: Spec) -> GroupRecord:
        """Return the record of the whole group. Previous members come first, so that they keep their ports.

        With another host, members stay: their stores may hold messages, and their identities reveal a lost disk.
        """
        before = self._previous
        old_servers = [] if before is None or not self._is_kept(NAME_SERVER) else before.name_servers
        old_servers = old_servers[: spec.name_servers.count]
        kept = {one.name: self._ports.allocate(NAME_SERVER, one.port, one.name) for one in old_servers}
        olds = [] if before is None else before.members
        brokers, sidecars = {}, {}
        for old in olds:
            if self._is_kept(BROKER):
                brokers[old.name] = self._ports.allocate(BROKER, old.port, old.name)
            if self._is_kept(SIDECAR) and self._has_sidecars and old.sidecar_port:
                sidecars[old.name] = self._ports.allocate(SIDECAR, old.sidecar_port, old.name)
        proxies = self._reserve_proxies(spec)
        servers = []
        for index in range(spec.name_servers.count):
            name = f"nameserver-{index}"
            port = kept[name] if name in kept else self._port(NAME_SERVER, name, is_first=index == 0)
            servers.append(self._name_server(name, port))
        wanted = {(shard, number) for shard in range(spec.shards) for number in spec.members}
        # The store of a single broker may be deleted while nothing runs: no other store could be mistaken for it.
        identities = {(old.shard, old.number): "" if self._is_single else old.identity for old in olds}
        members = []
        for shard, number in sorted(wanted | identities.keys()):
            name, identity = member_name(shard, number), identities.get((shard, number), "")
            members.append(self.member(shard, number, brokers.get(name), sidecars.get(name), identity))
        return GroupRecord(
            name=group,
            host=self._launch.host,
            is_single=self._is_single,
            name_servers=servers,
            addresses=[one.address for one in servers] or list(spec.name_servers.addresses),
            members=members,
            proxies=[self.proxy(number) for number in range(proxies)],
            console_url=f"{members[0].sidecar_url}/console/" if self._has_sidecars else "",
        )

    def _reserve_proxies(self, spec: Spec) -> int:
        """Allocate the ports of previous proxies before those of new processes. Return the number of all proxies."""
        count = spec.proxy.replicas if self._has_proxies else 0
        for number in range(min(count, len(self._old_proxies))):
            self.proxy(number)
        return count

    def _port(self, kind: Kind, name: str, *, is_first: bool) -> int:
        if is_first and self._chosen(kind) != 0:
            return self._ports.allocate_first(kind, self._bases[kind], name)
        return self._ports.allocate_next(kind, self._bases[kind])

    def proxy(self, number: int) -> ProxyRecord:
        """Return the record of a proxy, on its previous port if it had one. Raises CliError when none is free."""
        if number not in self._proxies:
            self._proxies[number] = self._plan_proxy(number)
        return replace(self._proxies[number], pid=None, boot_id="")

    def _plan_proxy(self, number: int) -> ProxyRecord:
        name = f"proxy-{number}"
        if number < len(self._old_proxies):
            port = self._ports.allocate(PROXY, self._old_proxies[number].port, name)
        else:
            port = self._port(PROXY, name, is_first=number == 0)
        return ProxyRecord(
            name=name,
            address=join_address(self._launch.host, port),
            port=port,
            http_address=join_address(SIDECAR_HOST, port + SECOND_PORT_OFFSET),
            log=str(self._state.log(name)),
        )

    def _name_server(self, name: str, port: int) -> NameServerRecord:
        return NameServerRecord(
            name=name,
            address=join_address(self._launch.host, port),
            port=port,
            data=str(self._state.path / ("nameserver" if self._is_single else name)),
            log=str(self._state.log(name)),
        )

    def member(
        self, shard: int, number: int, port: int | None = None, sidecar: int | None = None, identity: str = ""
    ) -> MemberRecord:
        """Return the record of a member, with ports of its own. Raises CliError when none are free."""
        name, is_first = member_name(shard, number), (shard, number) == (0, 1)
        port = self._port(BROKER, name, is_first=is_first) if port is None else port
        if sidecar is None:
            sidecar = self._port(SIDECAR, name, is_first=is_first) if self._has_sidecars else 0
        ha_port = replication_port_of(port)
        return MemberRecord(
            name=name,
            shard=shard,
            number=number,
            port=port,
            ha_port=ha_port if ha_port < PORT_END else -1,
            sidecar_port=sidecar,
            sidecar_url=f"http://{SIDECAR_HOST}:{sidecar}",
            store=str(self._single_store if self._is_single else self._state.store(shard, number)),
            log=str(self._state.log(name)),
            sidecar_log=str(self._state.log(f"sidecar-{name}")),
            identity=identity,
        )


def place_buffers(state: GroupState, spec: Spec, record: GroupRecord) -> BufferPlacement:
    """Choose the place of write buffers. Present buffers stay where they are. Raises CliError without enough room."""
    if spec.write_buffer.medium is Medium.OFF:
        return BufferPlacement(None)
    huge, memory = list(buffers.huge_mounts()), buffers.memory_mount()
    roots = [mount.path for mount in (*huge, memory)]
    for root in roots:  # a present buffer may hold messages: its broker must find it again
        if any(buffers.buffer_folder(root, state.path, one.name).is_dir() for one in record.members):
            return BufferPlacement(root, f"write buffers: {root}, as before")
    return buffers.choose_placement(spec, buffers.buffers_size(spec) * len(record.members), huge, memory)


def require_room(spec: Spec, root: Path | None) -> None:
    """Raise CliError unless the buffers of one more member fit where the others are."""
    if root is not None:
        huge = list(buffers.huge_mounts())
        mounts = [one for one in (*huge, buffers.memory_mount()) if one.path == root]
        mount = min(mounts, key=lambda one: one.free_bytes)
        buffers.require_room(buffers.buffers_size(spec), mount, 0 if mount in huge else buffers.SPARE_PERCENT)


def settings_of(
    group: BrokerGroup, record: GroupRecord, root: Path | None, access: Access, *, has_sidecars: bool
) -> MemberSettings:
    """Return the settings that members are started with."""
    return MemberSettings(
        group=group.metadata.name,
        spec=group.spec,
        host=record.host,
        name_servers=tuple(record.addresses),
        buffers_root=root,
        access=access,
        sidecars=tuple(one.sidecar_url for one in record.members) if has_sidecars else (),
        proxies=tuple(one.http_address for one in record.proxies),
        is_single=record.is_single,
    )
