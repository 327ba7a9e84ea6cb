"""Planning a local group before anything starts: names, ports, buffers, files. No process runs here."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from local_group_kit import group_of, planned

from gantry_cli.errors import CliError
from gantry_cli.local import buffers
from gantry_cli.local.access import make_replication_secret, read_access
from gantry_cli.local.buffers import Mount
from gantry_cli.local.plan import DEFAULT_MANIFEST, LaunchOptions, Planner, notes_of, require_room
from gantry_cli.local.ports import ANY_PORT_RANGE, BROKER, NAME_SERVER, PROXY, SIDECAR, Kind, PortPlan
from gantry_cli.local.records import GroupRecord, member_name, parse_member
from gantry_cli.local.state import GroupState
from gantry_spec.manifest import Spec, read_group

MIB = 1 << 20


def spec_of(spec: str) -> Spec:
    return group_of(spec).spec


# ------- names


@pytest.mark.parametrize(
    ("shard", "number", "name"), [(0, 1, "master-0"), (0, 2, "slave-0-1"), (12, 1, "master-12"), (3, 4, "slave-3-3")]
)
def test_member_name_has_shard_and_number(shard: int, number: int, name: str) -> None:
    """A name gives shard and number and the reverse, also in its short form."""
    assert member_name(shard, number) == name
    assert parse_member(name) == parse_member(f"{shard}/{number}") == (shard, number)


@pytest.mark.parametrize("text", ["", "master", "master-", "slave-0", "broker-0", "0/", "master-0 ", "nameserver-0"])
def test_other_texts_are_not_member_names(text: str) -> None:
    """Any other text is not the name of a broker."""
    assert parse_member(text) is None


# ------- ports


def test_first_process_of_each_kind_gets_the_well_known_port() -> None:
    """9876, 10911 and 8080 come first; other processes get higher ports that do not overlap."""
    plan = PortPlan(is_free=lambda port: True)

    brokers = [
        plan.allocate_first(BROKER, 10911, "master-0"),
        plan.allocate_next(BROKER, 10911),
        plan.allocate_next(BROKER, 10911),
    ]
    servers = [plan.allocate_first(NAME_SERVER, 9876, "nameserver-0"), plan.allocate_next(NAME_SERVER, 9876)]
    sidecars = [plan.allocate_first(SIDECAR, 8080, "sidecar"), plan.allocate_next(SIDECAR, 8080)]

    assert brokers == [10911, 10921, 10931] and servers == [9876, 9877] and sidecars == [8080, 8082]


@pytest.mark.parametrize(
    ("busy", "words"),
    [(10911, "broker of master-0"), (10909, "fast port of master-0"), (10912, "replication port of master-0")],
)
def test_busy_well_known_port_is_an_error_and_never_replaced(busy: int, words: str) -> None:
    """The error names the port, the process that needs it, and the option that changes it."""
    plan = PortPlan(is_free=lambda port: port != busy)

    with pytest.raises(CliError, match=rf"port {busy} \({words}\) is in use by another program -- .*--broker-port"):
        plan.allocate_first(BROKER, 10911, "master-0")


def port_check_failing_with(number: int) -> Callable[[int], bool]:
    """Return a check of ports that raises this error of the system."""

    def ask(port: int) -> bool:
        raise OSError(number, os.strerror(number), f"10.0.0.1:{port}")

    return ask


def test_forbidden_port_or_address_is_named_with_its_option() -> None:
    """A port that needs root, or another machine's address, is named with its use and option."""
    with pytest.raises(
        CliError, match=r"port 80 \(name server of ns\) needs root -- .* above 1023 with --namesrv-port"
    ):
        PortPlan(is_free=port_check_failing_with(errno.EACCES)).allocate_first(NAME_SERVER, 80, "ns")
    with pytest.raises(CliError, match=r"cannot listen on 10\.0\.0\.1:19999 \(sidecar\): .* --host"):
        PortPlan(is_free=port_check_failing_with(errno.EADDRNOTAVAIL)).allocate_next(SIDECAR, 19_999)


