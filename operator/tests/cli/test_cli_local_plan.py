"""What a local group is planned to be before anything starts: names, ports, buffers, files. No process runs here."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from local_group_kit import group_of, planned

from gantry_cli.errors import CliError
from gantry_cli.local import buffers
from gantry_cli.local.access import access_of, make_replication_secret
from gantry_cli.local.buffers import Mount
from gantry_cli.local.plan import DEFAULT_MANIFEST, notes_of, require_room
from gantry_cli.local.ports import ANY, BROKER, NAME_SERVER, SIDECAR, Kind, PortPlan
from gantry_cli.local.state import GroupState, member_name, parse_member
from gantry_spec.manifest import Spec, read_group

MIB = 1 << 20


def spec_of(spec: str) -> Spec:
    return group_of(spec).spec


# ------- names


@pytest.mark.parametrize(
    ("shard", "number", "name"), [(0, 1, "master-0"), (0, 2, "slave-0-1"), (12, 1, "master-12"), (3, 4, "slave-3-3")]
)
def test_a_member_is_found_by_its_name(shard: int, number: int, name: str) -> None:
    """A name says shard and number, both ways, and as a person may write them shorter."""
    assert member_name(shard, number) == name
    assert parse_member(name) == parse_member(f"{shard}/{number}") == (shard, number)


@pytest.mark.parametrize("text", ["", "master", "master-", "slave-0", "broker-0", "0/", "master-0 ", "nameserver-0"])
def test_other_words_are_no_members(text: str) -> None:
    """Whatever else is typed is no broker."""
    assert parse_member(text) is None


# ------- ports


def test_the_first_of_each_kind_has_the_well_known_port_and_others_follow() -> None:
    """9876, 10911 and 8080 first; the others upward, past what members of the group have beside their ports."""
    plan = PortPlan(is_free=lambda port: True)

    brokers = [plan.first(BROKER, 10911, "master-0"), plan.next(BROKER, 10911), plan.next(BROKER, 10911)]
    servers = [plan.first(NAME_SERVER, 9876, "nameserver-0"), plan.next(NAME_SERVER, 9876)]
    sidecars = [plan.first(SIDECAR, 8080, "sidecar"), plan.next(SIDECAR, 8080)]

    assert brokers == [10911, 10921, 10931] and servers == [9876, 9877] and sidecars == [8080, 8082]


@pytest.mark.parametrize(
    ("busy", "words"),
    [(10911, "broker of master-0"), (10909, "fast port of master-0"), (10912, "replication port of master-0")],
)
def test_a_busy_well_known_port_is_named_and_never_moved(busy: int, words: str) -> None:
    """Another program has it: the port, what wanted it, and the option that moves it."""
    plan = PortPlan(is_free=lambda port: port != busy)

    with pytest.raises(CliError, match=rf"port {busy} \({words}\) is in use by another program -- .*--broker-port"):
        plan.first(BROKER, 10911, "master-0")


def refusing(number: int) -> Callable[[int], bool]:
    def ask(port: int) -> bool:
        raise OSError(number, os.strerror(number), f"10.0.0.1:{port}")

    return ask


def test_a_port_that_cannot_be_listened_on_is_named_with_its_role_and_option() -> None:
    """A port that needs root, and an address of another machine: what wanted it, and what moves it."""
    with pytest.raises(
        CliError, match=r"port 80 \(name server of ns\) needs root -- .* above 1023 with --namesrv-port"
    ):
        PortPlan(is_free=refusing(errno.EACCES)).first(NAME_SERVER, 80, "ns")
    with pytest.raises(CliError, match=r"cannot listen on 10\.0\.0\.1:19999 \(sidecar\): .* --host"):
        PortPlan(is_free=refusing(errno.EADDRNOTAVAIL)).next(SIDECAR, 19_999)


@pytest.mark.parametrize(
    ("kind", "port", "words"),
    [(BROKER, 65_535, "replication port would be 65536"), (SIDECAR, 65_535, "port of log ranges would be 65536")],
    ids=["broker", "sidecar"],
)
def test_a_port_without_room_above_is_refused(kind: Kind, port: int, words: str) -> None:
    """There is no port 65536; the option that chooses another is named."""
    with pytest.raises(CliError, match=rf"{words}.* -- choose at most 65534 with {kind.option}"):
        PortPlan(is_free=lambda port: True).first(kind, port, "it")


def test_a_broker_without_slaves_gives_its_replication_port_away() -> None:
    """It serves without one, so what was typed for another server there is not moved."""
    plan = PortPlan(is_free=lambda port: True, has_slaves=False)

    assert (plan.first(NAME_SERVER, 10912, "ns"), plan.first(BROKER, 10911, "master-0")) == (10912, 10911)


def test_others_step_over_what_is_busy() -> None:
    """A later member takes the next free port, since nobody looks for it at a well-known one."""
    plan = PortPlan(is_free=lambda port: port not in (10919, 10932))
    plan.first(BROKER, 10911, "master-0")

    assert plan.next(BROKER, 10911) == 10941


def test_a_group_without_a_port_left_is_told() -> None:
    """There is an end to ports."""
    with pytest.raises(CliError, match="no free port"):
        PortPlan(is_free=lambda port: False).next(SIDECAR, 65_000)


def test_ports_stay_over_runs_and_edits(tmp_path: Path) -> None:
    """Whoever had a port has it in the next run, though there are more members now; the new ones get others."""
    first = planned(tmp_path, "{slaves: 1}")
    second = planned(tmp_path, "{slaves: 2, shards: 2}", first)

    before = {one.name: (one.port, one.ha_port, one.sidecar_port) for one in first.members}
    after = {one.name: (one.port, one.ha_port, one.sidecar_port) for one in second.members}
    assert before.items() <= after.items() and len(after) == 6
    every = [port for ports in after.values() for port in (ports[0] - 2, *ports, ports[2] + 1)]
    assert len(every) == len(set(every))
    assert all(ANY.start <= port < 32_768 for ports in before.values() for port in ports), "the kernel gives none away"
    assert second.addresses == first.addresses


def test_members_that_were_scaled_away_while_nothing_ran_are_still_there(tmp_path: Path) -> None:
    """Somebody may still need their voices: whoever supervises decides when they go, and not the file."""
    first = planned(tmp_path, "{slaves: 2}")
    second = planned(tmp_path, "{slaves: 1}", first)

    assert [one.name for one in second.members] == ["master-0", "slave-0-1", "slave-0-2"]


def test_given_name_servers_are_used_and_none_is_started(tmp_path: Path) -> None:
    """``addresses`` of others: no process, and no port."""
    record = planned(tmp_path, '{nameServers: {addresses: ["ns.example:9876"]}}')

    assert record.name_servers == [] and record.addresses == ["ns.example:9876"]


# ------- the manifest on one machine


def test_the_default_group_is_a_pair() -> None:
    """Without a manifest: one shard, one slave that is waited for, one name server."""
    spec = read_group(DEFAULT_MANIFEST).spec

    assert (spec.shards, spec.slaves, spec.name_servers.count, spec.replication.acks_needed) == (1, 1, 1, 1)


@pytest.mark.parametrize("field", ["aclSecret", "tlsSecret"])
def test_a_promise_that_cannot_be_kept_here_is_refused(tmp_path: Path, field: str) -> None:
    """Accounts and certificates that are asked for and are not there must not be left out silently."""
    with pytest.raises(CliError, match=rf"spec\.access\.{field}"):
        access_of(spec_of(f"{{access: {{{field}: keys}}}}"), GroupState(tmp_path))
    assert access_of(spec_of("{}"), GroupState(tmp_path)).broker_keys == ()


def test_a_secret_is_a_folder_with_the_keys_that_it_has_in_a_cluster(tmp_path: Path) -> None:
    """Accounts and the group's own account; a broken account is a line that shows nothing of it."""
    state, spec = GroupState(tmp_path), spec_of("{access: {aclSecret: keys}}")
    folder = tmp_path / "secrets" / "keys"
    folder.mkdir(parents=True)
    (folder / "plain_acl.yml").write_text("accounts: []\n")
    (folder / "credentials").write_text("accessKey: a-name\nsecretKey: a-secret-of-ours\n")

    access = access_of(spec, state)
    make_replication_secret(access)
    made = (tmp_path / "replication-secret").read_text()
    make_replication_secret(access)

    assert dict(access.broker_keys)["aclFile"] == str(folder / "plain_acl.yml")
    assert "aclEnable=true" in access.name_server_conf and "a-secret-of-ours" not in repr(access)
    assert made == (tmp_path / "replication-secret").read_text() and len(made) >= 32
    assert (tmp_path / "replication-secret").stat().st_mode & 0o777 == 0o600
    (folder / "credentials").write_text("a-secret-of-ours\n")
    with pytest.raises(CliError) as caught:
        access_of(spec, state)
    assert "a-secret-of-ours" not in caught.value.format_message()