@pytest.mark.parametrize(
    ("kind", "words", "most"),
    [
        (BROKER, "replication port would be 65536", 65_534),
        (SIDECAR, "log range port would be 66535", 64_535),
        (PROXY, "port of probes and metrics would be 66535", 64_535),
    ],
    ids=["broker", "sidecar", "proxy"],
)
def test_port_without_room_for_the_next_ports_is_refused(kind: Kind, words: str, most: int) -> None:
    """There is no port 65536; the error names the option that chooses another."""
    port = 65_535
    with pytest.raises(CliError, match=rf"{words}.* -- choose at most {most} with {kind.option}"):
        PortPlan(is_free=lambda port: True).allocate_first(kind, port, "it")


def test_proxies_get_the_port_of_rocketmq_beside_the_console() -> None:
    """The console keeps 8080 and the first proxy 8081, and the further ones alternate: second ports are out of the
    way."""
    plan = PortPlan(is_free=lambda port: True)

    sidecars = [plan.allocate_first(SIDECAR, 8080, "sidecar"), plan.allocate_next(SIDECAR, 8080)]
    proxies = [plan.allocate_first(PROXY, 8081, "proxy-0"), plan.allocate_next(PROXY, 8081)]

    assert (sidecars, proxies) == ([8080, 8082], [8081, 8083])


def test_group_has_the_proxies_of_its_spec(tmp_path: Path) -> None:
    """Their number is that of the spec, as in a cluster: none without it. They keep their ports in later runs."""
    free = LaunchOptions(ports=((NAME_SERVER, 0), (BROKER, 0), (SIDECAR, 0)))

    def proxies_of(spec: str, before: GroupRecord | None = None) -> GroupRecord:
        launch = free if before is None else LaunchOptions()
        return Planner(GroupState(tmp_path), group_of(spec), launch, before, has_proxies=True).record

    two = proxies_of("{proxy: {replicas: 2}}")
    three = proxies_of("{proxy: {replicas: 3}}", two)
    without = Planner(GroupState(tmp_path), group_of("{proxy: {replicas: 2}}"), free, None).record

    assert [one.name for one in three.proxies] == ["proxy-0", "proxy-1", "proxy-2"]
    assert [one.port for one in three.proxies[:2]] == [one.port for one in two.proxies]
    assert len({one.http_address for one in three.proxies}) == 3
    assert proxies_of("{}", two).proxies == proxies_of("{proxy: null}", two).proxies == without.proxies == []
    assert read_group(DEFAULT_MANIFEST).spec.proxy.replicas == 1, "gantry up without a manifest"


def test_secrets_of_proxies_must_exist(tmp_path: Path) -> None:
    """A proxy must not start with another certificate or account than the manifest names; unused ones may lack."""
    state = GroupState(tmp_path)
    spec = spec_of("{proxy: {replicas: 1, tls: {secret: grpc}}}")
    with pytest.raises(CliError, match=r"spec\.proxy\.tls\.secret: .*/secrets/grpc/tls\.crt not found"):
        read_access(spec, state)

    read_access(spec_of("{proxy: {replicas: 0, tls: {secret: grpc}}}"), state)
    folder = tmp_path / "secrets" / "grpc"
    folder.mkdir(parents=True)
    for name in ("tls.crt", "tls.key"):
        (folder / name).write_text("")
    read_access(spec, state)


def test_broker_without_slaves_starts_without_its_replication_port() -> None:
    """It serves without that port, so its own port does not change."""
    plan = PortPlan(is_free=lambda port: True, has_slaves=False)

    assert (plan.allocate_first(NAME_SERVER, 10912, "ns"), plan.allocate_first(BROKER, 10911, "master-0")) == (
        10912,
        10911,
    )


def test_later_members_skip_busy_ports() -> None:
    """A later member gets the next free port, since clients do not expect it on a well-known one."""
    plan = PortPlan(is_free=lambda port: port not in (10919, 10932))
    plan.allocate_first(BROKER, 10911, "master-0")

    assert plan.allocate_next(BROKER, 10911) == 10941


def test_group_without_free_ports_is_an_error() -> None:
    """The number of ports is limited."""
    with pytest.raises(CliError, match="no free port"):
        PortPlan(is_free=lambda port: False).allocate_next(SIDECAR, 65_000)


def test_ports_persist_over_runs_and_manifest_changes(tmp_path: Path) -> None:
    """Members keep their ports in the next run although there are more members, which get other ports."""
    first = planned(tmp_path, "{slaves: 1}")
    second = planned(tmp_path, "{slaves: 2, shards: 2}", first)

    before = {one.name: (one.port, one.ha_port, one.sidecar_port) for one in first.members}
    after = {one.name: (one.port, one.ha_port, one.sidecar_port) for one in second.members}
    assert before.items() <= after.items() and len(after) == 6
    every = [port for ports in after.values() for port in (ports[0] - 2, *ports, ports[2] + 1)]
    assert len(every) == len(set(every))
    assert all(ANY_PORT_RANGE.start <= port < 32_768 for ports in before.values() for port in ports), (
        "expected ports that the kernel does not assign to connections"
    )
    assert second.addresses == first.addresses


def test_members_removed_while_stopped_are_still_planned(tmp_path: Path) -> None:
    """Their votes may still be needed: the supervisor decides about their removal, and not the manifest."""
    first = planned(tmp_path, "{slaves: 2}")
    second = planned(tmp_path, "{slaves: 1}", first)

    assert [one.name for one in second.members] == ["master-0", "slave-0-1", "slave-0-2"]


def test_members_and_identities_survive_another_host(tmp_path: Path) -> None:
    """A member of a removed shard may hold messages, and an identity reveals a lost disk: only ports change."""
    first = planned(tmp_path, "{shards: 2}")
    for number, member in enumerate(first.members):
        member.identity = f"store-{number}"
    known = [(one.name, one.identity, one.store) for one in first.members]
    launch = LaunchOptions(host="127.0.0.2", ports=tuple((kind, 0) for kind in (NAME_SERVER, BROKER, SIDECAR)))

    second = Planner(GroupState(tmp_path), group_of("{shards: 1}"), launch, first).record

    assert [(one.name, one.identity, one.store) for one in second.members] == known
    assert second.host == "127.0.0.2" and second.addresses != first.addresses