def test_what_means_nothing_here_is_said() -> None:
    """Fields of pods are named, not obeyed."""
    notes = notes_of(spec_of("{image: x, resources: {limits: {cpu: 1}}}"), buffers.Choice(None))

    assert notes == ["of no meaning on one machine: spec.image, spec.resources"]


# ------- buffers


def buffered(medium: str) -> Spec:
    return spec_of(f"{{writeBuffer: {{medium: {medium}, buffers: 2, segmentSize: 2Mi}}}}")


MEMORY = Mount(Path("/dev/shm"), 100 * MIB)


def test_buffers_go_to_huge_pages_while_there_are_enough() -> None:
    """The mount with the most free pages, if all buffers fit; one page too few, and they go to tmpfs, which is said."""
    spec, needed = buffered("HugePages-2Mi"), 8 * MIB
    huge = [Mount(Path("/small"), 2 * MIB), Mount(Path("/huge"), needed)]

    assert buffers.choose(spec, needed, huge, MEMORY).root == Path("/huge")
    fallback = buffers.choose(spec, needed + 1, huge, MEMORY)
    none = buffers.choose(spec, needed, [], MEMORY)

    assert fallback.root == none.root == Path("/dev/shm")
    assert "only 8.0 MiB of huge pages are free" in fallback.note and "no huge pages are here" in none.note