def test_ports_of_another_host_are_chosen_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that is free on one address may be in use on another, so each host begins at the well-known ports."""
    first = planned(tmp_path, "{}")
    monkeypatch.setattr("gantry_cli.local.plan.port_probe", lambda host: lambda port: True)

    records = [
        Planner(GroupState(tmp_path), group_of("{}"), LaunchOptions(host=host), first).record
        for host in ("127.0.0.1", "127.0.0.2")
    ]

    kept, chosen = ([one.port for one in record.members] for record in records)
    assert kept == [one.port for one in first.members] and chosen == [10911, 10921]


def test_external_name_servers_are_used_and_none_is_started(tmp_path: Path) -> None:
    """With ``addresses`` no process and no port is planned."""
    record = planned(tmp_path, '{nameServers: {addresses: ["ns.example:9876"]}}')

    assert record.name_servers == [] and record.addresses == ["ns.example:9876"]


# ------- the manifest on one machine


def test_default_group_has_a_master_and_a_slave() -> None:
    """Without a manifest: one shard, one slave that acknowledges, one name server."""
    spec = read_group(DEFAULT_MANIFEST).spec

    assert (spec.shards, spec.slaves, spec.name_servers.count, spec.replication.acks_needed) == (1, 1, 1, 1)


@pytest.mark.parametrize("field", ["aclSecret", "tlsSecret"])
def test_missing_secret_is_refused(tmp_path: Path, field: str) -> None:
    """Accounts and certificates that the manifest requires must not be left out silently."""
    with pytest.raises(CliError, match=rf"spec\.access\.{field}"):
        read_access(spec_of(f"{{access: {{{field}: keys}}}}"), GroupState(tmp_path))
    assert read_access(spec_of("{}"), GroupState(tmp_path)).broker_keys == ()


def test_secret_is_a_folder_with_the_keys_of_the_cluster(tmp_path: Path) -> None:
    """It has the accounts and the group's own account; the error for a broken account shows none of it."""
    state, spec = GroupState(tmp_path), spec_of("{access: {aclSecret: keys}}")
    folder = tmp_path / "secrets" / "keys"
    folder.mkdir(parents=True)
    (folder / "plain_acl.yml").write_text("accounts: []\n")
    (folder / "credentials").write_text("accessKey: a-name\nsecretKey: a-secret-of-ours\n")

    access = read_access(spec, state)
    make_replication_secret(access)
    made = (tmp_path / "replication-secret").read_text()
    make_replication_secret(access)

    assert dict(access.broker_keys)["aclFile"] == str(folder / "plain_acl.yml")
    assert "aclEnable=true" in access.name_server_conf and "a-secret-of-ours" not in repr(access)
    assert made == (tmp_path / "replication-secret").read_text() and len(made) >= 32
    assert (tmp_path / "replication-secret").stat().st_mode & 0o777 == 0o600
    (folder / "credentials").write_text("a-secret-of-ours\n")
    with pytest.raises(CliError) as caught:
        read_access(spec, state)
    assert "a-secret-of-ours" not in caught.value.format_message()


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("{image: x, resources: {limits: {cpu: 1}}}", "spec.image, spec.resources"),
        ("{storage: {size: 40Gi, storageClassName: fast}}", "spec.storage.size, spec.storage.storageClassName"),
        ("{access: {external: {type: LoadBalancer}}}", "spec.access.external"),
        ("{proxy: {replicas: 1, port: 443, resources: {limits: {cpu: 1}}}}", "spec.proxy.port, spec.proxy.resources"),
        ("{proxy: {service: {type: NodePort}}}", "spec.proxy.service"),
        ("{retention: {archive: x, server: {replicas: 2}}}", "spec.retention.archive, spec.retention.server"),
    ],
    ids=["pods", "volumes", "services", "pods of proxies", "service of proxies", "archive"],
)
def test_fields_without_effect_are_named(spec: str, names: str) -> None:
    """Fields about pods, volumes, Services and proxies are named and ignored."""
    notes = notes_of(spec_of(spec), buffers.BufferPlacement(None))

    assert notes == [f"without effect on one machine: {names}"]


def test_fields_with_effect_are_not_named() -> None:
    """A local group uses the other fields of storage, retention and access."""
    spec = spec_of(
        "{storage: {retain: Never}, retention: {local: 1h}, access: {aclSecret: keys},"
        " proxy: {replicas: 2, limits: {clients: 10}, tls: {secret: grpc}}}"
    )

    assert notes_of(spec, buffers.BufferPlacement(None)) == []


# ------- buffers


def spec_with_buffers(medium: str) -> Spec:
    """Return a spec with two write buffers of 2 MiB in a medium."""
    return spec_of(f"{{writeBuffer: {{medium: {medium}, buffers: 2, segmentSize: 2Mi}}}}")


MEMORY = Mount(Path("/dev/shm"), 100 * MIB)