def test_buffers_never_take_more_memory_than_there_is() -> None:
    """A tenth stays free; beyond that nothing starts, and both numbers are named."""
    spec = buffered("Memory")

    assert buffers.choose(spec, 90 * MIB, [], MEMORY).root == Path("/dev/shm")
    with pytest.raises(CliError, match=r"need 90\.\d MiB, and /dev/shm has room for 90\.0 MiB"):
        buffers.choose(spec, 90 * MIB + 200_000, [], MEMORY)


def test_a_member_that_comes_later_must_fit_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit adds a slave: its buffers are asked for before it starts, where the others have theirs."""
    spec = buffered("Memory")
    free = [5 * MIB]
    monkeypatch.setattr(buffers, "memory_mount", lambda: Mount(Path("/dev/shm"), free[0]))

    require_room(spec, Path("/dev/shm"))
    require_room(spec, None)
    free[0] = 4 * MIB
    with pytest.raises(CliError, match=r"need 4\.0 MiB, and /dev/shm has room for 3\.6 MiB"):
        require_room(spec, Path("/dev/shm"))


def test_memory_does_not_take_huge_pages_and_off_takes_nothing() -> None:
    """Each medium means what it says."""
    huge = [Mount(Path("/huge"), 100 * MIB)]

    assert buffers.choose(buffered("Memory"), MIB, huge, MEMORY).root == Path("/dev/shm")
    assert buffers.choose(spec_of("{}"), 0, huge, MEMORY).root is None


def test_two_groups_share_no_buffer() -> None:
    """The folder of a member is named by its group's folder."""
    one, two = (buffers.folder_of(Path("/dev/shm"), Path(state), "master-0") for state in ("/a", "/b"))

    assert one != two and one == buffers.folder_of(Path("/dev/shm"), Path("/a"), "master-0")


def test_only_mounts_of_small_huge_pages_count(tmp_path: Path) -> None:
    """Other file systems, other page sizes and what we may not write to are no place for a buffer."""
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"none {tmp_path} hugetlbfs rw,pagesize=2M 0 0\nnone {tmp_path} hugetlbfs rw,pagesize=1024M 0 0\n"
        f"tmp {tmp_path} tmpfs rw 0 0\nnone /absent hugetlbfs rw 0 0\n"
    )

    assert [mount.path for mount in buffers.huge_mounts(mounts)] == [tmp_path]