def test_buffers_use_huge_pages_while_enough_are_free() -> None:
    """All buffers go to the mount with the most free pages, or all to tmpfs with a note."""
    spec, needed = spec_with_buffers("HugePages-2Mi"), 8 * MIB
    huge = [Mount(Path("/small"), 2 * MIB), Mount(Path("/huge"), needed)]

    assert buffers.choose_placement(spec, needed, huge, MEMORY).root == Path("/huge")
    fallback = buffers.choose_placement(spec, needed + 1, huge, MEMORY)
    none = buffers.choose_placement(spec, needed, [], MEMORY)

    assert fallback.root == none.root == Path("/dev/shm")
    assert "only 8.0 MiB of huge pages are free" in fallback.note and "no hugetlbfs is mounted" in none.note


def test_buffers_beyond_free_memory_are_refused() -> None:
    """A tenth of the memory stays free; the error has both numbers, and nothing starts."""
    spec = spec_with_buffers("Memory")

    assert buffers.choose_placement(spec, 90 * MIB, [], MEMORY).root == Path("/dev/shm")
    with pytest.raises(CliError, match=r"need 90\.\d MiB, but /dev/shm has room for 90\.0 MiB"):
        buffers.choose_placement(spec, 90 * MIB + 200_000, [], MEMORY)


def test_buffers_of_an_added_member_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before an added slave starts, there must be room for its buffers beside the others."""
    spec = spec_with_buffers("Memory")
    free = [5 * MIB]
    monkeypatch.setattr(buffers, "memory_mount", lambda: Mount(Path("/dev/shm"), free[0]))

    require_room(spec, Path("/dev/shm"))
    require_room(spec, None)
    free[0] = 4 * MIB
    with pytest.raises(CliError, match=r"need 4\.0 MiB, but /dev/shm has room for 3\.6 MiB"):
        require_room(spec, Path("/dev/shm"))


@pytest.mark.parametrize("place", ["/huge", "/dev/shm"])
def test_room_of_an_added_member_is_that_of_the_others(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Its buffers go where the others are: all huge pages may be used, and free room elsewhere does not count."""
    spec, needed = spec_with_buffers("HugePages-2Mi"), 4 * MIB
    room = needed if place == "/huge" else 5 * MIB
    free = {"/huge": 100 * MIB, "/dev/shm": 100 * MIB, place: room}
    monkeypatch.setattr(buffers, "huge_mounts", lambda: [Mount(Path("/huge"), free["/huge"])])
    monkeypatch.setattr(buffers, "memory_mount", lambda: Mount(Path("/dev/shm"), free["/dev/shm"]))

    require_room(spec, Path(place))
    free[place] = needed - MIB
    with pytest.raises(CliError, match=rf"need 4\.0 MiB, but {place} has room for") as refused:
        require_room(spec, Path(place))

    assert "no hugetlbfs is mounted" not in str(refused.value)


def test_medium_memory_and_off_are_respected() -> None:
    """Medium Memory never uses huge pages, and Off uses no memory."""
    huge = [Mount(Path("/huge"), 100 * MIB)]

    assert buffers.choose_placement(spec_with_buffers("Memory"), MIB, huge, MEMORY).root == Path("/dev/shm")
    assert buffers.choose_placement(spec_of("{}"), 0, huge, MEMORY).root is None


def test_two_groups_share_no_buffer() -> None:
    """The folder of a member's buffers depends on the folder of its group."""
    one, two = (buffers.buffer_folder(Path("/dev/shm"), Path(state), "master-0") for state in ("/a", "/b"))

    assert one != two and one == buffers.buffer_folder(Path("/dev/shm"), Path("/a"), "master-0")


def test_only_writable_mounts_of_2_mib_pages_are_used(tmp_path: Path) -> None:
    """Other file systems, other page sizes and mounts without write permission are skipped."""
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"none {tmp_path} hugetlbfs rw,pagesize=2M 0 0\nnone {tmp_path} hugetlbfs rw,pagesize=1024M 0 0\n"
        f"tmp {tmp_path} tmpfs rw 0 0\nnone /absent hugetlbfs rw 0 0\n"
    )

    assert [mount.path for mount in buffers.huge_mounts(mounts)] == [tmp_path]
